#!/usr/bin/env bash
# A public kernel that is generic over the storage type is compiled again in each crate that calls it, which takes minutes,
# unless `compiled_here!` defines it. Counts the kernels in the library of `engine` that the tests built: 9 are left, the
# functions of two storage types and the embedding lookup (docs/decisions/kernel-instances.md).
set -euo pipefail
cd "$(dirname "$0")/.."
known=9
[ "$(uname -m)" = x86_64 ] || { echo "SKIPPED: counts functions for AVX2"; exit 0; }
library=$(ls -t "${CARGO_TARGET_DIR:-target}"/release/deps/libengine-*.rlib | head -n 1)
found=$(nm -C --defined-only "$library" 2>/dev/null | grep -c 'simd::avx2::Entry>*::enter' || true)
if [ "$found" -gt "$known" ]; then
  echo "$library has $found kernels for AVX2, $known were expected; define the new public kernel with compiled_here!" >&2
  exit 1
fi
if [ "$found" -lt "$known" ]; then
  echo "$library has $found kernels for AVX2; lower the number in .ci/instances.sh from $known" >&2
  exit 1
fi
echo "$found kernels are compiled in engine, as known"
