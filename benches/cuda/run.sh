#!/usr/bin/env bash
# Everything about the CUDA kernels that a machine with a GPU can say, in under ten minutes: every case of every
# operation on silicon, compute-sanitizer over the smallest of them where it is installed, then speeds beside cuBLAS,
# cuDNN and PyTorch where they are. Writes benches/cuda/results.md.
#
#   benches/cuda/run.sh [BINARY]        BINARY: a `cuda_suite` that was built elsewhere
#
# Exit code: 0 all cases pass, 1 some fail, 2 there is no GPU. Without a GPU: cuda_suite --device cuda-sim.
set -euo pipefail
cd "$(dirname "$0")/../.."
suite=${1:-target/release/cuda_suite}
if [ $# -eq 0 ]; then
  cargo build --release -p albert-benches --bin cuda_suite
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

status=0
"$suite" --json "$work/ours.json" || status=$?
if [ ! -f "$work/ours.json" ]; then
  exit "$status"
fi
if command -v compute-sanitizer >/dev/null; then
  for tool in memcheck racecheck synccheck; do
    # The sums of a tile and the losses: barriers, rings of copies, votes. The whole table would take hours.
    for operation in cross_entropy softmax dropout; do
      compute-sanitizer --tool "$tool" --error-exitcode 1 "$suite" --only "$operation" --no-speed >"$work/sanitizer.log" 2>&1 &&
        echo "compute-sanitizer $tool, $operation: clean" ||
        { status=1; echo "compute-sanitizer $tool, $operation:"; tail -n 20 "$work/sanitizer.log"; }
    done
  done
else
  echo "SKIPPED: compute-sanitizer is not installed"
fi
python3 benches/cuda/peers.py "$work/ours.json" benches/cuda/results.md
exit "$status"
