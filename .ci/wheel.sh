#!/usr/bin/env bash
# The wheel: built, installed into a fresh virtual environment, and run from there. Prints its bytes and the seconds.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(mkdir -p "${CARGO_TARGET_DIR:-target}" && cd "${CARGO_TARGET_DIR:-target}" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/build"
if ! "$folder/build/bin/pip" install --quiet 'maturin>=1.9,<2'; then
  echo "SKIPPED: maturin cannot be installed here"
  exit 0
fi
started=$SECONDS
CARGO_TARGET_DIR=$target "$folder/build/bin/maturin" build --quiet --out "$folder/wheels"
wheel=$(echo "$folder"/wheels/*.whl)
echo "built $(basename "$wheel"), $(stat --format %s "$wheel") bytes, in $((SECONDS - started)) s"
python3 -m venv "$folder/user"
"$folder/user/bin/pip" install --quiet --no-index "$wheel"
cd "$folder"
./user/bin/albert --version
started=$SECONDS
./user/bin/albert quickstart --minutes 0.5 -o run --quiet
test -s run/model.safetensors
echo "the installed program trained a model in $((SECONDS - started)) s; 1 passed"
