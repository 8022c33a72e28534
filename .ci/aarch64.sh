#!/usr/bin/env bash
# Checks the workspace for aarch64 and runs the tests of `num`, `simd`, tiles, int8 and the row kernels under emulation, on NEON,
# scalars and emulated vectors; compares products of bf16 on every kind of tiles, the recorded bits of smaller cases with those
# of NEON and scalars, and those of whole runs with those of NEON.
#
#   .ci/aarch64.sh
#
# Rust's standard library for aarch64 comes from Debian unstable: a chroot with its rustc, the cross compiler and
# qemu-aarch64 is kept in ${XDG_CACHE_HOME:-~/.cache}/albert-ci, about 2 GB; the first run takes some minutes longer. Needs
# root (chroot) and Debian's packages; if they are missing, the check is SKIPPED with the reason and exit code 0. Last
# line: `aarch64: N passed, M failed, K skipped`.
set -euo pipefail
cd "$(dirname "$0")/.."

target=aarch64-unknown-linux-gnu
cache=${XDG_CACHE_HOME:-$HOME/.cache}/albert-ci/aarch64
root=$cache/sid
# Tests by module. `every_case_of` runs an operation's table on all targets, the simulated GPU among them, which takes
# hours under emulation; the row kernels' own tests compare them with their f64 references.
modules=(num:: simd:: tiles:: int8::tests rows:: softmax:: layernorm:: activation:: elementwise:: dropout:: reduce::
  embedding:: cross_entropy:: optimizer::)
not=(every_case_of simulator ptx cuda)

skip() {
  echo "SKIPPED: $1"
  echo "aarch64: 0 passed, 0 failed, 1 skipped"
  exit 0
}

[ "$(id -u)" -eq 0 ] || skip "a chroot needs root"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# try COMMAND..: runs it quietly; if it fails, skips the whole check with the last line of its output.
try() {
  "$@" >"$log" 2>&1 || skip "$*: $(tail -n 1 "$log")"
}
inside() {
  chroot "$root" /usr/bin/env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 \
    DEBIAN_FRONTEND=noninteractive "$@"
}

# --- tools ---
if ! command -v debootstrap >/dev/null || ! [ -x /usr/bin/qemu-aarch64-static ]; then
  command -v apt-get >/dev/null || skip "debootstrap and qemu-user-static are missing; no apt-get to install them"
  try apt-get update
  try apt-get install --yes --no-install-recommends debootstrap qemu-user-static
fi
if ! [ -e "$root/complete" ]; then
  # An incomplete chroot is built from scratch.
  rm -rf "$root"
  mkdir -p "$cache"
  try debootstrap --variant=minbase sid "$root"
  # A mirror's snapshot of unstable may be past its expiry date; signatures are still checked.
  echo 'Acquire::Check-Valid-Until "false";' >"$root/etc/apt/apt.conf.d/90albert-ci"
  try inside dpkg --add-architecture arm64
  try inside apt-get update
  try inside apt-get install --yes --no-install-recommends rustc cargo gcc libc6-dev gcc-aarch64-linux-gnu \
    libc6-dev-arm64-cross
  try inside apt-get install --yes --no-install-recommends libstd-rust-dev:arm64
  inside apt-get clean
  touch "$root/complete"
fi
cp /usr/bin/qemu-aarch64-static "$root/usr/bin/"
inside rustc --version

# --- source ---
# The chroot keeps its own target folder and unchanged files keep their modification time, so that a second run compiles
# only changed crates.
mkdir -p "$root/src" "$root/source"
find "$root/source" -mindepth 1 -maxdepth 1 ! -name target -exec rm -rf {} +
git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' file; do
  [ -e "$file" ] && printf '%s\0' "$file"
done | tar --create --null --files-from - | tar --extract --directory "$root/source"
cargo vendor --quiet --locked "$root/vendor" >"$log" 2>&1 || skip "cargo vendor: $(tail -n 1 "$log")"
mkdir -p "$root/source/.cargo"
cat >"$root/source/.cargo/config.toml" <<'CONFIG'
[source.crates-io]
replace-with = "vendored"
[source.vendored]
directory = "/vendor"
[target.aarch64-unknown-linux-gnu]
linker = "aarch64-linux-gnu-gcc"
runner = ["/usr/bin/qemu-aarch64-static", "-L", "/usr/aarch64-linux-gnu"]
CONFIG

# --- check and tests ---
cross() {
  inside /bin/sh -c 'cd /source && CARGO_PROFILE_DEV_OPT_LEVEL=1 CARGO_INCREMENTAL=0 exec "$@"' sh "$@"
}
started=$SECONDS
passed=0 failed=0
if cross cargo check --quiet --offline --workspace --all-targets --target "$target" >"$log" 2>&1 && ! grep -q '^warning' "$log"; then
  passed=1
  echo "cargo check --workspace --all-targets: no warning, $((SECONDS - started)) s"
else
  failed=1
  echo "FAILED: cargo check --workspace --all-targets --target $target:"
  tail -n 40 "$log"
fi
# tests NAME COMMAND..: counts the tests that a command of cargo runs.
tests() {
  local name=$1 line good bad rest status=0 started=$SECONDS
  shift
  cross "$@" >"$log" 2>&1 || status=$?
  line=$(grep '^test result:' "$log" | grep -v ' 0 passed; 0 failed; 0 ignored' || true)
  # Several targets have tests, one line each.
  read -r good bad rest < <(awk '{ good += $4; bad += $6; rest += $8 } END { print good + 0, bad + 0, rest + 0 }' <<<"$line")
  passed=$((passed + good)) failed=$((failed + bad)) ignored=$((ignored + rest))
  if [ "$status" -ne 0 ] || [ "$good" -eq 0 ]; then
    [ "$bad" -gt 0 ] || failed=$((failed + 1))
    echo "FAILED: $name (exit code $status, $good passed):"
    tail -n 40 "$log"
  fi
  echo "$name under qemu-aarch64: $line, $((SECONDS - started)) s"
}
ignored=0
tests "tests of ${modules[*]}" env RUSTFLAGS='--cfg emulated_isas' cargo test --offline --package albert-kernels --package albert-kernels-proof --lib \
  --target "$target" -- "${modules[@]}" "${not[@]/#/--skip=}"
tests "products on tiles, recorded bits of kernels" env ALBERT_BITS_FLOPS=100000 cargo test --offline --package albert-kernels-proof --lib \
  --target "$target" -- bits:: gemm::tests::precision attention::tests::every_kind --skip=bits_do_not_depend
tests "recorded bits of runs" env ALBERT_ISA=neon ALBERT_THREADS=2 cargo test --offline --package albert-program --target "$target" -- verify::
echo "aarch64: $passed passed, $failed failed, $ignored skipped"
[ "$failed" -eq 0 ]
