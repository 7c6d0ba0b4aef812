#!/usr/bin/env bash
# The King James Bible as text to train on: scripts/kjv_text.sh TRAIN EVALUATION. Verse numbers ("Ge1:1 ") are left out, a verse a
# line; the last 5 % of verses are for evaluation. Does nothing if both files are there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/setup.sh
source scripts/setup.sh

if (($# != 2)); then die "usage: $0 TRAIN EVALUATION"; fi
train_text=$1 eval_text=$2
if [[ -s $train_text && -s $eval_text ]]; then exit 0; fi

install_packages demo
mkdir -p "$(dirname "$train_text")" "$(dirname "$eval_text")"
whole=$train_text.whole
bible -f 'Gen1:1-Rev22:21' </dev/null | sed -E 's/^[0-9]?[A-Za-z]+[0-9]+:[0-9]+ //' >"$whole"
lines=$(wc -l <"$whole")
((lines > 30000)) || die "extracting the text with 'bible': found $lines verses, expected 31102"
kept=$((lines * 95 / 100))
tail -n "+$((kept + 1))" "$whole" >"$eval_text"
# Last and by renaming, so that an interrupted run is not taken for a complete one.
head -n "$kept" "$whole" >"$train_text.part"
mv "$train_text.part" "$train_text"
rm "$whole"
