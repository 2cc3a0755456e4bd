//! `cargo run --release -p explain`: draws the pictures of docs/method.md and prints the numbers in them.

use std::process::ExitCode;

use clap::Parser;
use explain::{options::Options, start};
use mcsparse_lab::program;

fn main() -> ExitCode {
    // Clap prints its own refusals and ends the process with 2.
    let options = Options::parse();
    program::run(|| start(&options))
}
