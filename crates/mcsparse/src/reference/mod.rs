//! Every stage of MC-Sparse in plain Burn tensor operations: slow, readable, the same on every backend, and the oracle
//! that the kernels are tested against.
//!
//! All stages compute in f32 whatever the inputs are, are batched over `[batch, heads]`, and work in chunks so that no
//! tensor of `tokens x tokens` elements exists unless it fits the workspace that the caller allows. Sizes must have been
//! checked (see [`crate::check::Problem`]); the functions here trust them.

mod codes;
mod dense;
mod group;
mod lists;
pub(crate) mod rows;
mod select;
mod sparse;
mod tail;
mod top_k;

pub use codes::{decode_residual, encode_residual};
pub use dense::dense_attention;
#[cfg(any(feature = "flex", feature = "cube"))]
pub(crate) use group::start_vector;
pub use group::{GroupOptions, group_queries};
pub use lists::{expand_indices, pack_indices};
pub use select::{SelectOptions, attention_mass, select_keys};
pub use sparse::sparse_attention;
pub use tail::{TailOptions, add_tail};
pub use top_k::{partition_indices, top_k_indices};
