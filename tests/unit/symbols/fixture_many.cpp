// 40,000 functions, for the speed of large globs. Waits until stdin ends.
#include <unistd.h>

#include <cstdio>

__asm__(R"(
.text
.altmacro
.macro fn n
.globl many_\n
.type many_\n, @function
many_\n: ret
.size many_\n, . - many_\n
.endm
.set i, 0
.rept 40000
fn %i
.set i, i + 1
.endr
)");

int main() {
  std::puts("ready");
  std::fflush(stdout);
  char byte = 0;
  while (::read(0, &byte, 1) > 0) {
  }
}
