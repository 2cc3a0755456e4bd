//! Times of the stages by every route beside the machine's ceilings: `cargo bench -p mcsparse-benches`.
//!
//! `BURN_DEVICE` picks the device, `MCSPARSE_{TOKENS, HEADS, HEAD_DIM, GROUP, DENSITY, DTYPE, BURN}` the problem. Every route is
//! checked on fresh random values before it is timed; what is wrong is not timed, and ends the program with 1.

use std::{
    process::ExitCode,
    time::{SystemTime, UNIX_EPOCH},
};

use burn::tensor::Device;
use mcsparse_benches::{
    ceilings,
    check::check,
    clock::time,
    inputs::Inputs,
    settings::Settings,
    stage::Work,
    table::{Row, summary, table, title},
};

/// Tokens of the checked problem at most.
const CHECKED: usize = 1024;

fn main() -> ExitCode {
    let device = Device::default();
    let settings = match Settings::from_env(&device) {
        Ok(settings) => settings,
        Err(message) => {
            eprintln!("{message}");
            return ExitCode::from(2);
        }
    };
    let seed = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    device.seed(seed);
    println!("{}", title(&settings, &format!("{device:?}"), seed));

    // Not a multiple of the group size, where the problem is large enough to choose.
    let small = settings.with_tokens(settings.tokens.min(CHECKED - 7));
    let (checked, rotation) = (Inputs::new(&small, &device), Inputs::rotation(&settings, &device));
    let mut rows = Vec::new();
    for work in Work::ALL {
        for (name, route) in work.routes(&rotation[0], &settings) {
            let found = check(work, &route, &work.run(&route, &checked, &small), &checked, &small);
            let (error, time) = match found {
                Ok(error) => {
                    let one = |call: usize| work.run(&route, &rotation[call % rotation.len()], &settings);
                    (error, Ok(time(&device, work.output_bytes(&settings), one)))
                }
                Err(why) => (f64::NAN, Err(why)),
            };
            rows.push(Row { work, route: name, time, error });
        }
    }
    let ceilings = ceilings::measure(&device, settings.dtype);
    println!("{}\n{}", table(&rows, &ceilings, &settings), summary(&rows, &ceilings, &settings));
    if rows.iter().all(|row| row.time.is_ok()) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
