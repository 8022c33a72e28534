#!/usr/bin/env bash
# Streams of 100,000 lines, compressed text and bombs within their bounds (tests/everyday/limits.py).
set -euo pipefail
cd "$(dirname "$0")/.."
if ! command -v zstd >/dev/null; then
  { apt-get update && apt-get install --yes --no-install-recommends zstd; } >/dev/null 2>&1 || true
fi
if ! command -v zstd >/dev/null; then
  echo "SKIPPED: bounds of streams: zstd cannot be installed here"
  exit 0
fi
cargo build --release --quiet --workspace --bin albert --example decode
python3 tests/everyday/limits.py --target "${CARGO_TARGET_DIR:-target}/release"
