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

/// Whether some unit of the plane says so. All of them are asked, not those alone that happen to run together.
#[cube]
pub(in super::super) fn any(says: bool) -> bool {
    let answer: u32;
    gpu_asm!(
        "{{ .reg .pred p, q; setp.ne.u32 p, {i}, 0; vote.sync.any.pred q, p, -1; selp.u32 {o}, 1, 0, q; }}",
        o = out(_) answer, i = in(_) value::<u32>(u32::cast_from(says))
    );
    answer != 0
}
