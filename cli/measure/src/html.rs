//! HTML report in one self-contained file: a roofline per number of threads, and the table.

use crate::{
    busy, chart,
    report::{Record, Report, time},
};
use std::fmt::Write;

/// In dark mode, plots are inverted and their hues rotated back, which preserves the colors.
const STYLE: &str = ":root{color-scheme:light dark}\
body{font:15px/1.5 sans-serif;max-width:70em;margin:2em auto;padding:0 1em;color:#222;background:#fff;\
overflow-wrap:anywhere}.wide{overflow-x:auto}td,th{white-space:nowrap}\
table{border-collapse:collapse;font-size:13px}td,th{padding:2px 10px;text-align:right;border-bottom:1px solid #ddd}\
td:nth-child(2),th:nth-child(2),td:nth-child(3),th:nth-child(3){text-align:left}code{background:#f2f2f2;padding:2px 4px}\
svg{width:100%;max-width:720px;height:auto}\
@media(prefers-color-scheme:dark){body{color:#ddd;background:#15171a}td,th{border-color:#444}code{background:#22252a}\
svg{filter:invert(.91) hue-rotate(180deg)}}";

/// Renders the report as a page.
///
/// # Errors
/// A chart cannot be drawn.
pub fn page(report: &Report) -> Result<String, String> {
    let mut page = String::from("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">");
    page += "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">";
    let (command, processor) = (escape(&report.command), escape(&report.machine.processor));
    let head = format!(
        "<title>albert bench</title><style>{STYLE}</style></head><body>\n<h1>albert bench</h1>\n\
         <p><code>{command}</code> on {processor}, {} cores.</p>\n\
         <p>Medians over rounds in which the FMA peak, our call and all peers run interleaved; ± is half the interquartile \
         range. Shares and ratios are formed within a round; in parentheses by CPU time.</p>\n",
        report.machine.cores
    );
    page += &head;
    for limits in &report.limits {
        page += &chart::roofline(limits, &report.records)?;
        page.push('\n');
    }
    page += "<div class=\"wide\"><table><tr><th>no.</th><th>kernel</th><th>case</th><th>dtype</th><th>threads</th><th>isa</th><th>time</th><th>±</th>\
             <th>GFLOP/s</th><th>GB/s</th><th>of the limit</th><th>time over ours</th><th>peak RSS</th></tr>\n";
    for (number, record) in (1..).zip(&report.records) {
        row(&mut page, number, record).map_err(|error| error.to_string())?;
    }
    page += "</table></div>\n";
    for doubt in report.doubts() {
        let _ = writeln!(page, "<p class=\"doubt\">{}</p>", escape(&doubt));
    }
    page += "</body></html>\n";
    Ok(page)
}

fn row(page: &mut String, number: usize, record: &Record) -> std::fmt::Result {
    let about = &record.about;
    let (seconds, mark) = (record.seconds, busy::mark(record.is_busy()));
    write!(
        page,
        "<tr><td>{number}</td><td>{}</td><td>{}</td><td>{}</td>",
        about.kernel,
        escape(&about.case),
        about.dtype
    )?;
    write!(page, "<td>{}</td><td>{}</td><td>{}{mark}</td>", record.threads, record.isa, time(seconds.median))?;
    write!(page, "<td>{:.1} %</td>", 50.0 * (seconds.q3 - seconds.q1) / seconds.median)?;
    write!(page, "<td>{:.1}{mark}</td><td>{:.1}{mark}</td>", record.gflops, record.gbs)?;
    write!(page, "<td>{}</td><td>", record.shares_text().unwrap_or_default())?;
    for peer in &record.peers {
        let (ratio, processor) = (peer.ratio.median, peer.processor_ratio.median);
        write!(page, "{} {ratio:.2} ({processor:.2}) ", escape(&peer.name))?;
    }
    let rss = record.peak_rss_bytes.map_or(f64::NAN, |bytes| bytes as f64 / f64::from(1 << 20));
    writeln!(page, "</td><td>{rss:.0} MiB</td></tr>")
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cases::Ready,
        plan::{Selection, What, processors},
        report::{Limits, Machine},
    };

    #[test]
    fn a_page_has_a_roofline_and_a_row_for_each_case_and_needs_no_other_file() {
        let selection = Selection { m: vec![8], n: vec![16], k: vec![4], ..Selection::default() };
        let cpus = processors(&[1, 2], Some("scalar")).unwrap();
        let mut records = Vec::new();
        for cpu in &cpus {
            for work in [What::Gemm, What::Softmax].iter().flat_map(|&what| selection.works(what).unwrap()) {
                records.push(Ready::new(cpu, &work).unwrap().run(1, 0.0));
            }
        }
        let limits = cpus.iter().map(Limits::of).collect();
        let command = "albert bench <all>".to_owned();
        let report = Report { command, machine: Machine::this(), limits, records };
        // Marks and their sentences appear together.
        let doubts = report.doubts();
        let page = page(&report).unwrap();
        assert!(doubts.iter().all(|doubt| page.contains(&doubt[2..])), "{doubts:?} {page}");
        assert_eq!(page.contains('*'), !doubts.is_empty(), "{page}");
        assert_eq!((page.matches("<svg").count(), page.matches("<tr><td>").count()), (2, 6), "{page}");
        // One point per case and one per kernel in the legend, for one thread and for two.
        assert_eq!(page.matches("<circle").count(), 6 + 4, "{page}");
        // Lines and points have labels: the peak, memory, and the first case by name or number.
        for label in ["peak", "memory", "nt 8x16x4"] {
            let texts = page.split("<text").skip(1).filter_map(|part| part.split_once('>')?.1.split_once('<'));
            assert_eq!(texts.filter(|text| text.0.trim() == label).count(), 2, "{label}: {page}");
        }
        assert!(page.contains("bench &lt;all&gt;") && page.contains("nt 8x16x4") && !page.contains("NaN"), "{page}");
        assert!(page.contains("name=\"viewport\"") && page.contains("prefers-color-scheme:dark"), "{page}");
        assert!(!page.contains("href") && !page.contains("src="), "{page}");
    }
}
