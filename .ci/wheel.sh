#!/usr/bin/env bash
# The wheel: built (target/wheels), installed into a fresh virtual environment, and run from there; the same in a folder with nothing but
# Debian and its Python, where debootstrap and chroot run. Prints bytes and seconds.
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
rm -rf "$target/wheels"
CARGO_TARGET_DIR=$target "$folder/build/bin/maturin" build --quiet --out "$target/wheels"
wheel=$(echo "$target"/wheels/*.whl)
echo "built $(basename "$wheel"), $(stat --format %s "$wheel") bytes, in $((SECONDS - started)) s"

# Installs the wheel and trains a model with it; the words before its arguments run a command in the place where it goes.
try_in() {
  local place=$1 started=$SECONDS
  shift
  # One command a line: `sh -e` does not end at a failure before `&&`.
  "$@" sh -euc 'cd "$0"
    python3 -m venv user
    user/bin/pip install --quiet --no-index ./*.whl
    user/bin/albert --version
    user/bin/albert quickstart --minutes 0.5 -o run --quiet
    test -s run/model.safetensors
    stat --format "%s bytes" user/bin/albert' "$place"
  echo "installed and ran quickstart in $((SECONDS - started)) s"
}
mkdir "$folder/user"
cp "$wheel" "$folder/user"
try_in "$folder/user" env

debian=${ALBERT_DEBIAN:-$HOME/.cache/albert-ci/bookworm}
if [ "$(id -u)" = 0 ] && ! [ -x "$debian/usr/bin/python3" ]; then
  command -v debootstrap >/dev/null || apt-get install --yes --no-install-recommends debootstrap >/dev/null 2>&1 || true
  rm -rf "$debian"
  mkdir -p "$(dirname "$debian")"
  debootstrap --variant=minbase --include=python3,python3-venv bookworm "$debian" http://deb.debian.org/debian >/dev/null 2>&1 || true
fi
if [ "$(id -u)" = 0 ] && chroot "$debian" python3 --version >/dev/null 2>&1; then
  rm -rf "$debian/work"
  mkdir "$debian/work"
  cp "$wheel" "$debian/work"
  try_in /work chroot "$debian"
  rm -rf "$debian/work"
  echo "a fresh environment and a clean Debian: 2 passed"
else
  echo "SKIPPED: a clean Debian: it needs root and debootstrap"
  echo "a fresh environment: 1 passed, 0 failed, 1 skipped"
fi
