//! Roofline plot (Williams, Waterman, Patterson 2009): the speed of each case and the limit for its arithmetic
//! intensity.
//!
//! ```text
//! GFLOP/s     ______________  FMA peak
//!            / x  o
//!           /  o           x  a case at FLOPs / bytes
//!          / copy bandwidth
//! ```
//!
//! The slope is the bandwidth of a copy larger than the caches; a kernel whose operands stay in cache may be above it. A point
//! is labeled with its case, or with the number of its row in the table if there is no room.

use crate::report::{Limits, Record};
use plotters::prelude::*;
use std::{cell::Cell, ops::Range};

/// Small enough that text is legible on a phone.
const SIZE: (u32, u32) = (480, 400);
/// Height of the title above the plot: name of the run, and its limits.
const TITLE: u32 = 40;
/// Height of a line of the legend below the plot, where it does not cover points, and its number of kernels.
const LINE: u32 = 20;
const IN_LINE: usize = 4;
/// Sizes of text.
const LARGE: i32 = 14;
const SMALL: i32 = 12;
/// Width of a character of small text.
const CHARACTER: i32 = 7;
/// Colors of the kernels, in order of appearance.
const COLORS: [RGBColor; 6] = [
    RGBColor(31, 119, 180),
    RGBColor(255, 127, 14),
    RGBColor(44, 160, 44),
    RGBColor(214, 39, 40),
    RGBColor(148, 103, 189),
    RGBColor(110, 110, 110),
];

/// Draws an SVG of the cases that ran under `limits`. Steps have no byte count and are skipped.
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
    let rows: Vec<(usize, &Record)> = (1..).zip(records).filter(|(_, record)| own(record)).collect();
    let records: Vec<&Record> = rows.iter().map(|(_, record)| *record).collect();
    let (left, right, bottom, top) = extents(limits, &records);
    let kernels = kernels_of(&records);
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
        .build_cartesian_2d((left..right).log_scale(), (bottom..top).log_scale())?;
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
    // Roofs for data that is already in a cache.
    let caches = [("L2", limits.l2_gbs), ("L3", limits.l3_gbs)].map(|(name, gbs)| gbs.map(|gbs| (name, gbs)));
    let is_seen = |(_, gbs): &(&str, f64)| limits.peak_gflops / gbs > left;
    let caches: Vec<_> = caches.into_iter().flatten().filter(is_seen).collect();
    for (_, gbs) in &caches {
        chart.draw_series(LineSeries::new(roof(*gbs), BLACK.mix(0.4).stroke_width(1)))?;
    }
    let color_of = |kernel: &str| COLORS[kernels.iter().position(|other| *other == kernel).unwrap_or(0) % COLORS.len()];
    for record in &records {
        chart.draw_series([Circle::new(point(record), 4, color_of(record.about.kernel).filled())])?;
    }
    let mut labels = Labels::new(plot.get_pixel_range());
    let roofs: Vec<(&str, f64)> = caches.into_iter().chain([("memory", limits.copy_gbs)]).collect();
    labels.add_all(&rows, &roofs, (left, right, limits.peak_gflops), &|point| chart.backend_coord(&point));
    for (text, place) in labels.texts {
        root.draw(&Text::new(text, place, ("sans-serif", SMALL)))?;
    }
    for (at, kernel) in kernels.iter().enumerate() {
        let (x, y) = (14 + (at % IN_LINE) as i32 * 114, 8 + (at / IN_LINE) as i32 * LINE as i32);
        names.draw(&Circle::new((x, y), 4, color_of(kernel).filled()))?;
        names.draw(&Text::new(*kernel, (x + 10, y - 6), ("sans-serif", SMALL)))?;
    }
    root.present()?;
    Ok(())
}

/// Names of the kernels, in order of appearance.
fn kernels_of<'r>(records: &[&'r Record]) -> Vec<&'r str> {
    let mut kernels = Vec::new();
    for record in records {
        if !kernels.contains(&record.about.kernel) {
            kernels.push(record.about.kernel);
        }
    }
    kernels
}

/// FLOPs per byte and GFLOP/s.
fn point(record: &Record) -> (f64, f64) {
    (record.about.flops as f64 / record.about.bytes as f64, record.gflops)
}

/// Minimum and maximum FLOPs per byte of the plot, minimum and maximum GFLOP/s.
fn extents(limits: &Limits, records: &[&Record]) -> (f64, f64, f64, f64) {
    let bounds = |of: fn((f64, f64)) -> f64, first: f64| {
        let values = records.iter().map(|record| of(point(record)));
        values.fold((first, first), |(low, high), value| (low.min(value), high.max(value)))
    };
    let (left, right) = bounds(|point| point.0, limits.peak_gflops / limits.copy_gbs);
    let (bottom, top) = bounds(|point| point.1, limits.peak_gflops);
    (left / 2.0, right * 4.0, bottom / 2.0, top * 2.0)
}

/// Labels within a plot that cover neither each other nor a point. A label without room is omitted: the table has its row.
struct Labels {
    /// Left, top, right and bottom of the plot.
    plot: [i32; 4],
    taken: Vec<[i32; 4]>,
    texts: Vec<(String, (i32, i32))>,
}

impl Labels {
    fn new((x, y): (Range<i32>, Range<i32>)) -> Self {
        // Within the margin and the labels of the axes.
        Self { plot: [x.start + 56, y.start + 8, x.end - 8, y.end - 46], taken: Vec::new(), texts: Vec::new() }
    }

    /// Adds the labels of the peak, the roofs (name, GB/s) and the records with their rows. `at` converts FLOPs per byte and
    /// GFLOP/s to pixels.
    fn add_all(
        &mut self,
        rows: &[(usize, &Record)],
        roofs: &[(&str, f64)],
        (left, right, peak): (f64, f64, f64),
        at: &dyn Fn((f64, f64)) -> (i32, i32),
    ) {
        let points = rows.iter().map(|(_, record)| at(point(record)));
        self.taken.extend(points.map(|(x, y)| [x - 5, y - 5, x + 5, y + 5]));
        self.add(at((right, peak)), &["peak".to_owned()], &|_, width| (-width - 4, -14));
        for (name, gbs) in roofs {
            // Along the line from its left end, to the first free place.
            let end = peak / gbs;
            let along = |step: usize| left * (end / left).powf(step as f64 / 20.0);
            let places = (0..20).map(along).map(|x| at((x, (x * gbs).min(peak))));
            self.add_at_first(places, name);
        }
        for (row, record) in rows {
            let names = [record.about.case.clone(), row.to_string()];
            self.add(at(point(record)), &names, &|place, width| match place {
                0 => (8, -6),
                1 => (-8 - width, -6),
                2 => (-width / 2, -18),
                _ => (-width / 2, 7),
            });
        }
    }

    /// Places the first of `names` that fits at one of four offsets from `at`.
    fn add(&mut self, at: (i32, i32), names: &[String], offset: &dyn Fn(usize, i32) -> (i32, i32)) {
        let is_placed = |labels: &mut Self, name: &String| {
            let width = CHARACTER * name.chars().count() as i32;
            (0..4).any(|place| {
                let (x, y) = offset(place, width);
                labels.place(name, (at.0 + x, at.1 + y), width)
            })
        };
        let _ = names.iter().any(|name| is_placed(self, name));
    }

    /// Places `name` below the first free one of `places`, on the right, where a rising line does not cross it.
    fn add_at_first(&mut self, mut places: impl Iterator<Item = (i32, i32)>, name: &str) {
        let width = CHARACTER * name.chars().count() as i32;
        let _ = places.any(|(x, y)| self.place(name, (x + 6, y), width));
    }

    /// Places `name` with its top left corner at `(x, y)` if there is room.
    fn place(&mut self, name: &str, (x, y): (i32, i32), width: i32) -> bool {
        let [left, top, right, bottom] = [x, y, x + width, y + SMALL + 1];
        let [first, highest, last, lowest] = self.plot;
        let is_inside = left >= first && top >= highest && right <= last && bottom <= lowest;
        let is_free = |other: &[i32; 4]| left >= other[2] || right <= other[0] || top >= other[3] || bottom <= other[1];
        let fits = is_inside && self.taken.iter().all(is_free);
        if fits {
            self.taken.push([left, top, right, bottom]);
            self.texts.push((name.to_owned(), (x, y)));
        }
        fits
    }
}

/// Labels of a logarithmic axis. The plotter requests a power of ten twice, as the end of a decade and as the start of the next.
#[derive(Default)]
struct Ticks {
    last: Cell<f64>,
}

impl Ticks {
    /// 1, 2 and 5 times a power of ten; all other labels are empty.
    fn label(&self, value: f64) -> String {
        let digit = (value / 10f64.powf(value.log10().floor() + 1e-9)).round() as u32;
        let is_new = (self.last.replace(value) / value - 1.0).abs() > 1e-6;
        if is_new && matches!(digit, 1 | 2 | 5 | 10) { format!("{value}") } else { String::new() }
    }
}
