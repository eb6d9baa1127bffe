// Functions of a long in assembly that are left in odd ways; the same names in each architecture's folder.
#pragma once

// A conditional jump to callee() for more than 10, else n + 1.
#define CONDITIONAL_TAIL_CALL "cmp $10, %rdi; jg callee; lea 1(%rdi), %rax; ret;"

// 2 * n + 1, each. One runs on into what is behind it for even n, one takes its return address off the stack for those,
// and one goes to where another stack says: its own.
#define RUN_INTO "lea 1(%rdi, %rdi), %rax; ret;"
#define RUNNER "test $1, %dil; jz 1f; " RUN_INTO " 1: nopl 0(%rax);"
#define POPPER "lea 1(%rdi, %rdi), %rax; test $1, %dil; jz 1f; ret; 1: pop %rcx; jmp *%rcx;"
#define STACK_SWITCHER "lea 1(%rdi, %rdi), %rax; mov %rsp, %rdx; push %rbp; mov %rdx, %rsp; pop %r8; jmp *%r8;"
