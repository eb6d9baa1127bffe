// Encodings that random drawing would seldom or never find: what compilers, linkers and assembly programmers write by
// hand or pad, and corners of the relocator. Displacements of rip-relative operands and branches are replaced by random
// good ones.
#pragma once

#include <string_view>

namespace probed::test {

inline constexpr std::string_view kWrittenOut[] = {
    "66 66 48 e8 00000000",                    // data16 data16 rex.W call rel32, the TLS general dynamic sequence
    "66 48 e8 00000000",                       // data16 rex.W call rel32
    "66 48 ff 15 00000000",                    // data16 rex.W call [rip]
    "67 e8 00000000",                          // addr32 call rel32, a relaxed call through the GOT
    "f2 e8 00000000",                          // bnd call rel32
    "f2 ff 15 00000000",                       // bnd call [rip]
    "f2 c3",                                   // bnd ret
    "f3 c3",                                   // rep ret
    "f2 ff 25 00000000",                       // bnd jmp [rip]
    "ff 15 00000000",                          // call [rip]
    "ff 25 00000000",                          // jmp [rip]
    "3e ff d0",                                // notrack call rax
    "3e 41 ff e3",                             // notrack jmp r11
    "41 ff d4",                                // call r12 (rsp's number, extended)
    "41 ff 14 24",                             // call [r12]
    "41 ff 54 24 10",                          // call [r12+0x10]
    "ff 14 24",                                // call [rsp]
    "ff 54 24 08",                             // call [rsp+8]
    "ff 54 24 78",                             // call [rsp+0x78]: the displacement outgrows a byte
    "ff 54 24 7f",                             // call [rsp+0x7f]
    "ff 54 24 80",                             // call [rsp-0x80]
    "ff 54 24 f0",                             // call [rsp-0x10]: just below what is pushed
    "ff 94 24 20 00 00 00",                    // call [rsp+0x20], disp32
    "ff 94 24 20 01 00 00",                    // call [rsp+0x120]
    "ff 14 c4",                                // call [rsp+rax*8]
    "ff 54 5c 08",                             // call [rsp+rbx*2+8]
    "42 ff 54 e4 08",                          // call [rsp+r12*8+8]
    "48 ff 54 24 08",                          // rex.W call [rsp+8]
    "65 ff 54 24 08",                          // call gs:[rsp+8]
    "67 ff 54 24 08",                          // call [esp+8]
    "67 ff 10",                                // call [eax]
    "ff 55 00",                                // call [rbp+0]
    "ff 53 40",                                // call [rbx+0x40]
    "ff 14 25 00000000",                       // call [abs 0]
    "48 8b 05 00000000",                       // mov rax, [rip]
    "48 c7 05 00000000 78563412",              // mov qword [rip], imm32
    "c6 05 00000000 5a",                       // mov byte [rip], imm8
    "66 c7 05 00000000 cdab",                  // mov word [rip], imm16
    "48 8d 0d 00000000",                       // lea rcx, [rip]
    "81 05 00000000 44332211",                 // add dword [rip], imm32
    "48 83 3d 00000000 07",                    // cmp qword [rip], imm8
    "69 05 00000000 10000000",                 // imul eax, [rip], imm32
    "0f ba 2d 00000000 05",                    // bts dword [rip], 5
    "f0 48 0f c1 0d 00000000",                 // lock xadd [rip], rcx
    "ff 35 00000000",                          // push [rip]
    "8f 05 00000000",                          // pop [rip]
    "66 0f 70 05 00000000 1b",                 // pshufd xmm0, [rip], 0x1b
    "c5 fc 58 05 00000000",                    // vaddps ymm0, ymm0, [rip] (VEX2)
    "c4 e2 7d 00 05 00000000",                 // vpshufb ymm0, ymm0, [rip] (VEX3)
    "c4 e3 7d 0f 05 00000000 05",              // vpalignr ymm0, ymm0, [rip], 5
    "c4 e3 75 4c 15 00000000 30",              // vpblendvb ymm2, ymm1, [rip], ymm3
    "c4 e3 fb f0 05 00000000 07",              // rorx rax, [rip], 7
    "65 48 8b 05 00000000",                    // mov rax, gs:[rip]
    "64 48 8b 04 25 28000000",                 // mov rax, fs:[0x28]
    "48 a1 0000000000000000",                  // movabs rax, [0]
    "0f 0d 0d 00000000",                       // prefetchw [rip]
    "66 2e 0f 1f 84 00 00000000",              // cs nop word [rax+rax]
    "66 66 2e 0f 1f 84 00 00000000",           // data16 cs nop
    "48 90",                                   // rex.W nop
    "41 90",                                   // xchg r8d, eax
    "f3 90",                                   // pause
    "67 e2 00",                                // loop, counting ecx
    "67 e1 00",                                // loope, counting ecx
    "67 e3 00",                                // jecxz
    "48 e2 00",                                // rex.W loop
    "2e 75 00",                                // jne, hinted not taken
    "3e 0f 84 00000000",                       // je rel32, hinted taken
    "66 48 75 00",                             // data16 rex.W jne
    "eb 00",                                   // jmp rel8
    "e9 00000000",                             // jmp rel32
    "c8 10 00 00",                             // enter 16, 0
    "c8 10 00 03",                             // enter 16, 3
    "c2 10 00",                                // ret 16
    "5c",                                      // pop rsp
    "d9 c9",                                   // fxch st1
    "54",                                      // push rsp
    "66 54",                                   // push sp
    "66 5c",                                   // pop sp
    "48 89 e5",                                // mov rbp, rsp
    "48 83 ec 18",                             // sub rsp, 24
    "48 81 ec 00 10 00 00",                    // sub rsp, 4096
    "48 8d 64 24 80",                          // lea rsp, [rsp-0x80]
    "48 8d 65 f0",                             // lea rsp, [rbp-0x10]
    "48 83 e4 f0",                             // and rsp, -16
    "48 0f c8",                                // bswap rax
    "48 87 e0",                                // xchg rsp, rax
    "48 89 44 24 f8",                          // mov [rsp-8], rax: the red zone
    "48 8b 44 24 f8",                          // mov rax, [rsp-8]
    "0f 11 44 24 80",                          // movups [rsp-0x80], xmm0
    "ff 74 24 08",                             // push [rsp+8]
    "ff b4 24 10 01 00 00",                    // push [rsp+0x110]
    "ff 74 c4 08",                             // push [rsp+rax*8+8]
    "66 ff 74 24 08",                          // push word [rsp+8]
    "8f 44 24 f8",                             // pop [rsp-8]
    "8f 84 24 10 01 00 00",                    // pop [rsp+0x110]
    "66 8f 04 24",                             // pop word [rsp]
    "ff 44 24 08",                             // inc dword [rsp+8]
    "f0 ff 4c 24 08",                          // lock dec dword [rsp+8]
    "f0 83 0c 24 00",                          // lock or dword [rsp], 0: a memory barrier
    "f0 83 4c 24 c0 00",                       // lock or dword [rsp-0x40], 0
    "ff 64 24 08",                             // jmp [rsp+8]
    "ff 64 24 f8",                             // jmp [rsp-8]: retpolines and longjmps of coroutines
    "ff 24 c5 00 00 00 00",                    // jmp [rax*8+disp32]: a jump table
    "3e ff 24 c8",                             // notrack jmp [rax+rcx*8]
    "ff e4",                                   // jmp rsp
    "fe 05 00000000",                          // inc byte [rip]
    "9c",                                      // pushfq
    "66 9c",                                   // pushf
    "9d",                                      // popfq
    "66 9d",                                   // popf
    "48 9d",                                   // rex.W popfq
    "48 cd 80",                                // rex.W int 0x80
    "2e 2e 0f 05",                             // cs cs syscall
    "48 0f 05",                                // rex.W syscall
    "0f a2",                                   // cpuid
    "0f 31",                                   // rdtsc
    "0f 01 f9",                                // rdtscp
    "0f 01 d0",                                // xgetbv
    "0f c7 f0",                                // rdrand eax
    "48 0f c7 fa",                             // rdseed rdx
    "f3 48 0f ae c0",                          // rdfsbase rax
    "f3 48 0f ae d1",                          // wrfsbase rcx
    "f3 48 0f ae da",                          // wrgsbase rdx
    "8e e0",                                   // mov fs, eax
    "8e e8",                                   // mov gs, eax
    "8e d8",                                   // mov ds, eax
    "8e d0",                                   // mov ss, eax: holds traps off for one instruction
    "0f ae 05 00000000",                       // fxsave [rip]
    "48 0f ae 0d 00000000",                    // fxrstor64 [rip]
    "0f ae 25 00000000",                       // xsave [rip]
    "48 0f ae 2d 00000000",                    // xrstor64 [rip]
    "d9 35 00000000",                          // fnstenv [rip]
    "dd 25 00000000",                          // frstor [rip]
    "db 2d 00000000",                          // fld tbyte [rip]
    "9b",                                      // fwait
    "0f 0b",                                   // ud2
    "0f 28 00",                                // movaps xmm0, [rax]: misaligned now and then
    "f7 f1",                                   // div ecx: overflows, divides by zero
    "48 f7 7c 24 08",                          // idiv qword [rsp+8]
    "0f c7 0f",                                // cmpxchg8b [rdi]
    "f0 48 0f c7 0d 00000000",                 // lock cmpxchg16b [rip]
    "f3 0f 1a 00",                             // bndcl: a nop without MPX
    "f2 f0 0f b1 0d 00000000",                 // xacquire lock cmpxchg [rip], ecx: lock elision, ignored without TSX
    "f2 48 a7",                                // repne cmpsq
    "67 f3 a4",                                // rep movsb [edi], [esi]
    "f3 64 a5",                                // rep movsd es:[rdi], fs:[rsi]
    "f3 66 ab",                                // rep stosw
    "64 48 8b 05 00000000",                    // mov rax, fs:[rip]: thread-local, local dynamic by hand
    "64 48 33 04 25 30 00 00 00",              // xor rax, fs:[0x30]: pointer mangling in glibc
    "65 48 c7 04 25 10 00 00 00 cc cc cc cc",  // mov qword gs:[0x10], 0xcccccccc: int3 in data
    "48 b8 cc cc cc cc cc cc cc cc",           // movabs rax, int3s
    "8f 04 24",                                // pop [rsp]: the address is taken after the increment
    "8f 44 24 10",                             // pop [rsp+0x10]
    "ff 34 24",                                // push [rsp]
    "48 87 24 24",                             // xchg [rsp], rsp
    "94",                                      // xchg esp, eax
    "0f ff c0",                                // ud0
    "0f b9 c0",                                // ud1
    "cd 80",                                   // int 0x80
    "0f 05",                                   // syscall
    "f3 48 0f ae c8",                          // rdgsbase rax
    "f3 0f c7 f8",                             // rdpid
    "0f 01 e0",                                // smsw eax: emulated by the kernel where UMIP forbids it
    "c4 e2 75 92 14 85 00000000",              // vgatherdps ymm2, [ymm0*4], ymm1
};

}  // namespace probed::test
