#!/usr/bin/env bash
# Builds and runs the tests: ./test.sh [--suite NAME]. Without a name: every suite, then the fast one again
# under AddressSanitizer + UBSan (asan) and under ThreadSanitizer (tsan).
# The last line is "N passed, N failed, N skipped"; GoogleTest cases count one each. Status 1 if any failed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
# shellcheck source=scripts/setup.sh
source scripts/setup.sh
# shellcheck source=scripts/build.sh
source scripts/build.sh

usage="usage: ./test.sh [--suite NAME]"
suite=all
while (($#)); do
  case $1 in
    --suite)
      suite=${2:-}
      [[ -n $suite ]] || die "--suite needs a name; $usage"
      shift 2
      ;;
    --suite=*)
      suite=${1#*=}
      [[ -n $suite ]] || die "--suite needs a name; $usage"
      shift
      ;;
    -h | --help)
      echo "$usage"
      exit 0
      ;;
    *) die "unknown argument '$1'; $usage" ;;
  esac
done

python=/usr/bin/python3
passed=0 failed=0 skipped=0

# Assertions stay on in the plain build: b_ndebug=false.
plain_options=(-Dbuildtype=release -Db_ndebug=false -Db_sanitize=none -Dwerror=true -Dtests=enabled)
# The sanitizers need line numbers in their reports (-g1), not a debugger's full information. Warnings are
# errors in the plain build only: instrumented code makes GCC see uninitialised values that are none.
sanitizer_options=(-Doptimization=1 -Ddebug=false -Db_ndebug=false -Db_lundef=false
  -Dwerror=false '-Dcpp_args=-g1 -fno-omit-frame-pointer' -Dtests=enabled -Dbench=disabled)

# The suites that tests name themselves; a no_ one only marks where a test is not to run.
declared_suites() {
  meson introspect build --tests | "$python" -c '
import json, sys
names = {suite.split(":")[-1] for test in json.load(sys.stdin) for suite in test["suite"]}
print("\n".join(sorted(name for name in names if name and not name.startswith("no_"))))'
}

# needed_targets FOLDER SUITE EXCLUDED: what the tests of the suite, less those of the other, run.
needed_targets() {
  meson introspect "$1" --tests --targets | "$python" -c '
import json, os, sys
folder, wanted, unwanted = sys.argv[1:]
known = json.load(sys.stdin)
files = {target["id"]: target["filename"] for target in known["targets"]}
needed = set()
for test in known["tests"]:
    suites = {suite.split(":")[-1] for suite in test["suite"]}
    if wanted in suites and unwanted not in suites:
        needed.update(name for target in test["depends"] for name in files[target])
print("\n".join(sorted(os.path.relpath(name, folder) for name in needed)))' "$1" "$2" "$3"
}

# run_tests FOLDER [TARGET...] -- ARGUMENT...: compiles the targets (none: all), runs `meson test ARGUMENT...` there, adds to
# the counts. Whatever keeps the tests from running counts as one failure.
run_tests() {
  local folder=$1 status=0 counts=(0 1 0) targets=()
  shift
  while [[ $1 != -- ]]; do
    targets+=("$1")
    shift
  done
  shift
  say "== $folder: compiling"
  if compile "$folder" "${targets[@]}"; then
    say "== $folder: testing"
    # What an earlier run left must not be counted: Meson reads a crashed test's old report.
    rm -f "$folder"/*.xml "$folder"/meson-logs/testlog*
    "${runner[@]}" meson test -C "$folder" --no-rebuild "$@" || status=$?
    if [[ -f $folder/meson-logs/testlog.json ]] &&
      "$python" scripts/test_report.py "$folder" "$folder/meson-logs/counts"; then
      read -ra counts <"$folder/meson-logs/counts"
      if ((status != 0 && counts[1] == 0)); then
        say "meson test in $folder ended with status $status though no test failed"
        counts[1]=1
      fi
    else
      say "no test ran in $folder (meson test ended with status $status)"
    fi
  fi
  passed=$((passed + counts[0])) failed=$((failed + counts[1])) skipped=$((skipped + counts[2]))
}

# run_sanitizer NAME SANITIZERS
run_sanitizer() {
  if configure "build-$1" "${sanitizer_options[@]}" "-Db_sanitize=$2"; then
    local targets
    mapfile -t targets < <(needed_targets "build-$1" fast "no_$1")
    run_tests "build-$1" "${targets[@]}" -- --suite fast --no-suite "no_$1" --timeout-multiplier 5
  else
    failed=$((failed + 1))
  fi
}

run_plain() {
  local names
  if ! configure build "${plain_options[@]}"; then
    failed=$((failed + 1))
    return
  fi
  if [[ $1 == all ]]; then
    run_tests build --
    return
  fi
  names=$(declared_suites)
  grep -qxF -- "$1" <<<"$names" ||
    die "no suite '$1'; there are: $(paste -sd, - <<<"$names"$'\nasan\ntsan' | sed 's/,/, /g')"
  run_tests build -- --suite "$1"
}

run_asan() {
  export ASAN_OPTIONS=halt_on_error=1:detect_stack_use_after_return=1:strict_string_checks=1
  export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
  run_sanitizer asan address,undefined
}

run_tsan() {
  export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1
  # GCC 12's runtime does not start under the wide address randomisation of newer kernels. Containers may
  # forbid turning it off; then it is tried as it is.
  if setarch -R true 2>/dev/null; then runner=(setarch -R); fi
  run_sanitizer tsan thread
  runner=()
}

runner=()
install_packages build test
case $suite in
  all)
    run_plain all
    run_asan
    run_tsan
    ;;
  asan) run_asan ;;
  tsan) run_tsan ;;
  *) run_plain "$suite" ;;
esac

echo "$passed passed, $failed failed, $skipped skipped"
((failed == 0))
