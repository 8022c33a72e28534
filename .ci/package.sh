#!/usr/bin/env bash
# Packages every crate and builds each from its package alone, as the registry would: names, versions, metadata, no file
# outside of a crate.
set -euo pipefail
cd "$(dirname "$0")/.."
packages=${CARGO_TARGET_DIR:-target}/package
rm -f "$packages"/*.crate
cargo package --workspace --quiet
echo "$(find "$packages" -maxdepth 1 -name '*.crate' | wc -l) packages passed"
