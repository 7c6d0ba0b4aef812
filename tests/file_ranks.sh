#!/usr/bin/env bash
# Starts a program as N ranks that meet at a file, without MPI: file_ranks.sh N PROGRAM ARGUMENT... Ends when all have ended,
# with the first status that is not 0; told to end, ends them.
set -euo pipefail
ranks=$1
shift
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export SPILLWAY_RENDEZVOUS=$folder/ranks WORLD_SIZE=$ranks
# A test that is told how many ranks there are can tell that they found each other.
export SPILLWAY_TEST_RANKS=$ranks
set -m # each rank has a process group of its own, with whatever it starts
started=()
for ((rank = 0; rank < ranks; ++rank)); do
  RANK=$rank "$@" &
  started+=($!)
done
# Also those that are stopped.
trap 'for pid in "${started[@]}"; do kill -KILL -- "-$pid" 2>/dev/null || true; done' TERM INT
result=0
for pid in "${started[@]}"; do
  status=0
  wait -f "$pid" || status=$?
  # The trap interrupts waiting.
  while kill -0 "$pid" 2>/dev/null; do wait -f "$pid" || status=$?; done
  if ((result == 0)); then result=$status; fi
done
if [[ -n $(ls "$folder") ]]; then
  echo "left behind: $(ls "$folder")" >&2
  result=1
fi
exit "$result"
