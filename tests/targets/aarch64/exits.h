// Functions of a long in assembly that are left in odd ways; the same names in each architecture's folder.
#pragma once

// A conditional jump to callee() for more than 10, else n + 1.
#define CONDITIONAL_TAIL_CALL "cmp x0, 10; b.gt callee; add x0, x0, 1; ret;"

// 2 * n + 1, each. One runs on into what is behind it for even n, one takes its return address out of x30 for those, and
// one goes to where another stack says: its own.
#define RUN_INTO "add x0, x0, x0; add x0, x0, 1; ret;"
#define RUNNER "tbz x0, 0, 1f; " RUN_INTO " 1: nop;"
#define POPPER "mov x1, x0; add x0, x0, x0; add x0, x0, 1; tbz x1, 0, 1f; ret; 1: mov x2, x30; br x2;"
#define STACK_SWITCHER \
  "add x0, x0, x0; add x0, x0, 1; str x30, [sp, -16]!; mov x2, sp; mov sp, x2; ldr x8, [sp], 16; br x8;"
