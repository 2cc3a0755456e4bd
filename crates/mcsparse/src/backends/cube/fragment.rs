//! Operands of `mma.sync` m16n8k16 (16 x 16 times 16 x 8, 16-bit inputs, f32 sums): what the matrix-unit kernels share.
//!
//! A plane of 32 units holds each operand in registers: unit `4 * r + c` has rows `r` and `r + 8` of the left operand and of
//! the sums, row `r` of the (transposed) right operand, and of each 16 steps along the inner dimension those at `2c`,
//! `2c + 1`, `2c + 8` and `2c + 9`. The inner dimension may be permuted as long as both operands agree. The kernels let unit
//! `c` take elements `8c..8c + 8` of each 32, one aligned read of 16 bytes for two products, so that neither operand goes
//! through `ldmatrix` or an exchange between units.

use cubecl::prelude::*;

use super::hopper::operand::value;

/// Units of a plane, as the register layout has it.
pub(super) const PLANE: usize = 32;
/// Elements of a chunk: 16 bytes.
pub(super) const CHUNK: usize = 8;
/// Elements of the inner dimension that one chunk of each of four units covers.
pub(super) const BLOCK: usize = 32;

pub(super) type C2 = Const<2>;
pub(super) type C8 = Const<8>;

/// Sums of one 16 x 8 tile: columns `2c` and `2c + 1` of row `r`, then of row `r + 8`.
pub(super) type Sums = Array<Vector<f32, C2>>;
/// Registers of the left (4) or right (2) operand.
pub(super) type Operand<E> = Array<Vector<E, C2>>;

/// Chunk `chunk` of the row that starts at element `base`, strided as it is; zeros past `dim`.
#[cube]
pub(super) fn load_chunk<E: Float, N: Size>(
    tensor: &Tensor<Vector<E, N>>,
    base: usize,
    chunk: u32,
    #[comptime] dim: usize,
) -> Vector<E, C8> {
    let width = N::value().comptime();
    let mut result = Vector::<E, C8>::new(E::from_int(0i64));
    if comptime!(dim.is_multiple_of(BLOCK)) || chunk < comptime!((dim / CHUNK) as u32) {
        if comptime!(width == CHUNK) {
            let read = tensor[base / comptime!(CHUNK) + chunk as usize];
            #[unroll]
            for e in 0..comptime!(CHUNK) {
                result.insert(e, read.extract(e));
            }
        } else {
            // Any stride, any alignment: one element at a time.
            #[unroll]
            for e in 0..comptime!(CHUNK) {
                let column = chunk as usize * comptime!(CHUNK) + e;
                result.insert(e, tensor[base + column * tensor.stride(3)].extract(0usize));
            }
        }
    }
    result
}

/// Elements `2i` and `2i + 1` of a chunk.
#[cube]
pub(super) fn pair<E: Float>(chunk: Vector<E, C8>, #[comptime] i: usize) -> Vector<E, C2> {
    let mut result = Vector::<E, C2>::new(chunk.extract(comptime!(2 * i)));
    result.insert(1usize, chunk.extract(comptime!(2 * i + 1)));
    result
}

/// The left operand of the `half`-th product of a block, from its chunks of rows `r` and `r + 8`.
#[cube]
pub(super) fn left<E: Float>(upper: Vector<E, C8>, lower: Vector<E, C8>, #[comptime] half: usize) -> Operand<E> {
    let mut operand = Array::<Vector<E, C2>>::new(4usize);
    operand[0] = pair::<E>(upper, comptime!(2 * half));
    operand[1] = pair::<E>(lower, comptime!(2 * half));
    operand[2] = pair::<E>(upper, comptime!(2 * half + 1));
    operand[3] = pair::<E>(lower, comptime!(2 * half + 1));
    operand
}

/// The right operand of the `half`-th product of a block.
#[cube]
pub(super) fn right<E: Float>(chunk: Vector<E, C8>, #[comptime] half: usize) -> Operand<E> {
    let mut operand = Array::<Vector<E, C2>>::new(2usize);
    operand[0] = pair::<E>(chunk, comptime!(2 * half));
    operand[1] = pair::<E>(chunk, comptime!(2 * half + 1));
    operand
}

/// Sums that start at zero.
#[cube]
pub(super) fn zero_sums() -> Sums {
    let mut sums = Array::<Vector<f32, C2>>::new(2usize);
    sums[0] = Vector::new(0.0f32);
    sums[1] = Vector::new(0.0f32);
    sums
}

/// `2^x` for x up to 0; with `ptx` one instruction of the special-function unit, relative error 2^-22.
#[cube]
pub(super) fn exp2(x: f32, #[comptime] ptx: bool) -> f32 {
    if comptime!(ptx) { exp2_ptx(x) } else { exp2_polynomial(x) }
}

/// `2^x` on the units of multiplication and addition, relative error 2e-7: cheaper than a library's `exp`, which minds every
/// argument. Below 2^-126 it stays there.
#[cube]
fn exp2_polynomial(x: f32) -> f32 {
    // NaN stays NaN.
    let x = select(x < f32::new(-126.0), f32::new(-126.0), x);
    // Adding 1.5 * 2^23 leaves the nearest integer in the lowest bits.
    let shifted = x + f32::new(12_582_912.0);
    let fraction = x - (shifted - f32::new(12_582_912.0));
    // Interpolation of 2^x at the Chebyshev nodes of [-1/2, 1/2].
    let mut power = fma(f32::new(0.001_339_086_3), fraction, f32::new(0.009_676_032));
    power = fma(power, fraction, f32::new(0.055_503_57));
    power = fma(power, fraction, f32::new(0.240_221_07));
    power = fma(power, fraction, f32::new(core::f32::consts::LN_2));
    power = fma(power, fraction, f32::new(1.000_000_1));
    f32::reinterpret(u32::reinterpret(power) + (u32::reinterpret(shifted) << 23))
}

#[cube]
#[allow(unused_assignments, unused_variables)]
fn exp2_ptx(x: f32) -> f32 {
    let result: f32;
    gpu_asm!("ex2.approx.ftz.f32 {o}, {i};", o = out(_) result, i = in(_) value::<f32>(x), options(pure, nomem));
    result
}

/// The maximum over the four units that share a row.
#[cube]
pub(super) fn row_max(x: f32) -> f32 {
    let x = max(x, plane_shuffle_xor(x, 1u32));
    max(x, plane_shuffle_xor(x, 2u32))
}

/// The sum over the four units that share a row.
#[cube]
pub(super) fn row_sum(x: f32) -> f32 {
    let x = x + plane_shuffle_xor(x, 1u32);
    x + plane_shuffle_xor(x, 2u32)
}

/// Starts an asynchronous copy of 16 bytes from global to shared memory (CUDA C++ only).
#[cube]
pub(super) fn copy_chunk<A: CubePrimitive, B: CubePrimitive>(from: *const A, to: *const B) {
    gpu_asm!(
        "{{ .reg .u64 s, g; .reg .u32 t; cvta.to.shared.u64 s, {to}; cvt.u32.u64 t, s; cvta.to.global.u64 g, {from}; cp.async.cg.shared.global.L2::128B [t], [g], 16; }}",
        to = in(_) to, from = in(_) from
    );
}

/// Waits for this unit's copies.
#[cube]
pub(super) fn wait_for_copies() {
    gpu_asm!("cp.async.wait_all;");
}
