//! Denoises a shape with dense attention and with MC-Sparse and compares the two; see the library beside it.

use std::process::ExitCode;

use clap::Parser;
use shape::{Options, start};

fn main() -> ExitCode {
    // Clap prints its own refusals and ends the process with 2.
    match start(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}
