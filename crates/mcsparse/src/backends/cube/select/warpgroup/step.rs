//! The registers and blocks of assembly of a warpgroup's column sums.
//!
//! Scores `s` (64 keys by 128 queries) and the queries' norms `n` have names that outlive a block. One warpgroup's products run
//! while others sum exponentials. They take turns, as those of FlashAttention-3 do: left alone, all would multiply at once, each
//! at a third of the speed, and then all wait for the same exponentials.

use cubecl::prelude::*;

use super::super::super::{
    fragment::C2,
    hopper::{
        barrier::{pass_text, turn_text, wait_text},
        operand::value,
        wgmma::{COMMIT, FENCE, HEAD, shared_by_shared, wait_for_all_but},
    },
};

/// Once, before anything else here.
#[cube]
pub(super) fn declare() {
    gpu_asm!(".reg .f32 mcs_s<64>, mcs_n<32>;");
}

/// Reads the norms of the unit's queries, those of columns `8j + 2c` and `8j + 2c + 1`, from shared memory: `norms` is where
/// the first is.
#[cube]
pub(super) fn read_norms(norms: u32) {
    gpu_asm!("{t} {n}", t = const norms_text(), n = in(_) value::<u32>(norms));
}

fn norms_text() -> String {
    let read = |j: usize| format!("ld.shared.v2.f32 {{mcs_n{}, mcs_n{}}}, [$0+{}];\n", 2 * j, 2 * j + 1, 32 * j);
    (0..16).map(read).collect::<String>() + "//"
}

/// Sums of a unit on their way out: of its two keys over its queries.
#[derive(CubeType)]
pub(super) struct Sums {
    pub both: Vector<f32, C2>,
    /// Where the sum of the key goes that this unit writes: the first one in the first of four units that share keys, the
    /// second one in the second.
    pub to: u64,
    /// [`STORE`] or [`ADD`], with [`SINK`] for a sink; nothing is written without one of the first two.
    pub how: u32,
}

/// It is written, or added to what is there.
pub(super) const STORE: u32 = 1;
pub(super) const ADD: u32 = 2;
/// It is infinite: the key is always kept.
pub(super) const SINK: u32 = 4;

/// Products that are still to come when the turn is passed on.
const PASSED: usize = 2;

/// What a warpgroup's products take.
#[derive(CubeType)]
pub(super) struct Tiles {
    /// Descriptors.
    pub keys: u32,
    pub queries: u32,
    /// The barrier of the keys.
    pub full_keys: u32,
    pub parity: u32,
    /// Numbers of the barriers where this warpgroup waits for its turn, and the next one for its own.
    pub own: u32,
    pub next: u32,
}

/// The products of 64 keys with 128 queries, once the keys are there and it is this warpgroup's turn. Meanwhile `sums` are
/// written.
#[cube]
pub(super) fn scores(tiles: &Tiles, sums: &Sums, #[comptime] dim: usize, #[comptime] element: &'static str) {
    gpu_asm!(
        "{t} {s} {k} {q} {b} {p} {o} {n} {to} {h} {c}",
        t = const scores_text(dim, element), s = in(_) value::<Vector<f32, C2>>(sums.both),
        k = in(_) value::<u32>(tiles.keys), q = in(_) value::<u32>(tiles.queries),
        b = in(_) value::<u32>(tiles.full_keys), p = in(_) value::<u32>(tiles.parity),
        o = in(_) value::<u32>(tiles.own), n = in(_) value::<u32>(tiles.next),
        to = in(_) value::<u64>(sums.to), h = in(_) value::<u32>(sums.how), c = in(_) value::<u32>(UNIT_POS % 2)
    );
}

/// Operands: `%0` and `%1` the sums, `$1` keys, `$2` queries, `$3` and `$4` their barrier, `$5` and `$6` turns, `$7` to `$9` as
/// in [`store_text`].
fn scores_text(dim: usize, element: &str) -> String {
    let names: Vec<String> = (0..64).map(|i| format!("mcs_s{i}")).collect();
    let products = |steps| shared_by_shared(&names, steps, element, "$1", "$2");
    let (before, pass) = (wait_text("$3", "$4", "KEYS") + &turn_text("$5"), pass_text("$6"));
    // The next warpgroup's products should begin as these end, neither beside them nor a while later.
    let last = dim / 16 - PASSED;
    let (most, rest) = (products(0..last), products(last..dim / 16));
    // These waits end at once. Their loops keep ptxas from moving what is before them behind the products.
    let (stored, passed) = (wait_text("$3", "$4", "STORED"), wait_text("$3", "$4", "PASSED"));
    format!(
        "{before}{HEAD}{FENCE}{most}{COMMIT}{rest}{COMMIT}{}{stored}{}{pass}{passed}{}}} //",
        store_text("$7", "$8", "$9"),
        wait_for_all_but(1),
        wait_for_all_but(0)
    )
}

/// Writes sums.
#[cube]
pub(super) fn store(sums: &Sums) {
    gpu_asm!(
        "{t} {s} {to} {h} {c}",
        t = const store_text("$1", "$2", "$3") + "//", s = in(_) value::<Vector<f32, C2>>(sums.both),
        to = in(_) value::<u64>(sums.to), h = in(_) value::<u32>(sums.how), c = in(_) value::<u32>(UNIT_POS % 2)
    );
}

/// Adds up the sums `%0` and `%1` of four units, and writes them to `to` as `how` says; `odd` is the unit's number's last bit.
fn store_text(to: &str, how: &str, odd: &str) -> String {
    let bit = |name: &str, bit: u32| format!("and.b32 b, {how}, {bit}; setp.ne.u32 {name}, b, 0;\n");
    format!(
        "{{ .reg .f32 x, y; .reg .b32 b; .reg .pred odd, store, add_to, sink;\n\
         setp.ne.u32 odd, {odd}, 0; selp.f32 x, %0, %1, odd; selp.f32 y, %1, %0, odd;\n\
         shfl.sync.bfly.b32 x, x, 1, 31, -1; add.f32 y, y, x;\n\
         shfl.sync.bfly.b32 x, y, 2, 31, -1; add.f32 y, y, x;\n\
         {}{}{}selp.f32 y, 0f7F800000, y, sink;\n\
         @store st.global.f32 [{to}], y; @add_to red.global.add.f32 [{to}], y; }}\n",
        bit("store", STORE),
        bit("add_to", ADD),
        bit("sink", SINK)
    )
}

/// Sums over the unit's queries of `2^(exponent * score + norm)`, for its two keys.
#[cube]
pub(super) fn sum(exponent: f32) -> Vector<f32, C2> {
    let result: Vector<f32, C2>;
    gpu_asm!("{t} {r} {e}", t = const sum_text(), r = out(_) result, e = in(_) value::<f32>(exponent));
    result
}

/// Operands: `%0` and `%1` the sums, `$1` the exponent.
fn sum_text() -> String {
    let mut text = String::from("{ .reg .f32 x, y, sum<4>;\n");
    for i in 0..4 {
        text += &format!("mov.f32 sum{i}, 0f00000000;\n");
    }
    for (j, h) in (0..16).flat_map(|j| (0..2).map(move |h| (j, h))) {
        let (a, b, sum) = (4 * j + 2 * h, 4 * j + 2 * h + 1, 2 * h + j % 2);
        text += &format!(
            "fma.rn.f32 x, mcs_s{a}, $1, mcs_n{}; ex2.approx.ftz.f32 x, x;\n\
             fma.rn.f32 y, mcs_s{b}, $1, mcs_n{}; ex2.approx.ftz.f32 y, y;\n\
             add.f32 x, x, y; add.f32 sum{sum}, sum{sum}, x;\n",
            2 * j,
            2 * j + 1
        );
    }
    text + "add.f32 %0, sum0, sum1; add.f32 %1, sum2, sum3; } //"
}
