//! Linear layers by warpgroup products: where attention is fast, they are what a transformer block waits for.
//!
//! Cubes stay: one for each multiprocessor, each with a share of all tiles of the output. Four planes bring tiles of rows and
//! weights, two warpgroups multiply, as in attention.

mod kernel;
mod step;
mod tile;
#[cfg(feature = "cuda-source")]
mod variants;

use burn::{
    backend::{TensorMetadata, cubecl::dtype_to_storage_type},
    tensor::DType,
};
use burn_cubecl::{kernel::into_contiguous, tensor::CubeTensor};
use cubecl::{ir::DeviceProperties, prelude::*};

#[cfg(feature = "cuda-source")]
pub(super) use self::variants::variants;
use self::{
    kernel::SizesLaunch,
    tile::{COLUMNS, DEPTH, ROWS, Tile, UNITS},
};
use super::{empty, fits, hopper, tier::Tier};

/// What the kernel is called in routes.
pub(super) const NAME: &str = "cube warpgroup linear";

/// Whether the kernel takes a layer of `inputs` by `outputs` weights in `dtype`, or why not.
pub(super) fn supports(
    properties: &DeviceProperties,
    dtype: DType,
    inputs: usize,
    outputs: usize,
) -> Result<(), String> {
    hopper::supports(properties, dtype, DEPTH)?;
    Tier::Warpgroup.allowed()?;
    fits(&properties.hardware, UNITS as u32, Tile::SHARED_BYTES)?;
    for (name, size, step) in [("inputs", inputs, DEPTH), ("outputs", outputs, COLUMNS)] {
        if size == 0 || !size.is_multiple_of(step) {
            return Err(format!("the warpgroup linear layer takes multiples of {step} {name}, not {size}"));
        }
    }
    Ok(())
}

/// `input` `[rows, inputs]` times `weight` `[inputs, outputs]` plus `bias` `[outputs]`.
pub(super) fn linear(input: CubeTensor, weight: CubeTensor, bias: Option<CubeTensor>) -> CubeTensor {
    let (input, weight) = (into_contiguous(input), into_contiguous(weight));
    let bias = bias.map(into_contiguous);
    let ([rows, inputs], [depth, outputs]) = (input.shape().dims(), weight.shape().dims());
    assert!(
        inputs == depth && weight.dtype == input.dtype,
        "linear: weight {:?} {:?} does not go with input {:?} {:?}",
        weight.shape(),
        weight.dtype,
        input.shape(),
        input.dtype
    );
    if let Some(bias) = &bias {
        assert_eq!((bias.shape().dims(), bias.dtype), ([outputs], input.dtype), "linear: bias");
    }
    let output = empty(&input, &[rows, outputs], input.dtype);
    let tiles = rows.div_ceil(ROWS) * (outputs / COLUMNS);
    if tiles == 0 {
        return output;
    }
    let cubes = input.client.properties().hardware.num_streaming_multiprocessors.unwrap_or(1).min(tiles as u32);
    let tile = Tile { element: hopper::element(input.dtype), bias: bias.is_some() };
    let address = [&input, &weight, &output].map(CubeTensor::required_address_type);
    // Unread where there is none; a kernel has a fixed number of buffers.
    let bias = bias.unwrap_or_else(|| weight.clone());
    // SAFETY: all tensors are contiguous and of the shapes checked above; rows are clamped, and inputs and outputs are multiples
    // of what a tile takes (`supports`).
    unsafe {
        kernel::linear::launch_unchecked(
            &input.client,
            CubeCount::new_1d(cubes),
            CubeDim::new_1d(UNITS as u32),
            address.into_iter().max().unwrap_or_default(),
            input.clone().into_buffer_arg(),
            weight.into_buffer_arg(),
            bias.into_buffer_arg(),
            output.clone().into_buffer_arg(),
            SizesLaunch::new(rows as u32, inputs as u32, outputs as u32),
            tile,
            dtype_to_storage_type(input.dtype),
        );
    }
    output
}
