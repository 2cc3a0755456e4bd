//! What is cached: a table of the layers.

use std::fmt;

use super::mib;
use crate::{IndexFormat, ResidualFormat, Slot, SlotBytes, SlotKey};

/// One filled slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotRecord {
    /// Layer and branch.
    pub key: SlotKey,
    /// The step of the anchor; `None` if the slot came from a file.
    pub anchor: Option<usize>,
    /// Bytes by part.
    pub bytes: SlotBytes,
    /// The stored form of the kept keys.
    pub index_format: IndexFormat,
    /// The stored form of the residual.
    pub residual_format: ResidualFormat,
    /// Where the slot waits for its next use: `device` or `host`.
    pub place: &'static str,
}

impl SlotRecord {
    pub(crate) fn of(slot: &Slot) -> Self {
        Self {
            key: slot.key().clone(),
            anchor: slot.step(),
            bytes: slot.bytes(),
            index_format: slot.index_format(),
            residual_format: slot.residual_format(),
            place: "device",
        }
    }

    /// Steps since the anchor at step `now`; `None` if the slot came from a file.
    pub fn age(&self, now: usize) -> Option<usize> {
        self.anchor.map(|anchor| now.saturating_sub(anchor))
    }

    /// All but the layer.
    fn like(&self, other: &Self) -> bool {
        let with_layer = |layer| Self { key: SlotKey { layer, ..self.key.clone() }, ..self.clone() };
        with_layer(other.key.layer) == *other
    }
}

const HEADINGS: [&str; 8] = ["layers", "branch", "order", "keys", "residual", "MiB a layer", "place", "age in steps"];

/// One line for each run of neighbouring layers that have the same numbers.
pub(super) fn table(f: &mut fmt::Formatter<'_>, slots: &[SlotRecord], now: Option<usize>) -> fmt::Result {
    if slots.is_empty() {
        return Ok(());
    }
    let total: usize = slots.iter().map(|slot| slot.bytes.total()).sum();
    writeln!(f, "  cache: {} slots, {} MiB", slots.len(), mib(total))?;
    let mut sorted: Vec<&SlotRecord> = slots.iter().collect();
    sorted.sort_by(|a, b| (&a.key.branch, a.key.layer).cmp(&(&b.key.branch, b.key.layer)));
    let runs = sorted.chunk_by(|a, b| b.key.layer == a.key.layer + 1 && a.like(b));
    let mut rows = vec![HEADINGS.map(str::to_string)];
    rows.extend(runs.map(|run| {
        let (first, last) = (run[0], run[run.len() - 1]);
        let layers = match run.len() {
            1 => first.key.layer.to_string(),
            _ => format!("{}-{}", first.key.layer, last.key.layer),
        };
        let age = match first.anchor {
            None => "from a file".to_string(),
            Some(anchor) => first.age(now.unwrap_or(anchor)).unwrap_or_default().to_string(),
        };
        [
            layers,
            first.key.branch.to_string(),
            mib(first.bytes.order),
            format!("{} ({})", mib(first.bytes.indices), first.index_format),
            match first.bytes.slope {
                0 => format!("{} ({})", mib(first.bytes.residual), first.residual_format),
                slope => format!("{} + {} ({})", mib(first.bytes.residual), mib(slope), first.residual_format),
            },
            mib(first.bytes.total()),
            first.place.to_string(),
            age,
        ]
    }));
    let widths: [usize; 8] = std::array::from_fn(|column| rows.iter().map(|row| row[column].len()).max().unwrap_or(0));
    for row in &rows {
        let cells: Vec<String> = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        writeln!(f, "    {}", cells.join("  ").trim_end())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Branch, RunReport};

    #[test]
    fn layers_of_the_same_numbers_share_a_line() {
        let record = |layer, branch: &Branch, residual| SlotRecord {
            key: SlotKey { layer, branch: branch.clone() },
            anchor: Some(9),
            bytes: SlotBytes { order: 12_096_000, indices: 223_445_280, residual, slope: 0 },
            index_format: IndexFormat::Bitmap,
            residual_format: ResidualFormat::Fp8,
            place: "device",
        };
        let (first, second) = (Branch::conditional(), Branch::unconditional());
        let mut report = RunReport::default();
        for layer in 1..40 {
            report.set_slot(record(layer, &first, 393_120_000));
            report.set_slot(record(layer, &second, 393_120_000));
        }
        report.set_slot(record(20, &second, 774_144_000));
        report.set_step(12);
        let text = report.to_string();
        let lines: Vec<&str> = text.lines().filter(|line| line.contains("bitmap")).collect();
        assert_eq!(lines.len(), 4, "{text}");
        let cells: Vec<&str> = lines[0].split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
        let expected = ["1-39", "branch conditional", "12", "213 (bitmap)", "375 (fp8 e4m3)", "600", "device", "3"];
        assert_eq!(cells, expected, "{text}");
        assert!(lines[2].trim_start().starts_with("20 ") && lines[3].trim_start().starts_with("21-39"), "{text}");
        assert!(text.contains("cache: 78 slots, "), "{text}");
    }
}
