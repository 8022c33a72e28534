#!/usr/bin/env bash
# Simulates the exchange of gradients on clusters with SimGrid (Debian: libsimgrid-dev), beside MPI_Allreduce with Open MPI's
# selection of algorithms. Prints a table of milliseconds. No program of ours runs in it: exchange.c sends as all_reduce.rs does.
#
#   benches/simgrid/run.sh [BYTES]        default: 47255240, the gradients of base
#
# A link has 12.5 µs each way. "16 a rack, 4:1": racks of 16 nodes whose uplinks carry a quarter of what their nodes do.
set -euo pipefail
cd "$(dirname "$0")"
bytes=${1:-47255240}
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
smpicc -O2 -o "$place/exchange" exchange.c

# simulate NODES BANDWIDTH RACKS(yes or no)
simulate() {
  local topology=""
  [ "$3" = no ] || topology="topology=\"FAT_TREE\" topo_parameters=\"2;16,$(($1 / 16));1,4;1,1\""
  cat >"$place/platform.xml" <<XML
<?xml version="1.0"?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1">
  <cluster id="c" prefix="n" suffix="" radical="0-$(($1 - 1))" speed="100Gf" bw="$2" lat="12.5us" $topology sharing_policy="SPLITDUPLEX"/>
</platform>
XML
  seq -f 'n%g' 0 $(($1 - 1)) >"$place/hosts"
  timeout 600 smpirun -np "$1" -hostfile "$place/hosts" -platform "$place/platform.xml" --cfg=smpi/display-timing:no \
    --cfg=smpi/host-speed:100Gf --cfg=smpi/simulate-computation:no --cfg=smpi/coll-selector:ompi --log=root.thres:error \
    "$place/exchange" "$bytes" 256 2>&1 | awk '/RESULT/ { print $3, $4 }'
}

printf '| nodes | 10 GbE | 25 GbE | 100 GbE | 10 GbE, 16 a rack, 4:1 |\n|--:|--:|--:|--:|--:|\n'
for nodes in 2 3 4 6 8 12 16 24 32 48 64 96 128 256; do
  row="| $nodes |"
  for network in "1.25GBps no" "3.125GBps no" "12.5GBps no" "1.25GBps yes"; do
    read -r bandwidth racks <<<"$network"
    if [ "$racks" = yes ] && { [ "$nodes" -lt 32 ] || [ $((nodes % 16)) -ne 0 ]; }; then
      row="$row |"
      continue
    fi
    read -r ours theirs < <(simulate "$nodes" "$bandwidth" "$racks") || true
    row="$row ${ours:--} / ${theirs:--} |"
  done
  echo "$row"
done
