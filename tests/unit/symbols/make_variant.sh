#!/bin/sh
# make_variant.sh STRIP OBJCOPY KIND PROGRAM OUTPUT: a copy of PROGRAM whose symbols are kept in one of the ways
# distributions keep them. STRIP and OBJCOPY are those of PROGRAM's machine.
#   strip      nowhere
#   mini       compressed in section .gnu_debugdata
#   build-id   in <folder of OUTPUT>/debugroot/.build-id/xx/yyyy.debug
#   link       in <folder of OUTPUT>/.debug/<base name of OUTPUT>.debug, no build-id
#   bad-link   the same with a debug file that has changed since
#   headless   nowhere, and without section headers
set -eu
strip=$1 objcopy=$2 kind=$3 program=$4 output=$5
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
dir=$(dirname "$output")
case $kind in
strip)
  "$strip" --strip-all -o "$output" "$program" ;;
mini)
  "$objcopy" --only-keep-debug "$program" "$work/debug"
  "$objcopy" --strip-debug "$work/debug" "$work/mini"
  xz -k "$work/mini"
  "$strip" --strip-all -o "$work/out" "$program"
  "$objcopy" --add-section .gnu_debugdata="$work/mini.xz" "$work/out" "$output" ;;
build-id)
  id=$(readelf -nW "$program" | sed -n 's/.*Build ID: //p')
  rest=${id#??}
  folder=$dir/debugroot/.build-id/${id%"$rest"}
  mkdir -p "$folder"
  "$objcopy" --only-keep-debug "$program" "$folder/$rest.debug"
  "$strip" --strip-all -o "$output" "$program" ;;
link|bad-link)
  mkdir -p "$dir/.debug"
  debug=$dir/.debug/$(basename "$output").debug
  "$objcopy" --only-keep-debug "$program" "$debug"
  "$strip" --strip-all -o "$work/out" "$program"
  "$objcopy" --remove-section .note.gnu.build-id "$work/out"
  (cd "$dir/.debug" && "$objcopy" --add-gnu-debuglink="$(basename "$debug")" "$work/out" "$work/out2")
  cp "$work/out2" "$output"
  if [ "$kind" = bad-link ]; then echo x >> "$debug"; fi ;;
headless)
  "$strip" --strip-all -o "$work/out" "$program"
  # e_shoff, e_shnum and e_shstrndx become 0.
  printf '\0\0\0\0\0\0\0\0' | dd of="$work/out" bs=1 seek=40 conv=notrunc status=none
  printf '\0\0\0\0' | dd of="$work/out" bs=1 seek=60 conv=notrunc status=none
  cp "$work/out" "$output" ;;
esac
chmod +x "$output"
