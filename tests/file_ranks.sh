#!/usr/bin/env bash
# Starts a program as N ranks that meet at a file, without MPI: file_ranks.sh N PROGRAM ARGUMENT... Ends with the first
# status that is not 0, when all have ended.
set -euo pipefail
ranks=$1
shift
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export SPILLWAY_RENDEZVOUS=$folder/ranks WORLD_SIZE=$ranks
# A test that is told how many ranks there are can tell that they found each other.
export SPILLWAY_TEST_RANKS=$ranks
started=()
trap 'kill "${started[@]}" 2>/dev/null || true' TERM INT
for ((rank = 0; rank < ranks; ++rank)); do
  RANK=$rank "$@" &
  started+=($!)
done
result=0
for pid in "${started[@]}"; do
  status=0
  # A signal of our own interrupts waiting.
  while wait "$pid" || status=$?; ((status > 128)) && kill -0 "$pid" 2>/dev/null; do status=0; done
  if ((result == 0)); then result=$status; fi
done
if [[ -n $(ls "$folder") ]]; then
  echo "left behind: $(ls "$folder")" >&2
  result=1
fi
exit "$result"
