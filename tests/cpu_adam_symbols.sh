#!/bin/sh
# A library built for one instruction set must define one external symbol, the entry point of its kernels.
# Anything else, a weak inline function above all, could be linked into code that runs on every CPU.
#   cpu_adam_symbols.sh LIBRARY
set -eu

symbols=$(nm --extern-only --defined-only "$1" | awk 'NF == 3 { print $2, $3 }')
others=$(printf '%s\n' "$symbols" | grep -v -E '^T _ZN8spillway8cpu_adam[0-9]+[a-z0-9]+_kernelsE' || true)
count=$(printf '%s\n' "$symbols" | grep -c . || true)

if [ "$count" -ne 1 ] || [ -n "$others" ]; then
  echo "$1: expected one external symbol, spillway::cpu_adam::*_kernels; found $count:"
  printf '%s\n' "$symbols"
  exit 1
fi
echo "$1: $symbols"
