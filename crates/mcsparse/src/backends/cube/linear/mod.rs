//! Linear layers by warpgroup products: where attention is fast, they are what a transformer block waits for.
//!
//! Cubes stay: one for each multiprocessor, each with a share of all tiles of the output. One unit has the copy engine bring rows
//! and weights, two warpgroups multiply. Two cubes make a cluster whose tiles lie one below the other: weights are brought to both
//! at once, as reading them once for each tile is more than the L2 cache gives.

mod kernel;
mod step;
mod tile;
#[cfg(feature = "cuda-source")]
mod variants;

use burn::{
    backend::{TensorMetadata, cubecl::dtype_to_storage_type},
    tensor::{DType, Shape},
};
use burn_cubecl::{kernel::into_contiguous, tensor::CubeTensor};
use cubecl::{features::Tma, ir::DeviceProperties, prelude::*};

#[cfg(feature = "cuda-source")]
pub(super) use self::variants::variants;
use self::{
    kernel::SizesLaunch,
    tile::{BLOCK, CLUSTER, COLUMNS, DEPTH, ROWS, Tile, UNITS},
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
    if !properties.features.tma.contains(Tma::Base) || !properties.features.cube_cluster {
        return Err("the warpgroup linear layer needs the tensor copy engine and clusters of cubes".into());
    }
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
    let (input, weight) = (readable(input), readable(weight));
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
    let clusters = rows.div_ceil(CLUSTER * ROWS) * (outputs / COLUMNS);
    if clusters == 0 {
        return output;
    }
    let processors = input.client.properties().hardware.num_streaming_multiprocessors.unwrap_or(1) as usize;
    let cubes = CLUSTER * (processors / CLUSTER).clamp(1, clusters);
    let tile = Tile { element: hopper::element(input.dtype), bias: bias.is_some() };
    let address = output.required_address_type();
    let element = dtype_to_storage_type(input.dtype);
    // Unread where there is none; a kernel has a fixed number of buffers.
    let bias = bias.unwrap_or_else(|| weight.clone());
    // SAFETY: inputs and outputs are multiples of what a tile takes (`supports`), the copy engine minds the last row of the input,
    // and the kernel that of the output, which is contiguous.
    unsafe {
        kernel::linear::launch_unchecked(
            &input.client,
            CubeCount::new_1d(cubes as u32),
            CubeDim::new_1d(UNITS as u32),
            address,
            map(&input, [ROWS, DEPTH], element),
            map(&weight, [DEPTH, BLOCK], element),
            bias.into_buffer_arg(),
            output.clone().into_buffer_arg(),
            SizesLaunch::new(rows as u32, inputs as u32, outputs as u32),
            tile,
            element,
        );
    }
    output
}

/// How the copy engine reads tiles of `matrix`: swizzled, as products want them.
fn map(matrix: &CubeTensor, tile: [usize; 2], element: ElemType) -> TensorMapArg<Tiled> {
    let args = TiledArgs::new(Shape::from(tile));
    TensorMapArg::new(args, matrix.clone().into_tensor_arg(), element)
        .with_swizzle(TensorMapSwizzle::B128)
        .with_prefetch(TensorMapPrefetch::B256)
}

/// `matrix` itself if the copy engine reads it where it lies: rows of neighbours, each from 16 bytes on.
fn readable(mut matrix: CubeTensor) -> CubeTensor {
    // The way to the next row may be anything where there is none, and Burn calls it contiguous all the same.
    if matrix.meta.shape()[0] == 1 && matrix.meta.strides()[1] == 1 {
        let columns = matrix.meta.shape()[1];
        matrix.meta.strides_mut()[0] = columns;
    }
    let strides = matrix.meta.strides();
    let aligned = (strides[0] * matrix.dtype.size()).is_multiple_of(16);
    let start = matrix.handle.offset_start.unwrap_or(0);
    if strides[1] == 1 && strides[0] >= matrix.meta.shape()[1] && aligned && start.is_multiple_of(16) {
        matrix
    } else {
        into_contiguous(matrix)
    }
}
