#!/usr/bin/env bash
# The tests of kernels on emulated vectors of 4, 8 and 16 lanes and on the machine's own: all widths on every machine.
# Compiled separately, since emulated kernels are most of the code.
set -euo pipefail
cd "$(dirname "$0")/.."
export CARGO_TERM_COLOR=never CARGO_INCREMENTAL=0 CARGO_TARGET_DIR=target/emulated RUSTFLAGS='--cfg emulated_isas'
# The simulated GPU has no vectors.
cargo test --quiet -p albert-kernels -p albert-kernels-proof --lib -- --skip sm80_cases --skip sm90_cases --skip variants --skip simulated
