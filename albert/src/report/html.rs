//! `report.html`: a run or an evaluation in one self-contained file, with pictures as inline SVG.

use std::fmt::Write as _;
use std::path::Path;

use engine::io::write_atomically;

use super::curves::{Curve, chart};
use super::{Line, Panel, ReportError};

/// Section of a report.
#[derive(Clone, Debug, PartialEq)]
pub enum Section {
    /// Names and values.
    Table {
        /// Heading.
        title: String,
        /// (name, value).
        rows: Vec<(String, String)>,
    },
    /// Rows of cells; the first row has the names of the columns.
    Grid {
        /// Heading.
        title: String,
        /// Cells of each row.
        rows: Vec<Vec<String>>,
    },
    /// Curves.
    Panels(Vec<Panel>),
    /// The same curves over several axes, of which the reader chooses one.
    Axes(Vec<Vec<Panel>>),
    /// Counts of gold (rows) and predicted (columns) classes.
    Confusion {
        /// Names of the classes.
        labels: Vec<String>,
        /// `[n, n]`
        counts: Vec<Vec<u64>>,
    },
    /// Preformatted text.
    Text {
        /// Heading.
        title: String,
        /// Text to show unchanged.
        text: String,
    },
}

/// In dark mode, images are inverted and their hues rotated back, so that they keep their colors.
const STYLE: &str = ":root{color-scheme:light dark}\
    body{font:15px/1.5 system-ui,sans-serif;max-width:960px;margin:2em auto;padding:0 1em;color:#222;background:#fff;\
    overflow-wrap:anywhere}.wide{overflow-x:auto}.wide th,.grid td{overflow-wrap:normal}td:first-child{white-space:nowrap}\
    @media(max-width:600px){td:first-child{white-space:normal;overflow-wrap:normal}}\
    table{border-collapse:collapse}td{padding:.2em 1em .2em 0;border-bottom:1px solid #ddd;vertical-align:top}\
    th{text-align:left;padding:.2em 1em .2em 0;border-bottom:2px solid #999}\
    pre{background:#f6f6f6;padding:1em;overflow:auto}svg{max-width:100%;height:auto}.wide svg{max-width:none}\
    .charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,300px),1fr));gap:1em}\
    figure{margin:0}figcaption{font-weight:600}figcaption small{display:block;font-weight:400}\
    .axes>label{margin-right:1em}.axes>.charts{display:none}.axes>input:checked+label+.charts{display:grid}\
    .axes{display:flex;flex-wrap:wrap;gap:.3em;align-items:center}.axes>.charts{flex:0 0 100%;order:1}\
    figure svg{width:100%}.legend{list-style:none;margin:0;padding:0}\
    .legend li{display:inline-block;margin-right:1em}.legend i{display:inline-block;width:1.5em;margin-right:.4em;\
    vertical-align:middle;border-top:.2em solid}.legend .thin{border-top-width:1px;opacity:.6}\
    .legend .dashed{border-top:2px dashed}\
    @media(prefers-color-scheme:dark){body{color:#ddd;background:#15171a}td{border-color:#444}pre{background:#22252a}\
    svg{filter:invert(.91) hue-rotate(180deg)}}";

/// Writes `sections` under `title` to `path` atomically.
///
/// # Errors
/// The file cannot be written, or a curve cannot be drawn.
pub fn write_html(path: &Path, title: &str, sections: &[Section]) -> Result<(), ReportError> {
    let text = html(title, sections).map_err(|problem| ReportError::Plot { path: path.to_owned(), problem })?;
    Ok(write_atomically(path, |out| out.write_all(text.as_bytes()))?)
}

fn html(title: &str, sections: &[Section]) -> Result<String, String> {
    let title = escaped(title);
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><title>{title}</title>\n\
         <style>{STYLE}</style></head><body>\n<h1>{title}</h1>\n"
    );
    for section in sections {
        match section {
            Section::Table { title, rows } => {
                let _ = write!(out, "<h2>{}</h2>\n<div class=\"wide\"><table>", escaped(title));
                for (name, value) in rows {
                    let _ = write!(out, "<tr><td>{}</td><td>{}</td></tr>", escaped(name), escaped(value));
                }
                out.push_str("</table></div>\n");
            }
            Section::Panels(panels) => {
                out.push_str("<h2>Curves</h2>\n");
                charts(panels, &mut out)?;
            }
            Section::Axes(axes) => {
                out.push_str("<h2>Curves</h2>\n");
                switch(axes, &mut out)?;
            }
            Section::Grid { title, rows } => {
                let _ = writeln!(out, "<h2>{}</h2>\n{}", escaped(title), grid(rows));
            }
            Section::Confusion { labels, counts } => {
                let _ = writeln!(
                    out,
                    "<h2>Right and predicted classes</h2>\n<div class=\"wide\">{}</div>",
                    confusion(labels, counts)
                );
            }
            Section::Text { title, text } => {
                let _ = writeln!(out, "<h2>{}</h2>\n<pre>{}</pre>", escaped(title), escaped(text));
            }
        }
    }
    out.push_str("</body></html>\n");
    Ok(out)
}

fn charts(panels: &[Panel], out: &mut String) -> Result<(), String> {
    out.push_str("<div class=\"charts\">\n");
    for panel in panels {
        out.push_str(&figure(panel)?);
    }
    out.push_str("</div>\n");
    Ok(())
}

/// Charts over each axis, with buttons that show one of them; without scripts.
fn switch(axes: &[Vec<Panel>], out: &mut String) -> Result<(), String> {
    if let [panels] = axes {
        return charts(panels, out);
    }
    out.push_str("<div class=\"axes\"><span>x axis:</span>\n");
    for (number, panels) in axes.iter().enumerate() {
        let name = panels.first().map_or("", |panel| panel.axis);
        let checked = if number == 0 { " checked" } else { "" };
        let _ = writeln!(
            out,
            "<input type=\"radio\" name=\"x\" id=\"x{number}\"{checked}><label for=\"x{number}\">{}</label>",
            escaped(name)
        );
        charts(panels, out)?;
    }
    out.push_str("</div>\n");
    Ok(())
}

/// A chart with its title, legend and values.
fn figure(panel: &Panel) -> Result<String, String> {
    let curves: Vec<&Curve> = panel.curves.iter().filter(|curve| !curve.points.is_empty()).collect();
    let mut out = format!("<figure><figcaption>{}", escaped(&panel.title));
    if !panel.meaning.is_empty() {
        let _ = write!(out, "<small>{}</small>", escaped(panel.meaning));
    }
    let _ = write!(out, "</figcaption>{}\n<ul class=\"legend\">", chart(panel)?);
    for Curve { name, color: [r, g, b], line, .. } in &curves {
        let run = name.rsplit_once(", ").map_or(name.as_str(), |(run, _)| run);
        let class = match line {
            Line::Solid => "solid",
            Line::Thin => "thin",
            Line::Dashed => "dashed",
        };
        let _ = write!(
            out,
            "<li data-run=\"{}\"><i class=\"{class}\" style=\"color:rgb({r},{g},{b})\"></i>{}</li>",
            escaped(run),
            escaped(name)
        );
    }
    let mut rows = vec![vec!["curve".to_owned(), panel.axis.to_owned(), "value".to_owned()]];
    for curve in &curves {
        // A dozen values are enough to check the picture.
        let every = curve.points.len().div_ceil(12).max(1);
        let last = curve.points.len() - 1;
        let points = curve.points.iter().enumerate().filter(|(at, _)| at % every == 0 || *at == last);
        rows.extend(points.map(|(_, (x, y))| vec![curve.name.clone(), x_text(*x), format!("{y:.5}")]));
    }
    let _ = writeln!(out, "</ul><details><summary>Numbers</summary>{}</details></figure>", grid(&rows));
    Ok(out)
}

fn x_text(x: f64) -> String {
    if x == x.round() { format!("{x}") } else { format!("{x:.2}") }
}

/// A table whose first row is its header.
fn grid(rows: &[Vec<String>]) -> String {
    let mut out = String::from("<div class=\"wide\"><table class=\"grid\">");
    for (number, row) in rows.iter().enumerate() {
        let cell = if number == 0 { "th" } else { "td" };
        out.push_str("<tr>");
        for text in row {
            let _ = write!(out, "<{cell}>{}</{cell}>", escaped(text));
        }
        out.push_str("</tr>");
    }
    out.push_str("</table></div>");
    out
}

/// A square of cells, shaded by their share of the row.
fn confusion(labels: &[String], counts: &[Vec<u64>]) -> String {
    const CELL: usize = 64;
    const MARGIN: usize = 150;
    let side = MARGIN + CELL * labels.len();
    let short = |label: &str| escaped(&label.chars().take(16).collect::<String>());
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {side} {side}\" width=\"{side}\" height=\"{side}\" \
         font-family=\"sans-serif\" font-size=\"13\">\n<text x=\"4\" y=\"16\">right (rows), predicted (columns)</text>\n"
    );
    let middle = |at: usize| MARGIN + CELL * at + CELL / 2;
    for (row, label) in labels.iter().enumerate() {
        let _ = writeln!(
            out,
            "<text x=\"{x}\" y=\"{y}\" text-anchor=\"end\">{label}</text>\
             <text transform=\"translate({y} {x}) rotate(-90)\" text-anchor=\"start\">{label}</text>",
            x = MARGIN - 8,
            y = middle(row),
            label = short(label)
        );
        let total = counts[row].iter().sum::<u64>().max(1) as f64;
        for (column, count) in counts[row].iter().enumerate() {
            let share = *count as f64 / total;
            let shade = (255.0 - 200.0 * share) as u8;
            let ink = if share > 0.6 { "#fff" } else { "#222" };
            let _ = writeln!(
                out,
                "<rect x=\"{}\" y=\"{}\" width=\"{CELL}\" height=\"{CELL}\" fill=\"rgb({shade},{shade},255)\" \
                 stroke=\"#fff\"/><text x=\"{}\" y=\"{}\" text-anchor=\"middle\" fill=\"{ink}\">{count}</text>",
                MARGIN + CELL * column,
                MARGIN + CELL * row,
                middle(column),
                middle(row) + 5,
            );
        }
    }
    out.push_str("</svg>");
    out
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_every_section_and_nothing_from_elsewhere() {
        let panel = |axis| {
            let curve = |line, name| Curve { line, ..Curve::new(name, [1, 2, 3], vec![(0.0, 1.0), (2.5, 2.0)]) };
            let curves = vec![curve(Line::Thin, "a, b, training"), curve(Line::Dashed, "baseline")];
            Panel { title: "x".into(), meaning: "words", axis, curves }
        };
        let sections = [
            Section::Table { title: "Figures".into(), rows: vec![("accuracy".into(), "0.5 <b>".into())] },
            Section::Confusion { labels: vec!["a&b".into(), "c".into()], counts: vec![vec![3, 1], vec![0, 9]] },
            Section::Axes(vec![vec![panel("step")], vec![panel("minutes")]]),
            Section::Panels(vec![Panel { title: "loss".into(), meaning: "", axis: "step", curves: Vec::new() }]),
            Section::Text { title: "Recipe".into(), text: "x = \"<1>\"".into() },
        ];
        let text = html("A run", &sections).unwrap();
        for part in [
            "<h1>A run</h1>",
            "0.5 &lt;b&gt;",
            "a&amp;b",
            ">9</text>",
            "loss",
            "x = &quot;&lt;1&gt;&quot;",
            "<small>words</small>",
        ] {
            assert!(text.contains(part), "{part} is missing");
        }
        assert_eq!(text.matches("<svg").count(), 4);
        let switch = "id=\"x0\" checked><label for=\"x0\">step</label>";
        assert!(text.contains(switch) && text.contains("id=\"x1\"><label for=\"x1\">minutes</label>"), "{text}");
        assert!(text.contains("data-run=\"a, b\"><i class=\"thin\"") && text.contains("<i class=\"dashed\""), "{text}");
        assert!(text.contains("name=\"viewport\"") && text.contains("prefers-color-scheme:dark"));
        assert!(!text.contains("src=") && !text.contains("href="), "the report reads other files");
    }
}
