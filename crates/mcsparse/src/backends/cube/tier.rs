//! Which units of the hardware the kernels use.

use std::sync::OnceLock;

use burn::tensor::DType;
use cubecl::ir::{DeviceProperties, HardwareProperties, features::Plane};

use super::{
    alone,
    attend::{self, shape::SHARED_BYTES},
    fits, matrix_units, select,
    tile::{SIDE, UNITS},
};

/// What a kernel needs beside shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Tier {
    /// Products that four planes issue together, of operands in shared memory: Hopper.
    Warpgroup,
    /// Matrix units: both products of a tile in a few instructions.
    Matrix,
    /// Matrix units in CubeCL's portable form: Vulkan, Metal, older NVIDIA.
    Cooperative,
    /// The same kernel with its products written out: for tests, by name only.
    Emulated,
    /// Exchange of registers within a plane: row maxima and sums without shared memory and its barriers.
    Planes,
    /// Nothing.
    Shared,
    /// Not even that: units that work alone, for CPUs; elsewhere by name only.
    Units,
}

impl Tier {
    /// All, fastest first.
    const ALL: [Tier; 7] =
        [Tier::Warpgroup, Tier::Matrix, Tier::Cooperative, Tier::Emulated, Tier::Planes, Tier::Shared, Tier::Units];

    /// The fastest that `MCSPARSE_TIER` (`warpgroup`, `matrix`, `cooperative`, `emulated`, `planes`, `shared` or `units`) allows, for
    /// tests and measurements of the slower ones; the very fastest if it is unset.
    pub fn limit() -> Tier {
        static LIMIT: OnceLock<Tier> = OnceLock::new();
        *LIMIT.get_or_init(|| match std::env::var("MCSPARSE_TIER") {
            Err(_) => Tier::Warpgroup,
            Ok(name) => Tier::ALL.into_iter().find(|tier| tier.name() == name).unwrap_or_else(|| {
                panic!("MCSPARSE_TIER: expected {}, got {name}", Tier::ALL.map(Tier::name).join(", "))
            }),
        })
    }

    /// Refuses what is faster than `MCSPARSE_TIER` allows.
    pub fn allowed(self) -> Result<(), String> {
        let limit = Tier::limit();
        if self < limit { Err(format!("MCSPARSE_TIER asks for {}", limit.name())) } else { Ok(()) }
    }

    /// As `MCSPARSE_TIER` has it.
    fn name(self) -> &'static str {
        match self {
            Tier::Warpgroup => "warpgroup",
            Tier::Matrix => "matrix",
            Tier::Cooperative => "cooperative",
            Tier::Emulated => "emulated",
            Tier::Planes => "planes",
            Tier::Shared => "shared",
            Tier::Units => "units",
        }
    }
}

/// A tier, and why the faster ones declined.
#[derive(Debug, Clone)]
pub(super) struct Choice {
    pub tier: Tier,
    pub declined: Vec<String>,
}

/// The fastest tier that the device has for `dtype` and `head_dim`, or what it lacks even for the slowest.
pub(super) fn choose(properties: &DeviceProperties, dtype: DType, head_dim: usize) -> Result<Choice, String> {
    choose_from(Tier::Warpgroup, properties, dtype, head_dim)
}

/// The same for a kernel whose fastest form is that of `fastest`.
pub(super) fn choose_from(
    fastest: Tier,
    properties: &DeviceProperties,
    dtype: DType,
    head_dim: usize,
) -> Result<Choice, String> {
    let mut declined = Vec::new();
    let tiers = Tier::ALL.into_iter().filter(|tier| *tier >= fastest);
    for tier in tiers.filter(|tier| tier.is_choice(&properties.hardware)) {
        match tier.takes(properties, dtype, head_dim).and_then(|()| tier.allowed()) {
            Ok(()) => return Ok(Choice { tier, declined }),
            Err(reason) => declined.push(reason),
        }
    }
    Err(declined.pop().unwrap_or_default())
}

impl Tier {
    /// Whether the device is to run it at all: what it is not for is no reason for anything either.
    fn is_choice(self, hardware: &HardwareProperties) -> bool {
        match self {
            Tier::Emulated => Tier::limit() == Tier::Emulated,
            Tier::Units => alone::applies(hardware),
            _ => !alone::is_cpu(hardware),
        }
    }

    /// Refuses with the reason where the device lacks something.
    fn takes(self, properties: &DeviceProperties, dtype: DType, head_dim: usize) -> Result<(), String> {
        let (features, hardware) = (&properties.features, &properties.hardware);
        match self {
            Tier::Warpgroup => {
                attend::warpgroup::tile(properties, dtype, head_dim, 1.0)?;
                select::warpgroup::tile(properties, dtype, head_dim).map(|_| ())
            }
            Tier::Matrix => {
                matrix_units::supports(properties, dtype, head_dim)?;
                attend::matrix::tile(properties, head_dim, usize::MAX)?;
                select::matrix::tile(properties, head_dim).map(|_| ())
            }
            Tier::Cooperative => attend::cooperative::tile(properties, dtype, head_dim, usize::MAX).map(|_| ()),
            Tier::Emulated => attend::cooperative::emulated_tile(properties, dtype, head_dim, usize::MAX).map(|_| ()),
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
            Tier::Units => Ok(()),
        }
    }
}
