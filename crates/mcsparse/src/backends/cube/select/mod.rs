//! Selection of each group's keys.

pub(super) mod partition;
