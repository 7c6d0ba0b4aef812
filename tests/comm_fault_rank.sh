#!/usr/bin/env bash
# Started by mpirun or file_ranks.sh as each rank: comm_fault_rank.sh FOLDER PROGRAM ARGUMENT... Runs the program and keeps
# in FOLDER what it writes on standard error (RANK.err) and its status (RANK.status). The rank of NEVER_STARTS does not run it.
folder=$1 rank=${OMPI_COMM_WORLD_RANK:-$RANK}
shift
if [[ ${NEVER_STARTS:-} == "$rank" ]]; then exec sleep 30; fi
# Outlives mpirun's SIGTERM, to tell how the program ended.
trap : TERM
"$@" 2>"$folder/$rank.err"
status=$?
echo "$status" >"$folder/$rank.status"
# mpirun is to see how it ended, too.
if ((status > 128)); then kill -s $((status - 128)) $$; fi
exit "$status"
