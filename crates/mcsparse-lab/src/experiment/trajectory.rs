//! Looking into attention along a dense run.

use burn::tensor::Tensor;
use mcsparse::SelfAttention;

use super::study::{ClipSpec, Study};
use crate::{
    attention::{Call, Layout},
    error::Error,
};

/// What looks at a call of dense attention.
pub trait Observe {
    /// Whether it wants to see this step.
    fn wants(&self, step: usize) -> bool;

    /// `dense` is the output and its log-sum-exp.
    fn see(&mut self, step: usize, layer: usize, call: &Call<'_>, dense: (&Tensor<4>, &Tensor<3>));
}

/// Dense attention that shows its calls.
struct Watched<'a, O> {
    layout: &'a Layout,
    step: usize,
    observer: &'a mut O,
}

impl<O: Observe> SelfAttention for Watched<'_, O> {
    fn attend(
        &mut self,
        layer: usize,
        query: Tensor<4>,
        key: Tensor<4>,
        value: Tensor<4>,
    ) -> Result<Tensor<4>, mcsparse::Error> {
        let call = Call::new(query, key, value, self.layout)?;
        let (output, lse) = call.dense();
        if self.observer.wants(self.step) {
            self.observer.see(self.step, layer, &call, (&output, &lse));
        }
        Ok(output)
    }

    fn begin_step(&mut self, step: usize) -> Result<(), mcsparse::Error> {
        self.step = step;
        Ok(())
    }
}

/// Denoises `clips` densely and shows every call to `observer`. `on_step` is called after each step.
///
/// # Errors
///
/// [`Error::Run`] with what failed.
pub fn watch<O: Observe>(
    study: &Study,
    clips: &[ClipSpec],
    observer: &mut O,
    mut on_step: impl FnMut(),
) -> Result<(), Error> {
    let mut watched = Watched { layout: &study.layout, step: 0, observer };
    study.denoise(clips, study.settings.steps, &mut watched, |_| on_step())?;
    Ok(())
}

/// Numbers that stay on the device until they are asked for.
#[derive(Debug, Default)]
pub struct Scalars {
    waiting: Vec<Tensor<1>>,
}

impl Scalars {
    /// Keeps one number.
    pub fn push(&mut self, value: Tensor<1>) {
        self.waiting.push(value);
    }

    /// Reads all at once, in order, and forgets them.
    pub fn take(&mut self) -> Vec<f64> {
        match std::mem::take(&mut self.waiting) {
            waiting if waiting.is_empty() => Vec::new(),
            waiting => Tensor::cat(waiting, 0).into_data().iter::<f64>().collect(),
        }
    }
}

/// Attention-level measures.
pub mod measure {
    use burn::tensor::{DType, Tensor};

    /// `|a - b| / |b|` in the L2 norm over everything.
    pub fn relative_error(a: &Tensor<4>, b: &Tensor<4>) -> Tensor<1> {
        let b = b.clone().cast(DType::F32);
        let difference = a.clone().cast(DType::F32) - b.clone();
        (difference.square().sum() / b.square().sum().clamp_min(f32::MIN_POSITIVE)).sqrt()
    }

    /// The same for each head: `[heads]`, over batch, tokens and channels.
    pub fn relative_error_by_head(a: &Tensor<4>, b: &Tensor<4>) -> Tensor<1> {
        let heads = b.dims()[1];
        let b = b.clone().cast(DType::F32);
        let difference = a.clone().cast(DType::F32) - b.clone();
        let squares = |t: Tensor<4>| t.square().sum_dims(&[0, 2, 3]).reshape([heads]);
        (squares(difference) / squares(b).clamp_min(f32::MIN_POSITIVE)).sqrt()
    }

    /// Mean share of the attention weight on kept keys, from the log-sum-exps over these and over all keys.
    pub fn kept_mass(kept: &Tensor<3>, all: &Tensor<3>) -> Tensor<1> {
        (kept.clone() - all.clone()).exp().mean()
    }

    /// The same for each head: `[heads]`.
    pub fn kept_mass_by_head(kept: &Tensor<3>, all: &Tensor<3>) -> Tensor<1> {
        let heads = all.dims()[1];
        (kept.clone() - all.clone()).exp().mean_dims(&[0, 2]).reshape([heads])
    }

    /// The factor on `a` that comes nearest to `b`: `<a, b> / <a, a>`.
    pub fn best_gain(a: &Tensor<4>, b: &Tensor<4>) -> Tensor<1> {
        let squares = a.clone().square().sum().clamp_min(f32::MIN_POSITIVE);
        (a.clone() * b.clone()).sum() / squares
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use burn::tensor::Device;

    use super::{measure::*, *};

    #[test]
    fn measures_of_known_tensors() {
        let device = Device::flex();
        let tensor = |v: [f32; 4]| Tensor::<1>::from_floats(v, &device).reshape([1, 2, 2, 1]);
        let (a, b) = (tensor([1.0, 2.0, 0.0, 5.0]), tensor([1.0, 0.0, 3.0, 4.0]));
        let mut scalars = Scalars::default();
        scalars.push(relative_error(&a, &b));
        scalars.push(relative_error_by_head(&a, &b));
        scalars.push(best_gain(&a, &b));
        let lse = |v: [f32; 4]| Tensor::<1>::from_floats(v, &device).reshape([1, 2, 2]);
        let (kept, all) = (lse([0.5f32.ln(), 0.0, 1.0, 0.25f32.ln() + 1.0]), lse([0.0, 0.0, 1.0, 1.0]));
        scalars.push(kept_mass(&kept, &all));
        scalars.push(kept_mass_by_head(&kept, &all));
        let expected = [(14.0f64 / 26.0).sqrt(), 2.0, (10.0f64 / 25.0).sqrt(), 21.0 / 30.0, 0.6875, 0.75, 0.625];
        let values = scalars.take();
        assert_eq!(values.len(), expected.len());
        for (value, expected) in values.iter().zip(expected) {
            assert!((value - expected).abs() < 1e-6, "{values:?}");
        }
        assert!(scalars.take().is_empty());
    }
}
