#!/bin/sh
# gemm_support.sh PROGRAM TABLE: what the program prints are the lines of the table.
SPILLWAY_LOG=error "$1" | sort >"$PWD/gemm_support.$$" || exit 1
grep -v '^#' "$2" | sort | diff - "$PWD/gemm_support.$$"
status=$?
rm -f "$PWD/gemm_support.$$"
exit $status
