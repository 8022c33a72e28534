#!/usr/bin/env bash
# The simulated GPU against an H200: recorded steps of training in f32 and bf16, a run of it that `albert verify` confirms, and
# 20 steps; and, where PTX_RECORDINGS names the folder of the recordings, every recorded product and every recorded input of the
# functions. Last line: `hopper: N passed, M skipped`.
set -euo pipefail
cd "$(dirname "$0")/.."
passed=0 skipped=0
pass() {
  "$@"
  passed=$((passed + 1))
}
pass cargo test --release --quiet -p albert-tests --test replay -- --include-ignored
pass cargo test --release --quiet -p albert-tests --test program verify -- --include-ignored
if [ -n "${PTX_RECORDINGS:-}" ]; then
  pass cargo test --release --quiet -p ptx --lib tensor_cores -- --include-ignored
  pass cargo run --release --quiet -p ptx --example sfu check
else
  skipped=2
  echo "SKIPPED: PTX_RECORDINGS is not set, so only the samples in the repository are compared (cargo test -p ptx)"
fi
echo "hopper: $passed passed, $skipped skipped"
