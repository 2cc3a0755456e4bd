//! Root-mean-square norm and rotary embedding.

use burn::backend::{TensorMetadata, cubecl::dtype_to_storage_type};
use burn_cubecl::{kernel::into_contiguous, tensor::CubeTensor};
use cubecl::prelude::*;

use super::{
    UNITS, VECTOR, count, cube, like,
    sums::{SCRATCH, cube_sum, lanes},
    table,
};
use crate::{Pairs, Rotation};

/// Values of shared memory for rows of `size` values: the squares of each vector, heads one further apart than they are long
/// so that units that add up neighbouring heads meet different banks, the heads' factors, and the sums of the cube.
pub(super) const fn scratch(size: usize, head_dim: usize) -> usize {
    let heads = size / head_dim;
    heads * (head_dim / VECTOR + 1) + heads + SCRATCH
}

/// Comptime sizes of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Row {
    vectors: usize,
    head_vectors: usize,
    all_heads: bool,
    pairs: Pairs,
}

impl Row {
    fn heads(self) -> usize {
        self.vectors / self.head_vectors
    }

    fn pitch(self) -> usize {
        self.head_vectors + 1
    }
}

/// `x` `[tokens, size]`, `weight` `[size]` or `[head_dim]`, `cos` and `sin` `[tokens, head_dim / 2]`.
pub(super) fn launch(
    x: CubeTensor,
    weight: CubeTensor,
    cos: CubeTensor,
    sin: CubeTensor,
    rotation: Rotation,
) -> CubeTensor {
    let [tokens, size] = x.shape().dims();
    let head_dim = size / rotation.heads;
    let (x, weight, cos, sin) = (into_contiguous(x), table(weight), table(cos), table(sin));
    let weights = if rotation.all_heads { size } else { head_dim };
    let tables = [&weight, &cos, &sin].map(|tensor| tensor.shape().num_elements());
    assert!(
        head_dim.is_multiple_of(2 * VECTOR) && tables == [weights, tokens * head_dim / 2, tokens * head_dim / 2],
        "norm and rotation: rows of {size} values with tables of {tables:?}"
    );
    let row = Row {
        vectors: size / VECTOR,
        head_vectors: head_dim / VECTOR,
        all_heads: rotation.all_heads,
        pairs: rotation.pairs,
    };
    let output = like(&x);
    // SAFETY: the kernel reads and writes `size` values of each of `tokens` rows, one value a pair and token of both tables,
    // and as many weights as there are.
    unsafe {
        norm_and_rotate::launch_unchecked(
            &x.client,
            count(tokens),
            CubeDim::new_1d(UNITS),
            x.required_address_type(),
            VECTOR,
            x.clone().into_buffer_arg(),
            weight.into_buffer_arg(),
            cos.into_buffer_arg(),
            sin.into_buffer_arg(),
            output.clone().into_buffer_arg(),
            tokens as u32,
            rotation.eps as f32,
            row,
            dtype_to_storage_type(x.dtype),
        );
    }
    output
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn norm_and_rotate<E: Float, N: Size>(
    x: &[Vector<E, N>],
    weight: &[Vector<f32, N>],
    cos: &[f32],
    sin: &[f32],
    output: &mut [Vector<E, N>],
    tokens: u32,
    eps: f32,
    #[comptime] row: Row,
    #[define(E)] _dtype: ElemType,
) {
    let token = cube();
    if token >= tokens {
        terminate!();
    }
    let unit = UNIT_POS as usize;
    let vectors = comptime!(row.vectors);
    let head_vectors = comptime!(row.head_vectors);
    let each = comptime!(vectors.div_ceil(UNITS as usize));
    let start = token as usize * vectors;
    let angles = token as usize * comptime!(head_vectors * VECTOR / 2);
    let mut scratch = Shared::<[f32]>::new_slice(comptime!(SCRATCH));
    let mut squares = Shared::<[f32]>::new_slice(comptime!(row.heads() * (row.pitch() + 1)));
    let factors = comptime!(row.heads() * row.pitch());
    let mut held = Array::<Vector<f32, N>>::new(each);
    let mut sum = 0.0f32;
    #[unroll]
    for j in 0..each {
        let at = comptime!(j * UNITS as usize) + unit;
        held[j] = Vector::<f32, N>::new(0.0f32);
        if at < vectors {
            held[j] = Vector::cast_from(x[start + at]);
            let square = lanes(held[j] * held[j], VECTOR);
            if comptime!(row.all_heads) {
                sum += square;
            } else {
                squares[at / head_vectors * comptime!(row.pitch()) + at % head_vectors] = square;
            }
        }
    }
    let mut whole = 0.0f32;
    if comptime!(row.all_heads) {
        let mean = cube_sum(sum, &mut scratch) / comptime!((row.vectors * VECTOR) as f32);
        whole = 1.0f32 / (mean + eps).sqrt();
    } else {
        sync_cube();
        let mut head = unit;
        while head < comptime!(row.heads()) {
            let mut total = 0.0f32;
            for i in 0..head_vectors {
                total += squares[head * comptime!(row.pitch()) + i];
            }
            let mean = total / comptime!((row.head_vectors * VECTOR) as f32);
            squares[factors + head] = 1.0f32 / (mean + eps).sqrt();
            head += comptime!(UNITS as usize);
        }
        sync_cube();
    }
    #[unroll]
    for j in 0..each {
        let at = comptime!(j * UNITS as usize) + unit;
        if at < vectors {
            let (head, place) = (at / head_vectors, at % head_vectors);
            let mut factor = whole;
            let mut weights = at;
            if comptime!(!row.all_heads) {
                factor = squares[factors + head];
                weights = place;
            }
            let factor = Vector::<f32, N>::new(factor);
            let own = held[j] * factor * weight[weights];
            let mut result = Vector::<f32, N>::new(0.0f32);
            if comptime!(row.pairs == Pairs::Neighbours) {
                #[unroll]
                for pair in 0..comptime!(VECTOR / 2) {
                    let angle = angles + place * comptime!(VECTOR / 2) + pair;
                    let (a, b) = (own.extract(comptime!(2 * pair)), own.extract(comptime!(2 * pair + 1)));
                    result.insert(comptime!(2 * pair), a * cos[angle] - b * sin[angle]);
                    result.insert(comptime!(2 * pair + 1), b * cos[angle] + a * sin[angle]);
                }
            } else {
                // The other half comes from memory once more: it is in a cache.
                let half = comptime!(row.head_vectors / 2);
                let second = place >= half;
                // In either direction: halves are as long as each other.
                let other_place = (place + half) % head_vectors;
                let sign = select(second, f32::new(1.0), f32::new(-1.0));
                let mut other_weights = head * head_vectors + other_place;
                if comptime!(!row.all_heads) {
                    other_weights = other_place;
                }
                let other: Vector<f32, N> = Vector::cast_from(x[start + head * head_vectors + other_place]);
                let other = other * factor * weight[other_weights];
                #[unroll]
                for e in 0..comptime!(VECTOR) {
                    let angle = angles + place % half * comptime!(VECTOR) + e;
                    result.insert(e, own.extract(e) * cos[angle] + sign * other.extract(e) * sin[angle]);
                }
            }
            output[start + at] = Vector::cast_from(result);
        }
    }
}
