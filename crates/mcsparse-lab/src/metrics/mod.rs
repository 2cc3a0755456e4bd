//! How near one clip, or one shape, is to another.
//!
//! PSNR, SSIM, MS-SSIM and temporal consistency compare [`Clip`](crate::clip::Clip)s of values from 0 to 1 on the host;
//! [`lpips`] runs a network on the device; [`geometry`] compares point sets and occupancies.

pub mod geometry;
pub mod lpips;
mod psnr;
mod ssim;
mod temporal;
#[cfg(test)]
pub(crate) mod testing;

pub use psnr::{Psnr, psnr};
pub use ssim::{ms_ssim, ssim};
pub use temporal::{Temporal, temporal};

fn mean(values: impl IntoIterator<Item = f64>) -> f64 {
    let (sum, count) = values.into_iter().fold((0.0, 0), |(sum, count), value| (sum + value, count + 1));
    sum / f64::from(count)
}

/// Decibels in JSON, which has no infinity: null stands for it.
pub mod decibel {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    /// Writes infinity as null.
    pub fn serialize<S: Serializer>(value: &f64, to: S) -> Result<S::Ok, S::Error> {
        value.is_finite().then_some(*value).serialize(to)
    }

    /// Reads null as infinity.
    pub fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<f64, D::Error> {
        Ok(Option::deserialize(from)?.unwrap_or(f64::INFINITY))
    }
}
