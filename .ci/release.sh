#!/usr/bin/env bash
# What is handed out, in target/release-files: the program as one static file for x86-64 Linux, the wheel, the licences of
# third-party crates, and SHA256SUMS. Then each is started where nothing else is: the static program in an empty folder, the wheel
# in a fresh virtual environment and in a folder with nothing but Debian and its Python (chroot, where debootstrap runs).
# Prints bytes and seconds.
#
# The static program opens no MPI library and no driver of a GPU; the wheel's program does.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(mkdir -p "${CARGO_TARGET_DIR:-target}" && cd "${CARGO_TARGET_DIR:-target}" && pwd)
export CARGO_TARGET_DIR=$target
files=$target/release-files
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
rm -rf "$files"
mkdir -p "$files"
version=$(cargo metadata --locked --no-deps --format-version 1 | python3 -c 'import json, sys
print(next(package["version"] for package in json.load(sys.stdin)["packages"] if package["name"] == "albert-program"))')

started=$SECONDS
triple=x86_64-unknown-linux-gnu
RUSTFLAGS='-C target-feature=+crt-static' cargo build --quiet --locked --profile dist --workspace --bin albert --target "$triple"
static=$files/albert-$version-x86_64-linux
cp "$target/$triple/dist/albert" "$static"
.ci/licenses.py >"$files/THIRD-PARTY-LICENSES.txt"
cp LICENSE-MIT LICENSE-APACHE "$files"
echo "built $(basename "$static"), $(stat --format %s "$static") bytes, in $((SECONDS - started)) s"

started=$SECONDS
python3 -m venv "$folder/build"
if "$folder/build/bin/pip" install --quiet 'maturin>=1.9,<2'; then
  "$folder/build/bin/maturin" build --quiet --out "$files"
  wheel=$(echo "$files"/*.whl)
  echo "built $(basename "$wheel"), $(stat --format %s "$wheel") bytes, in $((SECONDS - started)) s"
fi
(cd "$files" && sha256sum -- * >SHA256SUMS)

passed=0 reasons=()
if [ "$(id -u)" = 0 ]; then
  started=$SECONDS
  mkdir -p "$folder/empty/tmp"
  cp "$static" "$folder/empty/albert"
  chroot "$folder/empty" /albert --version
  chroot "$folder/empty" /albert quickstart --minutes 0.5 -o run --quiet
  test -s "$folder/empty/run/model.safetensors"
  echo "ran quickstart in an empty folder in $((SECONDS - started)) s"
  passed=$((passed + 1))
else
  reasons+=("an empty folder: it needs root")
fi

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
  passed=$((passed + 1))
}
if [ -z "${wheel:-}" ]; then
  reasons+=("a wheel: maturin cannot be installed here")
else
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
  else
    reasons+=("a clean Debian: it needs root and debootstrap")
  fi
fi
for reason in "${reasons[@]}"; do echo "SKIPPED: $reason"; done
echo "$passed passed, 0 failed, ${#reasons[@]} skipped"
