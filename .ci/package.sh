#!/usr/bin/env bash
# Packages every crate and builds each from its package alone, as the registry would: names, versions, metadata, no file
# outside of a crate.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo package --workspace --quiet
echo "$(ls "${CARGO_TARGET_DIR:-target}"/package/*.crate | wc -l) packages passed"
