//! Rows of a head on their way into a tile of shared memory as `wgmma` reads it.
//!
//! A tile has [`ROWS`] rows. Columns lie in halves of 64: a row of a half takes 128 bytes, and the 16-byte chunk `c` of row
//! `r` lies at `c ^ (r % 8)` (128-byte swizzle), which keeps both eight rows of a chunk and eight chunks of a row in different
//! banks.

use cubecl::prelude::*;

use super::{
    super::fragment::{CHUNK, PLANE},
    barrier::{arrive, arrive_after_copies, fence_products, sync_plane},
    operand::{from_lane, value},
};

/// Rows of a tile.
pub(in super::super) const ROWS: usize = 128;
/// Columns of a half: 128 bytes.
pub(in super::super) const HALF: usize = 64;
/// Bytes from a half to the next.
pub(in super::super) const HALF_BYTES: usize = ROWS * 128;

/// Bytes of a tile.
pub(in super::super) const fn tile_bytes(dim: usize) -> usize {
    dim / HALF * HALF_BYTES
}

/// Starts bringing the 32 rows of this plane, the `plane`-th of four: row `lane` is token `token` of that unit, of the head at
/// address `head` whose tokens lie `token_bytes` apart. Each row is read by as many units as it has chunks; bulk
/// and tensor copies of single rows are slower.
///
/// Ends with an arrival of every unit at `barrier`. Rows that do not start at 16 bytes are not `whole` and are read by
/// elements, `column_bytes` apart.
#[cube]
#[allow(clippy::too_many_arguments)]
pub(in super::super) fn gather(
    head: u64,
    token_bytes: u32,
    column_bytes: u32,
    token: u32,
    tile: u32,
    barrier: u32,
    plane: u32,
    lane: u32,
    #[comptime] dim: usize,
    #[comptime] whole: bool,
) {
    let lanes = comptime!((dim / CHUNK) as u32);
    let at_once = comptime!(PLANE as u32 / lanes);
    let (c, r) = (lane % lanes, lane / lanes);
    let to = tile + (c / 8) * comptime!(HALF_BYTES as u32) + (plane * 32 + r) * 128;
    let swizzled = (c % 8) ^ r;
    let from = head + u64::cast_from(c * 8) * u64::cast_from(column_bytes);
    if comptime!(whole) {
        #[unroll]
        for i in 0..comptime!(PLANE as u32 / at_once) {
            let first = comptime!(i * at_once);
            let row = from_lane(token, first + r);
            let to = to + comptime!(first * 128) + ((swizzled ^ comptime!(first % 8)) << 4);
            copy_16(to, from + u64::cast_from(row) * u64::cast_from(token_bytes));
        }
    } else {
        for i in 0..comptime!(PLANE as u32 / at_once) {
            let first = i * at_once;
            let row = from_lane(token, first + r);
            let to = to + first * 128 + ((swizzled ^ (first % 8)) << 4);
            copy_elements(to, from + u64::cast_from(row) * u64::cast_from(token_bytes), u64::cast_from(column_bytes));
            // Reads of several rows at once would take more registers than there are.
            sync_plane();
        }
    }
    if comptime!(whole) {
        arrive_after_copies(barrier);
    } else {
        fence_products();
        arrive(barrier);
    }
}

/// Starts a copy of 16 bytes past the L1 cache.
#[cube]
fn copy_16(to: u32, from: u64) {
    gpu_asm!(
        "cp.async.cg.shared.global.L2::128B [{s}], [{g}], 16;",
        s = in(_) value::<u32>(to), g = in(_) value::<u64>(from)
    );
}

/// Copies 8 elements of 16 bits, `stride` bytes apart.
#[cube]
fn copy_elements(to: u32, from: u64, stride: u64) {
    gpu_asm!(
        "{t} {s} {g} {b}",
        t = const elements_text(), s = in(_) value::<u32>(to), g = in(_) value::<u64>(from), b = in(_) value::<u64>(stride)
    );
}

fn elements_text() -> String {
    let read = |i: usize| format!("ld.global.b16 h{i}, [at]; add.u64 at, at, $2;\n");
    let pair = |i: usize| format!("mov.b32 w{i}, {{h{}, h{}}};\n", 2 * i, 2 * i + 1);
    let (reads, pairs): (String, String) = ((0..8).map(read).collect(), (0..4).map(pair).collect());
    format!(
        "{{ .reg .b16 h<8>; .reg .b32 w<4>; .reg .b64 at; mov.b64 at, $1;\n\
         {reads}{pairs}st.shared.v4.b32 [$0], {{w0, w1, w2, w3}}; }} //"
    )
}

/// Asks for the 128 or 256 bytes at `from` to be in the L2 cache soon.
#[cube]
pub(in super::super) fn prefetch(from: u64, #[comptime] bytes: usize) {
    #[unroll]
    for i in 0..comptime!(bytes.div_ceil(128) as u64) {
        gpu_asm!("prefetch.global.L2 [{g}];", g = in(_) value::<u64>(from + comptime!(128 * i)));
    }
}

/// Writes a word to shared memory.
#[cube]
pub(in super::super) fn write(to: u32, word: u32) {
    gpu_asm!("st.shared.u32 [{s}], {w};", s = in(_) value::<u32>(to), w = in(_) value::<u32>(word));
}

/// Reads a word from shared memory.
#[cube]
pub(in super::super) fn read(from: u32) -> u32 {
    let word: u32;
    gpu_asm!("ld.shared.u32 {w}, [{s}];", w = out(_) word, s = in(_) value::<u32>(from));
    word
}
