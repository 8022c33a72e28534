#!/usr/bin/env bash
# Checks that the workspace compiles with the oldest supported compiler, rust-version in Cargo.toml.
#
# If rustup has that toolchain, the workspace is checked with it. Debian's suites have 1.85 and 1.96 to 1.98 (November 2026),
# none between; without the toolchain two checks replace it:
#
#   clippy's incompatible_msrv, denied in the workspace      no use of a newer library item (newer language features are not
#                                                            detected)
#   rust-version of each dependency in Cargo.lock            none needs a newer compiler; those of `peers` are left out
set -euo pipefail
cd "$(dirname "$0")/.."
oldest=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if command -v rustup >/dev/null && toolchain=$(rustup toolchain list | grep -oE "^$oldest(\.[0-9]+)?-[^ ]*" | head -n 1) &&
  [ -n "$toolchain" ]; then
  cargo "+$toolchain" check --quiet --workspace --all-targets --target-dir "${CARGO_TARGET_DIR:-target}/oldest"
  echo "rustc $oldest: 1 passed, 0 failed, 0 skipped"
  exit 0
fi
echo "SKIPPED: a build with rustc $oldest: the toolchain is not installed"

# The lint has to report a planted use of an item that is stable since 1.91.
mkdir -p "$work/planted/src"
cat >"$work/planted/Cargo.toml" <<CONFIG
[package]
name = "planted"
version = "0.1.0"
edition = "2024"
rust-version = "$oldest"
[workspace]
[lints.clippy]
incompatible_msrv = "deny"
CONFIG
echo 'pub fn area(x: u32) -> u32 { x.strict_mul(x) }' >"$work/planted/src/lib.rs"
if cargo clippy --quiet --offline --manifest-path "$work/planted/Cargo.toml" --target-dir "$work/target" >"$work/log" 2>&1 ||
  ! grep -q 'incompatible_msrv' "$work/log"; then
  echo "FAILED: clippy missed a planted use of a newer item:"
  cat "$work/log"
  exit 1
fi
cargo clippy --quiet --workspace --all-targets -- -D warnings

cargo metadata --format-version 1 --locked >"$work/metadata.json"
python3 - "$oldest" "$work/metadata.json" <<'PYTHON'
import json
import sys

oldest = tuple(int(part) for part in sys.argv[1].split("."))
with open(sys.argv[2], encoding="utf-8") as file:
    packages = json.load(file)["packages"]
newer = [
    f"{package['name']} {package['version']} needs {package['rust_version']}"
    for package in packages
    if package["rust_version"] and tuple(int(part) for part in package["rust_version"].split("."))[:2] > oldest
]
print("\n".join(f"FAILED: {line}" for line in newer))
sys.exit(bool(newer))
PYTHON
echo "rustc $oldest, by lint and by the manifests of dependencies: 3 passed, 0 failed, 1 skipped"
