//! CubeCL kernels: one cube reads a row once, keeps it in registers and writes it once.

mod norm;
mod rotate;
mod sums;

use burn::{
    backend::{CubeDevice, TensorMetadata, tensor::FloatTensor},
    tensor::DType,
};
use burn_cubecl::{
    CubeBackend, kernel::into_contiguous, ops::numeric::empty_device_contiguous_dtype, tensor::CubeTensor,
};
use cubecl::prelude::*;

use crate::{LayerOps, Rotation};

/// Units of a cube: the WebGPU limit.
const UNITS: u32 = 256;
/// Elements that memory is read by.
const VECTOR: usize = 4;
/// Cubes along the first axis of a launch, below the WebGPU limit of 65,535; more go along the second.
const CUBES_X: usize = 32_768;
/// Bytes of shared memory that a row may take.
const SHARED_BYTES: usize = 16 * 1024;
/// Values of a row at most: 64 in the registers of each unit.
const LONGEST: usize = 64 * UNITS as usize;

/// Whether rows of `size` values in heads of `head_dim` can be run.
pub(crate) fn supports(device: &CubeDevice, size: usize, head_dim: usize) -> Result<(), String> {
    let client = device.client();
    let hardware = &client.properties().hardware;
    // Halves of a head are read by vectors, too.
    if !size.is_multiple_of(VECTOR) || !head_dim.is_multiple_of(2 * VECTOR) {
        return Err(format!(
            "rows of {size} values in heads of {head_dim}, multiples of {VECTOR} and {} needed",
            2 * VECTOR
        ));
    }
    if size > LONGEST || 4 * rotate::scratch(size, head_dim) > SHARED_BYTES {
        return Err(format!("rows of {size} values are too long"));
    }
    if hardware.max_units_per_cube < UNITS || hardware.max_shared_memory_size < SHARED_BYTES {
        return Err("too few units or too little shared memory".into());
    }
    Ok(())
}

/// A launch of one cube for each of `rows` rows.
fn count(rows: usize) -> CubeCount {
    let x = rows.clamp(1, CUBES_X);
    CubeCount::Static(x as u32, rows.div_ceil(x) as u32, 1)
}

/// The number of this cube.
#[cube]
fn cube() -> u32 {
    CUBE_POS_Y * CUBE_COUNT_X + CUBE_POS_X
}

/// An output for `x`, contiguous.
fn like(x: &CubeTensor) -> CubeTensor {
    empty_device_contiguous_dtype(x.client.clone(), x.device.clone(), x.shape(), x.dtype)
}

/// Contiguous f32.
fn table(tensor: CubeTensor) -> CubeTensor {
    assert_eq!(tensor.dtype, DType::F32, "layers: expected f32");
    into_contiguous(tensor)
}

impl LayerOps for CubeBackend {
    fn dit_modulated_norm(
        x: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        shift: FloatTensor<Self>,
        eps: f64,
    ) -> FloatTensor<Self> {
        norm::launch(x, scale, shift, eps as f32)
    }

    fn dit_norm_and_rotate(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        cos: FloatTensor<Self>,
        sin: FloatTensor<Self>,
        rotation: Rotation,
    ) -> FloatTensor<Self> {
        rotate::launch(x, weight, cos, sin, rotation)
    }
}
