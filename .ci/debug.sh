#!/usr/bin/env bash
# Unit tests with overflow checks and assertions, which release mode leaves out. Those of kernels and engine have them under
# AddressSanitizer (.ci/asan.sh).
#
#   .ci/debug.sh [-p PACKAGE ..]
set -euo pipefail
cd "$(dirname "$0")/.."
export CARGO_TERM_COLOR=never CARGO_INCREMENTAL=0
[ $# -gt 0 ] || set -- -p albert-num -p albert-kernels-cuda -p ptx -p bounded-input -p albert-tokenizer -p albert-model -p albert-tasks \
  -p albert-measure -p albert-program
cargo test --quiet "$@" --lib --bins
