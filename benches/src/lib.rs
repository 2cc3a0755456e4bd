//! What the benches share: settings from the environment, timing, the machine's ceilings, checks, the table.

pub mod ceilings;
pub mod check;
pub mod clock;
pub mod inputs;
pub mod settings;
pub mod stage;
pub mod table;
