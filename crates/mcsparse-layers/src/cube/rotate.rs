//! Root-mean-square norm of heads, and rotary embedding.

use burn::backend::{TensorMetadata, cubecl::dtype_to_storage_type};
use burn_cubecl::{kernel::into_contiguous, tensor::CubeTensor};
use cubecl::prelude::*;

use super::{
    UNITS, VECTOR, count, cube, like,
    sums::{self, cube_sum, lanes},
    table, units,
};
use crate::{HeadNorm, Pairs};

/// Values of shared memory for rows of `size` values: the squares of each vector, heads one further apart than they are long
/// so that units that add up neighbouring heads meet different banks, the heads' factors, and the sums of the cube.
pub(super) const fn scratch(size: usize, head_dim: usize) -> usize {
    let heads = size / head_dim;
    heads * (head_dim / VECTOR + 1) + heads + sums::scratch(UNITS)
}

/// Comptime sizes of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Row {
    vectors: usize,
    head_vectors: usize,
    /// Vectors of a head that turn, from its start.
    turned: usize,
    units: usize,
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

/// `x` `[rows, size]`, `weight` `[size]` or `[head_dim]`; cosines and sines `[tokens, turned / 2]`, or nothing turns.
pub(super) fn launch(
    x: CubeTensor,
    weight: CubeTensor,
    angles: Option<[CubeTensor; 2]>,
    norm: HeadNorm,
    pairs: Pairs,
) -> CubeTensor {
    let [rows, size] = x.shape().dims();
    let head_dim = size / norm.heads;
    let (x, weight) = (into_contiguous(x), table(weight));
    let [tokens, half] = angles.as_ref().map_or([1, 0], |[cos, _]| cos.shape().dims());
    // Unread where nothing turns; a kernel has a fixed number of buffers.
    let [cos, sin] = angles.map_or_else(|| [weight.clone(), weight.clone()], |angles| angles.map(table));
    assert!(
        head_dim.is_multiple_of(2 * VECTOR)
            && half.is_multiple_of(VECTOR)
            && 2 * half <= head_dim
            && rows.is_multiple_of(tokens)
            && weight.shape().num_elements() == if norm.all_heads { size } else { head_dim }
            && (half == 0 || [&cos, &sin].iter().all(|table| table.shape().num_elements() == tokens * half)),
        "norm of heads: {rows} rows of {size} values, {half} pairs of {tokens} tokens"
    );
    let vectors = size / VECTOR;
    let row = Row {
        vectors,
        head_vectors: head_dim / VECTOR,
        turned: 2 * half / VECTOR,
        units: units(vectors),
        all_heads: norm.all_heads,
        pairs,
    };
    let output = like(&x);
    // SAFETY: the kernel reads and writes `size` values of each of `rows` rows, one value a pair and token of both tables if
    // there are pairs, and as many weights as there are.
    unsafe {
        norm_and_rotate::launch_unchecked(
            &x.client,
            count(rows),
            CubeDim::new_1d(row.units as u32),
            x.required_address_type(),
            VECTOR,
            x.clone().into_buffer_arg(),
            weight.into_buffer_arg(),
            cos.into_buffer_arg(),
            sin.into_buffer_arg(),
            output.clone().into_buffer_arg(),
            rows as u32,
            tokens as u32,
            norm.eps as f32,
            row,
            dtype_to_storage_type(x.dtype),
        );
    }
    output
}

#[cube(launch_unchecked, address_type = "dynamic")]
#[allow(clippy::collapsible_if)] // one at compile time, one at run time
fn norm_and_rotate<E: Float, N: Size>(
    x: &[Vector<E, N>],
    weight: &[Vector<f32, N>],
    cos: &[f32],
    sin: &[f32],
    output: &mut [Vector<E, N>],
    rows: u32,
    tokens: u32,
    eps: f32,
    #[comptime] row: Row,
    #[define(E)] _dtype: ElemType,
) {
    let number = cube();
    if number >= rows {
        terminate!();
    }
    let unit = UNIT_POS as usize;
    let vectors = comptime!(row.vectors);
    let head_vectors = comptime!(row.head_vectors);
    let units = comptime!(row.units);
    let each = comptime!(row.vectors.div_ceil(row.units));
    let start = number as usize * vectors;
    // Every batch element has the same tokens.
    let angles = (number % tokens) as usize * comptime!(row.turned * VECTOR / 2);
    let mut scratch = Shared::<[f32]>::new_slice(comptime!(sums::scratch(row.units)));
    let mut squares = Shared::<[f32]>::new_slice(comptime!(row.heads() * (row.pitch() + 1)));
    let factors = comptime!(row.heads() * row.pitch());
    let mut held = Array::<Vector<f32, N>>::new(each);
    let mut sum = 0.0f32;
    #[unroll]
    for j in 0..each {
        let at = comptime!(j * row.units) + unit;
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
        let mean = cube_sum(sum, &mut scratch, units) / comptime!((row.vectors * VECTOR) as f32);
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
            head += units;
        }
        sync_cube();
    }
    #[unroll]
    for j in 0..each {
        let at = comptime!(j * row.units) + unit;
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
            let mut result = own;
            if comptime!(row.turned > 0) {
                if place < comptime!(row.turned) {
                    if comptime!(row.pairs == Pairs::Neighbours) {
                        result = turn_neighbours(own, cos, sin, angles + place * comptime!(VECTOR / 2));
                    } else {
                        let half = comptime!(row.turned / 2);
                        // In either direction: halves are as long as each other.
                        let other_place = (place + half) % comptime!(row.turned);
                        let mut other_weights = head * head_vectors + other_place;
                        if comptime!(!row.all_heads) {
                            other_weights = other_place;
                        }
                        // It comes from memory once more: it is in a cache.
                        let other = Vector::<f32, N>::cast_from(x[start + head * head_vectors + other_place]);
                        let other = other * factor * weight[other_weights];
                        let sign = select(place >= half, f32::new(1.0), f32::new(-1.0));
                        result = turn_halves(own, other, sign, cos, sin, angles + place % half * comptime!(VECTOR));
                    }
                }
            }
            output[start + at] = Vector::cast_from(result);
        }
    }
}

/// Turns the pairs within a vector, the first of them by angle `first`.
#[cube]
fn turn_neighbours<N: Size>(own: Vector<f32, N>, cos: &[f32], sin: &[f32], first: usize) -> Vector<f32, N> {
    let mut result = own;
    #[unroll]
    for pair in 0..comptime!(VECTOR / 2) {
        let angle = first + pair;
        let (a, b) = (own.extract(comptime!(2 * pair)), own.extract(comptime!(2 * pair + 1)));
        result.insert(comptime!(2 * pair), a * cos[angle] - b * sin[angle]);
        result.insert(comptime!(2 * pair + 1), b * cos[angle] + a * sin[angle]);
    }
    result
}

/// Turns the values of a vector against those of another, the first of them by angle `first`.
#[cube]
fn turn_halves<N: Size>(
    own: Vector<f32, N>,
    other: Vector<f32, N>,
    sign: f32,
    cos: &[f32],
    sin: &[f32],
    first: usize,
) -> Vector<f32, N> {
    let mut result = own;
    #[unroll]
    for e in 0..comptime!(VECTOR) {
        let angle = first + e;
        result.insert(e, own.extract(e) * cos[angle] + sign * other.extract(e) * sin[angle]);
    }
    result
}
