// The library of places: thread-local variables of a shared object.
#pragma once

void set_in_library(int n);
int look_in_library(int n);
