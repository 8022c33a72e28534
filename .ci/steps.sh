# Runs and times steps, and counts passed and skipped checks; sourced by .ci/run with the names of the steps to run, or none for
# all.
#
#   step NAME TEXT COMMAND..    runs the command, prints its log or a summary of its tests, ends the script if it fails or if its
#                               tests are none
#   finish                      prints the table of times and the last line
#
# A check is a test, a check that a script counts in a line `N passed, M failed, K skipped`, or a step that has neither. Each
# ignored test counts as skipped, and so does each line that begins with SKIPPED, unless its script counts them itself.

steps_log=$(mktemp -d)
trap 'rm -rf "$steps_log"' EXIT
steps=0
table=()
wanted=("$@")

# Sets `used` to the CPU seconds of all finished commands. Not to be called in a subshell: `times` counts the children of the
# calling shell only.
count_processor_time() {
  times >"$steps_log/times"
  used=$(awk 'NR == 2 { for (i = 1; i <= 2; i++) { split($i, t, /[ms]/); sum += 60 * t[1] + t[2] } printf "%.0f", sum }' \
    "$steps_log/times")
}

step() {
  local name=$2 log started=$SECONDS before status=0
  [ ${#wanted[@]} -eq 0 ] || [[ " ${wanted[*]} " == *" $1 "* ]] || return 0
  shift 2
  steps=$((steps + 1))
  log=$steps_log/$(printf '%02d' "$steps").log
  count_processor_time
  before=$used
  printf '\n== %s\n' "$name"
  "$@" >"$log" 2>&1 || status=$?
  if [ "$status" -ne 0 ]; then
    cat "$log"
    printf '\nFAILED: %s, exit code %d\n' "$name" "$status"
    exit 1
  fi
  # The output of tests is long: print only the totals and the SKIPPED lines.
  if grep -qa '^test result:' "$log"; then
    if ! grep -qaE '^test result: .* [1-9][0-9]* passed' "$log"; then
      printf 'FAILED: %s: no test ran; the tests were renamed or are ignored\n' "$name"
      exit 1
    fi
    grep -aE '^test result: .* [1-9][0-9]* passed|^ *(Running|Doc-tests) ' "$log" |
      awk '/Running|Doc-tests/ { name = $0; next } { print name; print }' || true
    grep -aE '^SKIPPED' "$log" | sort | uniq -c || true
  else
    cat "$log"
  fi
  # awk in `finish` does not count an empty log.
  echo "done: $name" >>"$log"
  count_processor_time
  table+=("$(printf '%6d s wall %6d s CPU   %s' $((SECONDS - started)) $((used - before)) "$name")")
  printf -- '-- %s' "${table[-1]}"$'\n'
}

# Prints the table of times, the counts of passed and skipped checks and the reasons.
finish() {
  if [ "$steps" -eq 0 ] || [ "$steps" -lt ${#wanted[@]} ]; then
    echo "error: unknown step among: ${wanted[*]}; expected words after \`step\` in .ci/run" >&2
    exit 64
  fi
  printf '\n'
  printf '%s\n' "${table[@]}"
  printf '\n'
  count_processor_time
  awk -v wall="$SECONDS" -v used="$used" '
    function close_step() { if (file != "" && !counted) passed++; counted = 0 }
    FNR == 1 { close_step(); file = FILENAME }
    /^test result: ok/ { passed += $4; counted = 1 }
    /^test .* \.\.\. ignored/ {
      reason = $0
      sub(/^test .* \.\.\. ignored,? */, "", reason)
      reasons["ignored test: " reason]++
      skipped++
    }
    /[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$/ {
      match($0, /[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$/)
      split(substr($0, RSTART), words, " ")
      passed += words[1]
      # The script counts its SKIPPED lines itself, since one may cover several checks.
      skipped += words[5]
      of_script[FILENAME] = words[5]
      counted = 1
    }
    /^SKIPPED/ {
      reason = $0
      sub(/^SKIPPED:? */, "", reason)
      reasons[reason]++
      lines[FILENAME]++
    }
    END {
      close_step()
      for (f in lines) if (!(f in of_script)) skipped += lines[f]
      printf "%d checks passed, %d skipped", passed, skipped
      separator = ": "
      for (reason in reasons) {
        printf "%s%s%s", separator, (reasons[reason] > 1 ? reasons[reason] " x " : ""), reason
        separator = "; "
      }
      printf " (%d s wall, %d s CPU)\n", wall, used
    }' "$steps_log"/*.log
}
