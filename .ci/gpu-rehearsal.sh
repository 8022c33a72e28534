#!/usr/bin/env bash
# The first call of a GPU, rehearsed on the simulated one with the release programs: package, speeds, cases, training, and
# the cases once more with a kernel that hangs, a process that crashes, a device that is lost and a wrong result planted.
# The results of everything else have to survive, and the exit codes have to be right.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
benches/cuda/package.sh >"$work/package.log" 2>&1 || { cat "$work/package.log" && exit 1; }
tail -n 1 "$work/package.log"
passed=0 failed=0
# The folder as it is carried: copied to another place, where the checkout is not at hand.
cp -r "${CARGO_TARGET_DIR:-target}/gpu" "$work/gpu"
# The simulated GPU takes too long over 30,000 pieces.
rm -r "$work/gpu/data" && mkdir "$work/gpu/data"
{
  head -c 300000 cli/data/public_domain.txt >"$work/text.txt"
  "$work/gpu/albert" tokenizer train "$work/text.txt" --vocab-size 1000 --output "$work/gpu/data/tokenizer.json"
  "$work/gpu/albert" data build "$work/text.txt" --tokenizer "$work/gpu/data/tokenizer.json" \
    --output "$work/gpu/data/shards"
} >"$work/data.log" 2>&1 || { cat "$work/data.log" && exit 1; }
cd "$work"
# call WANTED-CODE NAME ARGUMENT..
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
call 0 whole --minutes 9 out
call 3 planted --minutes 4 --patience 10 --rehearse hang=gelu:50 --rehearse crash=softmax:30 --rehearse fault=dropout:26 \
  --rehearse wrong=reduce:40 planted cases=gelu,softmax,dropout,reduce,elementwise
for name in gelu softmax dropout reduce elementwise; do
  # Each case has one line, whatever happened around it.
  all=$(grep -c "^$name"$'\t' out/cases.tsv) here=$(grep -c "^$name"$'\t' planted/cases.tsv)
  good=$(grep "^$name"$'\t' planted/cases.tsv | grep -cE $'\t(passed|skipped)\t')
  bad=$([ $name = elementwise ] && echo 0 || echo 1)
  if [ "$all" -eq "$here" ] && [ $((good + bad)) -eq "$all" ]; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    echo "FAILED: $name has $all cases, $here lines with faults planted, $good of them good, expected all but $bad"
  fi
done
files=$(find out planted -type f | awk -F/ '{ n[$1]++ } END { print (n["out"] > n["planted"] ? n["out"] : n["planted"]) }')
[ "$files" -le 8 ] || { failed=$((failed + 1)) && echo "FAILED: $files files of results, at most 8 were expected"; }
cat out/summary.txt
echo "GPU rehearsal: $passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
