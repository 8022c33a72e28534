#!/usr/bin/env bash
# Kills every command that writes files, at random moments and system calls (tests/tests/program/kills.rs).
#
#   .ci/kills.sh [KILLS [COMMAND,..]]     default: 140 kills over all commands
#
# Kills at system calls need strace, which the script installs if it can; otherwise they are SKIPPED.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! command -v strace >/dev/null && command -v apt-get >/dev/null; then
  { apt-get update && apt-get install --yes --no-install-recommends strace; } >/dev/null 2>&1 || true
fi
export ALBERT_KILLS=${1:-140}
[ $# -lt 2 ] || export ALBERT_KILLS_OF=$2
cargo test --quiet --release --workspace --test program kills -- --nocapture
