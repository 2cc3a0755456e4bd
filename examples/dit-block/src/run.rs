//! A whole denoising run: added up from measured blocks, or really run.

use std::time::Instant;

use burn::tensor::{Device, Tensor};
use denoise::Error;
use indicatif::ProgressBar;
use mcsparse::{Branch, McSparse, McSparseConfig, MetaCache, SelfAttention, StepKind, Transfers};
use serde::Serialize;

use crate::block::Block;
use crate::clock::wait;
use crate::report::{KindReport, RunReport};
use crate::settings::Settings;
use crate::steps::Kind;

/// Seconds of a run by attention.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct RunTimes {
    /// Burn's dense attention, where it was timed; never really run.
    pub burn: Option<f64>,
    /// Our dense attention at every step.
    pub dense: f64,
    /// MC-Sparse.
    pub sparse: f64,
}

/// Calls of a block over a run, by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Calls {
    dense: usize,
    anchor: usize,
    reuse: usize,
}

impl Calls {
    fn of(settings: &Settings) -> Self {
        let (shape, plan) = (&settings.shape, &settings.plan);
        let sparse = (shape.layers - settings.dense_layers()) * shape.branches;
        let count = |kind| plan.count(kind) * sparse;
        let always = settings.dense_layers() * shape.branches * shape.steps;
        Self { dense: always + count(StepKind::Dense), anchor: count(StepKind::Anchor), reuse: count(StepKind::Reuse) }
    }

    fn all(self) -> usize {
        self.dense + self.anchor + self.reuse
    }
}

/// Medians of attention and block of `kind`, unless it was left out.
fn medians(kinds: &[KindReport], kind: Kind) -> Option<(f64, f64)> {
    let report = kinds.iter().find(|report| report.kind == kind)?;
    Some((report.attention?.median, report.block?.median))
}

/// What the blocks in `kinds` add up to over the run of `settings`; `measured` are its times if it was really run.
///
/// # Errors
///
/// [`Error::Run`] if a kind of step was not timed.
pub fn summarize(settings: &Settings, kinds: &[KindReport], measured: Option<RunTimes>) -> Result<RunReport, Error> {
    let calls = Calls::of(settings);
    let of = |kind: Kind| medians(kinds, kind).ok_or_else(|| Error::run(kind.name(), "not timed"));
    let (dense, anchor, reuse) = (of(Kind::Dense)?, of(Kind::Anchor)?, of(Kind::Reuse)?);
    let all = calls.all() as f64;
    let sum = |d: f64, a: f64, r: f64| calls.dense as f64 * d + calls.anchor as f64 * a + calls.reuse as f64 * r;
    let times = measured.unwrap_or(RunTimes {
        burn: medians(kinds, Kind::Burn).map(|(_, block)| all * block),
        dense: all * dense.1,
        sparse: sum(dense.1, anchor.1, reuse.1),
    });
    let anchors = settings.plan.count(StepKind::Anchor) as f64;
    let tokens = settings.shape.tokens();
    Ok(RunReport {
        measured: measured.is_some(),
        times,
        speed_up: times.dense / times.sparse,
        attention_speed_up: all * dense.0 / sum(dense.0, anchor.0, reuse.0),
        effective_density: settings.config.effective_density(&settings.plan, settings.shape.layers, tokens)?,
        anchor_overhead: anchors * (anchor.0 - dense.0) / (settings.shape.steps as f64 * dense.0),
    })
}

/// Runs all steps, branches and layers, first dense, then with MC-Sparse. All layers share one set of weights, every forward
/// starts at the same hidden states; each layer and branch has a cache slot of its own.
///
/// # Errors
///
/// What MC-Sparse refuses, or [`Error::Run`] if the device fails.
pub fn full(
    settings: &Settings,
    device: &Device,
    block: &Block,
    x: &Tensor<2>,
    bar: &ProgressBar,
) -> Result<(RunTimes, Transfers), Error> {
    let everywhere = settings.config.clone().with_dense_layers((0..settings.shape.layers).collect());
    let once = |config: &McSparseConfig, name: &str| {
        bar.set_message(name.to_owned());
        let cache = MetaCache::new(config, settings.shape.steps)?.with_placement(settings.placement);
        let mut run = McSparse::with_cache(config, cache)?;
        wait(device)?;
        let start = Instant::now();
        for step in 0..settings.shape.steps {
            run.begin_step(step)?;
            for branch in 0..settings.shape.branches {
                run.begin_branch(&Branch::new(format!("branch {branch}")))?;
                let mut hidden = x.clone();
                for layer in 0..settings.shape.layers {
                    hidden = block.forward(layer, hidden, &mut run)?;
                }
            }
            // A step ends as in a sampler, with the result at hand; so the queue of calls stays short, too.
            wait(device)?;
            bar.inc(1);
        }
        let elapsed = start.elapsed().as_secs_f64();
        Ok::<_, Error>((elapsed, run.cache().finish()?.transfers()))
    };
    let (dense, _) = once(&everywhere, "dense run")?;
    let (sparse, transfers) = once(&settings.config, "MC-Sparse run")?;
    Ok((RunTimes { burn: None, dense, sparse }, transfers))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::clock::Time;
    use crate::options::Options;

    #[test]
    fn a_run_adds_up() {
        let arguments = "dit-block --layers 4 --steps 10 --warm-up 2 --every 4 --branches 2 --dense-layers 0";
        let settings = Settings::resolve(&Options::try_parse_from(arguments.split(' ')).unwrap()).unwrap();
        // dArrrArrrA: 1 dense, 3 anchors, 6 reuse.
        let calls = Calls::of(&settings);
        assert_eq!(calls, Calls { dense: 2 * (10 + 3), anchor: 2 * 3 * 3, reuse: 2 * 3 * 6 });
        assert_eq!(calls.all(), 80);
        let time = |seconds| Some(Time { median: seconds, min: seconds });
        let kind = |kind, attention, block| KindReport {
            kind,
            attention: time(attention),
            block: time(block),
            left_out: None,
        };
        let kinds = [kind(Kind::Dense, 4.0, 6.0), kind(Kind::Anchor, 7.0, 9.0), kind(Kind::Reuse, 1.0, 3.0)];
        let run = summarize(&settings, &kinds, None).unwrap();
        assert_eq!((run.times.dense, run.times.sparse), (480.0, 26.0 * 6.0 + 18.0 * 9.0 + 36.0 * 3.0));
        assert_eq!(run.attention_speed_up, 320.0 / (26.0 * 4.0 + 18.0 * 7.0 + 36.0));
        assert!((run.anchor_overhead - 3.0 * 3.0 / 40.0).abs() < 1e-12);
        assert!(summarize(&settings, &kinds[..2], None).is_err());
    }
}
