//! The registers and blocks of assembly of a warpgroup: sums `c` of 64 rows by 256 columns have names that outlive a block.

use cubecl::prelude::*;

use super::{
    super::hopper::{
        barrier::wait_text,
        operand::value,
        wgmma::{COMMIT, FENCE, HEAD, shared_by_columns, wait_for_all_but},
    },
    tile::{COLUMNS, DEPTH},
};

/// Sums of a unit.
const SUMS: usize = COLUMNS / 2;

fn names() -> Vec<String> {
    (0..SUMS).map(|i| format!("mcs_c{i}")).collect()
}

/// Once, before anything else here.
#[cube]
pub(super) fn declare() {
    gpu_asm!("{t}", t = const format!(".reg .f32 mcs_c<{SUMS}>;"));
}

/// Sums become zero.
#[cube]
pub(super) fn clear() {
    gpu_asm!("{t}", t = const clear_text());
}

fn clear_text() -> String {
    names().into_iter().map(|name| format!("mov.f32 {name}, 0f00000000;\n")).collect()
}

/// Adds the products of a step, of tiles at these descriptors, once they are there.
#[cube]
pub(super) fn multiply(rows: u32, weights: u32, full: u32, parity: u32, #[comptime] element: &'static str) {
    gpu_asm!(
        "{t} {r} {w} {f} {p}",
        t = const multiply_text(element), r = in(_) value::<u32>(rows), w = in(_) value::<u32>(weights),
        f = in(_) value::<u32>(full), p = in(_) value::<u32>(parity)
    );
}

fn multiply_text(element: &str) -> String {
    let products = shared_by_columns(&names(), DEPTH, element, "$0", "$1");
    format!("{}{HEAD}{FENCE}{products}{COMMIT}{}}} //", wait_text("$2", "$3", "FULL"), wait_for_all_but(1))
}

/// Waits for all products.
#[cube]
pub(super) fn drain() {
    gpu_asm!("{t}", t = const wait_for_all_but(0));
}

/// Writes the unit's two rows. Columns `8j + 2c` and the next are with unit `c` of four, and its 8 columns of block `4i + c` are
/// written at once, from `upper` and `lower` on, plus the bias from `bias` on. Bits 0 and 1 of `exist` say which rows are there.
#[cube]
#[allow(clippy::too_many_arguments)]
pub(super) fn write(
    upper: u64,
    lower: u64,
    exist: u32,
    bias: u64,
    c: u32,
    #[comptime] element: &'static str,
    #[comptime] biased: bool,
) {
    gpu_asm!(
        "{t} {u} {l} {e} {b} {c}",
        t = const write_text(element, biased), u = in(_) value::<u64>(upper), l = in(_) value::<u64>(lower),
        e = in(_) value::<u32>(exist), b = in(_) value::<u64>(bias), c = in(_) value::<u32>(c)
    );
}

fn write_text(element: &str, biased: bool) -> String {
    let mut text = String::from(
        "{ .reg .pred e<2>, odd, late; .reg .b32 w<8>, bit, s, r; .reg .b16 low, high; .reg .f32 x, y, bx, by;\n\
         and.b32 bit, $2, 1; setp.ne.u32 e0, bit, 0; and.b32 bit, $2, 2; setp.ne.u32 e1, bit, 0;\n\
         and.b32 bit, $4, 1; setp.ne.u32 odd, bit, 0; and.b32 bit, $4, 2; setp.ne.u32 late, bit, 0;\n",
    );
    for i in 0..COLUMNS / 32 {
        // Word `k` of row `h` goes to `w(4h + k)`.
        for k in 0..4 {
            let j = 4 * i + k;
            if biased {
                text += &format!("ld.global.b32 bit, [$3+{}];\n", 16 * j);
                text += match element {
                    // The upper half of an f32.
                    "bf16" => "shl.b32 s, bit, 16; mov.b32 bx, s; and.b32 s, bit, 0xffff0000; mov.b32 by, s;\n",
                    _ => "mov.b32 {low, high}, bit; cvt.f32.f16 bx, low; cvt.f32.f16 by, high;\n",
                };
            }
            for h in 0..2 {
                let (a, b) = (4 * j + 2 * h, 4 * j + 2 * h + 1);
                text += &if biased {
                    format!("add.f32 x, mcs_c{a}, bx; add.f32 y, mcs_c{b}, by;\n")
                } else {
                    format!("mov.f32 x, mcs_c{a}; mov.f32 y, mcs_c{b};\n")
                };
                text += &format!("cvt.rn.{element}x2.f32 w{}, y, x;\n", 4 * h + k);
            }
        }
        for h in 0..2 {
            text += &transpose(4 * h);
            let words = (0..4).map(|k| format!("w{}", 4 * h + k)).collect::<Vec<_>>().join(", ");
            text += &format!("@e{h} st.global.v4.b32 [${h}+{}], {{{words}}};\n", 64 * i);
        }
    }
    text + "} //"
}

/// Word `k` of unit `c` of four and word `c` of unit `k` change places.
fn transpose(first: usize) -> String {
    let mut text = String::new();
    for (predicate, apart) in [("odd", 1), ("late", 2)] {
        for k in (0..4).filter(|k| k & apart == 0) {
            let (a, b) = (format!("w{}", first + k), format!("w{}", first + k + apart));
            text += &format!(
                "selp.b32 s, {a}, {b}, {predicate}; shfl.sync.bfly.b32 r, s, {apart}, 31, -1;\n\
                 selp.b32 {a}, r, {a}, {predicate}; selp.b32 {b}, {b}, r, {predicate};\n"
            );
        }
    }
    text
}
