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

install_packages build demo
configure build-demo -Dbuildtype=release -Dtests=disabled -Dbench=disabled -Dcuda=disabled
compile build-demo app/spillway

mkdir -p "$out"
rm -rf "$out"/step-* # what an earlier demo has saved: this one starts afresh
scripts/kjv_text.sh "$train_text" "$eval_text"

build-demo/app/spillway train --config configs/demo.json --model gpt2-10m --data "$train_text" \
  --eval-data "$eval_text" --steps "$steps" --out "$out" --metrics "$out/metrics.jsonl" \
  --trace "$out/trace.json" --summary "$out/summary.json"

echo "The trace opens at https://ui.perfetto.dev; run ./demo.sh --steps 500 to see it learn more."
