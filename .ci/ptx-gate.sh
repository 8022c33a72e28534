#!/usr/bin/env bash
# Assembles every PTX program of the table of operations with NVIDIA's assembler, which needs no GPU, for every architecture
# that the program supports. A program fails if ptxas rejects it or warns, if it spills registers, needs a stack, uses more
# registers than its row allows, or if the disassembly lacks a machine instruction that the row names (tensor cores,
# asynchronous copies). The tests of `ptx` assemble forms of instructions that no program has. Then PTX that nvcc writes from
# kernels/proof/tests/programs/nvcc is run in the simulator and
# compared with our kernel.
#
# ptxas and nvcc come from the PyPI wheels of CUDA 13.0 and are kept in .tools. Programs for Hopper alone are also assembled by
# ptxas of CUDA 12.9 and 13.3. Checks whose tool cannot be installed are SKIPPED and counted.
set -euo pipefail
cd "$(dirname "$0")/.."

assembler=nvidia-cuda-nvcc==13.0.88
disassembler=nvidia-cuda-nvdisasm==13.2.86
compiler="nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-cuda-runtime==13.0.88"
# Versions of ptxas before and behind the fix for fragments that only products in a loop read (triton#9433).
older=nvidia-cuda-nvcc-cu12==12.9.86 newer=nvidia-cuda-nvcc==13.3.73
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cargo build --quiet --release --workspace --example emit_ptx
"${CARGO_TARGET_DIR:-target}/release/examples/emit_ptx" "$work/ptx"
assemblies=$(awk '{ n += NF - 4 } END { print n + 0 }' "$work/ptx/programs.txt")
[ "$assemblies" -gt 0 ] || { echo "error: emit_ptx listed no program" >&2 && exit 1; }

# --- tools ---
tool() {
  find .tools/lib -path "*/nvidia/cu13/$1" 2>/dev/null | head -n 1 || true
}
# fetch WHEELS...: prints the reason if it fails, nothing if it succeeds.
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
    echo "SKIPPED: ptxas cannot be installed: ${reason:-not in the wheel}"
    echo "PTX gate: 0 passed, 0 failed, $((assemblies + 2)) skipped"
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
  echo "SKIPPED: machine instructions are not checked, nvdisasm cannot be installed: ${reason:-not in the wheel}"
  skipped=1
fi

# --- every program, every architecture, on every core ---
status=0
python3 .ci/assemble.py "$work/ptx" --ptxas "$ptxas" ${nvdisasm:+--nvdisasm "$nvdisasm" --without-keep wrong} \
  >"$work/rows.log" || status=$?
grep '^FAILED' "$work/rows.log" || true
if [ "$status" -gt 1 ] || ! read -r passed _ failed _ < <(tail -n 1 "$work/rows.log") ||
  [ $((passed + failed)) -ne $((assemblies + ${nvdisasm:+1} + 0)) ]; then
  echo "the PTX gate ran ${passed:-0} + ${failed:-0} of $assemblies assemblies; the results are incomplete" >&2
  exit 1
fi

# --- programs for Hopper, other versions of ptxas ---
# assemble WHEEL FOLDER wrong|right: what kernels without `keep` are
assemble() {
  local other code=0 more fewer
  other=$(find ".tools/$2" -path '*/bin/ptxas' 2>/dev/null | head -n 1 || true)
  if [ -z "$other" ]; then
    reason=$(fetch --target ".tools/$2" "$1")
    other=$(find ".tools/$2" -path '*/bin/ptxas' 2>/dev/null | head -n 1 || true)
  fi
  if [ -z "$other" ] || [ -z "$nvdisasm" ]; then
    echo "SKIPPED: ptxas $2 cannot be installed, or nvdisasm: ${reason:-not in the wheel}"
    skipped=$((skipped + 1))
    return
  fi
  python3 .ci/assemble.py "$work/ptx" --ptxas "$other" --nvdisasm "$nvdisasm" --without-keep "$3" --only sm_90a \
    >"$work/$2.log" || code=$?
  sed -n "s/^FAILED/FAILED by ptxas $2:/p" "$work/$2.log"
  if [ "$code" -gt 1 ] || ! read -r more _ fewer _ < <(tail -n 1 "$work/$2.log"); then
    echo "assemblies by ptxas $2 are incomplete" >&2
    exit 1
  fi
  passed=$((passed + more)) failed=$((failed + fewer))
}
assemble "$older" 12.9 wrong
assemble "$newer" 13.3 right

# --- forms that no program has ---
if cargo test --quiet --release --workspace --lib ptxas_takes -- --show-output >"$work/forms.log" 2>&1 &&
  grep -qE '^test result: ok\. [1-9]' "$work/forms.log" && ! grep '^SKIPPED' "$work/forms.log"; then
  passed=$((passed + 1))
else
  failed=$((failed + 1))
  echo "FAILED: forms of instructions that no program has:"
  cat "$work/forms.log"
fi

# --- the simulator on PTX of nvcc ---
if [ -z "$(tool nvvm/bin/cicc)" ] || [ -z "$(tool include/cuda_runtime.h)" ]; then
  # shellcheck disable=SC2086 # one word a wheel
  reason=$(fetch $compiler)
fi
if [ -z "$(tool nvvm/bin/cicc)" ]; then
  echo "SKIPPED: nvcc cannot be installed: ${reason:-not in the wheels}"
  skipped=$((skipped + 1))
else
  PATH="$PWD/$(dirname "$ptxas"):$PATH" nvcc --ptx --gpu-architecture sm_80 kernels/proof/tests/programs/nvcc/bias_gelu.cu \
    --output-file "$work/nvcc.ptx"
  if ALBERT_NVCC_PTX="$work/nvcc.ptx" cargo test --quiet --release --workspace --test programs nvcc -- --ignored >"$work/nvcc.log" 2>&1 &&
    grep -qE '^test result: ok\. [1-9]' "$work/nvcc.log"; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    echo "FAILED: the simulator on PTX of nvcc:"
    cat "$work/nvcc.log"
  fi
fi
echo "PTX gate: $passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
