#!/usr/bin/env bash
# Runs every command of the README, of docs/learn.md and of the ptx crate's README (lines that begin with "$ " in console blocks) once, from
# the root of the checkout. Training runs are shortened; nothing else is changed. Commands in other blocks would be missed, so such blocks fail.
set -euo pipefail
cd "$(dirname "$0")/.."
log=$(mktemp)
trap 'rm -f "$log"' EXIT
pages=(README.md docs/learn.md kernels/ptx/README.md)
ran=0 failed=0 skipped=0 without_download=false
if grep -nE '^ *(```|~~~) *(sh|bash|shell|zsh|shell-session)\b|^ +```console' "${pages[@]}"; then
  echo "error: the blocks above are not read; commands belong into blocks that begin with \`\`\`console in the first column" >&2
  exit 1
fi
if awk '/^```console/ { on = 1; next } /^```/ { on = 0 } on && /^\$ .*\\$/' "${pages[@]}" | grep .; then
  echo "error: the commands above go on in a next line, which is not read; write each in one line" >&2
  exit 1
fi
while IFS= read -r command; do
  case "$command" in
  "cargo test"* | "cargo bench"* | "cargo run -p albert-"* | "git clone"* | "cd "*)
    echo "SKIPPED (part of another check, or too long): $command"
    skipped=$((skipped + 1))
    continue
    ;;
  esac
  case "$command" in
  *" quickstart") command="$command --minutes 0.2" ;;
  *" pretrain "*) command="${command/--minutes 3/--minutes 0.1}" ;;
  *" finetune "*) command="$command --steps 3" ;;
  esac
  if $without_download && [[ "$command" == *minilm* ]]; then
    echo "SKIPPED (needs the failed download): $command"
    skipped=$((skipped + 1))
    continue
  fi
  echo "\$ $command"
  if bash -o pipefail -c "$command" </dev/null >"$log" 2>&1; then
    ran=$((ran + 1))
  elif [[ "$command" == *"pip download"* ]]; then
    echo "SKIPPED (download failed: $(tail -n 1 "$log"))"
    without_download=true
    skipped=$((skipped + 1))
  else
    failed=$((failed + 1))
    tail -20 "$log"
  fi
  # A comment tells how long the command takes.
done < <(awk '/^```console/ { on = 1; next } /^```/ { on = 0 } on && /^\$ / { sub(/^\$ /, ""); sub(/  +# .*/, ""); if (!seen[$0]++) print }' "${pages[@]}")
echo "$ran passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ] && [ "$ran" -gt 0 ]
