//! Selection of each group's keys.

pub(super) mod mma;
pub(super) mod partition;
