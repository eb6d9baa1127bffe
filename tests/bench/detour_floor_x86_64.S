// The floor for optimised probes: a detour as one would write it by hand for one function and one purpose. It reserves
// in one ring shared by all threads, stores six words (time, thread, two arguments, a header, an address), knows no
// filter, no full ring, no commit, and saves no flags. Position-dependent parts are registers' business: the ring's
// description lies in bench_floor_ring.
        .text

        .globl  bench_floor_site
        .type   bench_floor_site, @function
        .balign 64
bench_floor_site:
        jmp     bench_floor_detour
bench_floor_back:
        lea     (%rdi,%rsi), %rax
        ret
        .size   bench_floor_site, .-bench_floor_site

        .globl  bench_floor_detour
        .type   bench_floor_detour, @function
        .balign 64
bench_floor_detour:
        lea     -128(%rsp), %rsp
        push    %rax
        push    %rcx
        push    %rdx
        mov     $48, %ecx
        lock xadd %rcx, bench_floor_head(%rip)
        and     bench_floor_mask(%rip), %rcx
        add     bench_floor_ring(%rip), %rcx
        rdtsc
        shl     $32, %rdx
        or      %rdx, %rax
        mov     %rax, 8(%rcx)
        mov     %fs:0, %rax
        mov     %rax, 16(%rcx)
        mov     %rdi, 24(%rcx)
        mov     %rsi, 32(%rcx)
        lea     bench_floor_site(%rip), %rax
        mov     %rax, 40(%rcx)
        movq    $1, (%rcx)
        pop     %rdx
        pop     %rcx
        pop     %rax
        lea     128(%rsp), %rsp
        .byte   0x0f, 0x1f, 0x44, 0x00, 0x00    // what the jump replaced
        jmp     bench_floor_back
        .size   bench_floor_detour, .-bench_floor_detour

        .data
        .balign 64
        .globl  bench_floor_ring, bench_floor_mask
bench_floor_ring: .quad 0
bench_floor_mask: .quad 0
        .balign 64
bench_floor_head: .quad 0
        .section .note.GNU-stack, "", @progbits
