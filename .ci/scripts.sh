#!/usr/bin/env bash
# Scripts: each has valid syntax and is reached from .ci/run or .ci/full, and each check has a planted fault in .ci/planted.sh and
# a row in docs/checks.md.
set -euo pipefail
cd "$(dirname "$0")/.."
status=0
complain() {
  echo "$1" >&2
  status=1
}

shell=(.ci/run .ci/full .ci/*.sh benches/cuda/*.sh)
for file in "${shell[@]}"; do
  # One file a call: `bash -n A B` reads A only.
  bash -n "$file" || complain "$file: the syntax is wrong"
done
python=(.ci/*.py tests/browser/*.py tests/everyday/*.py benches/cuda/*.py)
for file in "${python[@]}"; do
  python3 -c 'import ast, sys; ast.parse(open(sys.argv[1]).read(), sys.argv[1])' "$file" || complain "$file: the syntax is wrong"
done

# Files that .ci/run and .ci/full call, directly or not; names in comments and planted faults are not calls.
reached=(.ci/run .ci/full) waiting=(.ci/*)
while true; do
  found=() left=() calls=$(sed 's/^ *#.*//' "${reached[@]}")
  for file in "${waiting[@]}"; do
    if grep -qE "${file//./\\.}( |\"|$)" <<<"$calls"; then found+=("$file"); else left+=("$file"); fi
  done
  waiting=("${left[@]}")
  [ ${#found[@]} -gt 0 ] || break
  for file in "${found[@]}"; do
    [ "$file" = .ci/planted.sh ] || reached+=("$file")
  done
done
for file in "${waiting[@]}"; do
  [[ " .ci/run .ci/full " == *" $file "* ]] || complain "$file: nothing calls it; call it in .ci/run or .ci/full, or delete it"
done

checks=0
while read -r name; do
  checks=$((checks + 1))
  grep -q "^plant $name " .ci/planted.sh || complain "$name: no planted fault in .ci/planted.sh"
  grep -q "^| \`$name\` |" docs/checks.md || complain "$name: no row in the table of planted faults of docs/checks.md"
done < <(sed -nE 's/^([A-Z_]+="[^"]*" )?step ([^ ]+) .*/\2/p' .ci/run && awk '/^LIST$/ { on = 0 } on { print $1 } /<<.LIST/ { on = 1 }' .ci/full)
# Each call of `step` in .ci/run was read, and more than one line of .ci/full.
[ "$checks" -gt "$(grep -c 'step .*"' .ci/run)" ] || complain "the checks of .ci/run or .ci/full could not be read"
echo "${#shell[@]} shell and ${#python[@]} Python scripts, $checks checks with planted faults"
exit $status
