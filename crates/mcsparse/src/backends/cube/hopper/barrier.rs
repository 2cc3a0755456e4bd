//! Barriers in shared memory (`mbarrier`): 8 bytes each. One phase ends when as many arrivals have come as it was set up for.

use cubecl::prelude::*;

use super::{WARPGROUP, operand::value};

/// Sets up a barrier of `count` arrivals a phase. By one unit, then [`publish`], then a barrier of the whole cube.
#[cube]
pub(in super::super) fn set_up(address: u32, count: u32) {
    gpu_asm!("mbarrier.init.shared::cta.b64 [{a}], {c};", a = in(_) value::<u32>(address), c = in(_) value::<u32>(count));
}

/// Makes barriers known to the units that copy.
#[cube]
pub(in super::super) fn publish() {
    gpu_asm!("fence.mbarrier_init.release.cluster;");
}

/// One arrival. What this unit has read or written before is done for those who wait.
#[cube]
pub(in super::super) fn arrive(address: u32) {
    gpu_asm!("mbarrier.arrive.shared::cta.b64 _, [{a}];", a = in(_) value::<u32>(address));
}

/// All units of the plane have come here, and see what the others have read and written before.
#[cube]
pub(in super::super) fn sync_plane() {
    gpu_asm!("bar.warp.sync -1;");
}

/// One arrival, of the units alone whose `number` is 0: no branch.
#[cube]
pub(in super::super) fn arrive_if_zero(address: u32, number: u32) {
    gpu_asm!(
        "{{ .reg .pred p; setp.eq.u32 p, {n}, 0; @p mbarrier.arrive.shared::cta.b64 _, [{a}]; }}",
        n = in(_) value::<u32>(number), a = in(_) value::<u32>(address)
    );
}

/// Waits for the end of the phase of this parity: 0 for the first, 1 for the second and so on. Parity 1 of a new barrier is
/// over, so that a producer that starts there finds every buffer empty.
#[cube]
pub(in super::super) fn wait(address: u32, parity: u32) {
    gpu_asm!(
        "{{ .reg .pred done; AGAIN: mbarrier.try_wait.parity.shared::cta.b64 done, [{a}], {p}; @done bra DONE; bra AGAIN; DONE: }}",
        a = in(_) value::<u32>(address), p = in(_) value::<u32>(parity)
    );
}

/// [`wait`] as a part of a block of assembly; `label` is its own.
pub(in super::super) fn wait_text(address: &str, parity: &str, label: &str) -> String {
    format!(
        "{{ .reg .pred done; {label}: mbarrier.try_wait.parity.shared::cta.b64 done, [{address}], {parity};\n\
         @done bra {label}_DONE; bra {label}; {label}_DONE: }}\n"
    )
}

/// Waits for the turn of this warpgroup at the hardware barrier of this number (0 is the cube's own), as a part of a block of
/// assembly: until another has called [`pass_text`] with it.
pub(in super::super) fn turn_text(number: &str) -> String {
    format!("bar.sync {number}, {};\n", 2 * WARPGROUP)
}

/// Gives the turn to the warpgroup that waits at this number, or will.
pub(in super::super) fn pass_text(number: &str) -> String {
    format!("bar.arrive {number}, {};\n", 2 * WARPGROUP)
}

/// [`pass_text`] alone.
#[cube]
pub(in super::super) fn pass(number: u32) {
    gpu_asm!("{t} {n}", t = const pass_text("$0") + "//", n = in(_) value::<u32>(number));
}

/// One arrival when all copies that this unit has started are there. It does not count as pending before (`noinc`): the
/// barrier is set up for one from every copying unit.
#[cube]
pub(in super::super) fn arrive_after_copies(address: u32) {
    gpu_asm!("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [{a}];", a = in(_) value::<u32>(address));
}

/// What units have written to shared memory becomes visible to products, which read it by another way (the async proxy).
///
/// Loops do without it where asynchronous copies write and [`arrive_after_copies`] reports, as FlashAttention-3's paged keys
/// do. The PTX ISA would have it there too; docs/performance.md says what it costs and what was checked without it.
#[cube]
pub(in super::super) fn fence_products() {
    gpu_asm!("fence.proxy.async.shared::cta;");
}
