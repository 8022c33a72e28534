#!/usr/bin/env bash
# Hashes of the results of short runs: pre-training (LAMB, dropout), fine-tuning (AdamW) and `forward --layers`, on each
# instruction set of this machine, in f32 and bf16, forward in f32 and int8. Two programs compute the same bits if their
# tables are equal:
#
#   .ci/bits.sh [PROGRAM]     default: target/release/albert, which is built first
#
# Hashed files: model.safetensors, metrics.jsonl without its timings, and the tensors of forward. Fails if instruction sets
# differ, but for int8, where AVX2 without VNNI quantizes to seven bits.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ $# -eq 0 ]; then
  cargo build --release --quiet
fi
program=$(realpath "${1:-target/release/albert}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export ALBERT_THREADS=2
unset ALBERT_ISA ALBERT_GRAPHS

quiet() {
  "$program" "$@" >"$work/log" 2>&1 || { cat "$work/log" >&2 && exit 1; }
}

hash() {
  sha256sum "$1" | cut -c1-16
}

# The same timings as in tests/tests/program/kills.rs.
hash_metrics() {
  sed -E 's/"(seconds|tokens_per_second|speed|data_share)":[^,}]*//g' "$1" | sha256sum | cut -c1-16
}

# Run, dtype, hashes; prefixed with the instruction set.
row() {
  echo "$isa|$1|$2|$3|${4-}" >>"$work/rows"
}

text=cli/data/public_domain.txt
head -n 4000 "$text" >"$work/text.txt"
quiet tokenizer train "$work/text.txt" --vocab-size 800 --output "$work/tokenizer.json"
quiet data build "$work/text.txt" --tokenizer "$work/tokenizer.json" --output "$work/data"
mkdir "$work/task"
# A label that a model can learn: question or statement.
awk 'BEGIN { print "text\tlabel" }
  length > 40 && rows < 160 { gsub(/[\t\r]/, " "); print $0 "\t" (/\?/ ? "question" : "statement"); rows++ }' \
  "$work/text.txt" >"$work/task/train.tsv"
{ head -n 1 "$work/task/train.tsv" && sed -n '100,140p' "$work/task/train.tsv"; } >"$work/task/dev.tsv"

for isa in scalar avx2 avx512; do
  if ! ALBERT_ISA=$isa "$program" doctor --seconds 0 >/dev/null 2>&1; then
    echo "SKIPPED: this machine lacks $isa" >&2
    continue
  fi
  export ALBERT_ISA=$isa
  for dtype in f32 bf16; do
    run=$work/$isa-$dtype
    quiet pretrain tiny --data "$work/data" --tokenizer "$work/tokenizer.json" --output "$run" \
      schedule.steps=8 schedule.warmup_steps=2 model.hidden_dropout_prob=0.1 model.attention_probs_dropout_prob=0.1 \
      "compute.activations=$dtype" evaluation.interval=4
    row pretrain "$dtype" "$(hash "$run/model.safetensors")" "$(hash_metrics "$run/metrics.jsonl")"
    quiet finetune classify --model "$run" --data "$work/task" --output "$run-task" --steps 8 \
      --set "compute.activations=$dtype"
    row finetune "$dtype" "$(hash "$run-task/model.safetensors")" "$(hash_metrics "$run-task/metrics.jsonl")"
  done
  quiet forward --model "$work/$isa-f32" --text "She was very glad to see her sister." --text "It rained." \
    --layers --attention --output "$work/tensors.safetensors"
  row 'forward --layers' f32 "$(hash "$work/tensors.safetensors")"
  quiet forward --model "$work/$isa-f32" --text "She was very glad to see her sister." --text "It rained." \
    --layers --dtype int8 --output "$work/tensors.safetensors"
  row 'forward --layers' int8 "$(hash "$work/tensors.safetensors")"
  unset ALBERT_ISA
done

echo "| run | dtype | model or tensors | metrics | instruction sets |"
echo "|---|---|---|---|---|"
awk -F '|' '
  { result = $2 "|" $3 "|" $4 "|" $5; if (!(result in isas)) order[++results] = result; isas[result] = isas[result] " " $1
    if (!seen[result]++ && $3 != "int8" && variants[$2 "|" $3]++) { different = different " " $2 ":" $3 } }
  END {
    for (i = 1; i <= results; i++) { split(order[i], cell, "|")
      print "| " cell[1] " | " cell[2] " | " cell[3] " | " cell[4] " |" isas[order[i]] " |" }
    if (different) { print "instruction sets differ:" different; exit 1 }
  }' "$work/rows"
