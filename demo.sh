#!/usr/bin/env bash
# Trains a GPT-2-shaped byte-level model on the King James Bible with its state spilled to host memory and
# NVMe: ./demo.sh [--steps N]. Everything it makes is in out/demo.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
# shellcheck source=scripts/setup.sh
source scripts/setup.sh
# shellcheck source=scripts/build.sh
source scripts/build.sh

usage="usage: ./demo.sh [--steps N]"
steps=120
while (($#)); do
  case $1 in
    --steps)
      steps=${2:-}
      shift $(($# > 1 ? 2 : 1))
      ;;
    --steps=*)
      steps=${1#*=}
      shift
      ;;
    -h | --help)
      echo "$usage"
      exit 0
      ;;
    *) die "unknown argument '$1'; $usage" ;;
  esac
done
[[ $steps =~ ^[1-9][0-9]*$ ]] || die "--steps '$steps': found no positive whole number; $usage"

out=out/demo
train_text=$out/kjv.txt
eval_text=$out/kjv-eval.txt

# The text without verse numbers ("Ge1:1 "), a verse a line; its last 5 % of verses kept for evaluation.
extract_text() {
  local whole=$out/kjv-whole.txt lines kept
  bible -f 'Gen1:1-Rev22:21' </dev/null | sed -E 's/^[0-9]?[A-Za-z]+[0-9]+:[0-9]+ //' >"$whole"
  lines=$(wc -l <"$whole")
  ((lines > 30000)) || die "extracting the text with 'bible': found $lines verses, expected 31102"
  kept=$((lines * 95 / 100))
  tail -n "+$((kept + 1))" "$whole" >"$eval_text"
  # Last and by renaming, so that an interrupted run is not taken for a complete one.
  head -n "$kept" "$whole" >"$train_text.part"
  mv "$train_text.part" "$train_text"
  rm "$whole"
}

install_packages build demo
configure build-demo -Dbuildtype=release -Dtests=disabled -Dbench=disabled -Dcuda=disabled
compile build-demo app/spillway

mkdir -p "$out"
rm -rf "$out"/step-* # what an earlier demo has saved: this one starts afresh
if [[ ! -s $train_text || ! -s $eval_text ]]; then extract_text; fi

build-demo/app/spillway train --config configs/demo.json --model gpt2-10m --data "$train_text" \
  --eval-data "$eval_text" --steps "$steps" --out "$out" --metrics "$out/metrics.jsonl" \
  --trace "$out/trace.json" --summary "$out/summary.json"

echo "The trace opens at https://ui.perfetto.dev; run ./demo.sh --steps 500 to see it learn more."
