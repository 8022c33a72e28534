//! Roofline plot (Williams, Waterman, Patterson 2009): the speed of each case against the bound of its arithmetic
//! intensity.
//!
//! ```text
//! GFLOP/s     ______________  FMA peak
//!            / x  o
//!           /  o           x  a case at FLOPs / bytes
//!          / copy bandwidth
//! ```
//!
//! The slope is the bandwidth of a copy larger than the caches; a kernel whose operands stay in cache may lie above it.

use crate::report::{Limits, Record};
use plotters::prelude::*;
use std::cell::Cell;

/// So small that its text is legible on a phone.
const SIZE: (u32, u32) = (480, 400);
/// Height of the title above the plot: what ran, and its limits.
const TITLE: u32 = 40;
/// Height of a line of the legend below the plot, where it covers no point, and kernels in a line.
const LINE: u32 = 20;
const IN_LINE: usize = 4;
/// Sizes of text.
const LARGE: i32 = 14;
const SMALL: i32 = 12;
/// Colors of the kernels, in order of appearance.
const COLORS: [RGBColor; 6] = [
    RGBColor(31, 119, 180),
    RGBColor(255, 127, 14),
    RGBColor(44, 160, 44),
    RGBColor(214, 39, 40),
    RGBColor(148, 103, 189),
    RGBColor(110, 110, 110),
];

/// Draws an SVG of the cases that ran under `limits`. Steps have no byte count and are left out.
///
/// # Errors
/// The plot cannot be drawn.
pub fn roofline(limits: &Limits, records: &[Record]) -> Result<String, String> {
    let mut text = String::new();
    draw(&mut text, limits, records).map_err(|error| error.to_string())?;
    Ok(text)
}

fn draw(text: &mut String, limits: &Limits, records: &[Record]) -> Result<(), Box<dyn std::error::Error>> {
    let own = |record: &&Record| {
        record.isa == limits.isa && record.threads == limits.threads && record.about.bytes > 0 && record.gflops > 0.0
    };
    let point = |record: &Record| (record.about.flops as f64 / record.about.bytes as f64, record.gflops);
    let records: Vec<&Record> = records.iter().filter(own).collect();
    let ridge = limits.peak_gflops / limits.copy_gbs;
    let bounds = |of: fn((f64, f64)) -> f64, first: f64| {
        let values = records.iter().map(|record| of(point(record)));
        values.fold((first, first), |(low, high), value| (low.min(value), high.max(value)))
    };
    let ((left, right), (bottom, top)) = (bounds(|point| point.0, ridge), bounds(|point| point.1, limits.peak_gflops));
    let (left, right) = (left / 2.0, right * 4.0);
    let mut kernels: Vec<&str> = Vec::new();
    for record in &records {
        if !kernels.contains(&record.about.kernel) {
            kernels.push(record.about.kernel);
        }
    }
    let root = SVGBackend::with_string(text, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let title = limits.to_string();
    let (what, speeds) = title.split_once(": ").unwrap_or((&title, ""));
    root.draw(&Text::new(what, (10, 4), ("sans-serif", LARGE)))?;
    root.draw(&Text::new(speeds, (10, 22), ("sans-serif", SMALL)))?;
    let (_, below) = root.split_vertically(TITLE);
    let lines = kernels.len().div_ceil(IN_LINE) as u32;
    let (plot, names) = below.split_vertically(SIZE.1 - TITLE - LINE * lines - 4);
    let mut chart = ChartBuilder::on(&plot)
        .margin(8)
        .x_label_area_size(36)
        .y_label_area_size(46)
        .build_cartesian_2d((left..right).log_scale(), (bottom / 2.0..top * 2.0).log_scale())?;
    let (x_ticks, y_ticks) = (Ticks::default(), Ticks::default());
    chart
        .configure_mesh()
        .label_style(("sans-serif", SMALL))
        .axis_desc_style(("sans-serif", SMALL))
        .x_desc("FLOPs per byte")
        .y_desc("GFLOP/s")
        .x_label_formatter(&|&x| x_ticks.label(x))
        .y_label_formatter(&|&y| y_ticks.label(y))
        .light_line_style(WHITE)
        .draw()?;
    let roof = |gbs: f64| [left, limits.peak_gflops / gbs, right].map(|x| (x, (x * gbs).min(limits.peak_gflops)));
    chart.draw_series(LineSeries::new(roof(limits.copy_gbs), BLACK.stroke_width(2)))?;
    // Roofs for data that are in a cache already.
    for gbs in [limits.l3_gbs, limits.l2_gbs].into_iter().flatten().filter(|gbs| limits.peak_gflops / gbs > left) {
        chart.draw_series(LineSeries::new(roof(gbs), BLACK.mix(0.4).stroke_width(1)))?;
    }
    for (at, (kernel, color)) in kernels.into_iter().zip(COLORS.into_iter().cycle()).enumerate() {
        let points = records.iter().filter(|record| record.about.kernel == kernel).map(|record| point(record));
        chart.draw_series(points.map(|point| Circle::new(point, 4, color.filled())))?;
        let (x, y) = (14 + (at % IN_LINE) as i32 * 114, 8 + (at / IN_LINE) as i32 * LINE as i32);
        names.draw(&Circle::new((x, y), 4, color.filled()))?;
        names.draw(&Text::new(kernel, (x + 10, y - 6), ("sans-serif", SMALL)))?;
    }
    root.present()?;
    Ok(())
}

/// Labels of a logarithmic axis. The plotter asks twice for a power of ten, as the end of a decade and as the start of the next.
#[derive(Default)]
struct Ticks {
    last: Cell<f64>,
}

impl Ticks {
    /// 1, 2 and 5 times a power of ten; others are empty.
    fn label(&self, value: f64) -> String {
        let digit = (value / 10f64.powf(value.log10().floor() + 1e-9)).round() as u32;
        let is_new = (self.last.replace(value) / value - 1.0).abs() > 1e-6;
        if is_new && matches!(digit, 1 | 2 | 5 | 10) { format!("{value}") } else { String::new() }
    }
}
