//! Two transformers that share one denoising run.

use burn::tensor::Tensor;
use mcsparse::{Error, SelfAttention};

use super::{WanCondition, WanPrepared, WanTransformer};
use crate::{VelocityModel, check};

/// Wan 2.2 A14B: one expert for high noise, one for low noise.
///
/// The high-noise expert takes the steps whose timestep is at least `boundary`. Each expert has cache slots of its own
/// (`high_noise` and `low_noise`, see [`mcsparse::Branch::with_expert`]), so a schedule needs an anchor at the first
/// step of the second one: [`VelocityModel::first_steps`] says which that is.
#[derive(Debug, Clone)]
pub struct WanExperts {
    high_noise: WanTransformer,
    low_noise: WanTransformer,
    boundary: f64,
}

impl WanExperts {
    /// The boundary of Wan 2.2 text-to-video, as a timestep.
    pub const T2V_BOUNDARY: f64 = 875.0;
    /// The boundary of Wan 2.2 image-to-video, as a timestep.
    pub const I2V_BOUNDARY: f64 = 900.0;

    /// Puts two experts together; `boundary` is a timestep, 1000 for pure noise.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] if the experts are not of one form or `boundary` is not between 0 and 1000.
    pub fn new(high_noise: WanTransformer, low_noise: WanTransformer, boundary: f64) -> Result<Self, Error> {
        if high_noise.config() != low_noise.config() {
            let (expected, got) = (format!("{:?}", high_noise.config()), format!("{:?}", low_noise.config()));
            return Err(check::config("low_noise", format!("the configuration of high_noise, {expected}"), got));
        }
        if !(boundary > 0.0 && boundary < 1000.0) {
            return Err(check::config("boundary", "a timestep between 0 and 1000", boundary));
        }
        Ok(Self { high_noise, low_noise, boundary })
    }

    /// The expert of `timestep`.
    pub fn expert_at(&self, timestep: f64) -> &WanTransformer {
        if self.is_high(timestep) { &self.high_noise } else { &self.low_noise }
    }

    fn is_high(&self, timestep: f64) -> bool {
        timestep >= self.boundary
    }
}

impl VelocityModel for WanExperts {
    type Condition = WanCondition;
    /// Of the high-noise and of the low-noise expert.
    type Prepared = [WanPrepared; 2];

    fn prepare(&self, condition: WanCondition, latents: [usize; 5]) -> Result<Self::Prepared, Error> {
        let low = VelocityModel::prepare(&self.low_noise, condition.clone(), latents)?;
        Ok([VelocityModel::prepare(&self.high_noise, condition, latents)?, low])
    }

    fn velocity(
        &self,
        latents: Tensor<5>,
        timestep: f64,
        [high, low]: &Self::Prepared,
        attention: &mut dyn SelfAttention,
    ) -> Result<Tensor<5>, Error> {
        let prepared = if self.is_high(timestep) { high } else { low };
        self.expert_at(timestep).velocity(latents, timestep, prepared, attention)
    }

    fn expert(&self, timestep: f64) -> Option<&'static str> {
        Some(if self.is_high(timestep) { "high_noise" } else { "low_noise" })
    }
}
