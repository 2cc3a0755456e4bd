//! CubeCL kernels: one cube reads a row once, keeps it in registers and writes it once.

mod gate;
mod norm;
mod rotate;
mod sums;

use burn::{
    backend::{
        CubeDevice, TensorMetadata,
        tensor::{FloatTensor, IntTensor},
    },
    tensor::DType,
};
use burn_cubecl::{
    CubeBackend, kernel::into_contiguous, ops::numeric::empty_device_contiguous_dtype, tensor::CubeTensor,
};
use cubecl::prelude::*;

use crate::{HeadNorm, Layer, LayerOps, Norm, Pairs};

/// Units of a cube at most: the WebGPU limit.
const UNITS: usize = 256;
/// Units of a cube at least.
const FEWEST: usize = 64;
/// Elements that memory is read by.
const VECTOR: usize = 4;
/// Cubes along the first axis of a launch, below the WebGPU limit of 65,535; more go along the second.
const CUBES_X: usize = 32_768;
/// Bytes of shared memory that a row may take: the WebGPU limit.
const SHARED_BYTES: usize = 16 * 1024;
/// Values of a row at most: 64 in the registers of each unit.
const LONGEST: usize = 64 * UNITS;

/// Whether `layer` can be run: rows go by vectors, what a unit holds fits its registers, and what a cube shares fits.
pub(crate) fn supports(device: &CubeDevice, layer: Layer) -> Result<(), String> {
    let client = device.client();
    let hardware = &client.properties().hardware;
    // Values of a row, values of shared memory, and whether units hold their part of a row in registers.
    let (size, shared, held) = match layer {
        // These go along a row, however long it is, and share nothing.
        Layer::GatedAdd { size } | Layer::SwiGlu { hidden: size } => (size, 0, false),
        Layer::Norm { size } => (size, sums::scratch(UNITS), true),
        Layer::HeadNorm { heads, head_dim, turned } => {
            // Halves of a head and of what turns are read by vectors, too.
            let whole = 2 * VECTOR;
            if head_dim == 0 || !head_dim.is_multiple_of(whole) || !turned.is_multiple_of(whole) {
                return Err(format!("head and turned values: multiples of {whole} needed"));
            }
            (heads * head_dim, rotate::scratch(heads * head_dim, head_dim), true)
        }
    };
    if size == 0 || !size.is_multiple_of(VECTOR) {
        return Err(format!("rows of {size} values, a multiple of {VECTOR} needed"));
    }
    if held && size > LONGEST {
        return Err(format!("rows of {size} values, at most {LONGEST} fit the registers"));
    }
    let (bytes, room) = (4 * shared, SHARED_BYTES.min(hardware.max_shared_memory_size));
    if bytes > room {
        return Err(format!("{bytes} bytes of shared memory needed, {room} there"));
    }
    let needed = units(size / VECTOR);
    if (hardware.max_units_per_cube as usize) < needed {
        return Err(format!("{needed} units a cube needed, {} there", hardware.max_units_per_cube));
    }
    Ok(())
}

/// Units of a cube for a row of `vectors` vectors: a power of two, each with three vectors or more if the row is long enough,
/// so that many cubes are in flight and few units idle at the end of a row.
fn units(vectors: usize) -> usize {
    (1 << (vectors / 3).max(1).ilog2()).clamp(FEWEST, UNITS)
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

/// Which row of its tables a row of a tensor takes.
#[derive(CubeLaunch, CubeType)]
struct Tables {
    /// Rows that there are.
    rows: u32,
    /// Rows that share a row of the tables, one after the other.
    run: u32,
    /// Rows of the tables.
    tables: u32,
}

#[cube]
impl Tables {
    /// The row for `row`: what `numbers` says if it is `numbered`, kept within the tables.
    fn row(&self, row: u32, numbers: &[i32], #[comptime] numbered: bool) -> usize {
        let mut at = row / self.run;
        if comptime!(numbered) {
            at = u32::cast_from(numbers[row as usize]);
        }
        min(at, self.tables - 1) as usize
    }
}

impl Tables {
    /// For `rows` rows and tables of `tables`.
    fn launch(rows: usize, tables: usize) -> TablesLaunch {
        TablesLaunch::new(rows as u32, (rows / tables).max(1) as u32, tables as u32)
    }
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

/// Contiguous row numbers; `unread` where there are none, as a kernel has a fixed number of buffers.
fn numbers(rows: Option<CubeTensor>, unread: &CubeTensor) -> CubeTensor {
    rows.map_or_else(
        || unread.clone(),
        |rows| {
            assert_eq!(rows.dtype, DType::I32, "layers: rows: expected i32");
            into_contiguous(rows)
        },
    )
}

impl LayerOps for CubeBackend {
    fn dit_norm(
        x: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        shift: FloatTensor<Self>,
        norm: Norm,
    ) -> FloatTensor<Self> {
        norm::launch(x, scale, shift, None, norm)
    }

    fn dit_norm_by_row(
        x: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        shift: FloatTensor<Self>,
        rows: IntTensor<Self>,
        norm: Norm,
    ) -> FloatTensor<Self> {
        norm::launch(x, scale, shift, Some(rows), norm)
    }

    fn dit_gated_add(x: FloatTensor<Self>, update: FloatTensor<Self>, gate: FloatTensor<Self>) -> FloatTensor<Self> {
        gate::add(x, update, gate, None)
    }

    fn dit_gated_add_by_row(
        x: FloatTensor<Self>,
        update: FloatTensor<Self>,
        gate: FloatTensor<Self>,
        rows: IntTensor<Self>,
    ) -> FloatTensor<Self> {
        gate::add(x, update, gate, Some(rows))
    }

    fn dit_swiglu(x: FloatTensor<Self>) -> FloatTensor<Self> {
        gate::swiglu(x)
    }

    fn dit_rms_norm(x: FloatTensor<Self>, weight: FloatTensor<Self>, norm: HeadNorm) -> FloatTensor<Self> {
        rotate::launch(x, weight, None, norm, Pairs::Neighbours)
    }

    fn dit_norm_and_rotate(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        cos: FloatTensor<Self>,
        sin: FloatTensor<Self>,
        norm: HeadNorm,
        pairs: Pairs,
    ) -> FloatTensor<Self> {
        rotate::launch(x, weight, Some([cos, sin]), norm, pairs)
    }
}
