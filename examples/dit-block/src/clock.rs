//! Time of asynchronous work.

use std::time::Instant;

use burn::tensor::Device;
use denoise::Error;
use serde::Serialize;

/// A sample lasts at least this long if calls are that short, so that launching and waiting do not count.
const SAMPLE: f64 = 0.01;
/// What the outputs of a sample may take: they live until it ends, since a lazy backend may leave out what nobody holds.
pub(crate) const OUTPUT_BYTES: usize = 2 << 30;
/// Calls of a sample at most.
const CALLS: usize = 64;

/// Times of one call, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Time {
    /// Median over the samples.
    pub median: f64,
    /// Minimum over the samples.
    pub min: f64,
}

/// Times `run`, which returns what it made, `output_bytes` in all.
///
/// # Errors
///
/// Those of `run`, and [`Error::Run`] if the device fails.
pub fn time<T>(
    device: &Device,
    samples: usize,
    output_bytes: usize,
    mut run: impl FnMut() -> Result<T, Error>,
) -> Result<Time, Error> {
    let mut sample = |calls: usize| {
        wait(device)?;
        let start = Instant::now();
        let outputs = (0..calls).map(|_| run()).collect::<Result<Vec<T>, Error>>()?;
        wait(device)?;
        let elapsed = start.elapsed().as_secs_f64();
        drop(outputs);
        Ok::<_, Error>(elapsed / calls as f64)
    };
    // The first call compiles and tunes.
    sample(1)?;
    let room = (OUTPUT_BYTES / output_bytes.max(1)).clamp(1, CALLS);
    let calls = (SAMPLE / sample(1)?.max(1e-7)).ceil().clamp(1.0, room as f64) as usize;
    let mut times = (0..samples).map(|_| sample(calls)).collect::<Result<Vec<f64>, Error>>()?;
    times.sort_by(f64::total_cmp);
    Ok(Time { median: times[times.len() / 2], min: times[0] })
}

/// Waits until the device has finished.
///
/// # Errors
///
/// [`Error::Run`] if it fails.
pub fn wait(device: &Device) -> Result<(), Error> {
    device.sync().map_err(|error| Error::run("the device", format!("{error:?}")))
}
