#!/usr/bin/env bash
# Packages every crate and builds each from its package alone, as the registry would: names, versions, metadata, no file
# outside of a crate.
set -euo pipefail
cd "$(dirname "$0")/.."
packages=${CARGO_TARGET_DIR:-target}/package
rm -f "$packages"/*.crate
# Cargo keeps the sources of dependencies by name and version, those of its temporary registry in folders whose names begin
# with a dash, and would build against those of an earlier commit.
cargo metadata --no-deps --format-version 1 |
  python3 -c 'import json, sys; [print(p["name"] + "-" + p["version"]) for p in json.load(sys.stdin)["packages"]]' |
  while read -r package; do
    rm -rf "${CARGO_HOME:-$HOME/.cargo}"/registry/src/-*/"$package"
  done
cargo package --workspace --quiet
echo "$(find "$packages" -maxdepth 1 -name '*.crate' | wc -l) packages passed"
