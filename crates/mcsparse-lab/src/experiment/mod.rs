//! The experiments: what is run, what is recorded and how it is shown.
//!
//! Experiments on the clip denoise from the same noise as dense attention and compare ([`arms`] run by [`runner`]);
//! [`oracles`] and [`drift`] look into attention along a dense run ([`trajectory`]).

pub mod arms;
pub mod drift;
pub mod lists;
pub mod oracles;
pub mod plot;
pub mod record;
pub mod report;
pub mod runner;
pub mod shapes;
pub mod study;
pub mod table;
pub mod trajectory;
