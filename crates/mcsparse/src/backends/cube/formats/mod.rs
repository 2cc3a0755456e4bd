//! Stored forms of the cache: key lists as words, residuals as 8-bit codes. Plain kernels that every device runs.

mod codes;
mod lists;

pub(super) use codes::{decode, encode};
pub(super) use lists::{SHARED_BYTES, UNITS, expand, pack};
