#!/usr/bin/env bash
# Assembles every PTX program of the table of operations with NVIDIA's own assembler, which needs no GPU, for every
# architecture that has to take it. A program fails if ptxas refuses it or warns, if it spills registers, needs a stack,
# uses more registers than its row allows, or if the disassembly lacks a machine instruction that the row names (tensor
# cores, asynchronous copies). Then PTX that nvcc writes from tests/nvcc is run in the simulator and held
# against ours.
#
# ptxas and nvcc come from the PyPI wheels of CUDA 13.0 and are kept in .tools. What cannot be had is SKIPPED, visibly
# and with the count.
set -euo pipefail
cd "$(dirname "$0")/.."

assembler=nvidia-cuda-nvcc==13.0.88
disassembler=nvidia-cuda-nvdisasm==13.2.86
compiler="nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-cuda-runtime==13.0.88"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cargo build --quiet --workspace --example emit_ptx
"${CARGO_TARGET_DIR:-target}/debug/examples/emit_ptx" "$work/ptx"
assemblies=$(awk '{ n += NF - 4 } END { print n + 0 }' "$work/ptx/programs.txt")

# --- tools ---
tool() {
  find .tools -path "*/nvidia/cu13/$1" 2>/dev/null | head -n 1 || true
}
# fetch WHEELS...: prints why it fails, nothing if it succeeds.
fetch() {
  if ! command -v python3 >/dev/null; then
    echo "python3 is missing"
  elif ! { [ -x .tools/bin/pip ] || python3 -m venv .tools; } >"$work/pip.log" 2>&1; then
    echo "python3 has no venv module"
  elif ! .tools/bin/pip install --quiet --disable-pip-version-check --retries 1 --timeout 20 --no-deps "$@" \
    >"$work/pip.log" 2>&1; then
    tail -n 1 "$work/pip.log"
  fi
}
ptxas=$(tool bin/ptxas)
if [ -z "$ptxas" ]; then
  reason=$(fetch "$assembler")
  ptxas=$(tool bin/ptxas)
  if [ -z "$ptxas" ]; then
    echo "SKIPPED: ptxas cannot be fetched: ${reason:-the wheel does not hold it}"
    echo "PTX gate: 0 passed, 0 failed, $((assemblies + 1)) skipped"
    exit 0
  fi
fi
"$ptxas" --version | grep release
nvdisasm=$(tool bin/nvdisasm)
if [ -z "$nvdisasm" ]; then
  reason=$(fetch "$disassembler")
  nvdisasm=$(tool bin/nvdisasm)
fi
skipped=0
if [ -z "$nvdisasm" ]; then
  echo "SKIPPED: machine instructions are not looked for, nvdisasm cannot be fetched: ${reason:-the wheel does not hold it}"
  skipped=1
fi

# assemble FILE ARCHITECTURE BUDGET MACHINE: prints why it fails, nothing if it passes. MACHINE is a list of machine
# instructions joined by commas, or `-`.
assemble() {
  local here log registers instruction
  here=$(mktemp -d -p "$work")
  log="$here/log"
  if ! "$ptxas" --verbose --warn-on-spills --warn-on-local-memory-usage --generate-line-info --gpu-name "$2" "$1" \
    --output-file "$here/cubin" >"$log" 2>&1; then
    grep -m 1 -E 'error|fatal' "$log" || tail -n 1 "$log"
    return
  fi
  # Serialised wgmma and an ignored setmaxnreg are no warnings to ptxas, only advice with a number C75...
  if grep -qE 'warning|\(C75[0-9]+\)' "$log"; then
    grep -m 1 -E 'warning|\(C75[0-9]+\)' "$log"
  elif ! grep -q '0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads' "$log"; then
    echo "spills or a stack: $(grep -m 1 'stack frame' "$log" || echo 'ptxas did not say')"
  else
    registers=$(sed -nE 's/.*Used ([0-9]+) registers.*/\1/p' "$log" | head -n 1)
    if [ "${registers:-999}" -gt "$3" ]; then
      echo "${registers:-an unknown number of} registers, the budget is $3"
    elif [ "$4" != - ] && [ -n "$nvdisasm" ]; then
      "$nvdisasm" --print-code "$here/cubin" >"$here/machine" 2>"$log" || tail -n 1 "$log"
      for instruction in ${4//,/ }; do
        grep -qE "[[:space:]]${instruction//./\\.}" "$here/machine" || echo "the machine code has no $instruction"
      done
    fi
  fi
  rm -r "$here"
}

# row FILE ENTRY BUDGET MACHINE ARCHITECTURE: one assembly, one line.
row() {
  local complaint
  complaint=$(assemble "$work/ptx/$1" "$5" "$3" "$4")
  if [ -z "$complaint" ]; then echo passed; else echo "FAILED $2 for $5: $complaint"; fi
}
export -f assemble row
export ptxas nvdisasm work

# --- the gate must be able to fail ---
read -r first _ <"$work/ptx/programs.txt"
printf 'broken\n' | cat "$work/ptx/$first" - >"$work/broken.ptx"
if [ -z "$(assemble "$work/broken.ptx" sm_80 255 -)" ] || [ -z "$(assemble "$work/ptx/$first" sm_80 1 -)" ] ||
  { [ -n "$nvdisasm" ] && [ -z "$(assemble "$work/ptx/$first" sm_80 255 NOSUCH)" ]; }; then
  echo "the PTX gate passes broken text, ignores the budget or the machine code; nothing it says can be trusted" >&2
  exit 1
fi

# --- every program, every architecture, on every core ---
awk '{ for (i = 5; i <= NF; i++) print $1, $2, $3, $4, $i }' "$work/ptx/programs.txt" |
  xargs -P "$(nproc)" -L 1 bash -c 'row "$@"' row >"$work/rows.log"
passed=$(grep -c '^passed$' "$work/rows.log" || true)
failed=$(grep -c '^FAILED' "$work/rows.log" || true)
grep -v '^passed$' "$work/rows.log" || true
if [ $((passed + failed)) -ne "$assemblies" ]; then
  echo "the PTX gate ran $((passed + failed)) of $assemblies assemblies; nothing it says can be trusted" >&2
  exit 1
fi

# --- the simulator on PTX of nvcc ---
if [ -z "$(tool nvvm/bin/cicc)" ] || [ -z "$(tool include/cuda_runtime.h)" ]; then
  # shellcheck disable=SC2086 # one word a wheel
  reason=$(fetch $compiler)
fi
if [ -z "$(tool nvvm/bin/cicc)" ]; then
  echo "SKIPPED: nvcc cannot be fetched: ${reason:-the wheels do not hold it}"
  skipped=$((skipped + 1))
else
  PATH="$PWD/$(dirname "$ptxas"):$PATH" nvcc --ptx --gpu-architecture sm_80 kernels/tests/nvcc/bias_gelu.cu \
    --output-file "$work/nvcc.ptx"
  if ALBERT_NVCC_PTX="$work/nvcc.ptx" cargo test --quiet --workspace --test nvcc -- --ignored >"$work/nvcc.log" 2>&1; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    echo "FAILED: the simulator on PTX of nvcc:"
    cat "$work/nvcc.log"
  fi
fi
echo "PTX gate: $passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
