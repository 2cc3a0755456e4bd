//! What Hopper GPUs (compute capability 9.0) have beyond other matrix units, in inline PTX: products issued by a warpgroup
//! whose right operand lies in shared memory (`wgmma`), copies that report to a barrier, barriers with phases.
//!
//! CubeCL 0.11 has no names for the products, and only its CUDA C++ compiler takes inline PTX. Kernels write instructions of
//! Hopper through this module, so that CubeCL's own can replace it. The rules are in the PTX ISA, under the names in brackets.

pub(super) mod barrier;
#[cfg(any(feature = "cuda", feature = "cuda-source"))]
pub(super) mod bulk;
pub(super) mod copy;
pub(super) mod layout;
pub(super) mod operand;
pub(super) mod turn;
pub(super) mod wgmma;

use burn::tensor::DType;
use cubecl::ir::DeviceProperties;

use super::matrix_units;

/// Units of a warpgroup: four planes that issue a product together.
pub(super) const WARPGROUP: usize = 128;

/// A 16-bit type as PTX spells it.
pub(super) fn element(dtype: DType) -> &'static str {
    if dtype == DType::F16 { "f16" } else { "bf16" }
}

/// Whether the device and its compiler have all of the above for `dtype` and `head_dim`, or what is missing.
pub(super) fn supports(properties: &DeviceProperties, dtype: DType, head_dim: usize) -> Result<(), String> {
    if !matches!(dtype, DType::F16 | DType::BF16) {
        return Err(format!("warpgroup products take f16 and bf16, not {dtype:?}"));
    }
    let architecture = &properties.identity.fingerprint;
    // The instructions belong to sm_90a alone: later GPUs do not have them.
    if architecture != "ptx_sm90" {
        return Err(format!("warpgroup products need compute capability 9.0, the device is {architecture}"));
    }
    if !matrix_units::has_ptx(properties) {
        return Err("warpgroup products need inline PTX: the CUDA C++ compiler (feature `cuda-cpp`)".into());
    }
    if !matches!(head_dim, 64 | 128) {
        return Err(format!("warpgroup products take head_dim 64 and 128, not {head_dim}"));
    }
    Ok(())
}
