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

const SIZE: (u32, u32) = (900, 560);
/// Width of the legend beside the plot.
const LEGEND: u32 = 120;
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
    let root = SVGBackend::with_string(text, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let title = limits.to_string();
    // The legend is beside the plot, where it covers no point.
    let (plot, names) = root.split_horizontally(SIZE.0 - LEGEND);
    let mut chart = ChartBuilder::on(&plot)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(64)
        .build_cartesian_2d((left..right).log_scale(), (bottom / 2.0..top * 2.0).log_scale())?;
    chart
        .configure_mesh()
        .x_desc("FLOPs per byte")
        .y_desc("GFLOP/s")
        .x_label_formatter(&|&x| tick(x))
        .y_label_formatter(&|&y| tick(y))
        .light_line_style(WHITE)
        .draw()?;
    let roof = |gbs: f64| [left, limits.peak_gflops / gbs, right].map(|x| (x, (x * gbs).min(limits.peak_gflops)));
    chart.draw_series(LineSeries::new(roof(limits.copy_gbs), BLACK.stroke_width(2)))?;
    // Roofs for data that are in a cache already.
    for gbs in [limits.l3_gbs, limits.l2_gbs].into_iter().flatten().filter(|gbs| limits.peak_gflops / gbs > left) {
        chart.draw_series(LineSeries::new(roof(gbs), BLACK.mix(0.4).stroke_width(1)))?;
    }
    let mut kernels: Vec<&str> = Vec::new();
    for record in &records {
        if !kernels.contains(&record.about.kernel) {
            kernels.push(record.about.kernel);
        }
    }
    for (line, (kernel, color)) in kernels.into_iter().zip(COLORS.into_iter().cycle()).enumerate() {
        let points = records.iter().filter(|record| record.about.kernel == kernel).map(|record| point(record));
        chart.draw_series(points.map(|point| Circle::new(point, 4, color.filled())))?;
        let y = 60 + 22 * line as i32;
        names.draw(&Circle::new((10, y), 4, color.filled()))?;
        names.draw(&Text::new(kernel, (20, y - 6), ("sans-serif", 13)))?;
    }
    root.present()?;
    Ok(())
}

/// Label of a logarithmic axis: 1, 2 and 5 times a power of ten; others are empty.
fn tick(value: f64) -> String {
    let digit = (value / 10f64.powf(value.log10().floor() + 1e-9)).round() as u32;
    if matches!(digit, 1 | 2 | 5 | 10) { format!("{value}") } else { String::new() }
}
