#!/usr/bin/env bash
# Starts a program as N ranks on this machine, however few cores it has: mpirun.sh N PROGRAM ARGUMENT...
set -euo pipefail
ranks=$1
shift
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# A test that is told how many ranks there are can tell that they found each other.
export SPILLWAY_TEST_RANKS=$ranks
exec mpirun --oversubscribe --bind-to none -n "$ranks" "$@"
