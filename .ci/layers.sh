#!/usr/bin/env bash
# Checks that imports go one way, cli -> albert -> engine -> kernels -> ptx and albert -> tokenizer -> bounded-input, and that unsafe code occurs only in the listed places.
set -euo pipefail
cd "$(dirname "$0")/.."
status=0
complain() {
  echo "$1" >&2
  status=1
}
# A crate must not import the crates above it or those that the layer below wraps.
forbidden() {
  local hits
  hits=$(grep -rnE "^[^/]*\b($2)::" "$1/src" --include='*.rs' | grep -vE '^cli/src/commands/kernels/|commands::kernels::' || true)
  [ -z "$hits" ] || complain "$1 must not import $2:
$hits"
}
forbidden kernels/ptx 'kernels|engine|albert|cudarc'
forbidden kernels 'engine|albert|cudarc'
forbidden engine 'albert'
forbidden engine/bounded-input 'ptx|kernels|engine|albert|cudarc|memmap2'
forbidden albert/tokenizer 'ptx|kernels|engine|albert|cudarc|memmap2'
forbidden albert 'ptx|kernels|cudarc|memmap2'
forbidden cli/measure 'ptx|cudarc|albert_benches'
# `albert kernels` is the only command that may import kernels; `albert bench` does so through cli/measure.
forbidden cli 'ptx|kernels|cudarc|memmap2|albert_benches'

kernels='pool|simd|tiles|gemm|int8|attention|layernorm|activation|softmax|cross_entropy|embedding|dropout|reduce|optimizer|elementwise'
allowed="^(kernels/src/($kernels)/|kernels/src/(rows|rowwise)\.rs|engine/src/(memory|device)/|engine/src/communicator/(library|mpi|nccl|start)\.rs|engine/src/io/mmap\.rs|kernels/(examples|tests/team)/|kernels/tests/guard_pages|cli/measure/src/peers/|benches/|tests/)"
while IFS= read -r file; do
  [[ $file =~ $allowed ]] || complain "$file: unsafe code outside the places listed in docs/decisions.md"
done < <(grep -rlE '^[^/"]*\bunsafe (\{|fn|impl|trait)' --include='*.rs' kernels engine albert cli benches tests)
exit $status
