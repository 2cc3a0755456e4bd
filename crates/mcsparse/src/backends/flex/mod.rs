//! Native CPU kernels for the Flex backend.
use crate::{check::Problem, ops::{Stage, McSparseOps}};
pub(crate) fn supports(_stage: Stage, _problem: &Problem) -> Result<&'static str, String> { Err("wip".into()) }
impl McSparseOps for burn::backend::Flex {}
