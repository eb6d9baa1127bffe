// The library of places: thread-local variables of a shared object.
#pragma once

void set_in_library(int n);
int look_in_library(int n);
int count_in_library(int n);
extern int library_number;

// Inlined into lines of places.c.
static inline long add_to(long* counter, long n) { return __atomic_add_fetch(counter, n, __ATOMIC_SEQ_CST); }
static inline long add_by_way(long* counter, long n) { return add_to(counter, n); }
