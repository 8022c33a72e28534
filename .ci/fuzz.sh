#!/usr/bin/env bash
# Coverage-guided fuzzing (libFuzzer, AddressSanitizer) of the readers of untrusted bytes, on stable Rust.
#
#   .ci/fuzz.sh [SECONDS [READER..]]     SECONDS of CPU time for each reader (30); default: all readers
#   .ci/fuzz.sh --minimize [READER..]    keeps the smallest inputs that cover the same code in tests/fuzz/corpus.tar.gz
#
# New inputs are kept between runs in ${XDG_CACHE_HOME:-~/.cache}/albert-fuzz, with a line for each minute of a reader
# (READER.slices: seconds of CPU time, executions, edges). An input that makes a reader panic, hang or exceed its memory limit
# is written to tests/fuzz/regressions/READER, where `cargo test` replays it. Needs g++.
# Exit code: 0 no finding, 1 findings.
set -euo pipefail
cd "$(dirname "$0")/.."
minimize=false
seconds=30
case "${1:-}" in
--minimize) minimize=true && shift ;;
[0-9]*) seconds=$1 && shift ;;
esac
if ! command -v g++ >/dev/null; then
  echo "SKIPPED: fuzzing needs g++ to compile libFuzzer"
  exit 0
fi

# The flags of `cargo fuzz` except `--cfg fuzzing`, which would change the tested code.
triple=$(rustc -vV | sed -n 's/^host: //p')
export RUSTC_BOOTSTRAP=1
export RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares -Zsanitizer=address -Ccodegen-units=1"
target=${CARGO_TARGET_DIR:-target}/fuzz
cargo build --quiet --release --locked --manifest-path tests/fuzz/Cargo.toml --target "$triple" --target-dir "$target"
fuzzer=$target/$triple/release/albert-fuzz
unset RUSTC_BOOTSTRAP RUSTFLAGS

cache=${XDG_CACHE_HOME:-$HOME/.cache}/albert-fuzz
known=$(sed -n 's/^ *\(Reader { \)\{0,1\}name: "\([^"]*\)".*/\2/p' tests/src/readers/mod.rs)
[ -n "$known" ] || { echo "error: no reader was found in tests/src/readers/mod.rs" >&2 && exit 1; }
if [ $# -eq 0 ]; then
  mapfile -t readers <<<"$known"
else
  readers=("$@")
fi
for reader in "${readers[@]}"; do
  grep -qx "$reader" <<<"$known" ||
    { echo "error: unknown reader $reader; see tests/src/readers/mod.rs for the list" >&2 && exit 64; }
done
# No leak detection: a thread's temporary folder is freed only at process exit.
export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1
# Limits are wall-clock seconds on a shared machine, so only an input that reaches the limit is a finding.
limits=(-timeout=60 -report_slow_units=60 -rss_limit_mb=4096 -max_len=65536)
log=$(mktemp -d) corpus=$(mktemp -d)
trap 'rm -rf "$log" "$corpus"' EXIT
tar -C "$corpus" -xzf tests/fuzz/corpus.tar.gz

corpus_of() {
  mkdir -p "$cache/$1" "$corpus/$1" "tests/fuzz/regressions/$1"
}

# fuzz READER: runs slices until the CPU time is used up; prints one line of the table.
fuzz() {
  local reader=$1 used=0 ran slice executions=0 covered=0 before=0 inputs=0 finding=none features=0
  corpus_of "$reader"
  local folders=("$cache/$reader" "$corpus/$reader" "tests/fuzz/regressions/$reader")
  while [ "$used" -lt "$seconds" ]; do
    slice=$((seconds - used < 60 ? seconds - used : 60))
    local out=$log/$reader status=0
    ALBERT_READER=$reader ALBERT_SEEDS=$cache/$reader bash -c 'TIMEFORMAT="%U %S"; time "$@"' _ "$fuzzer" "${folders[@]}" \
      -artifact_prefix="tests/fuzz/regressions/$reader/" -max_total_time="$slice" -print_final_stats=1 "${limits[@]}" \
      >"$out" 2>&1 || status=$?
    used=$((used + $(tail -n 1 "$out" | awk '{ print int($1 + $2 + 1) }')))
    # A slice that ends with a finding before its first report lacks this line.
    ran=$(sed -n 's/^stat::number_of_executed_units: *//p' "$out" | tail -n 1)
    executions=$((executions + ${ran:-0}))
    before=$covered
    read -r covered features inputs < <(awk '/ cov: / { for (i = 1; i < NF; i++) { if ($i == "cov:") c = $(i+1); if ($i == "ft:") f = $(i+1); if ($i == "corp:") split($(i+1), n, "/") } } END { print c + 0, f + 0, n[1] + 0 }' "$out")
    # Time, executions and edges of each slice survive an interrupted run.
    tail -n 1 "$out" | awk -v ran="${ran:-0}" -v covered="$covered" '{ print int($1 + $2 + 1), ran, covered }' >>"$cache/$reader.slices"
    if [ "$status" -ne 0 ]; then
      finding=$(grep -m 1 -E 'SUMMARY|panicked at|ERROR:' "$out" | cut -c1-120)
      cp "$out" "$cache/$reader.finding.log"
      break
    fi
  done
  [ "$executions" -gt 0 ] || [ "$finding" != none ] || finding="nothing was executed"
  echo "| $reader | $used | $executions | $covered | $features | +$((covered - before)) | $inputs | $finding |"
  [ "$finding" = none ]
}

if $minimize; then
  for reader in "${readers[@]}"; do
    corpus_of "$reader"
    small=$(mktemp -d)
    ALBERT_READER=$reader "$fuzzer" -merge=1 "${limits[@]}" -max_len=4096 "$small" "$cache/$reader" \
      "$corpus/$reader" >"$log/$reader" 2>&1
    # The smallest inputs first, at most 64 KiB and 200 files a reader.
    rm -f "$corpus/$reader"/*
    total=0 count=0
    while read -r size name; do
      total=$((total + size)) count=$((count + 1))
      [ "$total" -le 65536 ] && [ "$count" -le 200 ] || break
      cp "$small/$name" "$corpus/$reader/"
    done < <(cd "$small" && stat -c '%s %n' -- * 2>/dev/null | sort -n)
    echo "$reader: $(find "$corpus/$reader" -type f | wc -l) of $(find "$small" -type f | wc -l) inputs"
    rm -rf "$small"
  done
  # The same inputs are the same bytes.
  (cd "$corpus" && tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -cf - -- *) | gzip -9n >tests/fuzz/corpus.tar.gz
  exit 0
fi

echo "| reader | CPU, s | executions | edges | features | edges of the last minute | inputs | finding |"
echo "|---|---|---|---|---|---|---|---|"
export -f fuzz corpus_of
status=0
running=0
for reader in "${readers[@]}"; do
  fuzz "$reader" &
  running=$((running + 1))
  if [ "$running" -ge "$(nproc)" ]; then
    wait -n || status=1
    running=$((running - 1))
  fi
done
while [ "$running" -gt 0 ]; do
  wait -n || status=1
  running=$((running - 1))
done
exit $status
