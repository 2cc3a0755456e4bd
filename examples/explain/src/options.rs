//! What the program can be told.

use std::path::PathBuf;

use clap::Parser;
use mcsparse::Schedule;
use mcsparse_dit::pretrained;
use mcsparse_lab::Error;

/// Draws the pictures of docs/method.md from a run of the shipped model.
#[derive(Parser, Debug, Clone)]
#[command(version)]
pub struct Options {
    /// Size of the shipped model: the folder of its weights.
    #[arg(long, default_value = "small")]
    pub size: String,
    /// Folder of the weights of all sizes and of conditions.safetensors.
    #[arg(long, default_value = pretrained::folder().as_os_str())]
    pub weights: PathBuf,
    /// What is denoised: a name in conditions.safetensors.
    #[arg(long, default_value = "bunny")]
    pub condition: String,
    /// Denoising steps of the whole run.
    #[arg(long, default_value_t = 20)]
    pub steps: usize,
    /// Step whose attention is looked at, counted from 0, not before the anchor of the default schedule; the run ends there.
    #[arg(long, default_value_t = 10)]
    pub step: usize,
    /// Layers that are looked at, counted from 0; pictures show the first one named.
    #[arg(long, value_delimiter = ',', default_values_t = [6, 1, 3, 9])]
    pub layers: Vec<usize>,
    /// Head that the pictures show, counted from 0.
    #[arg(long, default_value_t = 0)]
    pub head: usize,
    /// Group that selection.png shows; the one whose kept mass is the median of all groups if not given.
    #[arg(long)]
    pub group: Option<usize>,
    /// Tokens along frames, rows and columns of a block of neighbours; groups have as many.
    #[arg(long, value_delimiter = ',', default_values_t = [2, 8, 8])]
    pub tile: Vec<usize>,
    /// Share of the keys that each group keeps.
    #[arg(long, default_value_t = 0.15)]
    pub density: f64,
    /// Seed of the noise.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Folder that the pictures are written to.
    #[arg(long, value_name = "DIR", default_value = "out/explain")]
    pub out: PathBuf,
}

impl Options {
    /// Refuses what cannot be run, before anything is.
    ///
    /// # Errors
    ///
    /// Naming the option.
    pub fn check(&self, layers: usize, heads: usize, grid: [usize; 3]) -> Result<(), Error> {
        let refuse = |option: &str, expected: String, got: &dyn std::fmt::Debug| {
            Err(Error::option(format!("--{option}"), expected, format!("{got:?}")))
        };
        let last = self.steps.saturating_sub(1);
        let Ok(plan) = Schedule::default().plan(self.steps) else {
            return refuse("steps", "2 or more, with room for a reuse step".into(), &self.steps);
        };
        if self.step > last || plan.anchor_before(self.step).is_none() {
            let first = (0..=last).find(|&step| plan.anchor_before(step).is_some()).unwrap_or(last);
            return refuse("step", format!("a step from {first} to {last}"), &self.step);
        }
        if !(self.density > 0.0 && self.density <= 1.0) {
            return refuse("density", "above 0 and at most 1".into(), &self.density);
        }
        if self.layers.is_empty() || self.layers.iter().any(|&layer| layer >= layers) {
            return refuse("layers", format!("layers below {layers}"), &self.layers);
        }
        if self.head >= heads {
            return refuse("head", format!("a head below {heads}"), &self.head);
        }
        let fits = |(size, tile): (&usize, &usize)| *tile > 0 && size.is_multiple_of(*tile);
        if self.tile.len() != 3 || !grid.iter().zip(&self.tile).all(fits) {
            return refuse("tile", format!("divisors of the grid {grid:?}"), &self.tile);
        }
        let groups = grid.iter().product::<usize>() / self.tile.iter().product::<usize>();
        match self.group {
            Some(group) if group >= groups => refuse("group", format!("a group below {groups}"), &group),
            _ => Ok(()),
        }
    }
}
