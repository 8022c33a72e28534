//! Runs the program `albert` with arguments, and captures exit code, standard output and standard error.

use std::{
    ffi::OsStr,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::OnceLock,
};

/// Path of the program, built in the profile and the target folder of the calling test.
///
/// Tests of another crate have no `CARGO_BIN_EXE_albert`, and `cargo test -p albert-tests` alone does not build the program,
/// so this runs cargo once per process, which does nothing if the program is up to date.
///
/// # Panics
/// If it does not build.
pub fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        // TARGET/PROFILE/deps/test-0123456789abcdef
        let test = std::env::current_exe().expect("a running test has a path");
        let profile_folder = test.parent().and_then(Path::parent).expect("tests are in TARGET/PROFILE/deps");
        let target = profile_folder.parent().expect("the profile's folder is in the target folder");
        let profile = match profile_folder.file_name().and_then(OsStr::to_str) {
            Some("debug") | None => "dev",
            Some(name) => name,
        };
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| env!("CARGO").into());
        let built = Command::new(cargo)
            // With --workspace, like the tests: a build of the program alone would enable other features of its dependencies.
            .args(["build", "--quiet", "--workspace", "--bin", "albert", "--profile", profile, "--target-dir"])
            .arg(target)
            .arg("--manifest-path")
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("Cargo.toml"))
            .output()
            .expect("cargo runs");
        assert!(built.status.success(), "the program does not build:\n{}", String::from_utf8_lossy(&built.stderr));
        profile_folder.join(format!("albert{}", std::env::consts::EXE_SUFFIX))
    })
}

/// The program with `arguments`, two threads by default, and without the caller's `ALBERT_*` variables.
pub fn albert<A: AsRef<OsStr>>(arguments: &[A]) -> Command {
    let mut command = Command::new(program());
    command.args(arguments).stdin(Stdio::null()).env_remove("ALBERT_ISA").env("ALBERT_THREADS", "2");
    command
}

/// Words of a command line; those in single quotes may contain spaces.
pub fn words(line: &str) -> Vec<&str> {
    let parts = line.split('\'').enumerate();
    parts.flat_map(|(at, part)| if at % 2 == 1 { vec![part] } else { part.split_whitespace().collect() }).collect()
}

/// Runs the program with the [`words()`] of `line`.
pub fn run(line: &str) -> Finished {
    finish(&mut albert(&words(line)))
}

/// Result of a finished program.
#[derive(Clone, Debug)]
pub struct Finished {
    /// Exit code; `None` if a signal ended it.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    what: String,
}

/// Runs `command`.
///
/// # Panics
/// If it cannot be started.
pub fn finish(command: &mut Command) -> Finished {
    finish_with_input(command, b"")
}

/// Runs `command` with `input` on standard input.
///
/// # Panics
/// If it cannot be started.
pub fn finish_with_input(command: &mut Command, input: &[u8]) -> Finished {
    let what = command.get_args().map(|argument| argument.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{what}: {error}"));
    // The program may exit before it has read all.
    let _ = child.stdin.take().expect("piped").write_all(input);
    let Output { status, stdout, stderr } = child.wait_with_output().expect("the child can be waited for");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Finished { code: status.code(), stdout: text(stdout), stderr: text(stderr), what }
}

impl Finished {
    /// Asserts exit code 0.
    ///
    /// # Panics
    /// With the output of the program.
    #[track_caller]
    pub fn succeeds(self) -> Self {
        assert_eq!(self.code, Some(0), "{}", self.told());
        self
    }

    /// Asserts exit code 1 and an error of one line, without a panic, that contains all `parts`.
    ///
    /// # Panics
    /// With the output of the program.
    #[track_caller]
    pub fn fails_with(self, parts: &[&str]) -> Self {
        assert_eq!(self.code, Some(1), "{}", self.told());
        assert!(self.stderr.lines().any(|line| line.starts_with("error: ")), "no error is named\n{}", self.told());
        self.says(parts)
    }

    /// Asserts an exit code other than 0: launchers have their own codes.
    ///
    /// # Panics
    /// With the output of the program.
    #[track_caller]
    pub fn fails(self) -> Self {
        assert_ne!(self.code, Some(0), "{}", self.told());
        self
    }

    /// Asserts exit code 2, wrong usage, and a message that contains all `parts`.
    ///
    /// # Panics
    /// With the output of the program.
    #[track_caller]
    pub fn is_wrong_usage(self, parts: &[&str]) -> Self {
        assert_eq!(self.code, Some(2), "{}", self.told());
        self.says(parts)
    }

    /// Asserts that standard error contains all `parts` and no panic.
    ///
    /// # Panics
    /// With the output of the program.
    #[track_caller]
    pub fn says(self, parts: &[&str]) -> Self {
        for part in parts {
            assert!(self.stderr.contains(part), "`{part}` is not said\n{}", self.told());
        }
        assert!(!self.stderr.contains("panicked"), "{}", self.told());
        self
    }

    fn told(&self) -> String {
        format!("{}\nexit code {:?}\nstdout: {}\nstderr: {}", self.what, self.code, self.stdout, self.stderr)
    }
}
