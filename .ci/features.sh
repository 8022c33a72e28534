#!/usr/bin/env bash
# One build of the libraries serves the tests and the program that tests start: no dependency of the libraries may have a
# feature in `cargo test` (with dev-dependencies) that it lacks in `cargo build`. Otherwise it and all that depends on it are
# compiled twice, for minutes. Mend: name the feature in tests/Cargo.toml.
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
  echo "these have other features in \`cargo test\`; add those to tests/Cargo.toml:" >&2
  echo "$differ" >&2
  exit 1
fi
echo "$(wc -l <"$work/build") crates have the same features"
