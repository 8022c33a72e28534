#!/usr/bin/env bash
# Four hosts on one machine: network namespaces with addresses of their own, joined by a bridge. Open MPI starts a rank in each
# and talks over TCP; a host is cut off in the middle of a run, which then goes on with the other three. Prints the time of an
# exchange over the links.
#
#   .ci/namespaces.sh [RATE]      RATE of each link, for tc: 1gbit (default: unlimited)
#
# Needs root, iproute2 and Open MPI, and installs the latter two where it can; SKIPPED without.
set -euo pipefail
cd "$(dirname "$0")/.."
nodes=4 rate=${1:-}
skip() { echo "SKIPPED: hosts in network namespaces: $1" && exit 0; }
[ "$(uname)" = Linux ] && [ "$(id -u)" = 0 ] || skip "they need root on Linux"
if command -v apt-get >/dev/null && ! { command -v ip && command -v mpirun.openmpi; } >/dev/null; then
  { apt-get update && apt-get install --yes --no-install-recommends iproute2 openmpi-bin; } >/dev/null 2>&1 || true
fi
for tool in ip tc unshare mpirun.openmpi; do
  command -v "$tool" >/dev/null || skip "$tool is missing"
done

cargo build --quiet --release --workspace --bin albert
program=$(realpath "${CARGO_TARGET_DIR:-target}/release/albert")
place=$(mktemp -d)
down() {
  for i in $(seq "$nodes"); do
    ip netns del "albert$i" 2>/dev/null || true
    ip link del "albert-$i" 2>/dev/null || true
  done
  ip link del albert0 2>/dev/null || true
}
clean() {
  pkill -KILL -f "^$program .*$place" || true
  down
  rm -rf "$place"
}
trap clean EXIT
down
ip link add albert0 type bridge 2>/dev/null || skip "the kernel refuses a bridge"
ip addr add 10.77.0.254/24 dev albert0 && ip link set albert0 up
for i in $(seq "$nodes"); do
  ip netns add "albert$i"
  ip link add "albert-$i" type veth peer name eth0 netns "albert$i"
  ip link set "albert-$i" master albert0 up
  ip -n "albert$i" addr add "10.77.0.$i/24" dev eth0
  ip -n "albert$i" link set eth0 up && ip -n "albert$i" link set lo up
  if [ -n "$rate" ]; then
    tc qdisc replace dev "albert-$i" root tbf rate "$rate" burst 256k latency 20ms
    ip netns exec "albert$i" tc qdisc replace dev eth0 root tbf rate "$rate" burst 256k latency 20ms
  fi
done
# In place of ssh: host 10.77.0.N is namespace N, with a name of its own.
cat >"$place/agent" <<'AGENT'
#!/bin/bash
host=${1##*.} && shift
exec ip netns exec "albert$host" unshare --uts bash -c "hostname albert$host; $*"
AGENT
chmod +x "$place/agent"

# over HOSTS ARGUMENT..: the program with a rank on each host, N,N,..
over() {
  local hosts
  hosts=$(sed 's/[0-9]\+/10.77.0.&:1/g' <<<"$1") && shift
  OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 timeout --kill-after=5 "${limit:-100}" \
    mpirun.openmpi --mca plm_rsh_agent "$place/agent" --mca plm_rsh_no_tree_spawn 1 --mca orte_keep_fqdn_hostnames 1 \
    --mca oob_tcp_if_include 10.77.0.0/24 --mca btl tcp,self --mca btl_tcp_if_include 10.77.0.0/24 --mca pml ob1 \
    -x ALBERT_THREADS=1 --host "$hosts" "$program" "$@"
}

head -c 400000 cli/data/public_domain.txt >"$place/text.txt"
{
  "$program" tokenizer train "$place/text.txt" --vocab-size 1000 -o "$place/tokenizer.json"
  "$program" data build "$place/text.txt" --tokenizer "$place/tokenizer.json" -o "$place/data"
} 2>"$place/log" || { cat "$place/log" && exit 1; }
arguments=(pretrain tiny --data "$place/data" --tokenizer "$place/tokenizer.json" data.batch.lanes=4 schedule.steps=40
  schedule.warmup_steps=4 evaluation.interval=20 run.checkpoint_interval=5 run.communication_timeout=2)
same() { cmp "$place/one/model.safetensors" "$place/$1/model.safetensors"; }

ALBERT_THREADS=2 "$program" "${arguments[@]}" -o "$place/one" 2>/dev/null
over 1,2,3,4 "${arguments[@]}" -o "$place/four" 2>"$place/log" || { cat "$place/log" && exit 1; }
grep -q "4 ranks on 4 host(s)" "$place/log" || { cat "$place/log" && exit 1; }
same four
echo "4 hosts over TCP: the model of one process"

# The ranks end by themselves; mpirun waits for its daemon on the lost host until it is killed.
limit=30 over 1,2,3,4 "${arguments[@]}" -o "$place/cut" 2>"$place/log" &
running=$!
until compgen -G "$place/cut/checkpoints/*" >/dev/null; do
  kill -0 "$running" 2>/dev/null || { cat "$place/log" && exit 1; }
  sleep 0.05
done
ip -n albert3 link set eth0 down
cut=$SECONDS
while pgrep -f "^$program .*$place/cut" >/dev/null; do
  [ $((SECONDS - cut)) -lt 20 ] || { echo "error: ranks are alive 20 s after host 3 was cut off" && exit 1; }
  sleep 0.2
done
ended=$((SECONDS - cut))
sentence=$(grep -m 1 "did not answer within 2 s" "$place/log") || { cat "$place/log" && exit 1; }
echo "host 3 cut off: the ranks ended after $ended s: $sentence"
if wait "$running"; then
  echo "error: the run ended well without host 3" && exit 1
fi
over 1,2,4 "${arguments[@]}" -o "$place/cut" --resume 2>"$place/log" || { cat "$place/log" && exit 1; }
same cut
echo "resumed on 3 hosts: the model of one process"
for hosts in 1,2 1,2,4; do
  over "$hosts" exchange --megabytes 48 --rounds 5 2>"$place/log" || { cat "$place/log" && exit 1; }
done
echo "3 passed, 0 failed, 0 skipped"
