//! What the program can be told.

use std::path::PathBuf;

use clap::Parser;
use mcsparse_dit::pretrained;

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
    /// Step whose attention is looked at, counted from 0; the run ends there.
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
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/pictures"))]
    pub out: PathBuf,
}

impl Options {
    /// Refuses what cannot be run, before anything is.
    ///
    /// # Errors
    ///
    /// Naming the option.
    pub fn check(&self, layers: usize, heads: usize, grid: [usize; 3]) -> Result<(), crate::Error> {
        let refuse = |option: &str, expected: String, got: &dyn std::fmt::Debug| {
            Err(format!("--{option}: expected {expected}, got {got:?}").into())
        };
        if self.step >= self.steps {
            return refuse("step", format!("a step below {}", self.steps), &self.step);
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
