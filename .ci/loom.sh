#!/usr/bin/env bash
# Model-checks the thread team (kernels/tests/team); prints executions and time of each model and the planted faults found.
set -euo pipefail
cd "$(dirname "$0")/.."
started=$SECONDS
cargo test --quiet -p albert-kernels --test team -- --nocapture 2>&1 |
  grep -vE '^ +[0-9]+: |^ +at |^stack backtrace|^note: |^$|^thread .* panicked|^Causality violation|^\.+$'
printf 'model check: %d s\n' $((SECONDS - started))
