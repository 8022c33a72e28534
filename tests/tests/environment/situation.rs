//! A situation: a bash script and its expected result.

use crate::world::Template;
use std::{
    fs,
    os::unix::{fs::PermissionsExt, process::ExitStatusExt},
    path::Path,
    process::{Command, Stdio},
    time::Instant,
};

/// Exit code of a script, or 128 plus the number of the signal that ended it.
type Code = i32;

/// Exit codes of a panic, an abort and crashes; never expected.
const CRASHES: [Code; 7] = [101, 132, 133, 134, 135, 136, 139];

/// Maximum duration of a script in seconds.
const SECONDS: &str = "60";

/// Functions for scripts; `run`, for background jobs, is `pretrain` with its process id in `$!`. `$A` is the program, `$T` the
/// folder of inputs, which must not change; the script runs in a new empty folder.
const PRELUDE: &str = r#"
no_reader() { exec 7> >(:); sleep 0.2; }
wait_for() { for _ in $(seq 1500); do grep -q -e "$1" "$2" 2>/dev/null && return; sleep 0.02; done; echo "no $1" >&2; return 9; }
pretrain() { "$A" pretrain "$T/recipe.toml" --data "$T/data" --tokenizer "$T/tokenizer.json" "$@"; }
run() { exec "$A" pretrain "$T/recipe.toml" --data "$T/data" --tokenizer "$T/tokenizer.json" "$@"; }
finetune() { "$A" finetune classify --model "$T/run" --data "$T/task" --steps 2 "$@"; }
same_run() { cmp "$1/model.safetensors" "$2/model.safetensors" && cmp "$1/last/model.safetensors" "$2/last/model.safetensors"; }
disk() { mkdir -p disk && mount -t tmpfs -o "size=$1" tmpfs disk; }
nobody() { setpriv --reuid 65534 --regid 65534 --clear-groups -- "$@"; }
"#;

/// Result of a situation.
#[derive(Clone, Debug)]
pub(crate) enum Verdict {
    Green(String),
    Red(String),
    Skipped(String),
}

/// A row of the table.
#[derive(Clone, Debug, Default)]
pub(crate) struct Situation {
    pub(crate) group: &'static str,
    pub(crate) name: String,
    pub(crate) script: String,
    codes: Vec<Code>,
    says: Vec<String>,
    after: String,
    needs_root: bool,
    leaves_partial: bool,
}

/// A situation that must end with exit code 0.
pub(crate) fn row(group: &'static str, name: impl Into<String>, script: impl Into<String>) -> Situation {
    Situation { group, name: name.into(), script: script.into(), codes: vec![0], ..Situation::default() }
}

impl Situation {
    /// Expected exit codes.
    pub(crate) fn ends_with(mut self, codes: &[Code]) -> Self {
        self.codes = codes.to_vec();
        self
    }

    /// Expects exit code 1 and an error that contains `part`.
    pub(crate) fn fails(self, part: &str) -> Self {
        self.ends_with(&[1]).says("error: ").says(part)
    }

    /// Expects `part` in standard error.
    pub(crate) fn says(mut self, part: &str) -> Self {
        self.says.push(part.to_owned());
        self
    }

    /// Runs `script` afterwards in the same folder; it must succeed.
    pub(crate) fn then(mut self, script: &str) -> Self {
        self.after = script.to_owned();
        self
    }

    /// Requires root and separate mounts.
    pub(crate) fn needing_root(mut self) -> Self {
        self.needs_root = true;
        self
    }

    /// A signal that cannot be caught, or lack of memory, kills the program: a temporary file may remain.
    pub(crate) fn leaves_partial(mut self) -> Self {
        self.leaves_partial = true;
        self
    }

    pub(crate) fn expected(&self) -> String {
        let codes = self.codes.iter().map(ToString::to_string).collect::<Vec<_>>().join(" or ");
        let says = self.says.iter().map(|part| format!(", says \"{part}\"")).collect::<String>();
        let after = if self.after.is_empty() { String::new() } else { format!(", then `{}`", self.after) };
        format!("exit {codes}{says}{after}")
    }

    /// Runs the script in a new folder and checks its files.
    pub(crate) fn judge(&self, template: &Template) -> Verdict {
        if self.needs_root && !template.is_root {
            return Verdict::Skipped("needs root".to_owned());
        }
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).expect("the folder is ours");
        let begun = Instant::now();
        let (code, stderr) = self.run(&self.script, folder.path(), template);
        let seconds = begun.elapsed().as_secs_f64();
        let mut wrong = Vec::new();
        if !self.codes.contains(&code) || CRASHES.contains(&code) {
            wrong.push(format!("exit {code}"));
        }
        wrong.extend(
            self.says.iter().filter(|part| !stderr.contains(*part)).map(|part| format!("\"{part}\" is not said")),
        );
        if stderr.contains("panicked at") {
            wrong.push("panic".to_owned());
        }
        if self.group == "closed pipe" && stderr.contains("error") {
            wrong.push("an error is not reported".to_owned());
        }
        if !self.after.is_empty() {
            let (after, told) = self.run(&self.after, folder.path(), template);
            if after != 0 {
                wrong.push(format!("afterwards exit {after}: {}", told.trim()));
            }
        }
        let partial = partial_files(folder.path());
        if !partial.is_empty() && !self.leaves_partial {
            wrong.push(format!("left {}", partial.join(", ")));
        }
        let last = stderr.trim().lines().last().unwrap_or_default();
        let said: String = last.chars().take(160).collect();
        if wrong.is_empty() {
            Verdict::Green(format!("exit {code} in {seconds:.1} s: {said}"))
        } else {
            Verdict::Red(format!("{}; exit {code} in {seconds:.1} s: {said}", wrong.join("; ")))
        }
    }

    fn run(&self, script: &str, folder: &Path, template: &Template) -> (Code, String) {
        let stderr = tempfile::NamedTempFile::new().expect("a temporary file can be made");
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", SECONDS]);
        if self.needs_root {
            command.args(["unshare", "--mount"]);
        }
        let status = command
            .args(["bash", "-c", &format!("{PRELUDE}\n{script}")])
            .current_dir(folder)
            .env("A", template.path("albert"))
            .env("T", template.folder())
            .env("ALBERT_THREADS", "2")
            .env_remove("ALBERT_ISA")
            .env_remove("RUST_BACKTRACE")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(stderr.reopen().expect("it was just made"))
            .status()
            .expect("timeout, unshare and bash are programs");
        let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
        let said = fs::read(stderr.path()).expect("it was just written");
        (code, String::from_utf8_lossy(&said).into_owned())
    }
}

/// Names below `folder` with the extension of temporary files.
fn partial_files(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let kind = entry.file_type().expect("it was just listed");
        // A link with such a name was planted by the script.
        if name.contains(".partial") && !kind.is_symlink() {
            found.push(name);
        } else if kind.is_dir() {
            found.extend(partial_files(&entry.path()));
        }
    }
    found
}
