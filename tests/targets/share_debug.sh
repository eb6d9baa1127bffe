#!/bin/sh
# share_debug.sh DWZ PROGRAM OTHER SHARED SOURCE COMPILER ARG...: two programs, of which dwz has put what both say in SHARED.
set -eu
dwz=$1 program=$(basename "$2") other=$(basename "$3") shared=$(basename "$4") source=$(realpath "$5")
folder=$(dirname "$2")
shift 5
cd "$folder"
"$@" -o "$program" "$source"
"$@" -DOTHER -o "$other" "$source"
"$dwz" -m "$shared" -M "$(pwd)/$shared" "$program" "$other"
