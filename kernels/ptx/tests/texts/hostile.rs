//! Reading and decoding take at most 64 times the bytes of the text and 64 MiB, and a time that grows linearly.
//!
//! Each text is read in a process of its own, whose peak the kernel counts; elsewhere than on Linux nothing is
//! measured.

use ptx::sim::{Limits, Module};
use std::{
    process::Command,
    time::{Duration, Instant},
};

/// The text that the child process reads.
const TEXT: &str = "HOSTILE_PTX";
/// Bytes of each text.
const BYTES: usize = 4 << 20;

/// About `BYTES` bytes of `part`, numbered where it has a `#`.
fn repeated(part: &str) -> String {
    let (mut text, mut number) = (String::new(), 0);
    while text.len() < BYTES {
        text.push_str(&part.replace('#', &number.to_string()));
        number += 1;
    }
    text
}

fn module(directives: &str) -> String {
    format!(".version 8.0\n.target sm_80\n{directives}")
}

/// An entry with this body.
fn entry(body: &str) -> String {
    let file = "f".repeat(4000);
    module(&format!(".file 1 \"{file}\"\n.entry kernel() {{\n.reg .b32 r; .reg .pred p; {body}\nret;\n}}\n"))
}

/// A name and what makes the text.
type Text = (&'static str, fn() -> String);

const TEXTS: [Text; 16] = [
    ("returns", || entry(&repeated("ret;"))),
    ("sources", || entry(&repeated(".loc 1 # 1\nret;\n"))),
    ("branches", || entry(&repeated("a#: @p bra a#;"))),
    ("one target", || entry(&format!("a: {}", repeated("@p bra a;")))),
    ("nested branches", || entry(&(repeated("@p bra b; mov.b32 r, #;") + "b: bra b;"))),
    ("scopes", || entry(&repeated("{}"))),
    ("labels", || entry(&repeated("a#:"))),
    ("long labels", || {
        let name = "a".repeat(100_000);
        entry(&repeated(&format!("{name}1: bra {name}2;")))
    }),
    ("registers", || entry(&repeated(".reg .b32 r#;"))),
    ("digits", || {
        let moves = "mov.b32 r, r;".repeat(1000);
        entry(&format!(".reg .b32 %r{}; {moves}", "1".repeat(BYTES / 2)))
    }),
    ("operands", || entry(&format!("mov.b32 {{{}}};", repeated("1 ")))),
    ("open braces", || entry(&repeated("{"))),
    ("variables", || module(&repeated(".global .b8 a#;"))),
    ("entries", || module(&repeated(".entry a#{ret;}"))),
    ("initializer", || module(&format!(".global .b64 a[] = {{{}}};", repeated("1,")))),
    ("opcode", || entry(&format!("add{};", repeated(".a")))),
];

/// Peak of this process in bytes.
fn peak() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kilobytes| kilobytes << 10)
}

#[test]
#[ignore = "a process of its own for the test below"]
fn child() {
    let Ok(name) = std::env::var(TEXT) else { return };
    let (_, make) = TEXTS.iter().find(|(known, _)| *known == name).expect("the name of a text");
    let text = make();
    let before = peak();
    // Whether the text is refused or read is no matter here.
    if let Ok(module) = Module::parse_within(&text, Limits::default()) {
        for entry in module.entry_names().take(1000) {
            drop(module.decode(entry));
        }
    }
    if let (Some(before), Some(after)) = (before, peak()) {
        let most = 64 * text.len() as u64 + (64 << 20);
        println!("{name}: {} bytes, {} MiB more", text.len(), (after - before) >> 20);
        assert!(after - before <= most, "{name}: {} bytes for a text of {}", after - before, text.len());
    }
}

#[test]
fn reading_a_hostile_text_takes_little_memory_and_time() {
    for (name, _) in TEXTS {
        let begin = Instant::now();
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--exact", "hostile::child", "--ignored", "--nocapture"]).env(TEXT, name);
        let output = command.output().expect("the program starts");
        let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name}: {said}");
        // Quadratic time would take hours.
        assert!(begin.elapsed() < Duration::from_secs(120), "{name}: {:?}", begin.elapsed());
        print!("{}", said.lines().filter(|line| line.starts_with(name)).collect::<String>() + "\n");
    }
}
