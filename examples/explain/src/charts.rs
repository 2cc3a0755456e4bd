//! mass.svg and schedule.svg.

use std::path::Path;

use mcsparse::{Anchors, Budget, KeyBudget, Plan, Schedule, SinkTokens, StepKind};
use plotters::prelude::*;

use crate::{Error, report::METHODS};

const LINES: [RGBColor; 6] = [
    RGBColor(214, 69, 65),
    RGBColor(240, 150, 60),
    RGBColor(120, 120, 120),
    RGBColor(31, 119, 180),
    RGBColor(23, 163, 152),
    RGBColor(0, 0, 0),
];

/// Kept mass against density, one line for each of [`METHODS`]; `points` are densities with the masses kept there.
///
/// # Errors
///
/// If the file cannot be written.
pub fn mass(path: &Path, title: &str, points: &[(f64, [f64; 6])]) -> Result<(), Error> {
    let area = SVGBackend::new(path, (800, 480)).into_drawing_area();
    area.fill(&WHITE)?;
    let most = points.last().map_or(1.0, |point| point.0);
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 20))
        .margin(12)
        .margin_right(36)
        .x_label_area_size(44)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..most, 0.0..1.0)?;
    let percent = |value: &f64| format!("{:.0} %", value * 100.0);
    chart
        .configure_mesh()
        .x_desc("share of the keys that are kept")
        .y_desc("share of the attention mass that they hold")
        .x_label_formatter(&percent)
        .y_label_formatter(&percent)
        .label_style(("sans-serif", 17))
        .light_line_style(TRANSPARENT)
        .draw()?;
    for (method, (name, colour)) in METHODS.into_iter().zip(LINES).enumerate() {
        let line = points.iter().map(|(density, kept)| (*density, kept[method]));
        // The line of the cached choice lies on that of the fresh one, which is wider to show beside it.
        let style = colour.stroke_width(if method == 3 { 5 } else { 2 });
        chart
            .draw_series(LineSeries::new(line, style).point_size(3))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.3))
        .label_font(("sans-serif", 17))
        .draw()?;
    area.present()?;
    Ok(())
}

/// Schedules of a run of `steps` steps in words and as plans.
///
/// # Errors
///
/// If `steps` is too short for them.
pub fn plans(steps: usize) -> Result<Vec<(String, Plan)>, Error> {
    let fifth = (steps / 5).max(1);
    let short = (steps / 16).max(1);
    let schedules = [
        ("the default: warm-up of a fifth, one anchor".to_string(), Schedule::default()),
        (
            "warm-up of a fifth, two anchors".to_string(),
            Schedule::default().with_anchors(Anchors::At(vec![fifth - 1, steps / 2])),
        ),
        (
            format!("warm-up of {short}, an anchor every {fifth}"),
            Schedule::warm_up(short).with_anchors(Anchors::Every(fifth)),
        ),
        (
            "no warm-up, anchors at chosen steps".to_string(),
            Schedule::warm_up(0).with_anchors(Anchors::At(vec![0, short, 3 * short, fifth * 2])),
        ),
    ];
    schedules.into_iter().map(|(name, schedule)| Ok((name, schedule.plan(steps)?))).collect()
}

/// The kinds of the steps of some schedules, with their effective densities.
///
/// # Errors
///
/// If the file cannot be written.
pub fn schedule(path: &Path, steps: usize, density: f64, tokens: usize) -> Result<(), Error> {
    const KINDS: [(StepKind, &str, RGBColor); 3] = [
        (StepKind::Dense, "dense", RGBColor(214, 69, 65)),
        (StepKind::Anchor, "anchor", RGBColor(240, 150, 60)),
        (StepKind::Reuse, "reuse", RGBColor(31, 119, 180)),
    ];
    let budget = Budget::resolve(KeyBudget::Density(density), SinkTokens::default(), tokens)?;
    let plans = plans(steps)?;
    let area = SVGBackend::new(path, (800, 60 * plans.len() as u32 + 44)).into_drawing_area();
    area.fill(&WHITE)?;
    let font = ("sans-serif", 17).into_font();
    for (row, (name, plan)) in plans.iter().enumerate() {
        let top = 10 + 60 * row as i32;
        let [dense, anchors, reused] = KINDS.map(|(kind, ..)| plan.count(kind));
        let text = format!(
            "{name}: {dense} dense, {anchors} anchor, {reused} reuse; effective density {:.3}",
            plan.effective_density(&budget)
        );
        area.draw(&Text::new(text, (10, top), font.clone()))?;
        let edge = |step: usize| 10 + (780 * step / steps) as i32;
        for step in 0..steps {
            let kind = plan.kind(step).expect("a step of the plan");
            let colour = KINDS.iter().find(|(k, ..)| *k == kind).map_or(BLACK, |(_, _, colour)| *colour);
            let corners = [(edge(step), top + 20), (edge(step + 1) - 2, top + 44)];
            area.draw(&Rectangle::new(corners, colour.filled()))?;
        }
    }
    let top = 12 + 60 * plans.len() as i32;
    for (at, (_, name, colour)) in KINDS.into_iter().enumerate() {
        let left = 10 + 100 * at as i32;
        area.draw(&Rectangle::new([(left, top), (left + 14, top + 14)], colour.filled()))?;
        area.draw(&Text::new(name, (left + 20, top), font.clone()))?;
    }
    let text = format!("{steps} steps, density {density}, without dense layers");
    area.draw(&Text::new(text, (360, top), font))?;
    area.present()?;
    Ok(())
}
