#!/usr/bin/env bash
# Makes a folder that a machine with a GPU needs and nothing else: stripped programs, data for training, scripts.
#
#   benches/cuda/package.sh [--programs DIR]
#
# --programs DIR takes `albert` and `cuda_suite` from there instead of building them. The folder is target/gpu; copy it to the
# machine and run `gpu/first.sh OUT` there. Needs glibc 2.34 or later there, neither toolkit nor toolchain.
set -euo pipefail
cd "$(dirname "$0")/../.."
target=${CARGO_TARGET_DIR:-target}
folder=$target/gpu
most_mib=60
newest_glibc=2.34
programs=$target/release
if [ "${1:-}" = --programs ] && [ $# -eq 2 ]; then
  programs=$2
elif [ $# -gt 0 ]; then
  echo "error: unknown arguments $*; see the head of $0" >&2
  exit 64
else
  cargo build --release --workspace --bin albert --bin cuda_suite
fi

mkdir -p "$folder"
for program in albert cuda_suite; do
  strip -o "$folder/$program" "$programs/$program"
  # A program runs where the C library is at least as new as each symbol that it uses.
  needs=$(objdump -T "$folder/$program" | grep -oE 'GLIBC_[0-9.]+' | cut -d_ -f2 | sort -uV | tail -n 1)
  if [ "$(printf '%s\n' "$newest_glibc" "$needs" | sort -V | tail -n 1)" != "$newest_glibc" ]; then
    echo "error: $program needs glibc $needs; build on a system with glibc $newest_glibc" >&2
    exit 1
  fi
done
cp benches/cuda/first.sh benches/cuda/peers.py "$folder"
# As many pieces as this text can give, about. Speeds at 30,000 are those of the benchmarks.
if ! [ -d "$folder/data/shards" ]; then
  rm -rf "$folder/data"
  mkdir "$folder/data"
  "$folder/albert" tokenizer train cli/data/public_domain.txt --vocab-size 16000 --output "$folder/data/tokenizer.json"
  "$folder/albert" data build cli/data/public_domain.txt --tokenizer "$folder/data/tokenizer.json" \
    --output "$folder/data/shards"
fi
mib=$(du -sm --apparent-size "$folder" | cut -f1)
if [ "$mib" -gt "$most_mib" ]; then
  echo "error: $folder holds $mib MiB; at most $most_mib were expected" >&2
  exit 1
fi
echo "$folder: $mib MiB, for glibc $newest_glibc and later"
