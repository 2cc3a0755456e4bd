//! Sparse attention put together from parts, in tensor operations: MC-Sparse with each of its ideas on or off, and its
//! rivals, all behind [`mcsparse::SelfAttention`] and at a density that is set exactly.
//!
//! A [`Recipe`] says how queries are grouped, which keys a group keeps ([`Select`]), what becomes of the others ([`Rest`]),
//! when the choice is made anew ([`Refresh`]) and what is added from an anchor ([`Residual`]). [`LabAttention`] runs it
//! under a schedule. The recipes of published methods are in [`rivals`]. Quality is the point here, not speed: what a method
//! keeps and skips is its own, the kernels are not.

mod blocks;
mod clusters;
mod groups;
mod lab;
mod layout;
mod pattern;
mod recipe;
mod residual;
mod rest;
pub mod rivals;
mod rows;
mod select;
#[cfg(all(test, feature = "flex"))]
mod tests;

pub use lab::{LabAttention, Schedule};
pub use layout::{Layout, tiles};
pub use pattern::{Exact, Pattern};
pub use recipe::{Grouping, Recipe, Refresh, Residual, Rest, Select};
pub use select::{Call, select};

/// Bytes that temporary tensors may take.
const WORKSPACE: usize = 1 << 30;
