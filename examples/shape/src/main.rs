//! Denoises a shape with dense attention and with MC-Sparse and compares the two; see the library beside it.

use std::process::ExitCode;

use clap::Parser;
use mcsparse_lab::program;
use shape::{Options, start};

fn main() -> ExitCode {
    // Clap prints its own refusals and ends the process with 2.
    let options = Options::parse();
    program::run(|| start(&options))
}
