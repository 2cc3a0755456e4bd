//! What sparse attention would do to the attention of somebody's model, from query, key and value captured in any framework.

mod capture;
mod measure;
mod page;

use std::path::PathBuf;

pub use capture::{Axes, Capture, read};
pub use measure::{Measured, Report, Suggestion};

use burn::tensor::Device;

use crate::{
    attention::Layout,
    error::Error,
    files::{folder_of, writable_folder, write_whole},
};

/// How to probe.
#[derive(Debug, Clone)]
pub struct Options {
    /// The safetensors file.
    pub file: PathBuf,
    /// Order of the axes of tensors with four.
    pub axes: Axes,
    /// Densities to try.
    pub densities: Vec<f64>,
    /// Queries in a group, and keys in a block.
    pub group_size: usize,
    /// Keys in a smaller block.
    pub small_block: usize,
    /// Tokens along frames, rows and columns, and a box of them; as they come if unknown.
    pub grid: Option<([usize; 3], [usize; 3])>,
    /// Factor on the scores, `1 / sqrt(head_dim)` unless it is given.
    pub scale: Option<f64>,
    /// Relative error of the attention output that may be.
    pub target: f64,
    /// Layers and guidance branches of the whole model, for the size of the cache.
    pub layers: Option<usize>,
    /// See there.
    pub branches: usize,
    /// Folder for the report.
    pub out: PathBuf,
    /// File for outputs and indices of MC-Sparse.
    pub save: Option<PathBuf>,
}

/// Measures a file and writes `probe.json` and `probe.md`; returns the latter.
///
/// # Errors
///
/// [`Error::Option`] for options that do not fit the file, [`Error::Run`] for files that fail.
pub fn run(options: &Options, device: &Device) -> Result<String, Error> {
    if let Some(density) = options.densities.iter().find(|&&d| !(d > 0.0 && d <= 1.0)) {
        return Err(Error::option("--densities", "shares above 0 and at most 1", density));
    }
    if options.densities.is_empty() {
        return Err(Error::option("--densities", "at least one", "none"));
    }
    for (option, value) in [("--group-size", options.group_size), ("--small-block", options.small_block)] {
        if value == 0 {
            return Err(Error::option(option, "at least 1", value));
        }
    }
    if let Some(scale) = options.scale.filter(|scale| !(*scale as f32).is_finite() || *scale == 0.0) {
        return Err(Error::option("--scale", "a finite number other than 0", scale));
    }
    let mut captures = read(&options.file, options.axes, device)?;
    if let Some(scale) = options.scale {
        captures.iter_mut().for_each(|capture| capture.rescale(scale));
    }
    let layouts = captures.iter().map(|capture| layout(options, capture)).collect::<Result<Vec<_>, _>>()?;
    writable_folder(&options.out)?;
    if let Some(save) = &options.save {
        writable_folder(folder_of(save))?;
    }
    let report = measure::measure(options, &captures, &layouts)?;
    let text = page::page(&report);
    let json = serde_json::to_string_pretty(&report).map_err(|error| Error::run("the report", error))?;
    if let Some(save) = &options.save {
        write_whole(save, &measure::outputs(options, &captures, &layouts, report.suggestion.density)?)?;
    }
    write_whole(&options.out.join("probe.json"), (json + "\n").as_bytes())?;
    write_whole(&options.out.join("probe.md"), text.as_bytes())?;
    Ok(text)
}

fn layout(options: &Options, capture: &Capture) -> Result<Layout, Error> {
    let tokens = capture.tokens();
    match options.grid {
        None => Ok(Layout::raster(tokens)),
        Some((grid, _)) if grid.iter().product::<usize>() != tokens => {
            Err(Error::option("--grid", format!("{tokens} tokens, as {} has", capture.name), format!("{grid:?}")))
        }
        Some((grid, tile)) => Layout::tiled(grid, tile),
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests;
