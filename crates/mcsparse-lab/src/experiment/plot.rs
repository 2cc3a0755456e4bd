//! Records as pictures.

use std::path::Path;

use plotters::prelude::*;

use crate::error::Error;

/// A named line of points, each with half the width of its interval.
pub struct Line {
    /// In the legend.
    pub name: String,
    /// `(x, y, half width)`, in the order of x.
    pub points: Vec<(f64, f64, f64)>,
    /// Drawn as points alone.
    pub scattered: bool,
}

/// Writes one chart as SVG.
///
/// # Errors
///
/// [`Error::Run`] naming the file.
pub fn lines(path: &Path, title: &str, [x_name, y_name]: [&str; 2], lines: &[Line]) -> Result<(), Error> {
    draw(path, title, [x_name, y_name], lines).map_err(|error| Error::run(path.display(), error))
}

fn draw(
    path: &Path,
    title: &str,
    [x_name, y_name]: [&str; 2],
    lines: &[Line],
) -> Result<(), Box<dyn std::error::Error>> {
    let points = || lines.iter().flat_map(|line| &line.points).filter(|point| point.1.is_finite());
    let range = |values: &mut dyn Iterator<Item = f64>| {
        let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
        let margin = if high > low { 0.04 * (high - low) } else { 0.5 };
        (low - margin)..(high + margin)
    };
    if points().next().is_none() {
        return Err("nothing to draw".into());
    }
    let whole = |width: f64| if width.is_finite() { width } else { 0.0 };
    let area = SVGBackend::new(path, (860, 520)).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(60)
        .build_cartesian_2d(
            range(&mut points().map(|point| point.0)),
            range(&mut points().flat_map(|&(_, y, width)| [y - whole(width), y + whole(width)])),
        )?;
    chart
        .configure_mesh()
        .x_desc(x_name)
        .y_desc(y_name)
        .label_style(("sans-serif", 16))
        .light_line_style(TRANSPARENT)
        .draw()?;
    for (index, line) in lines.iter().enumerate() {
        let colour = Palette99::pick(index).to_rgba();
        let finite: Vec<_> = line.points.iter().copied().filter(|point| point.1.is_finite()).collect();
        let bars = finite.iter().filter(|point| whole(point.2) > 0.0);
        chart.draw_series(bars.map(|&(x, y, w)| PathElement::new([(x, y - w), (x, y + w)], colour.stroke_width(1))))?;
        let places = finite.iter().map(|&(x, y, _)| (x, y));
        let legend = move |(x, y): (i32, i32)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2));
        if line.scattered {
            let dots = places.map(|place| Circle::new(place, 4, colour.filled()));
            chart.draw_series(dots)?.label(&line.name).legend(legend);
        } else {
            let series = LineSeries::new(places, colour.stroke_width(2)).point_size(3);
            chart.draw_series(series)?.label(&line.name).legend(legend);
        }
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.3))
        .label_font(("sans-serif", 15))
        .draw()?;
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn infinite_values_are_left_out_and_nothing_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.svg");
        let line = |points: &[(f64, f64, f64)]| Line { name: "n".into(), points: points.to_vec(), scattered: false };
        lines(&path, "t", ["x", "y"], &[line(&[(0.0, 1.0, 0.5), (1.0, f64::INFINITY, f64::INFINITY)])]).unwrap();
        assert!(std::fs::read_to_string(&path).unwrap().contains("<svg"));
        let error = lines(&path, "t", ["x", "y"], &[line(&[])]).unwrap_err().to_string();
        assert!(error.ends_with("nothing to draw"), "{error}");
    }
}
