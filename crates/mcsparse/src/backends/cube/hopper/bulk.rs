//! Tiles of matrices that the copy engine brings (TMA, `cp.async.bulk.tensor`): one unit asks, and the engine works out addresses,
//! swizzles, and puts zeros where the matrix has ended.
//!
//! Cubes of a cluster run at the same time and reach each other's shared memory. One tile can be brought to all of them, which
//! then read it from the L2 cache once.

use cubecl::prelude::*;

use super::operand::value;

/// One arrival at `barrier`, whose phase then waits for so many bytes as well.
#[cube]
pub(in super::super) fn expect(barrier: u32, bytes: u32) {
    gpu_asm!(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [{a}], {n};",
        a = in(_) value::<u32>(barrier), n = in(_) value::<u32>(bytes)
    );
}

/// Brings the tile of the matrix that `map` describes (an address) from this column and row on. Its bytes count at `barrier`.
#[cube]
pub(in super::super) fn bring(map: u64, column: u32, row: u32, to: u32, barrier: u32) {
    gpu_asm!(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [{t}], [{m}, {{{c}, {r}}}], [{b}];",
        t = in(_) value::<u32>(to), m = in(_) value::<u64>(map), c = in(_) value::<u32>(column),
        r = in(_) value::<u32>(row), b = in(_) value::<u32>(barrier)
    );
}

/// [`bring`] to each cube of the cluster whose bit is set in `cubes`: to the same place in each, and to the barrier there.
#[cube]
pub(in super::super) fn bring_to(map: u64, column: u32, row: u32, to: u32, barrier: u32, #[comptime] cubes: u32) {
    gpu_asm!(
        "{t} {to} {m} {c} {r} {b}",
        t = const bring_to_text(cubes), to = in(_) value::<u32>(to), m = in(_) value::<u64>(map),
        c = in(_) value::<u32>(column), r = in(_) value::<u32>(row), b = in(_) value::<u32>(barrier)
    );
}

fn bring_to_text(cubes: u32) -> String {
    format!(
        "{{ .reg .b16 cubes; mov.b16 cubes, {cubes};\n\
         cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster\n\
         [$0], [$1, {{$2, $3}}], [$4], cubes; }} //"
    )
}

/// The number of this cube within its cluster.
#[cube]
pub(in super::super) fn rank() -> u32 {
    let rank: u32;
    gpu_asm!("mov.u32 {o}, %%cluster_ctarank;", o = out(_) rank);
    rank
}

/// All units of all cubes of the cluster have come here, and see what the others have written before.
#[cube]
pub(in super::super) fn sync_cluster() {
    gpu_asm!("barrier.cluster.arrive.release; barrier.cluster.wait.acquire;");
}

/// One arrival at the barrier of this address in cube `number` of the cluster, of the units alone whose `number` is below
/// `cubes`: no branch.
#[cube]
pub(in super::super) fn arrive_in(address: u32, number: u32, #[comptime] cubes: u32) {
    gpu_asm!(
        "{t} {a} {n}",
        t = const arrive_in_text(cubes), a = in(_) value::<u32>(address), n = in(_) value::<u32>(number)
    );
}

fn arrive_in_text(cubes: u32) -> String {
    format!(
        "{{ .reg .pred p; .reg .b32 there; setp.lt.u32 p, $1, {cubes};\n\
         @p mapa.shared::cluster.u32 there, $0, $1;\n\
         @p mbarrier.arrive.shared::cluster.b64 _, [there]; }} //"
    )
}
