#!/bin/sh
# Compiles a kernel: nvcc.sh REPORT COMMAND...; what ptxas says of registers and shared memory goes into REPORT, everything
# else to standard error.
report=$1
shift
if "$@" 2>"$report.stderr"; then status=0; else status=$?; fi
grep -E '^(ptxas info|[[:space:]]+[0-9]+ bytes stack frame)' "$report.stderr" >"$report"
grep -vE '^(ptxas info|[[:space:]]+[0-9]+ bytes stack frame)' "$report.stderr" >&2
rm -f "$report.stderr"
exit "$status"
