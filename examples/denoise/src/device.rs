//! Devices by name.

use std::panic::catch_unwind;

use burn::tensor::{Device, Tensor};
use clap::ValueEnum;
use serde::Serialize;

use crate::error::Error;

/// The execution backends of Burn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceName {
    /// The CPU, in plain Rust.
    Flex,
    /// A GPU through whichever graphics API there is.
    Wgpu,
    /// A GPU through Vulkan.
    Vulkan,
    /// A GPU of NVIDIA.
    Cuda,
    /// A GPU of AMD.
    Rocm,
    /// A GPU of Apple.
    Metal,
    /// A GPU through WebGPU.
    Webgpu,
    /// The CPU through CubeCL.
    Cpu,
}

/// The float type that the network runs in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// 32 bits.
    F32,
    /// 16 bits of IEEE 754.
    F16,
    /// 16 bits with the exponent of f32.
    Bf16,
}

impl DType {
    /// As Burn names it.
    pub fn burn(self) -> burn::tensor::DType {
        match self {
            Self::F32 => burn::tensor::DType::F32,
            Self::F16 => burn::tensor::DType::F16,
            Self::Bf16 => burn::tensor::DType::BF16,
        }
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(value_name(self).as_str())
    }
}

impl std::fmt::Display for DeviceName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(value_name(self).as_str())
    }
}

/// The word for `value` on the command line.
pub(crate) fn value_name(value: &impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

impl DeviceName {
    /// The one that runs without `--device`: the CPU in plain Rust wherever it is compiled in, as it runs everywhere.
    pub fn first_compiled() -> Self {
        Self::compiled().next().unwrap_or(Self::Flex)
    }

    /// Those whose cargo feature is on.
    pub fn compiled() -> impl Iterator<Item = Self> {
        Self::value_variants().iter().copied().filter(|name| name.is_compiled())
    }

    fn is_compiled(self) -> bool {
        match self {
            Self::Flex => cfg!(feature = "flex"),
            Self::Wgpu => cfg!(feature = "wgpu"),
            Self::Vulkan => cfg!(feature = "vulkan"),
            Self::Cuda => cfg!(feature = "cuda"),
            Self::Rocm => cfg!(feature = "rocm"),
            Self::Metal => cfg!(feature = "metal"),
            Self::Webgpu => cfg!(feature = "webgpu"),
            Self::Cpu => cfg!(feature = "cpu"),
        }
    }

    /// Whether work on this device is queued, so that waiting for it around every stage costs time, and kernels are
    /// compiled at their first use.
    pub fn is_queued(self) -> bool {
        self != Self::Flex
    }

    /// Refuses a device that was not compiled in.
    ///
    /// # Errors
    ///
    /// [`Error::Option`] that names the cargo feature.
    pub fn check(self) -> Result<(), Error> {
        if self.is_compiled() {
            return Ok(());
        }
        let compiled: Vec<_> = Self::compiled().map(|name| name.to_string()).collect();
        let compiled = if compiled.is_empty() { "none".into() } else { compiled.join(", ") };
        Err(Error::option(
            "--device",
            format!("a device that was compiled in ({compiled})"),
            format!("{self}; build with `--features {self}` to have it"),
        ))
    }

    /// The device, ready for tensors of `dtype`.
    ///
    /// # Errors
    ///
    /// [`Error::Run`] if this machine has none, or it cannot hold `dtype`.
    pub fn open(self, dtype: DType) -> Result<Device, Error> {
        self.check()?;
        // Burn panics where a driver or an adapter is missing.
        let opened = catch_unwind(|| {
            let device = self.create()?;
            let one = Tensor::<1>::ones([1], &device).into_data();
            one.try_to_vec::<f32>().is_ok().then_some(device)
        });
        let device = opened.ok().flatten().ok_or_else(|| Error::run(format!("device {self}"), "not usable here"))?;
        if !device.supports_dtype(dtype.burn()) {
            return Err(Error::run(format!("device {self}"), format!("no support for {dtype}")));
        }
        Ok(device)
    }

    #[allow(unreachable_patterns)]
    fn create(self) -> Option<Device> {
        #[cfg(any(feature = "wgpu", feature = "vulkan", feature = "metal", feature = "webgpu"))]
        use burn::tensor::DeviceKind::DefaultDevice;
        match self {
            #[cfg(feature = "flex")]
            Self::Flex => Some(Device::flex()),
            #[cfg(feature = "wgpu")]
            Self::Wgpu => Some(Device::wgpu(DefaultDevice)),
            #[cfg(feature = "vulkan")]
            Self::Vulkan => Some(Device::vulkan(DefaultDevice)),
            #[cfg(feature = "cuda")]
            Self::Cuda => Some(Device::cuda(0)),
            #[cfg(feature = "rocm")]
            Self::Rocm => Some(Device::rocm(0)),
            #[cfg(feature = "metal")]
            Self::Metal => Some(Device::metal(DefaultDevice)),
            #[cfg(feature = "webgpu")]
            Self::Webgpu => Some(Device::webgpu(DefaultDevice)),
            #[cfg(feature = "cpu")]
            Self::Cpu => Some(Device::cpu()),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_the_feature_of_a_missing_device() {
        for name in DeviceName::value_variants() {
            match name.check() {
                Ok(()) => assert!(name.is_compiled()),
                Err(error) => {
                    let message = error.to_string();
                    assert_eq!(error.exit_code(), 2);
                    assert!(message.starts_with("--device: expected a device that was compiled in"), "{message}");
                    assert!(message.contains(&format!("--features {name}")), "{message}");
                }
            }
        }
    }
}
