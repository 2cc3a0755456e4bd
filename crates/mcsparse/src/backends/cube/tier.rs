//! Which units of the hardware the kernels use.

use burn::{backend::cubecl::dtype_to_storage_type, tensor::DType};
use cubecl::ir::{
    DeviceProperties, ElemType, FloatKind,
    features::{MmaConfig, Plane},
};

use super::{
    attend::shape::SHARED_BYTES,
    fits,
    tile::{SIDE, UNITS},
};

/// What a kernel needs beside shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tier {
    /// Matrix units: both products of a tile in a few instructions.
    Matrix,
    /// Exchange of registers within a plane: row maxima and sums without shared memory and its barriers.
    Planes,
    /// Nothing.
    Shared,
}

/// The fastest tier that the device has for `dtype`, or what it lacks even for the slowest.
pub(super) fn choose(properties: &DeviceProperties, dtype: DType) -> Result<Tier, String> {
    let mut refusal = Ok(Tier::Shared);
    for tier in [Tier::Matrix, Tier::Planes, Tier::Shared] {
        match tier.takes(properties, dtype) {
            Ok(()) => return Ok(tier),
            Err(reason) => refusal = Err(reason),
        }
    }
    refusal
}

impl Tier {
    /// Refuses with the reason where the device lacks something.
    fn takes(self, properties: &DeviceProperties, dtype: DType) -> Result<(), String> {
        let (features, hardware) = (&properties.features, &properties.hardware);
        match self {
            Tier::Matrix => {
                // f32 products stay f32: the matrix units would round them to tf32.
                let a = dtype_to_storage_type(dtype);
                let fits = |m: &MmaConfig| {
                    (m.a_type, m.b_type, m.cd_type) == (a, a, ElemType::Float(FloatKind::F32))
                        && (m.m, m.n, m.k) == (16, 8, 16)
                };
                if dtype == DType::F32 || !features.matmul.mma.iter().any(fits) {
                    return Err(format!("no m16n8k16 matrix units for {dtype:?}"));
                }
                Err("no kernel for matrix units".into())
            }
            Tier::Planes => {
                // Advertised, not only compiled: software Vulkan computes them and does not vouch for them.
                if !features.plane.contains(Plane::Ops) {
                    return Err("no plane operations".into());
                }
                // The units of a query row exchange their registers, so they must lie in one plane.
                if (hardware.plane_size_min as usize) < SIDE {
                    return Err(format!("planes of {} units, {SIDE} needed", hardware.plane_size_min));
                }
                fits(hardware, UNITS, SHARED_BYTES)
            }
            // 32 KiB and 256 units: what WebGPU adapters and software Vulkan offer.
            Tier::Shared => fits(hardware, UNITS, SHARED_BYTES),
        }
    }
}
