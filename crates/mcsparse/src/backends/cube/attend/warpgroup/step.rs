//! The registers and blocks of assembly of a warpgroup's softmax.
//!
//! Scores, output and sums have names of their own, which outlive a block: CubeCL and the compiler behind it cannot move what
//! they do not know of. Everything that touches them is here.

use core::ops::Range;

use cubecl::prelude::*;

use super::{
    super::super::{
        fragment::C2,
        hopper::{
            barrier::wait_text,
            operand::value,
            wgmma::{COMMIT, FENCE, HEAD, registers_by_shared, shared_by_shared, wait_for_all_but},
        },
    },
    ride,
    tile::{KEYS, Tile},
};

/// Names of `count` registers.
fn names(of: &str, count: usize) -> Vec<String> {
    (0..count).map(|i| format!("mcs_{of}{i}")).collect()
}

/// Once, before anything else here: scores `s` (64 rows by 128 keys), output `o` (64 rows by the head dimension), weights `p`
/// in pairs, the sums `l` of the unit's two rows.
#[cube]
pub(super) fn declare() {
    gpu_asm!(".reg .f32 mcs_s<64>, mcs_o<64>, mcs_l<2>; .reg .b32 mcs_p<32>;");
}

/// Output and sums become zero.
#[cube]
pub(super) fn clear() {
    gpu_asm!("{t}", t = const clear_text());
}

fn clear_text() -> String {
    let all = names("o", 64).into_iter().chain(names("l", 2));
    all.map(|name| format!("mov.f32 {name}, 0f00000000;\n")).collect()
}

/// Scores of the tiles at these descriptors.
#[cube]
pub(super) fn first_scores(query: u32, keys: u32, #[comptime] dim: usize, #[comptime] element: &'static str) {
    gpu_asm!(
        "{t} {q} {k}",
        t = const first_text(dim, element), q = in(_) value::<u32>(query), k = in(_) value::<u32>(keys)
    );
}

fn first_text(dim: usize, element: &str) -> String {
    let products = shared_by_shared(&names("s", 64), 0..dim / 16, element, "$0", "$1");
    format!("{HEAD}{FENCE}{products}{COMMIT}{}}} //", wait_for_all_but(0))
}

/// Scores change their sign.
#[cube]
pub(super) fn negate() {
    gpu_asm!("{t}", t = const negate_text());
}

fn negate_text() -> String {
    names("s", 64).into_iter().map(|name| format!("neg.f32 {name}, {name};\n")).collect()
}

/// Scores of keys from `count` on become as small as can be, in the unit with the columns `2c` and `2c + 1` of each 8.
#[cube]
pub(super) fn forget_past(count: u32, c: u32) {
    gpu_asm!("{t} {n} {c}", t = const forget_text(), n = in(_) value::<u32>(count), c = in(_) value::<u32>(c));
}

fn forget_text() -> String {
    // -3e38
    let column = |i: usize| {
        let key = i / 4 * 8 + i % 2;
        format!("add.u32 key, key0, {key}; setp.ge.u32 past, key, $0; selp.f32 mcs_s{i}, 0fFF61B1E6, mcs_s{i}, past;\n")
    };
    let all: String = (0..64).map(column).collect();
    format!("{{ .reg .pred past; .reg .b32 key, key0; shl.b32 key0, $1, 1;\n{all}}} //")
}

/// The greatest score of each of the unit's rows, and of the four units that share them, or what it was.
#[cube]
pub(super) fn greatest(before: Vector<f32, C2>) -> Vector<f32, C2> {
    let result: Vector<f32, C2>;
    gpu_asm!("{t} {r} {b}", t = const greatest_text(), r = out(_) result, b = in(_) value::<Vector<f32, C2>>(before));
    result
}

fn greatest_text() -> String {
    // Four maxima a row, or each would wait for the last.
    let mut text = String::from("{ .reg .f32 m<8>, x;\n");
    for j in 0..16 {
        for h in 0..2 {
            let (a, b, m) = (4 * j + 2 * h, 4 * j + 2 * h + 1, 4 * h + j % 4);
            text += &if j < 4 {
                format!("max.f32 m{m}, mcs_s{a}, mcs_s{b};\n")
            } else {
                format!("max.f32 x, mcs_s{a}, mcs_s{b}; max.f32 m{m}, m{m}, x;\n")
            };
        }
    }
    for (to, from) in [(0, 1), (4, 5), (2, 3), (6, 7), (0, 2), (4, 6)] {
        text += &format!("max.f32 m{to}, m{to}, m{from};\n");
    }
    text += "max.f32 m0, m0, %2; max.f32 m4, m4, %3;\n";
    for mask in [1, 2] {
        text += &format!(
            "shfl.sync.bfly.b32 m1, m0, {mask}, 31, -1; shfl.sync.bfly.b32 m5, m4, {mask}, 31, -1;\n\
             max.f32 m0, m0, m1; max.f32 m4, m4, m5;\n"
        );
    }
    text + "mov.f32 %0, m0; mov.f32 %1, m4; } //"
}

/// Output and sums of the unit's two rows times `factors`. Nothing may be running: a wait here, where some planes of a warpgroup
/// pass by, would never end.
#[cube]
pub(super) fn rescale(factors: Vector<f32, C2>, #[comptime] dim: usize) {
    gpu_asm!("{t} {f}", t = const rescale_text(dim), f = in(_) value::<Vector<f32, C2>>(factors));
}

fn rescale_text(dim: usize) -> String {
    let output = names("o", dim / 2).into_iter().enumerate().map(|(i, name)| (i / 2 % 2, name));
    let all = output.chain(names("l", 2).into_iter().enumerate());
    let products: String = all.map(|(h, name)| format!("mul.f32 {name}, {name}, %{h};\n")).collect();
    products + "//"
}

/// Waits for a step's values, then for the last products of the step before. `after` has been computed by then: the loop of the
/// first wait keeps ptxas from moving the second one in front of what does not depend on it.
#[cube]
pub(super) fn finish(after: Vector<f32, C2>, full_values: u32, parity: u32) {
    gpu_asm!(
        "{t} {b} {p} {a}",
        t = const finish_text(), b = in(_) value::<u32>(full_values), p = in(_) value::<u32>(parity),
        a = in(_) value::<Vector<f32, C2>>(after)
    );
}

fn finish_text() -> String {
    wait_text("$0", "$1", "VALUES") + &wait_for_all_but(0) + "//"
}

/// What a step works on: tiles by their descriptors, and the barriers of their buffers.
#[derive(CubeType)]
pub(super) struct Tiles {
    pub query: u32,
    /// Of the next step.
    pub keys: u32,
    pub full_keys: u32,
    pub keys_parity: u32,
    pub values: u32,
}

/// Weights of a step's keys, their products with the values, and, if there is a `next` step, its scores.
///
/// The first products run beside the last exponentials; the last ones run on beside whatever comes after, until [`finish`].
/// `offsets` are minus the rows' maxima times the exponent.
#[cube]
pub(super) fn step(
    exponent: f32,
    offsets: Vector<f32, C2>,
    tiles: &Tiles,
    #[comptime] tile: Tile,
    #[comptime] next: bool,
) {
    gpu_asm!(
        "{t} {o} {e} {q} {k} {fk} {pk} {v}",
        t = const step_text(tile, next),
        o = in(_) value::<Vector<f32, C2>>(offsets), e = in(_) value::<f32>(exponent),
        q = in(_) value::<u32>(tiles.query),
        k = in(_) value::<u32>(tiles.keys), fk = in(_) value::<u32>(tiles.full_keys), pk = in(_) value::<u32>(tiles.keys_parity),
        v = in(_) value::<u32>(tiles.values)
    );
}

/// [`step`], with the column sums of its weights, by which `factors` each, to shared memory, see [`super::ride`].
#[cube]
pub(super) fn step_and_ride(
    exponent: f32,
    offsets: Vector<f32, C2>,
    factors: Vector<f32, C2>,
    to: u32,
    tiles: &Tiles,
    #[comptime] tile: Tile,
    #[comptime] next: bool,
) {
    gpu_asm!(
        "{t} {o} {e} {q} {k} {fk} {pk} {v} {f} {g} {to}",
        t = const step_text(tile, next),
        o = in(_) value::<Vector<f32, C2>>(offsets), e = in(_) value::<f32>(exponent),
        q = in(_) value::<u32>(tiles.query),
        k = in(_) value::<u32>(tiles.keys), fk = in(_) value::<u32>(tiles.full_keys), pk = in(_) value::<u32>(tiles.keys_parity),
        v = in(_) value::<u32>(tiles.values),
        f = in(_) value::<f32>(factors.extract(0usize)), g = in(_) value::<f32>(factors.extract(1usize)),
        to = in(_) value::<u32>(to)
    );
}

/// Operands: `%0` and `%1` the offsets, `$1` the exponent, `$2` the query, `$3` to `$5` keys, `$6` values; where column sums
/// ride, `$7` and `$8` their factors, `$9` where they go.
fn step_text(tile: Tile, next: bool) -> String {
    let (dim, element, first) = (tile.head_dim, tile.element, tile.first_keys());
    let products = |keys: Range<usize>| {
        let left = &names("p", 32)[keys.start / 4..keys.end / 4];
        registers_by_shared(&names("o", dim / 2), element, left, "$6", keys.start) + COMMIT
    };
    let mut text = format!("{HEAD}.reg .f32 x, y, z<2>;\n");
    if tile.rides {
        text += &ride::declare("$9");
    }
    text += &weights(0..first, tile);
    text += FENCE;
    text += &products(0..first);
    text += &weights(first..KEYS, tile);
    let last = products(first..KEYS);
    if next {
        text += &wait_text("$4", "$5", "KEYS");
        // The first weights leave their registers to the next scores.
        text += &wait_for_all_but(0);
        text += &format!("{FENCE}{}{COMMIT}", shared_by_shared(&names("s", 64), 0..dim / 16, element, "$2", "$3"));
        // One fence for both: a second one would have the scores wait for these products too.
        text + &last + &wait_for_all_but(1) + "} //"
    } else {
        text + FENCE + &last + &wait_for_all_but(0) + "} //"
    }
}

/// Exponentials of the scores of some keys, rounded in pairs, and added to the sums unrounded.
fn weights(keys: Range<usize>, tile: Tile) -> String {
    let (mut text, element) = (String::new(), tile.element);
    for pair in keys.start / 4..keys.end / 4 {
        let (a, b, h) = (2 * pair, 2 * pair + 1, pair % 2);
        text += &format!(
            "fma.rn.f32 x, mcs_s{a}, $1, %{h}; ex2.approx.ftz.f32 x, x;\n\
             fma.rn.f32 y, mcs_s{b}, $1, %{h}; ex2.approx.ftz.f32 y, y;\n\
             cvt.rn.{element}x2.f32 mcs_p{pair}, y, x;\n"
        );
        if tile.rides {
            text += &ride::weigh(pair, ["$7", "$8"], "$9");
        }
        // Four weights at a time, so that fewer additions wait for each other.
        text += &if pair / 2 % 2 == 0 {
            format!("add.f32 z{h}, x, y;\n")
        } else {
            format!("add.f32 x, x, y; add.f32 x, x, z{h}; add.f32 mcs_l{h}, mcs_l{h}, x;\n")
        };
    }
    text
}

/// The sums of the unit's two rows: its own share.
#[cube]
pub(super) fn sums() -> Vector<f32, C2> {
    let result: Vector<f32, C2>;
    gpu_asm!("mov.f32 %0, mcs_l0; mov.f32 %1, mcs_l1; // {o}", o = out(_) result);
    result
}

/// A row of the unit on its way out.
#[derive(CubeType)]
pub(super) struct Row {
    /// Address of the unit's first column.
    pub to: u64,
    /// The same of what is added.
    pub other: u64,
    /// What the sums are multiplied by.
    pub factor: f32,
    /// 1 if it is to be written.
    pub exists: u32,
}

/// Writes the unit's columns of its two rows. `stride` is that of the other tensor's columns, in bytes; `on_other` a factor on
/// it if it is `scaled`.
#[cube]
pub(super) fn write_rows(
    upper: &Row,
    lower: &Row,
    stride: u32,
    on_other: f32,
    #[comptime] dim: usize,
    #[comptime] element: &'static str,
    #[comptime] addend: Addend,
    #[comptime] scaled: bool,
) {
    gpu_asm!(
        "{t} {a} {b} {c} {d} {e} {f} {g} {h} {s} {k}",
        t = const write_text(dim, element, addend, scaled),
        a = in(_) value::<u64>(upper.to), b = in(_) value::<u64>(upper.other), c = in(_) value::<f32>(upper.factor),
        d = in(_) value::<u32>(upper.exists),
        e = in(_) value::<u64>(lower.to), f = in(_) value::<u64>(lower.other), g = in(_) value::<f32>(lower.factor),
        h = in(_) value::<u32>(lower.exists), s = in(_) value::<u32>(stride), k = in(_) value::<f32>(on_other)
    );
}

/// What is added to the output, and how it is read.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(in super::super::super) enum Addend {
    /// Nothing.
    None,
    /// Two neighbouring columns at once.
    Pairs,
    /// Any stride, in bytes.
    Single,
}

/// Operands: `$0` to `$3` and `$4` to `$7` a row each, see [`Row`]; `$8` the stride, `$9` the factor on the other tensor.
fn write_text(dim: usize, element: &str, addend: Addend, scaled: bool) -> String {
    let mut text = String::from(
        "{ .reg .b32 w<32>, w; .reg .b16 low, high; .reg .f32 x, y; .reg .b64 at, near, far; .reg .pred e<2>;\n\
         setp.ne.u32 e0, $3, 0; setp.ne.u32 e1, $7, 0;\n",
    );
    text += &match addend {
        // All reads before the first use; a row that does not exist repeats one that does.
        Addend::None | Addend::Pairs => [0, 1].map(|h| read_text(h, dim, addend)).concat(),
        Addend::Single => String::new(),
    };
    for h in 0..2 {
        // Both rows' addresses would not fit the registers.
        if addend == Addend::Single {
            text += &read_text(h, dim, addend);
        }
        text += &write_row_text(h, dim, element, addend, scaled);
    }
    text + "} //"
}

/// Reads row `h` of the other tensor to words, two columns each.
fn read_text(h: usize, dim: usize, addend: Addend) -> String {
    let from = 4 * h + 1;
    let words = (0..dim / 8).map(|j| (j, 16 * h + j));
    match addend {
        Addend::None => String::new(),
        Addend::Pairs => words.map(|(j, word)| format!("ld.global.b32 w{word}, [${from}+{}];\n", 16 * j)).collect(),
        Addend::Single => {
            let word = |(_, word)| {
                format!(
                    "ld.global.b16 low, [at]; add.u64 at, at, near; ld.global.b16 high, [at]; add.u64 at, at, far;\n\
                     mov.b32 w{word}, {{low, high}};\n"
                )
            };
            format!(
                "mov.b64 at, ${from}; cvt.u64.u32 near, $8; mul.wide.u32 far, $8, 7;\n{}",
                words.map(word).collect::<String>()
            )
        }
    }
}

/// Writes row `h`.
fn write_row_text(h: usize, dim: usize, element: &str, addend: Addend, scaled: bool) -> String {
    let scale = if scaled { "mul.f32 x, x, $9; mul.f32 y, y, $9; " } else { "" };
    let column = |j: usize| {
        let (a, b, word, factor) = (4 * j + 2 * h, 4 * j + 2 * h + 1, 16 * h + j, 4 * h + 2);
        let sums = format!("{scale}fma.rn.f32 x, mcs_o{a}, ${factor}, x; fma.rn.f32 y, mcs_o{b}, ${factor}, y;\n");
        let values = match (addend, element) {
            (Addend::None, _) => format!("mul.f32 x, mcs_o{a}, ${factor}; mul.f32 y, mcs_o{b}, ${factor};\n"),
            // The upper half of an f32.
            (_, "bf16") => {
                format!("shl.b32 w, w{word}, 16; mov.b32 x, w; and.b32 w, w{word}, 0xffff0000; mov.b32 y, w;\n{sums}")
            }
            _ => format!("mov.b32 {{low, high}}, w{word}; cvt.f32.f16 x, low; cvt.f32.f16 y, high;\n{sums}"),
        };
        format!("{values}cvt.rn.{element}x2.f32 w, y, x; @e{h} st.global.b32 [${}+{}], w;\n", 4 * h, 16 * j)
    };
    (0..dim / 8).map(column).collect()
}
