#!/usr/bin/env bash
# ThreadSanitizer over the tests of the pool. The standard library is not instrumented: the sanitizer sees the ordering of its
# mutexes and condition variables only where they are inlined. Data races end the run with a report and status 66.
set -euo pipefail
cd "$(dirname "$0")/.."
export RUSTC_BOOTSTRAP=1 CARGO_TARGET_DIR=target/tsan
export RUSTFLAGS='-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer'
cargo test -p albert-kernels --target x86_64-unknown-linux-gnu --lib -- pool::
