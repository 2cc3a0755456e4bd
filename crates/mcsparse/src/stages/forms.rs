//! Kept keys and residual on their way to and from the forms in which they are cached.

use burn::tensor::{Int, Tensor};

use super::Run;
use crate::{
    IndexFormat, MetaCache, ResidualFormat,
    cache::{KeyLists, Residual},
    ops::{Route, Stage},
};

impl Run<'_> {
    /// The forms in which kept keys and residual are cached.
    pub fn formats(&self) -> (IndexFormat, ResidualFormat) {
        let smallest = || IndexFormat::smallest(self.problem.keys, self.budget.keys);
        (self.config.index_format.unwrap_or_else(smallest), self.config.residual_format)
    }

    /// Kept keys and residual in their cached forms.
    pub(super) fn encode(
        &self,
        indices: Tensor<4, Int>,
        residual: Tensor<4>,
        cache: &mut MetaCache,
    ) -> (KeyLists, Residual) {
        let ((lists, values), keys) = (self.formats(), self.problem.keys);
        let run =
            |route: &Route| (KeyLists::pack(route, indices, lists, keys), Residual::encode(route, residual, values));
        if lists == IndexFormat::Plain && values == ResidualFormat::Input {
            // Nothing to do, and nothing to report.
            return run(&Route::kernel("as they are"));
        }
        self.stage(Stage::Encode, self.problem.queries - self.config.sink.len(), cache, run)
    }

    /// The residual in its cached form.
    pub(super) fn encode_residual(&self, residual: Tensor<4>, cache: &mut MetaCache) -> Residual {
        let (_, format) = self.formats();
        let run = |route: &Route| Residual::encode(route, residual, format);
        if format == ResidualFormat::Input {
            return run(&Route::kernel("as they are"));
        }
        self.stage(Stage::Encode, self.problem.queries - self.config.sink.len(), cache, run)
    }

    /// The key lists of the heads of a slot as attention reads them, and a residual if it is asked for. The memory of what had to be
    /// decoded is counted as workspace.
    pub(super) fn decode(
        &self,
        lists: &KeyLists,
        residual: Option<&Residual>,
        cache: &mut MetaCache,
    ) -> (Tensor<4, Int>, Option<Tensor<4>>) {
        let scratch = lists.scratch_bytes() + residual.map_or(0, Residual::scratch_bytes);
        let run = |route: &Route| {
            let residual = residual.map(|residual| residual.decode(route));
            (lists.expand(route, self.config.workspace_bytes), residual)
        };
        if scratch == 0 {
            return run(&Route::kernel("as they are"));
        }
        let decoded = self.stage(Stage::Decode, self.problem.queries - self.config.sink.len(), cache, run);
        cache.report_mut().note_workspace(Stage::Decode, scratch);
        decoded
    }

    /// A residual `times` its slope further.
    pub(super) fn extrapolate(
        &self,
        residual: Tensor<4>,
        slope: &Residual,
        times: f64,
        cache: &mut MetaCache,
    ) -> Tensor<4> {
        let run = |route: &Route| residual + slope.decode(route).mul_scalar(times);
        self.stage(Stage::Decode, self.problem.queries - self.config.sink.len(), cache, run)
    }
}
