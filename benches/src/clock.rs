//! Time of asynchronous work.

use std::time::{Duration, Instant};

use burn::tensor::Device;

/// Samples taken.
const SAMPLES: usize = 9;
/// A sample lasts at least this long, so that launching and waiting do not count.
const SAMPLE: Duration = Duration::from_millis(20);
/// Calls of a sample at most.
const CALLS: usize = 128;
/// What the outputs of a sample may take: they live until it ends, since a lazy backend may leave out what nobody holds.
const OUTPUT_BYTES: usize = 1 << 30;

/// Times of one call.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Time {
    /// Median over the samples, in seconds.
    pub median: f64,
    /// Minimum over the samples, in seconds.
    pub min: f64,
}

/// Times `run`, which is told the number of the call and returns what it made, `output_bytes` in all.
///
/// # Panics
///
/// If the device fails.
pub fn time<T>(device: &Device, output_bytes: usize, mut run: impl FnMut(usize) -> T) -> Time {
    let mut sample = |calls: usize| {
        device.sync().expect("the device works");
        let start = Instant::now();
        let outputs: Vec<T> = (0..calls).map(&mut run).collect();
        device.sync().expect("the device works");
        let elapsed = start.elapsed();
        drop(outputs);
        elapsed
    };
    // The first call compiles, the second may still tune or allocate.
    sample(1);
    let once = sample(1).max(Duration::from_nanos(100));
    let room = (OUTPUT_BYTES / output_bytes.max(1)).clamp(1, CALLS);
    let calls = (SAMPLE.as_secs_f64() / once.as_secs_f64()).ceil().clamp(1.0, room as f64) as usize;
    if calls > 1 {
        sample(calls);
    }
    let mut times: Vec<f64> = (0..SAMPLES).map(|_| sample(calls).as_secs_f64() / calls as f64).collect();
    times.sort_by(f64::total_cmp);
    Time { median: times[SAMPLES / 2], min: times[0] }
}
