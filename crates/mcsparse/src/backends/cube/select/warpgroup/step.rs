//! The registers and blocks of assembly of a warpgroup's column sums.
//!
//! Scores have names that outlive a block: `s` for the first 64 keys of a step, `t` for the others. While the exponentials of
//! one are summed, the products of the other run.

use cubecl::prelude::*;

use super::super::super::{
    fragment::C2,
    hopper::{
        barrier::wait_text,
        operand::value,
        wgmma::{COMMIT, FENCE, HEAD, shared_by_shared, wait_for_all_but},
    },
};

/// Once, before anything else here.
#[cube]
pub(super) fn declare() {
    gpu_asm!(".reg .f32 mcs_s<64>, mcs_t<64>;");
}

/// Names of the registers of one half's scores.
fn names(second: bool) -> Vec<String> {
    let of = if second { 't' } else { 's' };
    (0..64).map(|i| format!("mcs_{of}{i}")).collect()
}

/// Starts the products of 64 keys with 128 queries, both given by their descriptors, once the keys are there.
#[cube]
pub(super) fn start(
    keys: u32,
    queries: u32,
    full_keys: u32,
    parity: u32,
    #[comptime] second: bool,
    #[comptime] dim: usize,
    #[comptime] element: &'static str,
) {
    gpu_asm!(
        "{t} {k} {q} {b} {p}",
        t = const start_text(second, dim, element), k = in(_) value::<u32>(keys), q = in(_) value::<u32>(queries),
        b = in(_) value::<u32>(full_keys), p = in(_) value::<u32>(parity)
    );
}

fn start_text(second: bool, dim: usize, element: &str) -> String {
    let products = shared_by_shared(&names(second), dim, element, "$0", "$1");
    format!("{}{HEAD}{FENCE}{products}{COMMIT}}} //", wait_text("$2", "$3", "KEYS"))
}

/// Waits for all products. What runs on over a wait is never read after it: ptxas would have every product wait for itself.
#[cube]
pub(super) fn finish() {
    gpu_asm!("{t}", t = const wait_for_all_but(0));
}

/// Sums over the unit's queries of `2^(exponent * score + norm)`, for its two keys of a half. `norms` is where the unit's
/// first norm is in shared memory.
#[cube]
pub(super) fn sums(exponent: f32, norms: u32, #[comptime] second: bool) -> Vector<f32, C2> {
    let result: Vector<f32, C2>;
    gpu_asm!(
        "{t} {r} {e} {n}",
        t = const sums_text(second), r = out(_) result, e = in(_) value::<f32>(exponent), n = in(_) value::<u32>(norms)
    );
    result
}

/// Operands: `%0` and `%1` the sums, `$1` the exponent, `$2` the norms.
fn sums_text(second: bool) -> String {
    let scores = names(second);
    let mut text = String::from("{ .reg .f32 n0, n1, x, y, sum<4>;\n");
    for i in 0..4 {
        text += &format!("mov.f32 sum{i}, 0f00000000;\n");
    }
    for j in 0..16 {
        text += &format!("ld.shared.v2.f32 {{n0, n1}}, [$2+{}];\n", 32 * j);
        for h in 0..2 {
            let (a, b, sum) = (&scores[4 * j + 2 * h], &scores[4 * j + 2 * h + 1], 2 * h + j % 2);
            text += &format!(
                "fma.rn.f32 x, {a}, $1, n0; ex2.approx.ftz.f32 x, x;\n\
                 fma.rn.f32 y, {b}, $1, n1; ex2.approx.ftz.f32 y, y;\n\
                 add.f32 x, x, y; add.f32 sum{sum}, sum{sum}, x;\n"
            );
        }
    }
    text + "add.f32 %0, sum0, sum1; add.f32 %1, sum2, sum3; } //"
}
