//! Several devices of one kind.

use std::panic::catch_unwind;

use burn::tensor::{Device, Tensor};
use denoise::{Error, device::DeviceName};

/// `count` devices, the first of them `first`. Kinds that have no numbers name it several times.
///
/// # Errors
///
/// [`Error::Run`] if there are not as many.
pub fn several(name: DeviceName, count: usize, first: &Device) -> Result<Vec<Device>, Error> {
    (0..count)
        .map(|number| {
            // Burn panics where a device is missing.
            let opened = catch_unwind(|| {
                let device = numbered(name, number)?;
                Tensor::<1>::ones([1], &device).into_data().try_to_vec::<f32>().is_ok().then_some(device)
            });
            match opened {
                _ if numbered(name, number).is_none() => Ok(first.clone()),
                Ok(Some(device)) => Ok(device),
                _ => Err(Error::run(format!("device {name} {number}"), "not usable here")),
            }
        })
        .collect()
}

#[cfg_attr(not(any(feature = "cuda", feature = "rocm")), allow(unused_variables))]
fn numbered(name: DeviceName, number: usize) -> Option<Device> {
    match name {
        #[cfg(feature = "cuda")]
        DeviceName::Cuda => Some(Device::cuda(number)),
        #[cfg(feature = "rocm")]
        DeviceName::Rocm => Some(Device::rocm(number)),
        _ => None,
    }
}
