// What the benchmark's target calls: three functions of about a nanosecond that add their two arguments. They differ in
// their first instruction, and so in how a breakpoint tier gets past it.
        .text

        // Emulated. Five bytes of nop are also what the kernel's uprobes replace by a system call, since 6.18.
        .globl  bench_nop
        .type   bench_nop, @function
        .balign 16
bench_nop:
        .byte   0x0f, 0x1f, 0x44, 0x00, 0x00
        lea     (%rdi,%rsi), %rax
        ret
        .size   bench_nop, .-bench_nop

        // Executed as a copy, out of line.
        .globl  bench_copy
        .type   bench_copy, @function
        .balign 16
bench_copy:
        lea     (%rdi,%rsi), %rax
        ret
        .size   bench_copy, .-bench_copy

        // As long as the breakpoint itself: the tracer must also ask what raised the SIGTRAP.
        .globl  bench_push
        .type   bench_push, @function
        .balign 16
bench_push:
        push    %rbx
        lea     (%rdi,%rsi), %rax
        pop     %rbx
        ret
        .size   bench_push, .-bench_push

        .section .note.GNU-stack, "", @progbits
