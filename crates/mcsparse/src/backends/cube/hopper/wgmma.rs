//! Products of a warpgroup (`wgmma.mma_async`): 64 rows by up to 256 columns, 16-bit inputs, f32 sums in registers.
//!
//! Sum `4j + 2h + e` of unit `4g + c` of plane `w` belongs to row `16w + 8h + g` and column `8j + 2c + e`. Rounded to 16 bits,
//! sums of one product are in the registers where another takes its left operand from.
//!
//! Kernels declare registers with names of their own for sums and left operands. As operands of assembly, the compiler would
//! move them between blocks, and ptxas serialises products whose registers are touched while they run (C7510 to C7514).

use core::ops::Range;

use cubecl::prelude::*;

use super::copy::{HALF, HALF_BYTES};

/// The lower half of a tile's descriptor (start address >> 4 in bits 0-13, leading offset >> 4 in bits 16-29). The leading
/// offset is read only where rows run along the inner dimension, and is then that of the halves.
#[cube]
pub(in super::super) fn descriptor(tile: u32) -> u32 {
    tall_descriptor(tile, HALF_BYTES)
}

/// [`descriptor`] of a tile whose halves are so many bytes apart.
#[cube]
pub(in super::super) fn tall_descriptor(tile: u32, #[comptime] half_bytes: usize) -> u32 {
    ((tile & 0x3FFFF) >> 4) | comptime!((half_bytes as u32 >> 4) << 16)
}

/// The descriptor of a tile `bytes` further on.
#[cube]
pub(in super::super) fn further(descriptor: u32, bytes: u32) -> u32 {
    descriptor + (bytes >> 4)
}

/// The upper half: stride offset of 8 rows >> 4 in bits 32-45, 128-byte swizzle in bits 62-63.
const UPPER: u32 = (1 << 30) | (1024 >> 4);

/// Registers and the predicates that say whether a product adds to its sums.
pub(in super::super) const HEAD: &str =
    "{\n.reg .pred add, fresh; .reg .b64 a, b; .reg .b32 l;\nsetp.eq.u32 add, 0, 0; setp.ne.u32 fresh, 0, 0;\n";
/// Before products whose registers were written otherwise.
pub(in super::super) const FENCE: &str = "wgmma.fence.sync.aligned;\n";
/// Makes the products since the last one a group.
pub(in super::super) const COMMIT: &str = "wgmma.commit_group.sync.aligned;\n";

/// Waits until at most `running` groups are not through.
pub(in super::super) fn wait_for_all_but(running: usize) -> String {
    format!("wgmma.wait_group.sync.aligned {running};\n")
}

/// Sets `register` to the descriptor whose lower half is `lower` plus `offset`: 16 bytes each.
fn operand(register: &str, lower: &str, offset: usize) -> String {
    format!("add.u32 l, {lower}, {offset}; mov.b64 {register}, {{l, {UPPER}}};\n")
}

/// Both operands in shared memory: products over columns `16 k` to `16 k + 15` of their rows for each `k` of `steps`, into
/// `sums`, a register for every two columns. Step 0 begins the sums.
pub(in super::super) fn shared_by_shared(
    sums: &[String],
    steps: Range<usize>,
    element: &str,
    a: &str,
    b: &str,
) -> String {
    let (columns, sums) = (2 * sums.len(), sums.join(", "));
    steps
        .map(|k| {
            // 16 columns are 32 bytes; the swizzle works on addresses, so adding them walks along the row.
            let offset = k / (HALF / 16) * (HALF_BYTES >> 4) + k % (HALF / 16) * 2;
            let add = if k == 0 { "fresh" } else { "add" };
            let (a, b) = (operand("a", a, offset), operand("b", b, offset));
            format!(
                "{a}{b}wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{element}.{element} {{{sums}}}, a, b, {add}, 1, 1, 0, 0;\n"
            )
        })
        .collect()
}

/// Both operands in shared memory, the left one's inner dimension of `depth` along its rows, the right one's from row to row:
/// `depth / 16` products added to `sums`.
pub(in super::super) fn shared_by_columns(sums: &[String], depth: usize, element: &str, a: &str, b: &str) -> String {
    let (columns, sums) = (2 * sums.len(), sums.join(", "));
    let product = |k: usize| {
        let along = k / (HALF / 16) * (HALF_BYTES >> 4) + k % (HALF / 16) * 2;
        // Rows of 128 bytes.
        let (a, b) = (operand("a", a, along), operand("b", b, 16 * k * 128 / 16));
        format!(
            "{a}{b}wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{element}.{element} {{{sums}}}, a, b, add, 1, 1, 0, 1;\n"
        )
    };
    (0..depth / 16).map(product).collect()
}

/// Left operand in the registers `left`, four a product, right one in shared memory with the inner dimension along its rows,
/// from row `row` on: 16 rows a product, added to `sums`.
pub(in super::super) fn registers_by_shared(
    sums: &[String],
    element: &str,
    left: &[String],
    b: &str,
    row: usize,
) -> String {
    let (columns, sums) = (2 * sums.len(), sums.join(", "));
    let product = |(k, left): (usize, &[String])| {
        // Rows of 128 bytes.
        let (left, b) = (left.join(", "), operand("b", b, (row + 16 * k) * 128 / 16));
        format!(
            "{b}wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{element}.{element} {{{sums}}}, {{{left}}}, b, add, 1, 1, 1;\n"
        )
    };
    left.chunks(4).enumerate().map(product).collect()
}
