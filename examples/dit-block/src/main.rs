//! Times diffusion transformer blocks; see the library beside it.

use std::process::ExitCode;

use clap::Parser;
use denoise::program;
use dit_block::{Options, start};

fn main() -> ExitCode {
    // Clap prints its own refusals and ends the process with 2.
    let options = Options::parse();
    program::run(|| start(&options))
}
