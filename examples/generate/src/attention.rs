//! The attention of a run, and the schedule of what is left of it.

use burn::tensor::Tensor;
use mcsparse::{
    Anchors, Branch, Error as AttentionError, McSparse, McSparseConfig, Schedule, SelfAttention, StepKind, TokenLayout,
    WarmUp,
};

use crate::error::Error;

/// What each step from `from` on does, when experts take over at `first_steps`.
///
/// Every expert has a cache of its own, so the first step in which it would reuse becomes an anchor; and so does the
/// first step of a run that goes on after an interruption, whose cache is gone.
pub fn kinds(plan: &[StepKind], first_steps: &[usize], from: usize) -> Vec<StepKind> {
    let mut kinds = plan.to_vec();
    let mut filled = false;
    for (step, kind) in kinds.iter_mut().enumerate() {
        if step == from || first_steps.contains(&step) {
            filled = false;
        }
        if *kind == StepKind::Reuse && !filled {
            *kind = StepKind::Anchor;
        }
        filled |= *kind == StepKind::Anchor;
    }
    let kinds = kinds.split_off(from);
    // An anchor that nothing comes after would be work for nothing.
    if kinds.contains(&StepKind::Reuse) { kinds } else { vec![StepKind::Dense; kinds.len()] }
}

/// The schedule that gives exactly these kinds, or none if no step reuses.
pub fn schedule(kinds: &[StepKind]) -> Option<Schedule> {
    if !kinds.contains(&StepKind::Reuse) {
        return None;
    }
    let warm_up = kinds.iter().rposition(|&kind| kind == StepKind::Dense).map_or(0, |last| last + 1);
    let anchors = (0..kinds.len()).filter(|&step| kinds[step] == StepKind::Anchor).collect();
    Some(Schedule { warm_up: WarmUp::Steps(warm_up), anchors: Anchors::At(anchors), ..Schedule::default() })
}

/// `schedule` with what anchors of `config` do.
pub fn refreshing_as(config: &McSparseConfig, schedule: Schedule) -> Schedule {
    let Schedule { drift_bound, refresh, .. } = config.schedule;
    Schedule { drift_bound, refresh, ..schedule }
}

/// The attention of a run that starts at a step other than the first.
pub struct Run {
    inner: McSparse,
    from: usize,
}

impl Run {
    /// MC-Sparse over these kinds of steps; all dense, by the same kernel, where none reuses.
    ///
    /// # Errors
    ///
    /// [`Error::Run`] if the settings are out of range.
    pub fn new(config: &McSparseConfig, kinds: &[StepKind], layers: usize, from: usize) -> Result<Self, Error> {
        let (config, steps) = match schedule(kinds) {
            Some(schedule) => (config.clone().with_schedule(refreshing_as(config, schedule)), kinds.len()),
            // A plan has a step that reuses; with every layer dense none does.
            None => {
                let dense = config.clone().with_dense_layers((0..layers).collect());
                (dense.with_schedule(refreshing_as(config, Schedule::warm_up(0))), kinds.len() + 1)
            }
        };
        Ok(Self { inner: McSparse::new(&config, steps)?, from })
    }

    /// What ran.
    pub fn method(&self) -> &McSparse {
        &self.inner
    }
}

impl SelfAttention for Run {
    fn attend(
        &mut self,
        layer: usize,
        query: Tensor<4>,
        key: Tensor<4>,
        value: Tensor<4>,
    ) -> Result<Tensor<4>, AttentionError> {
        self.inner.attend(layer, query, key, value)
    }

    fn begin_step(&mut self, step: usize) -> Result<(), AttentionError> {
        self.inner.begin_step(step - self.from)
    }

    fn begin_branch(&mut self, branch: &Branch) -> Result<(), AttentionError> {
        self.inner.begin_branch(branch)
    }

    fn begin_sequence(&mut self, layout: &TokenLayout) -> Result<(), AttentionError> {
        self.inner.begin_sequence(layout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use StepKind::{Anchor as A, Dense as D, Reuse as R};

    #[test]
    fn experts_and_interruptions_get_anchors_and_schedules_give_the_kinds() {
        let kinds_of = |schedule: &Schedule, steps: usize| -> Vec<StepKind> {
            let plan = schedule.plan(steps).unwrap();
            (0..steps).filter_map(|step| plan.kind(step)).collect()
        };
        let plan = kinds_of(&Schedule::warm_up(2), 8);
        assert_eq!(plan, [D, A, R, R, R, R, R, R]);
        for (first, from, expected) in [
            (vec![0], 0, vec![D, A, R, R, R, R, R, R]),
            (vec![0, 5], 0, vec![D, A, R, R, R, A, R, R]),
            // The second expert starts in the warm-up.
            (vec![0, 1], 0, vec![D, A, R, R, R, R, R, R]),
            (vec![0], 1, vec![A, R, R, R, R, R, R]),
            (vec![0], 4, vec![A, R, R, R]),
            (vec![0, 5], 4, vec![A, A, R, R]),
            (vec![0], 7, vec![D]),
        ] {
            let kinds = kinds(&plan, &first, from);
            assert_eq!(kinds, expected, "{first:?} from {from}");
            if let Some(schedule) = schedule(&kinds) {
                assert_eq!(kinds_of(&schedule, kinds.len()), kinds);
            } else {
                assert_eq!(kinds, [D]);
            }
        }
    }
}
