//! Measures sparse attention against dense attention and rivals; see the library beside it.

use std::process::ExitCode;

use clap::Parser;
use mcsparse_lab::{
    cli::{Cli, start},
    program,
};

fn main() -> ExitCode {
    // Clap prints its own refusals and ends the process with 2.
    let cli = Cli::parse();
    program::run(|| start(&cli))
}
