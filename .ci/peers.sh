#!/usr/bin/env bash
# Lints and documentation of `albert bench gemm --peers`, the benchmarks against third-party crates (the feature `peers`), which take long to compile.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo clippy --workspace --features albert-measure/peers --all-targets --quiet -- -D warnings
RUSTDOCFLAGS="-D warnings" cargo doc --workspace --features albert-measure/peers --no-deps --quiet
echo "no warnings"
