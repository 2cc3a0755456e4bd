//! Denoises one clip with dense attention and with MC-Sparse and compares the two; see the library beside it.

use std::process::ExitCode;

use clap::Parser;
use denoise::{Options, start};
use mcsparse_lab::program;

fn main() -> ExitCode {
    // Clap prints its own refusals and ends the process with 2.
    let options = Options::parse();
    program::run(|| start(&options))
}
