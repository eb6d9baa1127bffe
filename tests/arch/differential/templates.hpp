// What the generator makes cases of. Two tables: mnemonics with operand patterns, which Zydis encodes with random
// operands, and encodings written out because no assembler would choose them.
//
// Operand patterns: r register, m memory, e either, x xmm, y ymm, X/Y vector register or memory; a size in bits
// follows, or v for a random one of 16, 32, 64. i8 i32 immediates (iv: of the operand size, at most 32 bits), cl, al, j
// branch target.
#pragma once

#include <Zydis/Zydis.h>

#include <string_view>

namespace probed::test {

struct Template {
  ZydisMnemonic mnemonic;
  std::string_view operands;
  ZydisInstructionAttributes prefix = 0;
};

#define M(name) ZYDIS_MNEMONIC_##name
// clang-format off: rows of a table
inline constexpr Template kTemplates[] = {
    // integer arithmetic
    {M(ADD), "ev,rv"}, {M(ADD), "rv,ev"}, {M(ADD), "ev,iv"}, {M(ADD), "ev,i8"}, {M(ADD), "e8,r8"}, {M(ADD), "e8,i8"},
    {M(OR), "ev,rv"}, {M(OR), "rv,ev"}, {M(OR), "ev,iv"}, {M(OR), "e8,r8"},
    {M(ADC), "ev,rv"}, {M(ADC), "rv,ev"}, {M(ADC), "ev,iv"}, {M(ADC), "r8,e8"},
    {M(SBB), "ev,rv"}, {M(SBB), "rv,ev"}, {M(SBB), "ev,iv"}, {M(SBB), "r8,e8"},
    {M(AND), "ev,rv"}, {M(AND), "rv,ev"}, {M(AND), "ev,iv"}, {M(AND), "e8,i8"},
    {M(SUB), "ev,rv"}, {M(SUB), "rv,ev"}, {M(SUB), "ev,iv"}, {M(SUB), "e8,r8"},
    {M(XOR), "ev,rv"}, {M(XOR), "rv,ev"}, {M(XOR), "ev,iv"}, {M(XOR), "e8,r8"},
    {M(CMP), "ev,rv"}, {M(CMP), "rv,ev"}, {M(CMP), "ev,iv"}, {M(CMP), "e8,i8"},
    {M(TEST), "ev,rv"}, {M(TEST), "ev,iv"}, {M(TEST), "e8,r8"}, {M(TEST), "e8,i8"},
    {M(INC), "ev"}, {M(INC), "e8"}, {M(DEC), "ev"}, {M(DEC), "e8"}, {M(NEG), "ev"}, {M(NEG), "e8"},
    {M(NOT), "ev"}, {M(NOT), "e8"}, {M(MUL), "ev"}, {M(MUL), "e8"}, {M(IMUL), "ev"}, {M(IMUL), "e8"},
    {M(IMUL), "rv,ev"}, {M(IMUL), "rv,ev,iv"}, {M(IMUL), "rv,ev,i8"},
    {M(DIV), "ev"}, {M(DIV), "e8"}, {M(IDIV), "ev"}, {M(IDIV), "e8"},
    {M(ADCX), "r64,e64"}, {M(ADOX), "r32,e32"},
    {M(CBW), ""}, {M(CWDE), ""}, {M(CDQE), ""}, {M(CWD), ""}, {M(CDQ), ""}, {M(CQO), ""},
    // shifts and bits
    {M(SHL), "ev,i8"}, {M(SHL), "ev,cl"}, {M(SHR), "ev,i8"}, {M(SHR), "ev,cl"}, {M(SAR), "ev,i8"}, {M(SAR), "e8,cl"},
    {M(ROL), "ev,cl"}, {M(ROL), "e8,i8"}, {M(ROR), "ev,i8"}, {M(RCL), "ev,cl"}, {M(RCR), "ev,i8"}, {M(RCR), "e8,cl"},
    {M(SHLD), "ev,rv,i8"}, {M(SHLD), "ev,rv,cl"}, {M(SHRD), "ev,rv,i8"}, {M(SHRD), "ev,rv,cl"},
    {M(BT), "ev,i8"}, {M(BT), "ev,rv"}, {M(BTS), "ev,i8"}, {M(BTR), "rv,rv"}, {M(BTC), "ev,i8"},
    {M(BSF), "rv,ev"}, {M(BSR), "rv,ev"}, {M(POPCNT), "rv,ev"}, {M(LZCNT), "rv,ev"}, {M(TZCNT), "rv,ev"},
    {M(BSWAP), "r32"}, {M(BSWAP), "r64"}, {M(CRC32), "r32,e8"}, {M(CRC32), "r64,e64"},
    {M(ANDN), "r64,r64,e64"}, {M(ANDN), "r32,r32,e32"}, {M(BEXTR), "r64,e64,r64"}, {M(BLSI), "r64,e64"},
    {M(BLSR), "r32,e32"}, {M(BLSMSK), "r64,e64"}, {M(BZHI), "r64,e64,r64"}, {M(MULX), "r64,r64,e64"},
    {M(PDEP), "r64,r64,e64"}, {M(PEXT), "r32,r32,e32"}, {M(RORX), "r64,e64,i8"}, {M(SARX), "r64,e64,r64"},
    {M(SHLX), "r32,e32,r32"}, {M(SHRX), "r64,e64,r64"},
    // moves
    {M(MOV), "ev,rv"}, {M(MOV), "rv,ev"}, {M(MOV), "ev,iv"}, {M(MOV), "e8,r8"}, {M(MOV), "r8,e8"}, {M(MOV), "e8,i8"},
    {M(MOV), "r64,i64"}, {M(MOVZX), "rv,e8"}, {M(MOVZX), "r32,e16"}, {M(MOVZX), "r64,e16"}, {M(MOVSX), "rv,e8"},
    {M(MOVSX), "r64,e16"}, {M(MOVSXD), "r64,e32"}, {M(MOVBE), "rv,mv"}, {M(MOVBE), "mv,rv"}, {M(LEA), "rv,mv"},
    {M(LEA), "r64,m64"}, {M(XCHG), "ev,rv"}, {M(XCHG), "e8,r8"}, {M(XADD), "ev,rv"}, {M(XADD), "e8,r8"},
    {M(CMPXCHG), "ev,rv"}, {M(CMPXCHG), "e8,r8"}, {M(CMPXCHG8B), "m64"}, {M(CMPXCHG16B), "m128"},
    {M(MOVNTI), "m64,r64"}, {M(MOVNTI), "m32,r32"}, {M(XLAT), ""},
    {M(CMOVO), "rv,ev"}, {M(CMOVNO), "rv,ev"}, {M(CMOVB), "rv,ev"}, {M(CMOVNB), "rv,ev"}, {M(CMOVZ), "rv,ev"},
    {M(CMOVNZ), "rv,ev"}, {M(CMOVBE), "rv,ev"}, {M(CMOVNBE), "rv,ev"}, {M(CMOVS), "rv,ev"}, {M(CMOVL), "rv,ev"},
    {M(CMOVNL), "rv,ev"}, {M(CMOVLE), "rv,ev"}, {M(CMOVNLE), "rv,ev"}, {M(CMOVP), "rv,ev"},
    {M(SETO), "e8"}, {M(SETB), "e8"}, {M(SETZ), "e8"}, {M(SETNZ), "e8"}, {M(SETNLE), "e8"}, {M(SETL), "e8"},
    // flags
    {M(CLC), ""}, {M(STC), ""}, {M(CMC), ""}, {M(CLD), ""}, {M(STD), ""}, {M(LAHF), ""}, {M(SAHF), ""},
    {M(PUSHFQ), ""}, {M(POPFQ), ""},
    // locked
    {M(ADD), "mv,rv", ZYDIS_ATTRIB_HAS_LOCK}, {M(SUB), "mv,iv", ZYDIS_ATTRIB_HAS_LOCK},
    {M(OR), "mv,i8", ZYDIS_ATTRIB_HAS_LOCK}, {M(XADD), "mv,rv", ZYDIS_ATTRIB_HAS_LOCK},
    {M(CMPXCHG), "mv,rv", ZYDIS_ATTRIB_HAS_LOCK}, {M(CMPXCHG16B), "m128", ZYDIS_ATTRIB_HAS_LOCK},
    {M(INC), "mv", ZYDIS_ATTRIB_HAS_LOCK}, {M(BTS), "mv,i8", ZYDIS_ATTRIB_HAS_LOCK},
    // stack
    {M(PUSH), "r64"}, {M(PUSH), "e64"}, {M(PUSH), "e16"}, {M(PUSH), "i8"}, {M(PUSH), "i32"}, {M(POP), "r64"},
    {M(POP), "e64"}, {M(POP), "e16"}, {M(ENTER), "i16,i5"}, {M(LEAVE), ""},
    // control flow
    {M(CALL), "j"}, {M(CALL), "r64"}, {M(CALL), "m64"}, {M(JMP), "j"}, {M(JMP), "r64"}, {M(JMP), "m64"},
    {M(RET), ""}, {M(RET), "i16"},
    {M(JO), "j"}, {M(JNO), "j"}, {M(JB), "j"}, {M(JNB), "j"}, {M(JZ), "j"}, {M(JNZ), "j"}, {M(JBE), "j"},
    {M(JNBE), "j"}, {M(JS), "j"}, {M(JNS), "j"}, {M(JP), "j"}, {M(JNP), "j"}, {M(JL), "j"}, {M(JNL), "j"},
    {M(JLE), "j"}, {M(JNLE), "j"}, {M(LOOP), "j"}, {M(LOOPE), "j"}, {M(LOOPNE), "j"},
    {M(JRCXZ), "j"}, {M(JECXZ), "j"},
    // strings
    {M(MOVSB), ""}, {M(MOVSQ), ""}, {M(STOSB), ""}, {M(STOSD), ""}, {M(LODSB), ""}, {M(LODSQ), ""}, {M(SCASB), ""},
    {M(CMPSB), ""}, {M(MOVSB), "", ZYDIS_ATTRIB_HAS_REP}, {M(MOVSD), "", ZYDIS_ATTRIB_HAS_REP},
    {M(MOVSQ), "", ZYDIS_ATTRIB_HAS_REP}, {M(STOSB), "", ZYDIS_ATTRIB_HAS_REP}, {M(STOSQ), "", ZYDIS_ATTRIB_HAS_REP},
    {M(LODSB), "", ZYDIS_ATTRIB_HAS_REP}, {M(SCASB), "", ZYDIS_ATTRIB_HAS_REPE},
    {M(SCASB), "", ZYDIS_ATTRIB_HAS_REPNE}, {M(SCASD), "", ZYDIS_ATTRIB_HAS_REPNE},
    {M(CMPSB), "", ZYDIS_ATTRIB_HAS_REPE}, {M(CMPSQ), "", ZYDIS_ATTRIB_HAS_REPNE},
    // SSE
    {M(MOVAPS), "x,X128"}, {M(MOVAPS), "X128,x"}, {M(MOVUPS), "x,X128"}, {M(MOVUPS), "X128,x"}, {M(MOVDQA), "x,X128"},
    {M(MOVDQU), "X128,x"}, {M(MOVSS), "x,m32"}, {M(MOVSD), "x,m64"}, {M(MOVSD), "m64,x"}, {M(MOVD), "x,e32"},
    {M(MOVQ), "x,e64"}, {M(MOVQ), "e64,x"}, {M(MOVHPS), "x,m64"}, {M(MOVLPD), "m64,x"}, {M(MOVNTDQ), "m128,x"},
    {M(ADDPS), "x,X128"}, {M(ADDSD), "x,X64"}, {M(SUBPD), "x,X128"}, {M(MULSS), "x,X32"}, {M(DIVPD), "x,X128"},
    {M(SQRTSD), "x,X64"}, {M(MAXPS), "x,X128"}, {M(UCOMISD), "x,X64"}, {M(COMISS), "x,X32"}, {M(CMPPS), "x,X128,i3"},
    {M(SHUFPS), "x,X128,i8"}, {M(PSHUFD), "x,X128,i8"}, {M(PSHUFB), "x,X128"}, {M(PADDQ), "x,X128"},
    {M(PXOR), "x,X128"},
    {M(PCMPEQB), "x,X128"}, {M(PMOVMSKB), "r32,x"}, {M(PUNPCKLBW), "x,X128"}, {M(PALIGNR), "x,X128,i8"},
    {M(PCMPISTRI), "x,X128,i8"}, {M(PCMPESTRM), "x,X128,i8"}, {M(ROUNDSD), "x,X64,i3"}, {M(PINSRQ), "x,e64,i8"},
    {M(PEXTRD), "e32,x,i8"}, {M(CVTSI2SD), "x,e64"}, {M(CVTTSD2SI), "r64,X64"}, {M(CVTPS2PD), "x,X64"},
    {M(AESENC), "x,X128"}, {M(PCLMULQDQ), "x,X128,i8"}, {M(PTEST), "x,X128"}, {M(MOVMSKPD), "r32,x"},
    {M(LDMXCSR), "m32"}, {M(STMXCSR), "m32"}, {M(LDDQU), "x,m128"}, {M(BLENDPS), "x,X128,i8"},
    // AVX and AVX2
    {M(VMOVAPS), "y,Y256"}, {M(VMOVUPS), "Y256,y"}, {M(VMOVDQU), "y,Y256"}, {M(VMOVDQA), "X128,x"},
    {M(VADDPS), "y,y,Y256"}, {M(VADDPD), "x,x,X128"}, {M(VMULSD), "x,x,X64"}, {M(VDIVPS), "y,y,Y256"},
    {M(VPADDD), "y,y,Y256"}, {M(VPXOR), "x,x,X128"}, {M(VPSHUFB), "y,y,Y256"}, {M(VPSHUFD), "y,Y256,i8"},
    {M(VSHUFPD), "y,y,Y256,i4"}, {M(VPALIGNR), "y,y,Y256,i8"}, {M(VPERMQ), "y,Y256,i8"}, {M(VPERM2F128), "y,y,Y256,i8"},
    {M(VBROADCASTSS), "y,m32"},
    {M(VINSERTF128), "y,y,X128,i1"}, {M(VEXTRACTF128), "X128,y,i1"},
    {M(VPBLENDVB), "y,y,Y256,y"}, {M(VBLENDVPS), "x,x,X128,x"}, {M(VPMOVMSKB), "r32,y"}, {M(VPCMPEQB), "y,y,Y256"},
    {M(VCMPPD), "y,y,Y256,i5"}, {M(VPTEST), "y,Y256"}, {M(VZEROUPPER), ""}, {M(VZEROALL), ""},
    {M(VMASKMOVPS), "y,y,m256"}, {M(VMASKMOVPS), "m256,y,y"}, {M(VPINSRD), "x,x,e32,i2"}, {M(VPEXTRQ), "e64,x,i1"},
    {M(VFMADD231PS), "y,y,Y256"}, {M(VFMADD132SD), "x,x,X64"}, {M(VCVTSI2SD), "x,x,e64"}, {M(VSQRTPD), "y,Y256"},
    {M(VROUNDPD), "y,Y256,i3"}, {M(VMOVQ), "x,e64"}, {M(VPSLLDQ), "y,y,i8"}, {M(VPSRAVD), "y,y,Y256"},
    {M(VAESENC), "x,x,X128"}, {M(VPCLMULQDQ), "x,x,X128,i8"}, {M(VLDMXCSR), "m32"}, {M(VPMOVZXBW), "y,X128"},
    // x87
    {M(FLD), "m32"}, {M(FLD), "m64"}, {M(FLD), "m80"}, {M(FILD), "m64"}, {M(FSTP), "m64"}, {M(FSTP), "m80"},
    {M(FISTP), "m32"}, {M(FADD), "m64"}, {M(FMUL), "m32"}, {M(FDIV), "m64"}, {M(FLD1), ""}, {M(FLDPI), ""},
{M(FCHS), ""}, {M(FNSTSW), "m16"}, {M(FLDCW), "m16"}, {M(FNSTCW), "m16"}, {M(FNINIT), ""},
    // the rest
    {M(NOP), ""}, {M(NOP), "ev"}, {M(PAUSE), ""}, {M(ENDBR64), ""}, {M(CPUID), ""},
    {M(XGETBV), ""}, {M(PREFETCHT0), "m8"},
    {M(CLFLUSH), "m512"}, {M(MFENCE), ""}, {M(LFENCE), ""}, {M(SFENCE), ""}, {M(UD2), ""},
};
// clang-format on
#undef M

// Encodings written out. rip-relative displacements and branch displacements are replaced by random good ones.
inline constexpr std::string_view kRaw[] = {
    "66 66 48 e8 00000000",           // data16 data16 rex.W call rel32, the TLS general dynamic sequence
    "66 48 e8 00000000",              // data16 rex.W call rel32
    "66 48 ff 15 00000000",           // data16 rex.W call [rip]
    "67 e8 00000000",                 // addr32 call rel32, a relaxed call through the GOT
    "f2 e8 00000000",                 // bnd call rel32
    "f2 ff 15 00000000",              // bnd call [rip]
    "f2 c3",                          // bnd ret
    "f3 c3",                          // rep ret
    "f2 ff 25 00000000",              // bnd jmp [rip]
    "ff 15 00000000",                 // call [rip]
    "ff 25 00000000",                 // jmp [rip]
    "3e ff d0",                       // notrack call rax
    "3e 41 ff e3",                    // notrack jmp r11
    "41 ff d4",                       // call r12 (rsp's number, extended)
    "41 ff 14 24",                    // call [r12]
    "41 ff 54 24 10",                 // call [r12+0x10]
    "ff 14 24",                       // call [rsp]
    "ff 54 24 08",                    // call [rsp+8]
    "ff 54 24 78",                    // call [rsp+0x78]: the displacement outgrows a byte
    "ff 54 24 7f",                    // call [rsp+0x7f]
    "ff 54 24 80",                    // call [rsp-0x80]
    "ff 54 24 f0",                    // call [rsp-0x10]: just below what is pushed
    "ff 94 24 20 00 00 00",           // call [rsp+0x20], disp32
    "ff 94 24 20 01 00 00",           // call [rsp+0x120]
    "ff 14 c4",                       // call [rsp+rax*8]
    "ff 54 5c 08",                    // call [rsp+rbx*2+8]
    "42 ff 54 e4 08",                 // call [rsp+r12*8+8]
    "48 ff 54 24 08",                 // rex.W call [rsp+8]
    "65 ff 54 24 08",                 // call gs:[rsp+8]
    "67 ff 54 24 08",                 // call [esp+8]
    "67 ff 10",                       // call [eax]
    "ff 55 00",                       // call [rbp+0]
    "ff 53 40",                       // call [rbx+0x40]
    "ff 14 25 00000000",              // call [abs 0]
    "48 8b 05 00000000",              // mov rax, [rip]
    "48 c7 05 00000000 78563412",     // mov qword [rip], imm32
    "c6 05 00000000 5a",              // mov byte [rip], imm8
    "66 c7 05 00000000 cdab",         // mov word [rip], imm16
    "48 8d 0d 00000000",              // lea rcx, [rip]
    "81 05 00000000 44332211",        // add dword [rip], imm32
    "48 83 3d 00000000 07",           // cmp qword [rip], imm8
    "69 05 00000000 10000000",        // imul eax, [rip], imm32
    "0f ba 2d 00000000 05",           // bts dword [rip], 5
    "f0 48 0f c1 0d 00000000",        // lock xadd [rip], rcx
    "ff 35 00000000",                 // push [rip]
    "8f 05 00000000",                 // pop [rip]
    "66 0f 70 05 00000000 1b",        // pshufd xmm0, [rip], 0x1b
    "c5 fc 58 05 00000000",           // vaddps ymm0, ymm0, [rip] (VEX2)
    "c4 e2 7d 00 05 00000000",        // vpshufb ymm0, ymm0, [rip] (VEX3)
    "c4 e3 7d 0f 05 00000000 05",     // vpalignr ymm0, ymm0, [rip], 5
    "c4 e3 75 4c 15 00000000 30",     // vpblendvb ymm2, ymm1, [rip], ymm3
    "c4 e3 fb f0 05 00000000 07",     // rorx rax, [rip], 7
    "62 f1 7c 48 58 05 00000000",     // vaddps zmm0, zmm0, [rip] (EVEX)
    "62 f1 7c 58 58 05 00000000",     // vaddps zmm0, zmm0, [rip]{1to16}
    "62 f3 7d 48 25 05 00000000 96",  // vpternlogd zmm0, zmm0, [rip], 0x96
    "65 48 8b 05 00000000",           // mov rax, gs:[rip]
    "64 48 8b 04 25 28000000",        // mov rax, fs:[0x28]
    "48 a1 0000000000000000",         // movabs rax, [0]
    "0f 0d 0d 00000000",              // prefetchw [rip]
    "66 2e 0f 1f 84 00 00000000",     // cs nop word [rax+rax]
    "66 66 2e 0f 1f 84 00 00000000",  // data16 cs nop
    "48 90",                          // rex.W nop
    "41 90",                          // xchg r8d, eax
    "f3 90",                          // pause
    "67 e2 00",                       // loop, counting ecx
    "67 e1 00",                       // loope, counting ecx
    "67 e3 00",                       // jecxz
    "48 e2 00",                       // rex.W loop
    "2e 75 00",                       // jne, hinted not taken
    "3e 0f 84 00000000",              // je rel32, hinted taken
    "66 48 75 00",                    // data16 rex.W jne
    "eb 00",                          // jmp rel8
    "e9 00000000",                    // jmp rel32
    "c8 10 00 00",                    // enter 16, 0
    "c8 10 00 03",                    // enter 16, 3
    "c2 10 00",                       // ret 16
    "5c",                             // pop rsp
    "d9 c9",                          // fxch st1
    "54",                             // push rsp
    "8f 04 24",                       // pop [rsp]: the address is taken after the increment
    "8f 44 24 10",                    // pop [rsp+0x10]
    "ff 34 24",                       // push [rsp]
    "48 87 24 24",                    // xchg [rsp], rsp
    "94",                             // xchg esp, eax
    "0f ff c0",                       // ud0
    "0f b9 c0",                       // ud1
    "cd 80",                          // int 0x80
    "0f 05",                          // syscall
    "f3 48 0f ae c8",                 // rdgsbase rax
    "f3 0f c7 f8",                    // rdpid
    "0f 01 e0",                       // smsw eax: emulated by the kernel where UMIP forbids it
    "c4 e2 75 92 14 85 00000000",     // vgatherdps ymm2, [ymm0*4], ymm1
};

}  // namespace probed::test
