//! `cargo run --release -p explain`: writes the pictures of docs/method.md and prints the numbers in them.

use std::process::ExitCode;

use burn::tensor::{DType, Device};
use clap::Parser;
use explain::{Error, explain, options::Options};
use mcsparse_dit::pretrained::{ClipModel, ConditionFile};

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), Error> {
    let device = Device::default();
    let model = ClipModel::load(options.weights.join(&options.size), DType::F32, &device)?;
    let condition = ConditionFile::open(&options.weights)?.tokens(&options.condition, &options.size, &device)?;
    explain(&model, condition, options, &device)
}
