//! Column sums that ride in the dense pass: the attention mass of every key for every group, from weights that are there anyway.
//!
//! The sums need each query's log-sum-exp before the pass that computes it, so they take that of an earlier step. Warpgroups
//! multiply a step's weights by what turns their running maximum into that log-sum-exp, add them up over the queries of a plane,
//! and leave one sum a key and plane in shared memory. The units that bring keys add up the planes' sums, always in the same order,
//! and write them: when the values' buffer of a step is free again, its sums are there, so that no barrier of their own is needed.

use cubecl::prelude::*;

use super::{
    super::{
        super::{
            fragment::{C2, exp2},
            hopper::{copy::read, operand::value},
        },
        shape::Sizes,
    },
    tile::{Buffers, CONSUMERS, KEYS, Tile, total},
};

/// Bytes of the column sums of a step: one a key and plane.
pub(super) const RIDE_BYTES: usize = 4 * CONSUMERS * 4 * KEYS;

/// Greatest power of two that a weight may be off by: sums of all groups' queries stay finite.
const MOST: f32 = 100.0;

/// What a launch with column sums is told, and one without is not asked for.
#[derive(CubeLaunch, CubeType)]
pub(super) struct Span {
    /// Tiles of this launch: from here on,
    pub first: u32,
    /// to here.
    pub end: u32,
    /// Keys before this one are sinks,
    pub sink_end: u32,
    /// and those from this one on.
    pub sink_start: u32,
}

/// [`Span`], and where log-sum-exps are read and sums are written.
#[derive(CubeType)]
pub(super) struct Ride {
    pub span: Span,
    /// Address of the log-sum-exps of an earlier step, `[batch, heads, queries]`.
    pub lse: u64,
    /// Address of the sums, `[end - first, keys]`.
    pub mass: u64,
}

#[cube]
impl Ride {
    /// Of a launch without column sums.
    pub fn none() -> Ride {
        let (zero, nowhere) = (0u32.runtime(), 0u64.runtime());
        let span = Span { first: zero, end: zero, sink_end: zero, sink_start: zero };
        Ride { span, lse: nowhere, mass: nowhere }
    }

    /// The bits of minus the binary logarithm of a query's sum of exponentials, or of what leaves none of the weight of one that
    /// does not exist.
    pub fn norm(&self, of_head: usize, token: u32, exists: bool) -> u32 {
        let lse = read_global(self.lse + 4 * (u64::cast_from(of_head) + u64::cast_from(token)));
        u32::reinterpret(select(exists, lse * comptime!(-core::f32::consts::LOG2_E), f32::new(-3.0e38)))
    }
}

/// The first tile of this cube.
#[cube]
pub(super) fn first_tile(ride: &Ride, #[comptime] tile: Tile) -> u32 {
    if comptime!(tile.rides) { ride.span.first + CUBE_POS_X } else { CUBE_POS_X }
}

/// The end of all cubes' tiles.
#[cube]
pub(super) fn end_of_tiles(ride: &Ride, sizes: &Sizes, #[comptime] tile: Tile) -> u32 {
    if comptime!(tile.rides) { ride.span.end } else { total(sizes) }
}

/// What weights are multiplied by, of two rows: two to the power of their maximum less that of their log-sum-exp, whose
/// [`norm`](Ride::norm) is at `norms` and, for the second row, 8 queries on. Reading it in each step saves registers.
#[cube]
pub(super) fn factors(risen: Vector<f32, C2>, norms: u32) -> Vector<f32, C2> {
    let (upper, lower) = (f32::reinterpret(read(norms)), f32::reinterpret(read(norms + 32)));
    let mut result = Vector::<f32, C2>::new(factor(risen.extract(0usize) + upper));
    result.insert(1usize, factor(risen.extract(1usize) + lower));
    result
}

/// NaN stays NaN, as in a pass of its own; a minimum would lose it.
#[cube]
fn factor(power: f32) -> f32 {
    exp2(select(power > f32::new(MOST), f32::new(MOST), power), true)
}

/// Where this unit's column sums go at this place: the bytes of those of all planes before.
#[cube]
pub(super) fn ride_of(place: u32, buffers: &Buffers) -> u32 {
    buffers.rides + place + UNIT_POS / 32 * comptime!(RIDE_BYTES as u32 / 4 / CONSUMERS as u32) + 8 * (UNIT_POS % 32)
}

/// The place after this one.
#[cube]
pub(super) fn next_place(place: u32, #[comptime] tile: Tile) -> u32 {
    let next = place + comptime!(RIDE_BYTES as u32);
    select(next == comptime!((tile.rides_at_once() * RIDE_BYTES) as u32), 0u32, next)
}

/// Declares what [`weigh`] needs. Bits 5 to 7 of the address `to` are those of the unit's row of 8.
pub(super) fn declare(to: &str) -> String {
    let mut text = String::from(".reg .f32 c<4>, d<4>, e<4>, f<2>, send, keep; .reg .pred r<3>; .reg .b32 bit;\n");
    for level in 0..3 {
        text += &format!("and.b32 bit, {to}, {}; setp.ne.u32 r{level}, bit, 0;\n", 32 << level);
    }
    text
}

/// After the weights `x` and `y` of pair `pair`, those of columns `8j + 2c` and `8j + 2c + 1` of the unit's row `h` where `pair` is
/// `2j + h`: adds them up over its rows, and over those of the plane's other units as soon as there are two of what is to be
/// exchanged. Each exchange gives half of what both have away, so that three of them leave a unit with 4 of 32 sums, those of
/// columns `2 * lane`, `2 * lane + 1` and the same 64 further, which go to `to`.
pub(super) fn weigh(pair: usize, factors: [&str; 2], to: &str) -> String {
    let (block, h) = (pair / 2, pair % 2);
    let (x, y) = (2 * (block % 2), 2 * (block % 2) + 1);
    if h == 0 {
        return format!("mul.f32 c{x}, x, {0}; mul.f32 c{y}, y, {0};\n", factors[0]);
    }
    let mut text = format!("fma.rn.f32 c{x}, x, {0}, c{x}; fma.rn.f32 c{y}, y, {0}, c{y};\n", factors[1]);
    let names = ["c", "d", "e", "f"];
    for level in 0..3 {
        // Both halves are there.
        if (block + 1) % (2 << level) != 0 {
            break;
        }
        let at = if level == 2 { 0 } else { 2 * (block / (2 << level) % 2) };
        for i in 0..2 {
            let (from, result) = (names[level], names[level + 1]);
            text += &format!(
                "selp.f32 send, {from}{i}, {from}{}, r{level}; selp.f32 keep, {from}{}, {from}{i}, r{level};\n\
                 shfl.sync.bfly.b32 send, send, {}, 31, -1; add.f32 {result}{}, keep, send;\n",
                i + 2,
                i + 2,
                4 << level,
                at + i
            );
        }
    }
    if block % 8 == 7 {
        text += &format!("st.shared.v2.f32 [{to}+{}], {{f0, f1}};\n", 32 * (block - 7));
    }
    text
}

/// Column sums that are written by planes and not yet brought to their row: a step's are once the buffer of its values is free.
#[derive(CubeType)]
pub(super) struct Waiting {
    /// Steps that none are there for yet.
    ahead: u32,
    /// Where the next ones are, which row they go to, and which step's they are.
    place: u32,
    row: u32,
    step: u32,
}

#[cube]
impl Waiting {
    pub fn new() -> Waiting {
        Waiting { ahead: 0u32.runtime(), place: 0u32.runtime(), row: CUBE_POS_X, step: 0u32.runtime() }
    }

    /// After a step's values have been asked for: brings the sums of the step that had their buffer before. `steps` a row.
    pub fn next(
        &mut self,
        unit: u32,
        steps: u32,
        ride: &Ride,
        sizes: &Sizes,
        buffers: &Buffers,
        #[comptime] tile: Tile,
    ) {
        if self.ahead < comptime!(tile.stages as u32) {
            self.ahead += 1;
        } else if ride.span.first + self.row < ride.span.end {
            let from = buffers.rides + self.place + 4 * unit;
            let mut sum = f32::reinterpret(read(from));
            #[unroll]
            for plane in 1..comptime!(4 * CONSUMERS as u32) {
                sum += f32::reinterpret(read(from + comptime!(plane * 4 * KEYS as u32)));
            }
            let key = self.step * comptime!(KEYS as u32) + unit;
            let sink = key < ride.span.sink_end || key >= ride.span.sink_start;
            let bits = select(sink, comptime!(f32::INFINITY.to_bits()).runtime(), u32::reinterpret(sum));
            let at = u64::cast_from(self.row) * u64::cast_from(sizes.keys) + u64::cast_from(key);
            write_global(ride.mass + 4 * at, bits, u32::cast_from(key < sizes.keys));
            self.place = next_place(self.place, tile);
            self.step += 1;
            if self.step == steps {
                self.step = 0;
                self.row += CUBE_COUNT_X;
            }
        }
    }
}

#[cube]
fn read_global(address: u64) -> f32 {
    let result: f32;
    gpu_asm!("ld.global.f32 {r}, [{a}];", r = out(_) result, a = in(_) value::<u64>(address));
    result
}

/// Where `really` is 1.
#[cube]
fn write_global(address: u64, bits: u32, really: u32) {
    gpu_asm!(
        "{{ .reg .pred p; setp.ne.u32 p, {p}, 0; @p st.global.b32 [{a}], {b}; }}",
        p = in(_) value::<u32>(really), a = in(_) value::<u64>(address), b = in(_) value::<u32>(bits)
    );
}
