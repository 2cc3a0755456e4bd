//! Values on their way into inline assembly.

use cubecl::prelude::*;

/// The value of `x`. An `in` operand takes the place of a variable: a mutable one would go in as its address, without a word.
#[cube]
pub(in super::super) fn value<T: CubePrimitive>(x: T) -> T {
    intrinsic!(|scope| x.read_value(scope).into())
}

/// Where in shared memory a pointer of the generic address space points to.
#[cube]
pub(in super::super) fn shared_address<T: CubePrimitive>(pointer: *const T) -> u32 {
    let address: u32;
    gpu_asm!(
        "{{ .reg .u64 t; cvta.to.shared.u64 t, {p}; cvt.u32.u64 {o}, t; }}",
        o = out(_) address, p = in(_) pointer
    );
    address
}

/// Where in global memory a pointer of the generic address space points to.
#[cube]
pub(in super::super) fn global_address<T: CubePrimitive>(pointer: *const T) -> u64 {
    let address: u64;
    gpu_asm!("cvta.to.global.u64 {o}, {p};", o = out(_) address, p = in(_) pointer);
    address
}

/// The greater one; the other one where one is NaN.
#[cube]
pub(in super::super) fn greater(a: f32, b: f32) -> f32 {
    let result: f32;
    gpu_asm!(
        "max.f32 {o}, {a}, {b};",
        o = out(_) result, a = in(_) value::<f32>(a), b = in(_) value::<f32>(b), options(pure, nomem)
    );
    result
}

/// The value that unit `lane` of the plane holds.
#[cube]
pub(in super::super) fn from_lane(x: u32, lane: u32) -> u32 {
    let result: u32;
    gpu_asm!(
        "shfl.sync.idx.b32 {o}, {i}, {l}, 31, -1;",
        o = out(_) result, i = in(_) value::<u32>(x), l = in(_) value::<u32>(lane)
    );
    result
}

/// The greatest among the four units that share a row of sums.
#[cube]
pub(in super::super) fn row_greatest(x: f32) -> f32 {
    let x = greater(x, exchange(x, 1u32));
    greater(x, exchange(x, 2u32))
}

/// The value of the unit whose lane differs in the bits of `mask`.
#[cube]
fn exchange(x: f32, #[comptime] mask: u32) -> f32 {
    let result: f32;
    gpu_asm!("shfl.sync.bfly.b32 {o}, {i}, {m}, 31, -1;", o = out(_) result, i = in(_) value::<f32>(x), m = const mask);
    result
}
