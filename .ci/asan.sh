#!/usr/bin/env bash
# AddressSanitizer over the tests of `kernels` and `engine`: heap, stack and globals, every instruction set of this machine.
# Then the script enables a fault that only this build contains (a GEMM packing routine reads one element past the last row)
# and expects the sanitizer to report it. Prints tests, findings and seconds; fails if a test fails or the fault is missed.
#
# Left out: the tests of the PTX simulator and of the performance model, which are safe Rust and take an hour here, those
# whose allocator bypasses the sanitizer's (guard_pages), those that limit the address space (a_refused_..), of which the
# sanitizer reserves terabytes, and one that compares speeds of caches: checked loads take as long from each.
set -euo pipefail
cd "$(dirname "$0")/.."
# -Zsanitizer is a nightly option, but stable toolchains ship the sanitizer's runtime library.
export RUSTC_BOOTSTRAP=1 CARGO_TERM_COLOR=never CARGO_INCREMENTAL=0 CARGO_TARGET_DIR=target/asan
export RUSTFLAGS='-Zsanitizer=address --cfg planted_bug="pack"'
# Assertions on, opt-level 1: vector code without inlining would take hours.
export CARGO_PROFILE_DEV_OPT_LEVEL=1 CARGO_PROFILE_DEV_DEBUG=line-tables-only
# Some tests request more memory than the machine has and expect an error.
export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1
target=x86_64-unknown-linux-gnu
runs=(test --quiet --target "$target" --config 'profile.dev.package.albert-kernels.opt-level=1')
skipped=(--skip ptx:: --skip every_case_of --skip simulated --skip machine_code
  --skip a_refused --skip caches_are_faster)
log=$(mktemp)
trap 'rm -f "$log"' EXIT

started=$SECONDS
run() {
  cargo "${runs[@]}" "$@" 2>&1 | tee -a "$log"
}
run -p albert-kernels -p albert-kernels-proof --lib --test arguments -- "${skipped[@]}"
if [ "${1:-}" != kernels ]; then
  run -p albert-engine --lib --tests -- "${skipped[@]}"
fi
passed=$(sed -n 's/^test result: ok\. \([0-9]*\) passed.*/\1/p' "$log" | paste -sd+ | bc)
[ "${passed:-0}" -gt 0 ] || { echo "AddressSanitizer: no test ran" >&2; exit 1; }
if grep -q 'ERROR: AddressSanitizer' "$log"; then
  echo "AddressSanitizer: findings above" >&2
  exit 1
fi

# The planted fault proves that the sanitizer is active.
if PLANTED_BUG=pack cargo "${runs[@]}" -p albert-kernels-proof --test arguments -- slices_of_exactly_the_span > "$log" 2>&1; then
  echo "AddressSanitizer missed the planted read of one element past a packed operand" >&2
  exit 1
fi
grep -q 'ERROR: AddressSanitizer: heap-buffer-overflow' "$log" || { cat "$log" >&2; exit 1; }
grep -m1 -A3 'ERROR: AddressSanitizer: heap-buffer-overflow' "$log"

printf 'AddressSanitizer: %d tests passed without a finding, the planted fault was found, %d s\n' "$passed" $((SECONDS - started))
