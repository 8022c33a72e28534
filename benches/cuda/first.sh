#!/usr/bin/env bash
# Correctness, speed and training on a GPU, on a machine without a toolchain, in calls of minutes.
#
#   first.sh [OPTION..] OUT [PART..]
#
# Runs from the folder that package.sh creates. Results are appended to files in OUT as they arrive, so that an interrupted call
# loses only the current case. Each operation runs in its own process with a time limit; after a case that
# hangs or crashes a new process continues.
#
#   PART         file           what (all in this order if none is named)
#   speeds       speeds.tsv     products, attention, encoder layers at ALBERT's sizes
#   cases        cases.tsv      each case of each operation against its f64 reference; cases=gemm,softmax for some
#   training     training.txt   200 steps of base on the GPU and on the processor from one seed; tokens per second; the profile
#                               of a step
#   sanitizer    tools.txt      compute-sanitizer over the cheapest cases, if installed
#   counters     tools.txt      Nsight Compute on two products, if installed
#   peers        peers.md       cuBLAS, cuDNN, FlashAttention and PyTorch on the work of speeds, if installed
#
# machine.txt, log.txt (all output) and summary.txt (a line for each step) are written by every call.
#
#   --minutes N              time for the whole call (9); each part gets a share of what is left
#   --device NAME            cuda, cuda:N; cuda-sim:90 with --small for a rehearsal without a GPU (cuda)
#   --patience SECONDS       a case or a speed that takes longer has hung (30)
#   --small                  sizes for a simulated GPU
#   --rehearse FAULT=WORK:N  plants hang, crash, fault or wrong in a simulated GPU (see cuda_suite --help)
#   --programs DIR           where cuda_suite and albert are (this folder)
#
# Exit code: 0 everything that ran passed; 1 a case failed or losses differ too much; 2 there is no GPU, nothing ran; 3 something
# hung, crashed or was cut off by the time limit (takes precedence over 1); 64 wrong usage. A part that cannot run on the
# machine (a tool that is not installed or rejects the device) is SKIPPED and does not change the exit code.
set -uo pipefail

here=$(cd "$(dirname "$0")" && pwd)
programs=$here minutes=9 device=cuda patience=30 small='' planted=()
usage() {
  echo "error: $1; see the head of $0" >&2
  exit 64
}
while [ $# -gt 0 ] && [[ $1 == --* ]]; do
  [ "$1" = --small ] || [ $# -ge 2 ] || usage "$1 needs a value"
  case $1 in
  --minutes) minutes=$2 && shift ;;
  --device) device=$2 && shift ;;
  --patience) patience=$2 && shift ;;
  --small) small=--small ;;
  --rehearse) planted+=(--rehearse "$2") && shift ;;
  --programs) programs=$2 && shift ;;
  *) usage "unknown option $1" ;;
  esac
  shift
done
[ $# -ge 1 ] || usage "the folder for results is missing"
[[ $minutes =~ ^[0-9]+(\.[0-9]+)?$ ]] || usage "--minutes $minutes: expected a number"
[[ $patience =~ ^[0-9]+$ ]] || usage "--patience $patience: expected whole seconds"
out=$1
shift
parts=("$@")
[ $# -gt 0 ] || parts=(speeds cases training sanitizer counters peers)
# Shares of the time.
declare -A weights=([speeds]=3 [cases]=4 [training]=5 [sanitizer]=2 [counters]=1 [peers]=3)
for part in "${parts[@]}"; do
  [ -n "${weights[${part%%=*}]:-}" ] || usage "unknown part $part; expected one of: ${!weights[*]}"
done
suite=$programs/cuda_suite albert=$programs/albert
[ -x "$suite" ] || usage "$suite is missing; benches/cuda/package.sh makes the folder"
mkdir -p "$out" || exit 64
log=$out/log.txt
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Some seconds are for the processes that have to be killed at the end.
deadline=$(awk -v minutes="$minutes" 'BEGIN { printf "%d", 60 * minutes - 8 }')
part_end=$deadline
failed=0 broken=0

# --- time and results ---
room() {
  local end=$((part_end < deadline ? part_end : deadline))
  echo $((end - SECONDS))
}
# limited SECONDS COMMAND..: with the time that is left at most; 124 if there is none.
limited() {
  local limit=$1 left
  shift
  left=$(room)
  [ "$left" -ge 2 ] || return 124
  timeout --kill-after=5 $((limit < left ? limit : left)) "$@"
}
# note WORD STEP SECONDS TEXT: a line of the summary. FAILED, HUNG, CRASHED and CUT decide the exit code.
note() {
  case $1 in
  FAILED) failed=1 ;;
  HUNG | CRASHED | CUT) broken=1 ;;
  esac
  printf '%-8s %-24s %4d s  %s\n' "$1" "$2" "$3" "$4" | tee -a "$out/summary.txt"
}

# --- work with numbers: cases and speeds ---
# unfinished FILE: whether its last line has no end.
unfinished() {
  [ -s "$1" ] && [ -n "$(tail -c 1 "$1")" ]
}
# walk PART WORK FILE OPTION..: the suite over one operation. A new process continues behind work that hangs or crashes.
walk() {
  local part=$1 name=$2 file=$out/$3 started=$SECONDS from=1 restarts=0 word=passed reason='' code before counts last number
  shift 3
  touch "$file"
  before=$(wc -l <"$file")
  while :; do
    limited 100000 "$suite" --device "$device" --only "$name" --from "$from" --journal "$file" --patience "$patience" \
      $small "${planted[@]}" "$@" >>"$log" 2>&1
    code=$?
    case $code in
    0) break ;;
    1)
      [ "$word" = passed ] && word=FAILED
      break
      ;;
    3) word=CRASHED reason="the device was lost" ;;
    4) word=HUNG reason="no end after $patience s" ;;
    124 | 137) word=CUT reason="out of time" ;;
    *) word=CRASHED reason="exit code $code" ;;
    esac
    if unfinished "$file"; then
      printf '\t%s\t\t\t%s\n' "${word,,}" "$reason" >>"$file"
    fi
    [ "$word" != CUT ] || break
    IFS=$'\t' read -r last number _ < <(tail -n 1 "$file") || true
    if [ "$last" != "$name" ] || [ "$number" -lt "$from" ]; then
      reason="$reason, before the first piece of work"
      break
    fi
    reason="$reason in number $number"
    restarts=$((restarts + 1))
    if [ $restarts -gt 3 ]; then
      reason="$reason, for the fourth time: the rest was not run"
      break
    fi
    from=$((number + 1))
  done
  counts=$(tail -n +$((before + 1)) "$file" | awk -F '\t' '
    { if (!($4 in count)) order[++kinds] = $4; count[$4]++; if ($4 == "passed" && $5 + 0 > worst) worst = $5 + 0 }
    END {
      for (i = 1; i <= kinds; i++) printf "%s%d %s", (i > 1 ? ", " : ""), count[order[i]], order[i]
      if ("passed" in count) printf "; largest error %.2f of its bound", worst
    }')
  note "$word" "$part $name" $((SECONDS - started)) "${counts:-nothing ran}${reason:+; $reason}"
}
speeds() {
  for kind in gemm attention encoder; do
    walk speeds "$kind" speeds.tsv --no-cases
  done
}
# cases [WORDS]: of the operations named, separated by commas; of all if there are none.
cases() {
  local names
  names=${1:-$("$suite" --list | paste -sd,)}
  for name in ${names//,/ }; do
    walk cases "$name" cases.tsv --no-speed
  done
}

# --- training ---
# pretrain NAME DEVICE SECONDS SETTING..: a run of base from one seed. Its losses are in $work/NAME/metrics.jsonl.
pretrain() {
  local name=$1 where=$2 seconds=$3
  shift 3
  local tiny=()
  if [ -n "$small" ]; then
    tiny=(model.hidden_size=32 model.intermediate_size=64 model.embedding_size=16 model.num_hidden_layers=1
      model.num_attention_heads=1 data.evaluation.max_sequences=1)
  fi
  limited "$seconds" "$albert" pretrain base --device "$where" --data "$here/data/shards" \
    --tokenizer "$here/data/tokenizer.json" --output "$work/$name" optimizer.kind=adamw optimizer.learning_rate=0.0002 \
    optimizer.bias_correction=true schedule.kind=smooth run.checkpoint_interval=0 evaluation.interval=0 \
    data.evaluation.max_sequences=8 data.batch.max_sequences=512 data.batch.lanes=1 "${tiny[@]}" "$@" >"$work/$name.log" 2>&1
}
# word STATUS: of a run that did not end well.
word() {
  case $1 in
  124 | 137) echo CUT ;;
  *) echo CRASHED ;;
  esac
}
# lengths S B: settings for batches of B sequences of S tokens.
lengths() {
  echo "data.instances.max_sequence_length=$1 data.batch.sequences_per_step=$2 data.batch.max_tokens=$(($1 * $2))"
}
# parity: the same steps on the GPU in bf16, on the processor in bf16 and in f32, side by side. Runs that are cut off are
# compared as far as they came.
parity() {
  local started=$SECONDS threads run where status settings worst=0
  local -A runs=()
  if [ -n "$small" ]; then
    settings="$(lengths 16 2) schedule.steps=20 schedule.warmup_steps=2"
  else
    settings="$(lengths 128 8) schedule.steps=200 schedule.warmup_steps=20"
  fi
  threads=$((($(nproc) + 1) / 2))
  for run in gpu-bf16 cpu-bf16 cpu-f32; do
    where=cpu
    [ "${run%-*}" = cpu ] || where=$device
    # shellcheck disable=SC2086 # one word a setting
    ALBERT_THREADS=$threads pretrain "$run" "$where" $(($(room) * 2 / 3)) run.log_interval=1 \
      compute.precision="${run#*-}" $settings &
    runs[$run]=$!
  done
  for run in gpu-bf16 cpu-bf16 cpu-f32; do
    wait "${runs[$run]}" 2>/dev/null
    status=$?
    [ $status -eq 0 ] || worst=$status
    cat "$work/$run.log" >>"$log"
    printf '%s, exit code %d: %s\n' "$run" $status "$(tail -n 1 "$work/$run.log")" >>"$out/training.txt"
  done
  "$suite" --losses "$work"/{cpu-f32,cpu-bf16,gpu-bf16}/metrics.jsonl >"$work/losses.txt" 2>&1
  status=$?
  cat "$work/losses.txt" >>"$out/training.txt"
  case $status in
  0) note passed "training losses" $((SECONDS - started)) "$(grep '^all' "$work/losses.txt")" ;;
  1) note FAILED "training losses" $((SECONDS - started)) "$(grep '^all' "$work/losses.txt")" ;;
  *) note "$(word $worst)" "training losses" $((SECONDS - started)) "$(tail -n 1 "$work/losses.txt")" ;;
  esac
}
# speed_of RUN STEPS: tokens per second, the median of the second half of its steps.
speed_of() {
  sed -n 's/.*"kind":"train".*"tokens_per_second":\([0-9.e+]*\).*/\1/p' "$work/$1/metrics.jsonl" |
    tail -n $((($2 + 1) / 2)) | sort -g | awk '{ x[NR] = $1 } END { printf "%.0f", x[int((NR + 1) / 2)] }'
}
# throughput S B STEPS: tokens per second.
throughput() {
  local started=$SECONDS settings run=speed-$1-$2 status line="base $2x$1:"
  settings="$(lengths "$1" "$2") schedule.steps=$3 schedule.warmup_steps=1"
  # shellcheck disable=SC2086 # one word a setting
  pretrain "$run" "$device" 60 run.log_interval=1 compute.precision=bf16 $settings
  status=$?
  cat "$work/$run.log" >>"$log"
  if [ $status -ne 0 ]; then
    note "$(word $status)" "training speed" $((SECONDS - started)) "$line $(tail -n 1 "$work/$run.log")"
    return
  fi
  line="$line $(speed_of "$run" "$3") tokens/s"
  echo "$line" >>"$out/training.txt"
  note passed "training speed" $((SECONDS - started)) "$line"
}
profile() {
  local started=$SECONDS settings status
  settings="$(lengths "$1" "$2") schedule.steps=$3 schedule.warmup_steps=1"
  # shellcheck disable=SC2086 # one word a setting
  pretrain profile "$device" 60 compute.precision=bf16 $settings --profile
  status=$?
  { echo "profile of $3 steps, base $2x$1:" && cat "$work/profile.log"; } >>"$out/training.txt"
  if [ $status -eq 0 ]; then
    note passed "training profile" $((SECONDS - started)) "base $2x$1"
  else
    note "$(word $status)" "training profile" $((SECONDS - started)) "$(tail -n 1 "$work/profile.log")"
  fi
}
training() {
  if ! [ -x "$albert" ] || ! [ -d "$here/data/shards" ]; then
    note SKIPPED training 0 "there is no albert or no data beside this script; package.sh brings both"
    return
  fi
  parity
  if [ -n "$small" ]; then
    throughput 16 2 2
    profile 16 2 2
  else
    throughput 512 64 20
    throughput 128 256 20
    throughput 512 1 40
    profile 512 64 30
  fi
}

# --- tools of the vendor ---
sanitizer() {
  local tool name started status line
  if ! command -v compute-sanitizer >/dev/null; then
    note SKIPPED sanitizer 0 "compute-sanitizer is not installed"
    return
  fi
  for name in gemm attention cross_entropy softmax dropout; do
    for tool in memcheck racecheck synccheck; do
      started=$SECONDS
      limited 90 compute-sanitizer --tool "$tool" --error-exitcode 99 --print-limit 20 "$suite" --device "$device" \
        --only "$name" --cheapest 3 --no-speed --patience 80 >"$work/sanitizer.log" 2>&1
      status=$?
      { echo "== $tool $name: exit code $status" && tail -n 40 "$work/sanitizer.log"; } >>"$out/tools.txt"
      line=$(grep -E 'Error|ERROR|error' "$work/sanitizer.log" | tail -n 1)
      case $status in
      0) note passed "$tool $name" $((SECONDS - started)) clean ;;
      99) note FAILED "$tool $name" $((SECONDS - started)) "$line" ;;
      124 | 137) note SKIPPED "$tool $name" $((SECONDS - started)) "out of time" ;;
      # The tool does not work here, or the suite failed under it: neither is a finding.
      *) note SKIPPED "$tool $name" $((SECONDS - started)) "exit code $status: $line" ;;
      esac
    done
  done
}
counters() {
  local number started status
  if ! command -v ncu >/dev/null; then
    note SKIPPED counters 0 "Nsight Compute is not installed"
    return
  fi
  for number in 1 5; do
    started=$SECONDS
    limited 60 ncu --clock-control none --kernel-name regex:gemm --launch-skip 2 --launch-count 1 --kill yes --metrics \
      gpu__time_duration.sum,lts__t_bytes.sum,dram__bytes.sum,sm__inst_executed_pipe_tensor.sum "$suite" --device "$device" \
      --only gemm --from "$number" --no-cases --patience 60 $small >"$work/counters.log" 2>&1
    status=$?
    cat "$work/counters.log" >>"$out/tools.txt"
    if grep -q 'gpu__time_duration' "$work/counters.log"; then
      note passed "counters gemm $number" $((SECONDS - started)) "in tools.txt"
    else
      note SKIPPED "counters gemm $number" $((SECONDS - started)) "exit code $status: $(tail -n 1 "$work/counters.log")"
    fi
  done
}
peers() {
  local started=$SECONDS status
  if ! command -v python3 >/dev/null; then
    note SKIPPED peers 0 "python3 is not installed"
    return
  fi
  "$suite" --list-speeds $small >"$work/names.txt"
  limited 100000 python3 "$here/peers.py" "$work/names.txt" "$out/speeds.tsv" "$out/peers.md" >"$work/peers.log" 2>&1
  status=$?
  cat "$work/peers.log" >>"$log"
  case $status in
  0) note passed peers $((SECONDS - started)) "in peers.md" ;;
  5) note SKIPPED peers $((SECONDS - started)) "$(tail -n 1 "$work/peers.log")" ;;
  124 | 137) note CUT peers $((SECONDS - started)) "out of time: $(grep -c '^| [a-z]* ' "$out/peers.md" || true) lines" ;;
  *) note CRASHED peers $((SECONDS - started)) "exit code $status: $(tail -n 1 "$work/peers.log")" ;;
  esac
}

# --- the machine ---
{
  date -u +%FT%TZ
  uname -srm
  nvidia-smi 2>&1 || true
  for program in "$suite" "$albert"; do
    [ ! -x "$program" ] || ldd "$program" 2>&1 | tee -a "$work/libraries.txt"
  done
  [ ! -x "$albert" ] || timeout 60 "$albert" doctor
} >>"$out/machine.txt" 2>&1
if missing=$(grep 'not found' "$work/libraries.txt"); then
  note CRASHED machine $SECONDS "the programs lack libraries: $missing"
  exit 3
fi
timeout 60 "$suite" --device "$device" --no-cases --no-speed >"$work/device.log" 2>&1
status=$?
cat "$work/device.log" >>"$log"
case $status in
0) note passed machine $SECONDS "$(tail -n 1 "$work/device.log")" ;;
2)
  note SKIPPED machine $SECONDS "$(tail -n 1 "$work/device.log")"
  exit 2
  ;;
64) usage "$(tail -n 1 "$work/device.log")" ;;
*)
  note CRASHED machine $SECONDS "exit code $status: $(tail -n 1 "$work/device.log")"
  exit 3
  ;;
esac

# --- part by part ---
rest=0
for part in "${parts[@]}"; do
  rest=$((rest + ${weights[${part%%=*}]}))
done
for part in "${parts[@]}"; do
  weight=${weights[${part%%=*}]}
  part_end=$((SECONDS + (deadline - SECONDS) * weight / rest))
  rest=$((rest - weight))
  words=${part#"${part%%=*}"}
  "${part%%=*}" ${words:+"${words#=}"}
done
code=0
[ $failed -eq 0 ] || code=1
[ $broken -eq 0 ] || code=3
echo "exit code $code after $SECONDS s; results are in $out" | tee -a "$out/summary.txt"
exit $code
