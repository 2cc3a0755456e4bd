//! Denoises latents with a video transformer; see the library beside it.

use std::process::ExitCode;

use clap::Parser;
use generate::{Options, start};
use mcsparse_lab::program;

fn main() -> ExitCode {
    // Clap prints its own refusals and ends the process with 2.
    let options = Options::parse();
    program::run(|| start(&options))
}
