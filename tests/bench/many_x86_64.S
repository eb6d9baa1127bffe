// bench-many: 50,000 functions of a few instructions, as compilers make them, for probes by one glob. Only the few that
// main calls ever run.
        .altmacro
        .macro  one_function number
        .globl  many_\number
        .type   many_\number, @function
        .balign 16
many_\number:
        push    %rbp
        mov     %rsp, %rbp
        mov     %edi, -4(%rbp)
        mov     -4(%rbp), %eax
        imul    $(\number % 100), %eax, %eax
        pop     %rbp
        ret
        .size   many_\number, .-many_\number
        .endm

        .text
        .set    counter, 0
        .rept   50000
        one_function %counter
        .set    counter, counter + 1
        .endr
        .section .note.GNU-stack, "", @progbits
