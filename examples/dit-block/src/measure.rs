//! The times of a block: its parts, its attention, and the whole by kind of step.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::tensor::{Device, Tensor};
use denoise::Error;
use indicatif::ProgressBar;
use mcsparse::{Anchors, HeadParallel, McSparse, MetaCache, Schedule, Selection, SelfAttention};

use crate::block::Block;
use crate::clock::{Time, time, wait};
use crate::report::{KindReport, PartReport, ScalingReport, StageReport};
use crate::settings::Settings;
use crate::steps::{CALLS, Calls, Kind, LAYER, config};

/// What is timed on.
pub struct Bench<'a> {
    /// What to time.
    pub settings: &'a Settings,
    /// Where.
    pub device: &'a Device,
    /// The block.
    pub block: &'a Block,
    /// Hidden states `[tokens, hidden]`.
    pub x: &'a Tensor<2>,
    /// Ticks once for each time.
    pub bar: &'a ProgressBar,
}

impl Bench<'_> {
    fn time<T>(&self, what: &str, values: usize, run: impl FnMut() -> Result<T, Error>) -> Result<Time, Error> {
        self.bar.set_message(what.to_owned());
        let bytes = values * self.settings.dtype.burn().size();
        let time = time(self.device, self.settings.samples, bytes, run);
        self.bar.inc(1);
        time
    }

    /// Everything around attention, in the order in which it runs.
    ///
    /// # Errors
    ///
    /// [`Error::Run`] if the device fails.
    pub fn parts(&self) -> Result<Vec<PartReport>, Error> {
        let (block, x, shape) = (self.block, self.x, &self.settings.shape);
        let (outer, inner) = (shape.tokens() * shape.hidden, shape.tokens() * shape.inner());
        let mut parts = Vec::new();
        let mut add = |name: &'static str, calls: usize, time: Time| parts.push(PartReport { name, calls, time });
        add("norm and modulation", 2, self.time("norms", outer, || Ok(block.norm(x.clone(), 0)))?);
        let normed = block.norm(x.clone(), 0);
        add("query, key and value", 1, self.time("projections", 3 * inner, || Ok(block.project(normed.clone())))?);
        let [query, key, _] = block.project(normed);
        let rotate = || Ok([block.norm_and_rotate(query.clone(), 0), block.norm_and_rotate(key.clone(), 1)]);
        add("QK norm and RoPE", 1, self.time("QK norm and RoPE", 2 * inner, rotate)?);
        drop((query, key));
        // In memory as attention leaves it.
        let qkv = block.qkv(x.clone());
        let mut calls = Calls::new(Kind::Dense, self.settings, &qkv)?;
        let [q, k, v] = qkv;
        let output = calls.attention()?.attend(LAYER, q, k, v)?;
        let copy = || Ok(block.tokens(output.clone()));
        add("layout of the output", 1, self.time("layout", inner, copy)?);
        let flat = block.tokens(output);
        let project = || Ok(block.add_attention(x.clone(), flat.clone()));
        add("output and gated sum", 1, self.time("output", outer, project)?);
        drop(flat);
        if block.cross.is_some() {
            add("cross-attention", 1, self.time("cross-attention", outer, || Ok(block.add_cross(x.clone())))?);
        }
        let normed = block.norm(x.clone(), 1);
        let mlp = || Ok(block.add_mlp(x.clone(), normed.clone()));
        add("MLP and gated sum", 1, self.time("MLP", outer, mlp)?);
        Ok(parts)
    }

    /// Attention alone and the whole block by each kind that can run.
    ///
    /// # Errors
    ///
    /// [`Error::Run`] if the device fails.
    pub fn kinds(&self) -> Result<Vec<KindReport>, Error> {
        Kind::ALL.into_iter().map(|kind| self.kind(kind)).collect()
    }

    fn kind(&self, kind: Kind) -> Result<KindReport, Error> {
        let refused = |why: String| {
            self.bar.inc(2);
            Ok(KindReport { kind, attention: None, block: None, left_out: Some(why) })
        };
        let (needed, allowed) = (self.settings.score_bytes(), self.settings.burn_bytes);
        if kind == Kind::Burn && needed > allowed {
            return refused(format!("it may need {needed} bytes for scores, {allowed} are allowed (--burn-bytes)"));
        }
        // Burn's attention may panic at shapes that its kernels do not take.
        match catch_unwind(AssertUnwindSafe(|| self.times(kind))) {
            Ok(times) => times,
            Err(_) if kind == Kind::Burn => refused("it panicked".into()),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    fn times(&self, kind: Kind) -> Result<KindReport, Error> {
        let shape = &self.settings.shape;
        let (outer, inner) = (shape.tokens() * shape.hidden, shape.tokens() * shape.inner());
        let qkv = self.block.qkv(self.x.clone());
        let mut calls = Calls::new(kind, self.settings, &qkv)?;
        let attention = self.time(&format!("{}: attention", kind.name()), inner, || {
            let [q, k, v] = qkv.clone();
            Ok(calls.attention()?.attend(LAYER, q, k, v)?)
        })?;
        drop(qkv);
        let block = self.time(&format!("{}: block", kind.name()), outer, || {
            Ok(self.block.forward(LAYER, self.x.clone(), calls.attention()?)?)
        })?;
        Ok(KindReport { kind, attention: Some(attention), block: Some(block), left_out: None })
    }

    /// Dense and reuse attention with the heads shared out over more and more of `devices`, the copies between them included.
    ///
    /// # Errors
    ///
    /// What MC-Sparse refuses, or [`Error::Run`] if a device fails.
    pub fn scaling(&self, devices: &[Device]) -> Result<Vec<ScalingReport>, Error> {
        let shape = &self.settings.shape;
        let inner = shape.tokens() * shape.inner();
        let [q, k, v] = self.block.qkv(self.x.clone());
        let doubled = std::iter::successors(Some(1), |n| Some(2 * n)).take_while(|&n| n < devices.len());
        let mut reports = Vec::new();
        for count in doubled.chain([devices.len()]) {
            let mut times = [None; 2];
            for (kind, measured) in [Kind::Dense, Kind::Reuse].into_iter().zip(&mut times) {
                let mut heads = HeadParallel::new(&config(kind, self.settings), CALLS, &devices[..count])?;
                let mut steps = 0..;
                let mut call = || {
                    heads.begin_step(steps.next().expect("there is no end"))?;
                    Ok(heads.attend(LAYER, q.clone(), k.clone(), v.clone())?)
                };
                // The anchor, where there is one.
                call()?;
                *measured = Some(self.time(&format!("{} on {count} devices", kind.name()), inner, call)?);
            }
            reports.push(ScalingReport { devices: count, dense: times[0], reuse: times[1] });
        }
        Ok(reports)
    }

    /// The stages of one anchor and one reuse step with the kernels that ran, and the cache after them; of two anchors if the second
    /// selects by the first. The device is waited for around each stage.
    ///
    /// # Errors
    ///
    /// What MC-Sparse refuses.
    pub fn stages(&self) -> Result<(Vec<StageReport>, MetaCache), Error> {
        self.bar.set_message("stages");
        let anchors = if self.settings.config.selection == Selection::Riding { vec![0, 1] } else { vec![0] };
        let steps = anchors.len() + 1;
        let schedule = Schedule::warm_up(0).with_anchors(Anchors::At(anchors));
        let config = self.settings.config.clone().with_schedule(schedule).with_dense_layers(Vec::new());
        let [q, k, v] = self.block.qkv(self.x.clone());
        wait(self.device)?;
        let cache = MetaCache::new(&config, steps)?.with_stage_times(true);
        let mut run = McSparse::with_cache(&config, cache)?;
        for step in 0..steps {
            run.begin_step(step)?;
            run.attend(LAYER, q.clone(), k.clone(), v.clone())?;
        }
        let stages = run.report().stages();
        let stages = stages
            .map(|(stage, route, record)| StageReport {
                stage: stage.to_string(),
                route: route.to_string(),
                runs: record.runs,
                seconds: record.time.as_secs_f64(),
                workspace_bytes: record.workspace_bytes,
            })
            .collect();
        self.bar.inc(1);
        Ok((stages, run.cache().clone()))
    }
}
