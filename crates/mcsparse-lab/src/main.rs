//! Measures sparse attention against dense attention and rivals; see the library beside it.

use std::process::ExitCode;

use clap::Parser;
use mcsparse_lab::cli::{Cli, start};

fn main() -> ExitCode {
    // Clap prints its own refusals and ends the process with 2.
    match start(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}
