//! The defaults of both sizes as a table for the help.

use clap::ValueEnum;

use crate::presets::{Preset, Size};

/// One line for each size.
pub fn overview() -> String {
    let mut text = String::from("Defaults by size:\n");
    let heads = ["", "frames", "steps", "density", "warm-up", "group-size", "guidance", "condition"].map(str::to_owned);
    let rows = Size::value_variants().iter().map(|size| {
        let Preset { name, defaults: d, .. } = size.preset();
        [
            (*name).to_owned(),
            d.frames.to_string(),
            d.steps.to_string(),
            d.density.to_string(),
            format!("{:.0} %", d.warm_up * 100.0),
            d.group_size.to_string(),
            d.guidance.to_string(),
            d.condition.to_owned(),
        ]
    });
    for row in std::iter::once(heads).chain(rows) {
        let line: String = row.iter().map(|cell| format!("{cell:<12}")).collect();
        text += &format!("  {}\n", line.trim_end());
    }
    text + "\nA warm-up in percent is a share of the steps; --warm-up takes a number of steps."
}
