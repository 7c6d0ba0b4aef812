#!/bin/sh
# include_source.sh INPUT OUTPUT: makes a C++ file of a .cu file, for a build system that knows no compiler for those.
printf '#include "%s"\n' "$(realpath "$1")" >"$2"
