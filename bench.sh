#!/usr/bin/env bash
# Builds optimised and runs one benchmark: ./bench.sh SUBJECT [--quick]. The last line is one JSON object.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
# shellcheck source=scripts/setup.sh
source scripts/setup.sh
# shellcheck source=scripts/build.sh
source scripts/build.sh

subjects() {
  local file name names=()
  for file in bench/*_bench.cpp bench/*_bench.py; do
    if [[ -f $file ]]; then
      name=${file#bench/}
      names+=("${name%_bench.*}")
    fi
  done
  echo "${names[*]:-none yet}"
}

usage() { echo "usage: ./bench.sh SUBJECT [--quick]; subjects: $(subjects)"; }

subject='' arguments=(--json)
for argument in "$@"; do
  case $argument in
    --quick) arguments+=(--quick) ;;
    -h | --help)
      usage
      exit 0
      ;;
    -*) die "unknown option '$argument'; $(usage)" ;;
    *)
      [[ -z $subject ]] || die "one subject at a time; $(usage)"
      subject=$argument
      ;;
  esac
done
[[ -n $subject ]] || die "which subject? $(usage)"
[[ $subject =~ ^[a-z0-9_]+$ && (-f bench/${subject}_bench.cpp || -f bench/${subject}_bench.py) ]] || die "no subject '$subject'; $(usage)"
# A benchmark in Python runs the program that it names, or Spillway as its user does.
if [[ -f bench/${subject}_bench.py ]]; then
  target=$(sed -n 's/^PROGRAM = "\(.*\)"$/\1/p' "bench/${subject}_bench.py")
  target=${target:-app/spillway}
  command=(/usr/bin/python3 "bench/${subject}_bench.py" "build-bench/$target")
else
  target=bench/${subject}_bench
  command=("build-bench/$target")
fi

install_packages build bench
configure build-bench -Dbuildtype=release -Dtests=disabled -Dbench=enabled
compile build-bench "$target"

mkdir -p out/bench
output=out/bench/$subject.txt
"${command[@]}" "${arguments[@]}" | tee "$output"
tail -n 1 "$output" | /usr/bin/python3 -c '
import json, sys
try:
    good = isinstance(json.load(sys.stdin), dict)
except ValueError:
    good = False
sys.exit(0 if good else 1)' || die "${subject}_bench ended without a JSON object on its last line"
