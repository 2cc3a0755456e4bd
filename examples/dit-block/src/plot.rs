//! block.svg: the time of a block by kind of step, attention and the rest.

use std::path::Path;

use denoise::Error;
use plotters::prelude::*;

use crate::report::Report;
use crate::steps::Kind;

const ATTENTION: RGBColor = RGBColor(31, 119, 180);
const REST: RGBColor = RGBColor(190, 190, 190);

/// Draws the kinds that were timed side by side.
///
/// # Errors
///
/// [`Error::Run`] if the picture cannot be drawn.
pub fn plot(report: &Report, path: &Path) -> Result<(), Error> {
    let bars: Vec<(&str, f64, f64)> = Kind::ALL
        .into_iter()
        .filter_map(|kind| {
            let (attention, block) = report.kind(kind)?;
            Some((kind.name(), 1e3 * attention.median, 1e3 * block.median.max(attention.median)))
        })
        .collect();
    let mut svg = String::new();
    draw(&mut svg, &bars, report).map_err(|error| Error::run(path.display(), error))?;
    denoise::files::write_whole(path, svg.as_bytes())
}

fn draw(
    svg: &mut String,
    bars: &[(&str, f64, f64)],
    report: &Report,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let area = SVGBackend::with_string(svg, (720, 420)).into_drawing_area();
    area.fill(&WHITE)?;
    let most = bars.iter().map(|bar| bar.2).fold(0.0, f64::max);
    let title = format!("{} tokens, {} heads x {}", report.tokens, report.shape.heads, report.shape.head_dim);
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..bars.len() as f64, 0.0..1.1 * most)?;
    let name = |place: &f64| bars.get(*place as usize).map_or(String::new(), |bar| bar.0.to_string());
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(0)
        .y_desc("ms of a block")
        .label_style(("sans-serif", 16))
        .light_line_style(TRANSPARENT)
        .draw()?;
    for (i, (_, attention, block)) in bars.iter().enumerate() {
        let (left, right) = (i as f64 + 0.2, i as f64 + 0.8);
        for (from, to, colour) in [(0.0, *attention, ATTENTION), (*attention, *block, REST)] {
            chart.draw_series([Rectangle::new([(left, from), (right, to)], colour.filled())])?;
        }
        let label = format!("{}: {block:.1} ms", name(&(i as f64)));
        chart.draw_series([Text::new(label, (i as f64 + 0.08, block + 0.03 * most), ("sans-serif", 14))])?;
    }
    for (name, colour) in [("attention", ATTENTION), ("everything else", REST)] {
        chart
            .draw_series(std::iter::empty::<Rectangle<(f64, f64)>>())?
            .label(name)
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 14, y + 5)], colour.filled()));
    }
    // Reuse steps, at the right, are the shortest.
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.85))
        .label_font(("sans-serif", 15))
        .draw()?;
    area.present()?;
    drop(chart);
    Ok(())
}
