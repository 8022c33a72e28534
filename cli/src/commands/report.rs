//! `albert report`: one or several runs on a page, or as JSON.

use crate::output::{results, tell};
use albert::report::{RunLog, Section, sections, write_html};
use albert_tasks::ablate;
use anyhow::{Result, ensure};
use clap::Args;
use engine::io::check_output;
use std::{
    io::Write,
    path::{Path, PathBuf},
    process::ExitCode,
};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  albert report runs/small
  albert report runs/a runs/b runs/c -o comparison.html
  albert report runs/ablation
  albert report runs/small --json | jq .figures.mlm_loss")]
pub(crate) struct Arguments {
    /// Run folders, of pre-training or fine-tuning, or of an ablation: its table, and each of its rows under the first seed
    #[arg(required = true)]
    runs: Vec<PathBuf>,
    /// HTML page to write
    #[arg(short, long, default_value = "report.html", conflicts_with = "json")]
    output: PathBuf,
    /// Print the last metrics and the settings as JSON, one object per run, instead of a page
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let (mut tables, mut logs) = (vec![], vec![]);
    for folder in &arguments.runs {
        let name = name(folder, &arguments.runs);
        let Some(ablation) = ablate::read(folder)? else {
            logs.push(RunLog::read(folder, &name)?);
            continue;
        };
        for table in &ablation.tables {
            let title = format!("{name}: {}", table.title);
            tables.push(Section::Grid { title, rows: table.grid() });
            tables.push(Section::Text { title: "Remarks".into(), text: table.remarks().join("\n") });
        }
        for (run, name) in &ablation.runs {
            logs.push(RunLog::read(run, name)?);
        }
    }
    if arguments.json {
        let mut out = results();
        for log in &logs {
            writeln!(out, "{}", log.to_json())?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    check_output(&arguments.output)?;
    ensure!(
        arguments.output.extension().is_some_and(|ending| ending == "html"),
        "--output {}: expected a name that ends in .html",
        arguments.output.display()
    );
    let title = arguments.runs.iter().map(|folder| name(folder, &arguments.runs)).collect::<Vec<_>>().join(", ");
    tables.extend(sections(&logs));
    write_html(&arguments.output, &title, &tables)?;
    tell!("wrote {}", arguments.output.display());
    Ok(ExitCode::SUCCESS)
}

/// Last component of a path, or the whole path if several have the same.
fn name(folder: &Path, all: &[PathBuf]) -> String {
    let last = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
    let is_unique = all.iter().filter(|other| last(other) == last(folder)).count() == 1;
    last(folder).filter(|_| is_unique).unwrap_or_else(|| folder.display().to_string())
}
