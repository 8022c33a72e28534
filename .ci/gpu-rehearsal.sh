#!/usr/bin/env bash
# Rehearses the first session on a GPU on the simulated one, with the release programs: package, speeds, cases, training, and
# the cases once more with a hanging kernel, a crashing process, a lost device and a wrong result planted. The results of all
# other cases have to survive, and the exit codes have to be right.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d) bits=$PWD/benches/cuda/bits/cases.tsv
trap 'rm -rf "$work"' EXIT
benches/cuda/package.sh >"$work/package.log" 2>&1 || { cat "$work/package.log" && exit 1; }
tail -n 1 "$work/package.log"
passed=0 failed=0
# The package is copied out of the checkout, as it would be to another machine.
cp -r "${CARGO_TARGET_DIR:-target}/gpu" "$work/gpu"
# A vocabulary of 30,000 pieces is too slow on the simulated GPU.
rm -r "$work/gpu/data" && mkdir "$work/gpu/data"
{
  head -c 300000 cli/data/public_domain.txt >"$work/text.txt"
  "$work/gpu/albert" tokenizer train "$work/text.txt" --vocab-size 1000 --output "$work/gpu/data/tokenizer.json"
  "$work/gpu/albert" data build "$work/text.txt" --tokenizer "$work/gpu/data/tokenizer.json" \
    --output "$work/gpu/data/shards"
} >"$work/data.log" 2>&1 || { cat "$work/data.log" && exit 1; }
cd "$work"
# call EXPECTED-CODE NAME ARGUMENT..: runs first.sh and checks its exit code.
call() {
  local wanted=$1 name=$2 code=0
  shift 2
  gpu/first.sh --device cuda-sim:90 --small "$@" >"$name.log" 2>&1 || code=$?
  if [ "$code" -eq "$wanted" ]; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    echo "FAILED: $name ended with code $code, expected $wanted:"
    cat "$name.log"
  fi
}
call 0 whole --minutes 13 out
# The hashes of the cases are those of an H100, or what the simulator predicts for kernels that have changed since.
if awk -F '\t' '$4 == "passed" { print $1 "\t" $3 "\t" $7 }' out/cases.tsv | sort | diff - <(sort "$bits") >bits.log; then
  passed=$((passed + 1))
else
  failed=$((failed + 1))
  echo "FAILED: $(grep -c '^[<>]' bits.log) lines are not those of benches/cuda/bits/cases.tsv (copy new hashes if kernels were changed on purpose):"
  head -20 bits.log
fi
call 3 planted --minutes 4 --patience 25 --rehearse hang=activation:50 --rehearse crash=softmax:30 --rehearse fault=dropout:26 \
  --rehearse wrong=reduce:40 planted cases=activation,softmax,dropout,reduce,elementwise
for name in activation softmax dropout reduce elementwise; do
  # Each case has one line, whatever faults are planted in others.
  all=$(grep -c "^$name"$'\t' out/cases.tsv) here=$(grep -c "^$name"$'\t' planted/cases.tsv)
  good=$(grep "^$name"$'\t' planted/cases.tsv | grep -cE $'\t(passed|skipped)\t')
  bad=$([ $name = elementwise ] && echo 0 || echo 1)
  if [ "$all" -eq "$here" ] && [ $((good + bad)) -eq "$all" ]; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    echo "FAILED: $name has $all cases, $here lines with faults planted, $good of them passed or skipped; expected $all lines, all but $bad passed or skipped"
  fi
done
files=$(find out planted -type f | awk -F/ '{ n[$1]++ } END { print (n["out"] > n["planted"] ? n["out"] : n["planted"]) }')
[ "$files" -le 8 ] || { failed=$((failed + 1)) && echo "FAILED: $files result files, expected at most 8"; }
cat out/summary.txt
echo "GPU rehearsal: $passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
