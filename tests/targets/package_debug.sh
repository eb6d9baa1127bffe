#!/bin/sh
# package_debug.sh DWP PROGRAM SOURCE COMPILER ARG...: PROGRAM with its split debug information in PROGRAM.dwp, and its
# .dwo file gone.
set -eu
dwp=$1 program=$2 source=$(realpath "$3")
shift 3
name=$(basename "$program")
cd "$(dirname "$program")"
"$@" -c -o "$name.o" "$source"
"$@" -o "$name" "$name.o"
"$dwp" -e "$name" -o "$name.dwp"
rm -f "$name.o" "$name.dwo"
