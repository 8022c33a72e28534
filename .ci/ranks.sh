#!/usr/bin/env bash
# Several ranks under three MPI libraries: Open MPI and MPICH of the distribution, and MPICH of PyPI with the standard ABI. Ranks
# are killed, stopped, asked to end and given a full disk (tests/tests/program/ranks.rs).
#
#   .ci/ranks.sh [DISTURBANCES]     default: 40 under each library
#
# Installs the libraries where it can; one that is missing is reported as SKIPPED.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
if command -v apt-get >/dev/null && ! { command -v mpirun.openmpi && command -v mpirun.mpich; } >/dev/null; then
  { apt-get update && apt-get install --yes --no-install-recommends openmpi-bin mpich; } >/dev/null 2>&1 || true
fi
if ! [ -x "$target/mpi/bin/mpiexec" ]; then
  { python3 -m venv "$target/mpi" && "$target/mpi/bin/pip" install mpich; } >/dev/null 2>&1 || true
fi
if [ -x "$target/mpi/bin/mpiexec" ]; then
  ALBERT_TEST_MPIEXEC=$(cd "$target/mpi" && pwd)/bin/mpiexec
  export ALBERT_TEST_MPIEXEC
else
  echo "SKIPPED: MPICH of PyPI: it cannot be installed here"
fi
export ALBERT_RANK_DISTURBANCES=${1:-40}
cargo test --quiet --release --workspace --test program ranks:: -- --nocapture --test-threads=1
