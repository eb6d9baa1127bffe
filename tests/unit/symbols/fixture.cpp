// A small program that the symbol tests look into: says where its functions are, then waits until stdin ends.
#include <unistd.h>

#include <cstdio>

extern "C" {
__attribute__((noinline)) int fixture_first(int x) noexcept {
  return x * 3 + 1;
}
__attribute__((noinline)) int fixture_second(int x) {
  return x * 5 + 2;
}
int fixture_alias(int x) noexcept __attribute__((alias("fixture_first")));
int fixture_counter = 7;

// What GCC leaves of functions it has cloned or split.
__attribute__((noinline, used)) int only_clone(int x) __asm__("only_clone.constprop.0");
int only_clone(int x) {
  return x + 11;
}
__attribute__((noinline, used)) int only_piece(int x) __asm__("only_piece.part.0");
int only_piece(int x) {
  return x + 12;
}
__attribute__((noinline, used)) int both(int x) {
  return x + 13;
}
__attribute__((noinline, used)) int both_clone(int x) __asm__("both.isra.0");
int both_clone(int x) {
  return x + 14;
}
__attribute__((noinline, used)) int two_clones_a(int x) __asm__("two_clones.constprop.0");
int two_clones_a(int x) {
  return x + 15;
}
__attribute__((noinline, used)) int two_clones_b(int x) __asm__("two_clones.constprop.1");
int two_clones_b(int x) {
  return x + 16;
}

// Chooses at start; see the IFUNC tests.
static int chosen_one(int x) {
  return x + 21;
}
__attribute__((used)) static int chosen_two(int x) {
  return x + 22;
}
__attribute__((used)) static int (*choose())(int) {
  return chosen_one;
}
int chosen(int x) __attribute__((ifunc("choose")));

// Nothing refers to this one, so the loader never chooses.
__attribute__((used)) static int unused_fast(int x) {
  return x + 31;
}
__attribute__((used)) static int unused_slow(int x) {
  return x + 32;
}
__attribute__((used)) static int (*unused_choose())(int) {
  return unused_fast;
}
__attribute__((used)) int unused(int x) __attribute__((ifunc("unused_choose")));
}

// Assembly without types and sizes.
__asm__(".text\n.globl fixture_label\nfixture_label:\n nop\n nop\n nop\n ret\n");
extern "C" void fixture_label();

__attribute__((noinline)) static int fixture_hidden(int x) {
  return x * 7 + 3;
}
__attribute__((noinline, used)) static int twin(int x) {
  return x * 11 + 4;
}
int other_file(int x);

int main() {
  std::printf("fixture_first=%p\n", reinterpret_cast<void*>(fixture_first));
  std::printf("fixture_hidden=%p\n", reinterpret_cast<void*>(fixture_hidden));
  std::printf("fixture_label=%p\n", reinterpret_cast<void*>(fixture_label));
  std::printf("fixture_counter=%p\n", static_cast<void*>(&fixture_counter));
  std::printf("chosen=%p\n", reinterpret_cast<void*>(chosen_one));
  std::printf("sum=%d\n", fixture_first(1) + fixture_second(2) + fixture_alias(3) + fixture_hidden(4) + twin(5) +
                              other_file(6) + chosen(7));
  std::puts("ready");
  std::fflush(stdout);
  char byte = 0;
  while (::read(0, &byte, 1) > 0) {
  }
}
