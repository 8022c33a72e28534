#!/usr/bin/env bash
# Assembles every PTX program of the table of operations with NVIDIA's own assembler, which needs no GPU, for every
# architecture that has to take it. A program fails if ptxas refuses it or warns, if it spills registers, needs a stack,
# or uses more registers than its row allows.
#
# ptxas comes from the PyPI wheel of CUDA 13.0 and is kept in .tools; PTXAS=/path/to/ptxas uses another one. Where it
# cannot be had, everything is SKIPPED, visibly and with the count.
set -euo pipefail
cd "$(dirname "$0")/.."

wheel=nvidia-cuda-nvcc==13.0.88
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cargo run --quiet -p kernels --example emit_ptx -- "$work/ptx"
assemblies=$(awk '{ n += NF - 3 } END { print n + 0 }' "$work/ptx/programs.txt")

skip() {
  echo "SKIPPED: $1"
  echo "PTX gate: 0 passed, 0 failed, $assemblies skipped"
  exit 0
}

# --- ptxas ---
cached() {
  find .tools -path '*/nvidia/cu13/bin/ptxas' 2>/dev/null | head -n 1 || true
}
ptxas=${PTXAS:-$(cached)}
if [ -z "$ptxas" ]; then
  command -v python3 >/dev/null || skip "python3 is missing, so ptxas cannot be fetched; set PTXAS"
  python3 -m venv .tools >"$work/pip.log" 2>&1 || skip "python3 has no venv module, so ptxas cannot be fetched; set PTXAS"
  .tools/bin/pip install --quiet --disable-pip-version-check --retries 1 --timeout 20 --no-deps "$wheel" \
    >"$work/pip.log" 2>&1 || skip "$wheel cannot be fetched: $(tail -n 1 "$work/pip.log")"
  ptxas=$(cached)
fi
"$ptxas" --version | grep release

# assemble FILE ARCHITECTURE BUDGET: prints why it fails, nothing if it passes.
assemble() {
  local log="$work/log" registers
  if ! "$ptxas" --verbose --warn-on-spills --warn-on-local-memory-usage --generate-line-info --gpu-name "$2" "$1" \
    --output-file "$work/cubin" >"$log" 2>&1; then
    grep -m 1 -E 'error|fatal' "$log" || tail -n 1 "$log"
    return
  fi
  if grep -q 'warning' "$log"; then
    grep -m 1 'warning' "$log"
  elif ! grep -q '0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads' "$log"; then
    echo "spills or a stack: $(grep -m 1 'stack frame' "$log" || echo 'ptxas did not say')"
  else
    registers=$(sed -nE 's/.*Used ([0-9]+) registers.*/\1/p' "$log" | head -n 1)
    if [ "${registers:-999}" -gt "$3" ]; then
      echo "${registers:-an unknown number of} registers, the budget is $3"
    fi
  fi
}

# --- the gate must be able to fail ---
read -r first _ <"$work/ptx/programs.txt"
printf 'broken\n' | cat "$work/ptx/$first" - >"$work/broken.ptx"
if [ -z "$(assemble "$work/broken.ptx" sm_80 255)" ] || [ -z "$(assemble "$work/ptx/$first" sm_80 1)" ]; then
  echo "the PTX gate passes broken text or ignores the budget; nothing it says can be trusted" >&2
  exit 1
fi

# --- every program, every architecture ---
passed=0 failed=0
while read -r file entry budget architectures; do
  for architecture in $architectures; do
    complaint=$(assemble "$work/ptx/$file" "$architecture" "$budget")
    if [ -z "$complaint" ]; then
      passed=$((passed + 1))
    else
      failed=$((failed + 1))
      echo "FAILED $entry for $architecture: $complaint"
    fi
  done
done <"$work/ptx/programs.txt"
echo "PTX gate: $passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
