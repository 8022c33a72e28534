#!/usr/bin/env bash
# Packages every crate and builds each from its package alone, as the registry would: names, versions, metadata, no file
# outside of a crate. Then compiles projects outside of the workspace: the examples of docs/engine.md, a kernel.
set -euo pipefail
cd "$(dirname "$0")/.."
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/packages
rm -f "$CARGO_TARGET_DIR"/package/*.crate
# Cargo takes a package of a registry for unchanged while its version is. So the sources and builds of an earlier commit go:
# sources of its temporary registry are in folders whose names begin with a dash.
cargo metadata --no-deps --format-version 1 |
  python3 -c 'import json, sys; [print(p["name"], p["version"]) for p in json.load(sys.stdin)["packages"]]' |
  while read -r name version; do
    rm -rf "${CARGO_HOME:-$HOME/.cargo}"/registry/src/-*/"$name-$version" "$CARGO_TARGET_DIR"/*/.fingerprint/"$name"-*
  done
cargo package --workspace --quiet
# A project outside of the workspace, with the Cargo.toml of docs/engine.md, compiles the examples.
cp Cargo.lock tests/outside/ # the versions of the workspace
cp Cargo.lock tests/own-kernel/
cargo check --quiet --manifest-path tests/outside/Cargo.toml
# A kernel outside of the workspace, with Cargo's default profile, keeps its vector instructions.
CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 CARGO_PROFILE_RELEASE_LTO=false \
  cargo build --quiet --release --manifest-path tests/own-kernel/Cargo.toml
"$CARGO_TARGET_DIR/release/own-kernel"
kernel=$(realpath "$CARGO_TARGET_DIR/release/own-kernel")
MACHINE_CODE_OF=$kernel env -u CARGO_TARGET_DIR cargo test --quiet --release --workspace --test machine_code
count=$(find "$CARGO_TARGET_DIR/package" -maxdepth 1 -name '*.crate' | wc -l)
echo "$count packages passed"
[ "$count" -gt 0 ]
