#!/usr/bin/env bash
# Verifies with sentryward, a third-party verifier, that the sm_80 programs and the pipelines of the Hopper GEMM (shadow
# programs: each wgmma replaced by the loads that it makes) are free of races and well synchronized. It covers all schedules
# of one launch and takes seconds to minutes a program, so `.ci/full` verifies those of one operation.
#
#   .ci/sentryward.sh [WORD ..]        programs whose names contain one of the words; default: all
#
# Results: `race_free` passes; `potential_race` and `not_wellsynced` fail; all others, such as `unsupported` and a time over
# five minutes, are SKIPPED with the reason.
set -euo pipefail
cd "$(dirname "$0")/.."
verifier=sentryward==0.1.1
seconds=300
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cargo build --quiet --release --workspace --example emit_launches
"${CARGO_TARGET_DIR:-target}/release/examples/emit_launches" "$work/launches" "$@"
sentryward=.tools/sentryward/bin/sentryward
if [ ! -x "$sentryward" ]; then
  if ! { python3 -m venv .tools/sentryward && .tools/sentryward/bin/pip install --quiet --disable-pip-version-check --no-deps "$verifier"; } >"$work/pip.log" 2>&1; then
    echo "SKIPPED: $verifier cannot be installed: $(tail -n 1 "$work/pip.log")"
    exit 0
  fi
fi

# verdict FILE: prints one line, `passed NAME`, `SKIPPED NAME: why` or `FAILED NAME: why`.
verdict() {
  local name out
  name=$(basename "$1" .ptx)
  out=$(timeout $((seconds + 20)) "$sentryward" "$1" --input "${1%.ptx}.json" --timeout "$seconds" 2>&1) || true
  printf '%s' "$out" | python3 -c '
import json, sys
name, text = sys.argv[1], sys.stdin.read()
try:
    answer = json.loads(text)
    result = str(answer.get("result"))
except ValueError:
    answer, result = {}, "no answer: " + (text.strip().splitlines() or ["timeout"])[-1]
reason = next((str(answer[key]) for key in ("reason", "message", "diagnostics", "details") if answer.get(key)), "")[:160]
word = {"race_free": "passed", "potential_race": "FAILED", "not_wellsynced": "FAILED"}.get(result, "SKIPPED")
print(word, name if word == "passed" else f"{name}: {result} {reason}")' "$name"
}
export -f verdict
export sentryward seconds
find "$work/launches" -name '*.ptx' | sort | xargs -P "$(nproc)" -I{} bash -c 'verdict {}' | tee "$work/verdicts" | grep -v '^passed' || true
passed=$(grep -c '^passed' "$work/verdicts" || true)
failed=$(grep -c '^FAILED' "$work/verdicts" || true)
skipped=$(grep -c '^SKIPPED' "$work/verdicts" || true)
echo "sentryward: $passed passed, $failed failed, $skipped skipped"
programs=$(find "$work/launches" -name '*.ptx' | wc -l)
[ "$programs" -gt 0 ] || { echo "error: no program has a name with one of: $*" >&2 && exit 1; }
[ "$passed" -gt 0 ] && [ $((passed + failed + skipped)) -eq "$programs" ] && [ "$failed" -eq 0 ]
