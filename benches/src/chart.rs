//! The roofline as a picture (Williams, Waterman, Patterson 2009): what each case reached, against what its arithmetic
//! intensity allows.
//!
//! ```text
//! GFLOP/s     ______________  FMA peak
//!            / x  o
//!           /  o           x  a case at FLOPs / bytes
//!          / copy bandwidth
//! ```
//!
//! The slope is that of a copy that no cache holds; a kernel whose operands stay in cache may lie above it.

use crate::report::{Limits, Record};
use plotters::prelude::*;

const SIZE: (u32, u32) = (900, 560);
/// One colour a kernel, in the order in which they appear.
const COLORS: [RGBColor; 6] = [
    RGBColor(31, 119, 180),
    RGBColor(255, 127, 14),
    RGBColor(44, 160, 44),
    RGBColor(214, 39, 40),
    RGBColor(148, 103, 189),
    RGBColor(110, 110, 110),
];

/// An SVG of the cases that were run under `limits`. Steps have no number of bytes and are left out.
///
/// # Errors
/// The picture cannot be drawn.
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
    let title = format!(
        "{} thread(s), {}: {:.0} GFLOP/s, {:.1} GB/s",
        limits.threads, limits.isa, limits.peak_gflops, limits.copy_gbs
    );
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(64)
        .build_cartesian_2d((left..right).log_scale(), (bottom / 2.0..top * 2.0).log_scale())?;
    chart.configure_mesh().x_desc("FLOPs a byte").y_desc("GFLOP/s").light_line_style(WHITE).draw()?;
    let roof = [left, ridge, right].map(|x| (x, (x * limits.copy_gbs).min(limits.peak_gflops)));
    chart.draw_series(LineSeries::new(roof, BLACK.stroke_width(2)))?;
    let mut kernels: Vec<&str> = Vec::new();
    for record in &records {
        if !kernels.contains(&record.about.kernel) {
            kernels.push(record.about.kernel);
        }
    }
    for (kernel, color) in kernels.into_iter().zip(COLORS.into_iter().cycle()) {
        let points = records.iter().filter(|record| record.about.kernel == kernel).map(|record| point(record));
        chart
            .draw_series(points.map(|point| Circle::new(point, 4, color.filled())))?
            .label(kernel)
            .legend(move |(x, y)| Circle::new((x + 9, y), 4, color.filled()));
    }
    if !records.is_empty() {
        chart.configure_series_labels().background_style(WHITE).border_style(BLACK).draw()?;
    }
    root.present()?;
    Ok(())
}
