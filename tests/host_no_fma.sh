#!/bin/sh
# The clones of a kernel for different instruction sets give the same bits only if none of them fuses a
# multiplication with an addition. Argument: the library.
set -eu
listing=$(objdump -d --no-show-raw-insn "$1")
printf '%s\n' "$listing" | grep -q '%zmm' || { echo "no AVX-512 clone in $1: nothing was checked"; exit 77; }
if fused=$(printf '%s\n' "$listing" | grep -E 'vfn?m(add|sub)'); then
  echo "fused multiply-adds in $1:"
  printf '%s\n' "$fused" | head -20
  exit 1
fi
