//! What the matrix-unit kernels need of a device and of the tensors.

use burn::{backend::cubecl::dtype_to_storage_type, tensor::DType};
use burn_cubecl::tensor::CubeTensor;
use cubecl::ir::{DeviceProperties, ElemType, FloatKind, features::MmaConfig};

use super::{
    fragment::{CHUNK, PLANE},
    reads_by,
};

/// Whether the device multiplies fragments of `dtype` as the kernels do, or why not.
pub(super) fn supports(properties: &DeviceProperties, dtype: DType, head_dim: usize) -> Result<(), String> {
    if !matches!(dtype, DType::F16 | DType::BF16) {
        return Err(format!("matrix units take f16 and bf16, not {dtype:?}"));
    }
    let element = dtype_to_storage_type(dtype);
    let sums = ElemType::Float(FloatKind::F32);
    let config = MmaConfig { a_type: element, b_type: element, cd_type: sums, m: 16, n: 8, k: 16 };
    let (features, hardware) = (&properties.features.matmul, &properties.hardware);
    if !features.mma.contains(&config) || !features.ldmatrix.contains(&element) {
        return Err(format!("no m16n8k16 matrix units for {dtype:?}"));
    }
    let planes = [hardware.plane_size_min, hardware.plane_size_max];
    if planes != [PLANE as u32; 2] {
        return Err(format!("planes of {} to {} units, {PLANE} needed", planes[0], planes[1]));
    }
    if !head_dim.is_multiple_of(CHUNK) {
        return Err(format!("head_dim {head_dim} is no multiple of {CHUNK}"));
    }
    Ok(())
}

/// Inline PTX and asynchronous copies come with the CUDA C++ compiler alone.
pub(super) fn has_ptx(properties: &DeviceProperties) -> bool {
    properties.features.copy_async
}

/// Elements that all tensors can be read by: a chunk where every row starts at 16 bytes, or one.
pub(super) fn vector_size(tensors: &[&CubeTensor]) -> usize {
    if tensors.iter().all(|tensor| reads_by(tensor, CHUNK)) { CHUNK } else { 1 }
}
