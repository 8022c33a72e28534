#!/usr/bin/env bash
# AddressSanitizer over the tests of `kernels` and `engine`: heap, stack and globals, every instruction set of this machine.
# Then a fault that is compiled into this build alone (one element read behind the last row, in a packing routine of the GEMM)
# is switched on and has to be found. Prints tests, findings and seconds; fails if a test fails or the fault goes unnoticed.
#
# Left out: the tests of the PTX simulator and of its predictions, which are safe Rust and take an hour here, those whose
# allocator keeps blocks away from the sanitizer (guard_pages), and those that limit the address space (a_refused_..), of which
# the sanitizer reserves terabytes.
set -euo pipefail
cd "$(dirname "$0")/.."
# The sanitizer is a nightly option of a compiler that has its runtime library in every channel.
export RUSTC_BOOTSTRAP=1 CARGO_TERM_COLOR=never CARGO_INCREMENTAL=0 CARGO_TARGET_DIR=target/asan
export RUSTFLAGS='-Zsanitizer=address --cfg planted_bug="pack"'
# Assertions on, optimized a little: vector code without any inlining would take hours.
export CARGO_PROFILE_DEV_OPT_LEVEL=1 CARGO_PROFILE_DEV_DEBUG=line-tables-only
# Tests ask for more memory than there is, and expect an error.
export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1
target=x86_64-unknown-linux-gnu
runs=(test --quiet --target "$target" --config 'profile.dev.package.kernels.opt-level=1')
skipped=(--skip ptx:: --skip every_case_of --skip simulated --skip predicted --skip machine_code
  --skip a_refused)
log=$(mktemp)
trap 'rm -f "$log"' EXIT

started=$SECONDS
run() {
  cargo "${runs[@]}" "$@" 2>&1 | tee -a "$log"
}
run -p kernels --lib --test arguments -- "${skipped[@]}"
if [ "${1:-}" != kernels ]; then
  run -p engine --lib --tests -- "${skipped[@]}"
fi
passed=$(sed -n 's/^test result: ok\. \([0-9]*\) passed.*/\1/p' "$log" | paste -sd+ | bc)
[ "${passed:-0}" -gt 0 ] || { echo "AddressSanitizer: no test ran" >&2; exit 1; }
if grep -q 'ERROR: AddressSanitizer' "$log"; then
  echo "AddressSanitizer: findings above" >&2
  exit 1
fi

# A check that finds nothing has to show that it can.
if PLANTED_BUG=pack cargo "${runs[@]}" -p kernels --test arguments -- slices_of_exactly_the_span > "$log" 2>&1; then
  echo "AddressSanitizer did not notice the planted read of one element behind a packed operand" >&2
  exit 1
fi
grep -q 'ERROR: AddressSanitizer: heap-buffer-overflow' "$log" || { cat "$log" >&2; exit 1; }
grep -m1 -A3 'ERROR: AddressSanitizer: heap-buffer-overflow' "$log"

printf 'AddressSanitizer: %d tests passed without a finding, the planted fault was found, %d s\n' "$passed" $((SECONDS - started))
