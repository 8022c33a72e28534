#!/usr/bin/env bash
# The tests and the program that tests start share one build of the libraries: no dependency of the libraries may have a
# feature in `cargo test` (with dev-dependencies) that it lacks in `cargo build`. Otherwise it and all crates that depend on it
# are compiled twice, for minutes. Fix: name the feature in tests/Cargo.toml.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# crates KINDS: each crate with its features, one a line.
crates() {
  cargo tree --workspace --edges "$1" --no-dedupe --prefix none --format '{p} {f}' | sort -u
}
crates normal,build >"$work/build"
crates normal,build,dev >"$work/test"
differ=$(comm -23 "$work/build" "$work/test")
if [ -n "$differ" ]; then
  echo "these crates have other features in \`cargo test\`; add the features to tests/Cargo.toml:" >&2
  echo "$differ" >&2
  exit 1
fi
echo "$(wc -l <"$work/build") crates have the same features"
