#include "placeslib.h"

__attribute__((visibility("default"))) __thread long library_value = -1;
static __thread int library_static = -2;

__attribute__((visibility("default"))) void set_in_library(int n) {
  library_value = n;
  library_static = n + 1;
}

// A program may have a copy of its own, which is everybody's then.
__attribute__((visibility("default"))) int library_number = 5;

__attribute__((noinline, noipa, visibility("default"))) int count_in_library(int n) {
  library_number += n;
  return library_number;
}

__attribute__((noinline, noipa, visibility("default"))) int look_in_library(int n) {
  return n + (int)library_value + library_static;
}
