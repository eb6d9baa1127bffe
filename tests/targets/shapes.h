// Functions whose first instruction is one that a tracer may get wrong (shapes.S), each with the answer it must give.
#pragma once

struct Shape {
  const char* name;      // the symbol to probe
  int hits;              // times its first instruction runs in one call
  long (*run)(long x);   // calls it
  long (*want)(long x);  // what run(x) must return
};

extern const struct Shape shapes[];
extern const int shape_count;

// Whether this CPU has what the shape needs (AVX, AVX-512).
int shape_usable(const struct Shape* shape);
// Runs every usable shape `rounds` times; returns the number of wrong answers, each reported on stderr.
long run_shapes(long rounds);
