//! Curves as SVG: panels below each other.

use std::path::Path;

use engine::io::write_atomically;
use plotters::coord::Shift;
use plotters::prelude::*;

use super::ReportError;

/// Maximum number of points of an averaged curve.
const POINTS: usize = 400;
const WIDTH: u32 = 900;
/// Height of a panel.
const HEIGHT: u32 = 350;
/// Height of the row of names above a plot.
const LEGEND: i32 = 22;
/// Curves with at most this many points have a mark at each point.
const MARKED: usize = 20;

/// Style of a curve.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Line {
    /// Wide, with marks if there are few points.
    #[default]
    Solid,
    /// Narrow and pale, for noisy values.
    Thin,
    /// Dashed, for baselines.
    Dashed,
}

/// A named curve.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// Name in the legend.
    pub name: String,
    /// Red, green, blue.
    pub color: [u8; 3],
    /// Style of the line.
    pub line: Line,
    /// Points (x, y), by ascending x. Points that are not finite are skipped.
    pub points: Vec<(f64, f64)>,
}

impl Curve {
    /// A solid curve.
    pub fn new(name: &str, color: [u8; 3], points: Vec<(f64, f64)>) -> Self {
        Self { name: name.to_owned(), color, line: Line::Solid, points }
    }
}

/// Curves over a common axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Panel {
    /// Heading.
    pub title: String,
    /// Meaning of the values in words, shown on a page; may be empty.
    pub meaning: &'static str,
    /// Name of the x axis.
    pub axis: &'static str,
    /// Curves of the panel; those without points have no legend.
    pub curves: Vec<Curve>,
}

/// Color of a first curve.
pub const BLUE: [u8; 3] = [31, 119, 180];
/// Color of a second curve.
pub const ORANGE: [u8; 3] = [255, 127, 14];
pub(crate) const GREEN: [u8; 3] = [44, 160, 44];
pub(crate) const RED: [u8; 3] = [214, 39, 40];
pub(crate) const GREY: [u8; 3] = [110, 110, 110];
/// Colors of several runs.
pub(crate) const COLORS: [[u8; 3]; 8] =
    [BLUE, ORANGE, GREEN, RED, [148, 103, 189], [140, 86, 75], [227, 119, 194], [23, 160, 170]];

/// Draws `panels` below each other and writes them to `path` atomically.
///
/// # Errors
/// The file cannot be written.
pub fn write_panels(path: &Path, panels: &[Panel]) -> Result<(), ReportError> {
    let text = draw(panels).map_err(|problem| ReportError::Plot { path: path.to_owned(), problem })?;
    Ok(write_atomically(path, |out| out.write_all(text.as_bytes()))?)
}

/// SVG of `panels` below each other.
pub(crate) fn draw(panels: &[Panel]) -> Result<String, String> {
    let mut text = String::new();
    {
        let size = (WIDTH, HEIGHT * panels.len().max(1) as u32);
        let root = SVGBackend::with_string(&mut text, size).into_drawing_area();
        root.fill(&WHITE).map_err(|error| error.to_string())?;
        let areas = root.split_evenly((panels.len().max(1), 1));
        for (area, panel) in areas.iter().zip(panels) {
            draw_panel(area, panel).map_err(|error| error.to_string())?;
        }
        root.present().map_err(|error| error.to_string())?;
    }
    Ok(text)
}

/// Size of a chart on a page, which is shown between 300 and 600 pixels wide.
const CHART: (u32, u32) = (400, 240);

/// SVG of one panel without its title and legend, for a page that has them as text.
pub(crate) fn chart(panel: &Panel) -> Result<String, String> {
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, CHART).into_drawing_area();
        plot(&area, panel, CHART.0).map_err(|error| error.to_string())?;
        area.present().map_err(|error| error.to_string())?;
    }
    Ok(text)
}

/// Means of equally long runs of points, at most [`POINTS`] of them, so that the file stays small for training runs of any length.
pub(crate) fn averaged(mut points: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    points.retain(|(_, value)| value.is_finite());
    let run = points.len().div_ceil(POINTS).max(1);
    points
        .chunks(run)
        .map(|chunk| {
            let n = chunk.len() as f64;
            (chunk.iter().map(|p| p.0).sum::<f64>() / n, chunk.iter().map(|p| p.1).sum::<f64>() / n)
        })
        .collect()
}

fn draw_panel(area: &DrawingArea<SVGBackend<'_>, Shift>, panel: &Panel) -> Result<(), Box<dyn std::error::Error>> {
    let is_finite = |point: &(f64, f64)| point.0.is_finite() && point.1.is_finite();
    let shown: Vec<&Curve> = panel.curves.iter().filter(|curve| curve.points.iter().any(is_finite)).collect();
    let (strip, below) = area.titled(&panel.title, ("sans-serif", 18))?.split_vertically(LEGEND);
    draw_legend(&strip, &shown)?;
    plot(&below, panel, WIDTH)
}

/// Draws axes and curves.
fn plot(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    panel: &Panel,
    width: u32,
) -> Result<(), Box<dyn std::error::Error>> {
    let is_finite = |point: &&(f64, f64)| point.0.is_finite() && point.1.is_finite();
    let all = || panel.curves.iter().flat_map(|curve| curve.points.iter().filter(is_finite));
    let first = all().map(|point| point.0).fold(0.0, f64::min);
    let last = all().map(|point| point.0).fold(first + 1.0, f64::max);
    let (low, high) = all().fold((f64::MAX, f64::MIN), |(low, high), point| (low.min(point.1), high.max(point.1)));
    let (low, high) = if low > high { (0.0, 1.0) } else { (low, high) };
    // A constant is drawn in the middle of a range of a tenth of its value.
    let margin = if high > low { (high - low) * 0.05 } else { (high.abs() * 0.05).max(1e-9) };
    let (low, high) = (low - margin, high + margin);
    let shown: Vec<&Curve> =
        panel.curves.iter().filter(|curve| curve.points.iter().any(|point| is_finite(&point))).collect();
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .margin_top(4)
        .x_label_area_size(32)
        .y_label_area_size(64)
        .build_cartesian_2d(first..last, low..high)?;
    chart
        .configure_mesh()
        .x_desc(panel.axis)
        .x_label_formatter(&|x| if last - first < 10.0 { format!("{x:.2}") } else { format!("{x:.0}") })
        .y_label_formatter(&|y| tick(*y, low, high))
        .max_light_lines(0)
        // A label is about 60 pixels wide.
        .x_labels((width / 90) as usize)
        .y_labels(6)
        .draw()?;
    for curve in shown {
        let color = color(curve);
        let points: Vec<_> = curve.points.iter().filter(is_finite).copied().collect();
        // A line through one point is invisible, and marks make few points distinguishable.
        let radius = if points.len() == 1 { 4 } else { 2 };
        if points.len() == 1 || curve.line == Line::Solid && points.len() <= MARKED {
            chart.draw_series(points.iter().map(|&point| Circle::new(point, radius, color.filled())))?;
        }
        match curve.line {
            Line::Solid => chart.draw_series(LineSeries::new(points, color.stroke_width(2)))?,
            Line::Thin => chart.draw_series(LineSeries::new(points, color.mix(0.65).stroke_width(1)))?,
            Line::Dashed => chart.draw_series(
                dashes(&points, (last - first) / f64::from(width / 10))
                    .into_iter()
                    .map(|dash| PathElement::new(dash, color.stroke_width(1))),
            )?,
        };
    }
    Ok(())
}

/// Dashes along `points`, whose first coordinates ascend: three fifths of each `period` of the first coordinate. The dashed
/// lines of plotters require a function of glibc 2.35.
fn dashes(points: &[(f64, f64)], period: f64) -> Vec<[(f64, f64); 2]> {
    let mut dashes = Vec::new();
    for pair in points.windows(2) {
        let ((x0, y0), (x1, y1)) = (pair[0], pair[1]);
        let at = |x: f64| (x, y0 + (y1 - y0) * (x - x0) / (x1 - x0));
        for k in (x0 / period).floor() as i64..=(x1 / period).floor() as i64 {
            let (start, end) = (x0.max(k as f64 * period), x1.min((k as f64 + 0.6) * period));
            if start < end {
                dashes.push([at(start), at(end)]);
            }
        }
    }
    dashes
}

fn color(curve: &Curve) -> RGBColor {
    RGBColor(curve.color[0], curve.color[1], curve.color[2])
}

/// Draws the names of `curves` in a row above the plot, where they do not cover data.
fn draw_legend(
    strip: &DrawingArea<SVGBackend<'_>, Shift>,
    curves: &[&Curve],
) -> Result<(), Box<dyn std::error::Error>> {
    const LETTER: i32 = 7;
    let (mut x, y) = (76, LEGEND / 2);
    for curve in curves {
        strip.draw(&PathElement::new(vec![(x, y), (x + 18, y)], color(curve).stroke_width(3)))?;
        strip.draw(&Text::new(curve.name.clone(), (x + 24, y - 6), ("sans-serif", 13)))?;
        x += 24 + LETTER * curve.name.chars().count() as i32 + 20;
    }
    Ok(())
}

/// Label of the y axis, with enough digits to distinguish neighboring labels in `low..high`.
fn tick(value: f64, low: f64, high: f64) -> String {
    // The axis has at most ten steps of 1, 2 or 5 times a power of ten.
    let power = libm::log10((high - low) / 11.0).floor();
    let largest = low.abs().max(high.abs());
    if largest < 0.01 {
        let digits = (libm::log10(largest).floor() - power).clamp(0.0, 15.0) as usize;
        return if value.abs() < 1e-3 * (high - low) { "0".to_owned() } else { format!("{value:.digits$e}") };
    }
    let digits = (-power).clamp(0.0, 15.0) as usize;
    format!("{value:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_of_any_range_differ() {
        for (low, high) in
            [(0.6925, 0.6945), (0.0, 1.0), (2.0, 9.5), (1e-5, 2e-3), (9.99e-4, 1.001e-3), (0.0, 3e4), (-5.0, 5.0)]
        {
            let panel = Panel {
                title: "a".into(),
                meaning: "",
                axis: "step",
                curves: vec![Curve::new("b", BLUE, vec![(0.0, low), (100.0, high)])],
            };
            let text = draw(&[panel]).unwrap();
            let labels: Vec<&str> = text
                .split("text-anchor=\"end\"")
                .skip(1)
                .filter_map(|part| Some(part.split_once('>')?.1.split_once('<')?.0.trim()))
                .collect();
            let mut different = labels.clone();
            different.sort_unstable();
            different.dedup();
            assert!(labels.len() >= 4 && different.len() == labels.len(), "{low} to {high}: {labels:?}");
        }
    }

    #[test]
    fn dashes_follow_their_line() {
        let of_two = dashes(&[(0.0, 0.0), (1.2, 12.0), (2.0, 12.0)], 1.0);
        assert_eq!(of_two, [[(0.0, 0.0), (0.6, 6.0)], [(1.0, 10.0), (1.2, 12.0)], [(1.2, 12.0), (1.6, 12.0)]]);
        assert!(dashes(&[(1.0, 0.0), (1.0, 5.0)], 1.0).is_empty());
    }

    #[test]
    fn a_single_point_is_visible_and_names_lie_above_the_data() {
        let curve = |name: &str, points: &[(f64, f64)]| Curve::new(name, RED, points.to_vec());
        let panel = Panel {
            title: "t".into(),
            meaning: "",
            axis: "step",
            curves: vec![curve("seen", &[(5.0, 0.5)]), curve("unseen", &[])],
        };
        let text = draw(&[panel]).unwrap();
        assert_eq!(text.matches("<circle").count(), 1, "{text}");
        assert!(text.contains("seen") && !text.contains("unseen"), "{text}");
    }

    #[test]
    fn averages_keep_the_mean() {
        let points: Vec<_> = (0..1000).map(|i| (f64::from(i), f64::from(i * i % 37))).collect();
        let few = averaged(points.clone());
        assert!(few.len() <= POINTS && few.len() > POINTS / 2);
        let weighted: f64 = few.iter().zip(points.chunks(3)).map(|(p, chunk)| p.1 * chunk.len() as f64).sum();
        let sum: f64 = points.iter().map(|p| p.1).sum();
        assert!((weighted - sum).abs() < 1e-6, "{weighted} and {sum}");
    }
}
