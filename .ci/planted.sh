#!/usr/bin/env bash
# Plants a fault for each check in a scratch clone (target/planted) and requires that the check fails and says why.
#
#   .ci/planted.sh                quick ones, which compile nothing
#   .ci/planted.sh NAME ..        those of these checks, whatever they take; `built` are all that need a compiler only
#   .ci/planted.sh --list         names, minutes and faults
#
# Prints a row of the table in docs/checks.md for each. A check that lacks a tool is SKIPPED with its reason. Last line:
# `N passed, M failed, K skipped`. A new check needs a line here:
#
#   plant NAME COST TEXT OUTPUT FAULT [COMMAND]
#
# COST is `quick`, or the minutes of two idle cores from scratch, with a `+` if it needs more than a compiler. FAULT is run by bash in
# the clone; `:` plants nothing, where COMMAND does. COMMAND defaults to `.ci/run NAME`; it has to fail and to print OUTPUT.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0 skipped=0 wanted=("$@")
temporary=$(dirname "$(mktemp --dry-run)")
scratch=$root/target/planted
export CARGO_TARGET_DIR=$scratch/target CARGO_TERM_COLOR=never CARGO_INCREMENTAL=0

# The clone starts from the files of this checkout, committed or not.
prepare() {
  cp "$(git rev-parse --git-path index)" "$work/index"
  GIT_INDEX_FILE=$work/index git add --all
  tree=$(GIT_INDEX_FILE=$work/index git write-tree)
  commit=$(GIT_AUTHOR_NAME=ci GIT_AUTHOR_EMAIL=ci@localhost GIT_COMMITTER_NAME=ci GIT_COMMITTER_EMAIL=ci@localhost git commit-tree "$tree" -m planted)
  [ -d "$scratch/.git" ] || git clone --quiet --shared --no-checkout . "$scratch"
}

is_wanted() {
  case "${wanted[*]:-}" in
  "") [ "$2" = quick ] ;;
  built) [ "$2" != quick ] && [[ $2 != *+ ]] ;;
  *) [[ " ${wanted[*]} " == *" $1 "* ]] ;;
  esac
}

plant() {
  local name=$1 cost=$2 text=$3 output=$4 fault=$5 command=${6:-.ci/run $1} status=0 started=$SECONDS line
  if [ "${wanted[*]:-}" = --list ]; then
    printf '%-14s %6s  %s\n' "$name" "$cost" "$text"
    return
  fi
  is_wanted "$name" "$cost" || return 0
  [ -n "${commit:-}" ] || prepare
  git -C "$scratch" reset --quiet --hard "$commit"
  git -C "$scratch" clean -fdq --exclude=/target
  (cd "$scratch" && bash -euo pipefail -c "$fault")
  if [ "$fault" != : ] && [ -z "$(git -C "$scratch" status --porcelain)" ] && git -C "$scratch" diff --quiet "$commit"; then
    echo "FAILED: $name: the fault changes nothing: $fault" && failed=$((failed + 1))
    return
  fi
  (cd "$scratch" && bash -c "$command") >"$work/log" 2>&1 </dev/null || status=$?
  line=$(grep -m 1 -F -- "$output" "$work/log" | sed -E "s#$scratch/##g; s#$temporary/tmp\.[A-Za-z0-9]+#TMP#g; s/^ +//; s/\|/\\\\|/g" | tr '\`' "'" | cut -c1-110) || true
  if [ "$status" -ne 0 ] && [ -n "$line" ]; then
    passed=$((passed + 1))
    echo "| \`$name\` | $text | \`$line\` | $status |"
  elif [ "$status" -eq 0 ] && grep -m 1 '^SKIPPED' "$work/log" >"$work/reason"; then
    skipped=$((skipped + 1))
    echo "SKIPPED: planted fault of $name: $(cut -c1-150 "$work/reason")"
  else
    failed=$((failed + 1))
    echo "FAILED: $name missed the planted fault ($text): exit code $status, expected another and: $output"
    tail -n 15 "$work/log"
  fi
  echo "   $name: $((SECONDS - started)) s" >&2
}

# --- .ci/run ---
plant format quick "two spaces in a declaration" "Diff in" "sed -i 's/^pub mod device/pub  mod device/' engine/src/lib.rs"
plant layers quick "a dependency of \`albert\` on \`kernels\`" "albert-model must not depend on albert-kernels" "sed -i '/^\[dependencies\]/a kernels.workspace = true' albert/Cargo.toml"
plant layers quick "\`use kernels as k\` in another command than \`albert kernels\`" "may import kernels" "sed -i '0,/^use /s//use kernels as k;\nuse /' cli/src/commands/info.rs"
plant layers quick "\`unsafe\` in \`albert\`, on a line with a string" "unsafe code outside" "echo 'fn f() { g(\"/\"); unsafe { h() } }' >>albert/src/embed.rs"
plant links quick "a reference to a page that does not exist" "no such file: nowhere.md" "printf '\n[a][b]\n\n[b]: nowhere.md\n' >>docs/checks.md"
plant links quick "a heading renamed" "no such heading: #ranks" "sed -i 's/^## Ranks/## Processes/' docs/checks.md"
plant prose quick "a doc comment that begins with What" "begin with a noun phrase" "printf '\n/// What is planted.\nfn planted() {}\n' >>albert/src/mean.rs"
plant circles quick "\`use super::encoder; encoder::Blocks\` in \`composed.rs\`" "circle of model::composed, model::encoder" "echo 'use super::encoder; type Planted = encoder::Blocks;' >>albert/src/model/composed.rs"
plant circles quick "\`circles.py\` follows no paths in code" "0 circles found" "sed -i 's/len(path) > 1 or word not in NOT_A_PATH/False/' .ci/circles.py"
plant size quick "a file of 501 lines" "planted.rs: 501 lines of code; expected at most 500" "seq 501 | sed 's/.*/const X&: u8 = 0;/' >engine/src/planted.rs && git add engine/src/planted.rs"
plant features quick "a feature of a dev-dependency that \`cli\` does not name" "other features than" "sed -i '/^log = /d' cli/Cargo.toml"
plant scripts quick "a syntax error in the last script" ".ci/sentryward.sh: the syntax is wrong" "echo 'if' >>.ci/sentryward.sh"
plant scripts quick "a script that nothing calls" "orphan.sh: nothing calls it" "cp .ci/loom.sh .ci/orphan.sh"
plant scripts quick "a step without a planted fault" "new: no planted fault" "sed -i 's/^finish$/step new \"new\" true\nfinish/' .ci/run"
plant planted quick "a check that always passes" "FAILED: links missed the planted fault" "printf '#!/bin/sh\nexit 0\n' >.ci/links.py" ".ci/planted.sh links"
plant lock quick "a dependency of the fuzzers that the lock file lacks" "--locked was passed" "sed -i '/^\[dependencies\]/a smallvec = \"1\"' tests/fuzz/Cargo.toml"
plant readme quick "a command whose pipe hides a failure" "failed" "printf '\`\`\`console\n$ false | cat\n\`\`\`\n' | tee README.md docs/learn.md >kernels/ptx/README.md"
plant readme quick "a command in a block that is not read" "are not read" "printf '\`\`\`sh\n$ albert --version\n\`\`\`\n' >>README.md"
plant tests quick "tests that are all filtered out" "no test ran" "sed -i 's/cargo test --release \$packages.*/echo \"test result: ok. 0 passed; 0 failed; 3 ignored\"/' .ci/run"
plant tests 2 "input that ends silently at its limit" "panicked at engine/bounded-input" "sed -i 's/_ => Err(too_large(self.limit)),/_ => Ok(0),/' engine/bounded-input/src/lib.rs" "CI_PACKAGES='-p bounded-input' .ci/run tests"
plant lints 1 "\`&Vec\` as a parameter" "writing \`&Vec\` instead of" "printf '\n/// Length.\npub fn length(x: &Vec<u8>) -> usize {\n    x.len()\n}\n' >>kernels/ptx/src/lib.rs" "CI_PACKAGES='-p ptx' .ci/run lints"
plant doc 1 "a link to an item that does not exist" "unresolved link to" "printf '\n/// [\`Nowhere\`]\npub struct Somewhere;\n' >>kernels/ptx/src/lib.rs" "CI_PACKAGES='-p ptx' .ci/run doc"
plant instances 8 "one kernel fewer is known than \`engine\` compiles" "8 were expected" "sed -i 's/^known=9/known=8/' .ci/instances.sh" "cargo build --quiet --release --workspace --lib && .ci/run instances"
plant ptx 8+ "a row that allows one register" "registers, expected at most 1" "sed -i 's/Self { name, sm: module.sm(), text: module.text(), registers,/Self { name, sm: module.sm(), text: module.text(), registers: registers.min(1),/' kernels/cuda/src/program.rs"
plant tests 8 "extents that wrap" "--- FAILED" "sed -i 's/rows.saturating_mul(columns)/rows.wrapping_mul(columns)/; s/row.saturating_mul(leading).saturating_add/row.wrapping_mul(leading).wrapping_add/' kernels/src/extent.rs" "cargo test --quiet --release --workspace --test arguments"
plant tests 8 "a call in the loop of the microkernel" "calls or spills" "sed -i '/fn multiply_add(self, a: S::F32, b: S::F32, sum: S::F32)/,/^    }/s/self.0.mul_add(a, b, sum)/{ planted(); self.0.mul_add(a, b, sum) }/' kernels/src/gemm/cpu/microkernel.rs && printf '\n#[inline(never)]\nfn planted() {\n    std::hint::black_box(0);\n}\n' >>kernels/src/gemm/cpu/microkernel.rs" "cargo test --quiet --release --workspace --lib machine_code"
plant tests 12 "a closure called twice in a rung of \`measure\`" "call generic code" "python3 -c 'p = \"cli/measure/src/cases/rungs.rs\"; s = open(p).read(); a = s.rindex(\"        for row in 0..TILE_ROWS {\n            let factor\"); b = s.index(\"        }\n\", a) + 10; open(p, \"w\").write(s[:a] + \"let mut planted = |half: usize, b: S::F32| (0..TILE_ROWS).for_each(|row| sums[row][half] = simd.mul_add(simd.splat(a[row]), b, sums[row][half]));\nplanted(0, left);\nplanted(1, right);\n\" + s[b:])'" "cargo build --quiet --release --workspace --bin albert && MACHINE_CODE_OF=\$PWD/target/release/albert cargo test --quiet --release --workspace --test machine_code"

# --- .ci/full ---
plant debug 2 "an assertion that does not hold" "planted" "sed -i 's/_ => Err(too_large(self.limit)),/_ => { debug_assert!(self.limit == 0, \"planted\"); Err(too_large(self.limit)) }/' engine/bounded-input/src/lib.rs" ".ci/debug.sh -p bounded-input"
plant loom quick "the script is deleted" "missing or not executable" "rm .ci/loom.sh" ".ci/full loom"
plant kills quick "tests that are all filtered out" "no test ran" "sed -i '/^cargo test/s/.*/echo \"test result: ok. 0 passed; 0 failed; 3 ignored\"/' .ci/kills.sh" ".ci/full kills"
plant asan 20 "a packing routine reads one element past a row, in every test" "AddressSanitizer: heap-buffer-overflow" : "PLANTED_BUG=pack .ci/asan.sh kernels"
plant loom 6 "the store that opens a loop is relaxed" "test result: FAILED" "sed -i 's/OPEN: Ordering = Ordering::Release/OPEN: Ordering = Ordering::Relaxed/' kernels/src/pool/order.rs" ".ci/full loom"
plant emulated 10 "the maximum of emulated lanes is the minimum" "FAILED" "sed -i '/^        max(a: \[f32; N\]/s/LANE.max/LANE.min/' kernels/src/simd/emulated.rs" ".ci/full emulated"
plant peers 6 "\`&Vec\` as a parameter, in code for peers" "writing \`&Vec\` instead of" "printf '\n/// Length.\npub fn length(x: &Vec<u8>) -> usize {\n    x.len()\n}\n' >>cli/measure/src/peers/mod.rs" ".ci/full peers"
plant fuzz 10+ "the reader of vocab.txt panics at a file of more than 40 bytes" "panicked" "sed -i 's/^pub(super) fn vocab_txt(bytes: &\[u8\]) -> bool {/&\n    assert!(bytes.len() <= 40, \"planted\");/' tests/src/readers/tokenizer.rs" ".ci/fuzz.sh 5 vocab-txt"
plant kills 12+ "the files of a folder are renamed one by one" "FAILED" "sed -i 's/std::fs::rename(&self.partial, &self.target)/one_by_one(\&self.partial, \&self.target)/' engine/src/io/atomic/folder.rs && printf '\nfn one_by_one(from: &Path, to: &Path) -> io::Result<()> {\n    std::fs::create_dir_all(to)?;\n    std::fs::read_dir(from)?.try_for_each(|file| file.and_then(|file| std::fs::rename(file.path(), to.join(file.file_name()))))\n}\n' >>engine/src/io/atomic/folder.rs" ".ci/kills.sh 24 'data build,convert'"
plant ranks 12+ "ranks do not return their halves" "FAILED" "sed -i 's/in exchanged.into_iter().rev() {/in exchanged.into_iter().rev().skip(1) {/' engine/src/communicator/all_reduce.rs" ".ci/ranks.sh 2"
plant namespaces 8+ "ranks do not return their halves" "differ" "sed -i 's/in exchanged.into_iter().rev() {/in exchanged.into_iter().rev().skip(1) {/' engine/src/communicator/all_reduce.rs" ".ci/full namespaces"
plant environment 10 "output files are not created exclusively" "red" "sed -i 's/create_new(true)/create(true).truncate(true)/' engine/src/io/atomic/partial.rs" ".ci/full environment"
plant aarch64 20+ "the maximum of NEON is the minimum" "FAILED" "sed -i 's/vbslq_f32(vcgtq_f32(a, b), a, b)/vbslq_f32(vcgtq_f32(a, b), b, a)/' kernels/src/simd/neon.rs" ".ci/full aarch64"
plant oldest 4 "an older \`rust-version\` than the code needs" "incompatible_msrv" "sed -i 's/^rust-version = \"1.89\"/rust-version = \"1.85\"/' Cargo.toml" ".ci/full oldest"
plant release 12+ "the program for an empty folder needs libraries" "failed to run command" "sed -i 's/+crt-static/-crt-static/' .ci/release.sh" ".ci/full release"
plant limits 12+ "streams keep the text of each line" "FAILED" "sed -i 's/^        if sender.send(Ok(Line { number, text, problem })).is_err()/        std::mem::forget(text.clone());\n&/' cli/src/input.rs" ".ci/full limits"
plant browser 12+ "pages are 3,000 pixels wide" "pixels wide in a window" "sed -i 's/{overflow-x:auto}/{overflow-x:auto}body{min-width:3000px}/' albert/src/report/html.rs" ".ci/full browser"
plant gpu 15+ "hanging and crashed cases do not change the exit code" "ended with code" "sed -i 's/HUNG | CRASHED | CUT) broken=1/NEVER) broken=1/' benches/cuda/first.sh" ".ci/gpu-rehearsal.sh"
plant package 3 "\`ptx\` includes a file outside of its package" "README.md" "printf '\n/// Outside of the package.\npub const OUTSIDE: &str = include_str!(\"../../../README.md\");\n' >>kernels/ptx/src/lib.rs; git -c user.name=ci -c user.email=ci@localhost commit --quiet --all --message planted" ".ci/full package"
plant package 12 "\`map\` in the loop of a kernel outside of the workspace" "call generic code" "sed -i 's/^planted = \[\]/default = [\"planted\"]\nplanted = []/' tests/own-kernel/Cargo.toml; git -c user.name=ci -c user.email=ci@localhost commit --quiet --all --message planted" ".ci/full package"
plant hopper 15 "one unit in a coefficient of 2^x" "launches" "sed -i 's/33554435, 22713/33554436, 22713/' kernels/ptx/src/sim/isa/sfu/tables.rs" ".ci/hopper.sh"
plant sentryward 8+ "no barrier between the warps' partial results and their sum" "FAILED" "sed -i 's/(\"\", program\.listing())/(\"\", program.listing().replace(\"bar.sync\", \"\/\/ bar.sync\"))/' kernels/proof/examples/emit_launches/main.rs" ".ci/sentryward.sh softmax"

[ "${wanted[*]:-}" != --list ] || exit 0
echo "$passed passed, $failed failed, $skipped skipped"
if [ $((passed + failed + skipped)) -eq 0 ]; then
  echo "error: no planted fault of: ${wanted[*]}; see .ci/planted.sh --list" >&2
  exit 64
fi
[ "$failed" -eq 0 ]
