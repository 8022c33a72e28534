#!/usr/bin/env bash
# Builds of several selections of packages share their libraries only if all crates below have the same features; otherwise cargo
# compiles the engine or the kernels twice, for minutes. Compares with `cargo test --workspace`: all crates of `cargo build
# --workspace` and of `cargo run`, and what the kernels need in `cargo test -p NAME`. Fix: name the feature in cli/Cargo.toml or
# kernels/Cargo.toml.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# crates EDGES SELECTION..: each crate with its features, one a line.
crates() {
  cargo tree --edges "$1" "${@:2}" --no-dedupe --prefix none --format '{p} {f}' | sed 's/ (proc-macro)//' | sort -u
}
crates normal,build,dev --workspace >"$work/test"
status=0
# compare WHAT FILE: all lines of FILE are in the list of the tests.
compare() {
  local differ
  differ=$(comm -23 "$2" "$work/test")
  [ -z "$differ" ] || { printf '%s: other features than in `cargo test --workspace`:\n%s\n' "$1" "$differ" >&2 && status=1; }
}
crates normal,build --workspace >"$work/build"
compare "cargo build --workspace" "$work/build"
crates normal,build >"$work/run"
compare "cargo run" "$work/run"
crates normal,build -p albert-kernels | cut -d ' ' -f 1-2 >"$work/kernels"
for name in albert-kernels albert-kernels-cuda albert-kernels-proof albert-engine albert-model albert-tasks albert-learn; do
  crates normal,build,dev -p "$name" | grep -F -f "$work/kernels" >"$work/one"
  compare "cargo test -p $name" "$work/one"
done
[ "$status" -eq 0 ] && echo "$(wc -l <"$work/build") crates have the same features"
exit "$status"
