//! `cargo run --release -p explain`: writes the pictures of docs/method.md and prints the numbers in them.

use std::process::ExitCode;

use burn::tensor::Device;
use clap::Parser;
use explain::{Error, explain, model, options::Options};

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
    let model = model::Model::load(&options.weights.join(&options.size), &device)?;
    let conditions = options.weights.join("conditions.safetensors");
    let condition = model::condition(&conditions, &options.condition, &options.size, &device)?;
    explain(&model, condition, options, &device)
}
