// Functions that begin with an awkward instruction. shape_* are what the tests probe; drive_* set up what the first
// instruction needs (flags, rcx, the stack) and are called from C as long drive_X(long x). A shape without a drive_*
// is called directly: x in rdi, result in rax.
//
// Wherever an instruction can tell that it did not run at its own address (a pushed return address, rcx after
// syscall), the shape looks and answers wrongly when it did not.

#define FUNCTION(name) .p2align 4; BARE_FUNCTION(name)
#define BARE_FUNCTION(name) .globl name; .type name, @function; name: .cfi_startproc
#define END(name) .cfi_endproc; .size name, . - name

  .text

// ---- calls: the callee checks the return address it was given -------------------------------------------------------

// Expects the right return address in rdx; rax = x + 1, or 0 when it was called from elsewhere.
// in: rdi = x, (rsp) = return address
#define CALLEE(name, expected)                                                                                       \
  FUNCTION(name); lea 1(%rdi), %rax; lea expected(%rip), %rdx; cmp %rdx, (%rsp); je 1f; xor %eax, %eax; 1: ret; END(name)

CALLEE(callee_rel32, .Lafter_rel32)
CALLEE(callee_mem_rip, .Lafter_mem_rip)
CALLEE(callee_rsp, .Lafter_rsp)
CALLEE(callee_reg, .Lafter_reg)

FUNCTION(shape_call_rel32)
  call callee_rel32
.Lafter_rel32:
  lea (%rax, %rax, 2), %rax
  ret
END(shape_call_rel32)

FUNCTION(shape_call_mem_rip)
  call *pointer_mem_rip(%rip)
.Lafter_mem_rip:
  lea (%rax, %rax, 2), %rax
  ret
END(shape_call_mem_rip)

// The operand is read before the return address is pushed: 8(%rsp) is what the caller pushed last.
FUNCTION(shape_call_rsp)
  call *8(%rsp)
.Lafter_rsp:
  lea (%rax, %rax, 2), %rax
  ret
END(shape_call_rsp)

FUNCTION(drive_call_rsp)
  lea callee_rsp(%rip), %rax
  push %rax
  .cfi_adjust_cfa_offset 8
  call shape_call_rsp
  add $8, %rsp
  .cfi_adjust_cfa_offset -8
  ret
END(drive_call_rsp)

FUNCTION(shape_call_reg)
  call *%rax
.Lafter_reg:
  lea (%rax, %rax, 2), %rax
  ret
END(shape_call_reg)

FUNCTION(drive_call_reg)
  lea callee_reg(%rip), %rax
  jmp shape_call_reg
END(drive_call_reg)

// ---- jumps ----------------------------------------------------------------------------------------------------------

FUNCTION(shape_jmp_short)
  jmp 1f
  mov $-1, %rax
  ret
1:lea 5(%rdi), %rax
  ret
END(shape_jmp_short)

FUNCTION(shape_jmp_near)
  .byte 0xe9
  .long far_tail - . - 4
END(shape_jmp_near)

FUNCTION(far_tail)
  lea 5(%rdi), %rax
  ret
END(far_tail)

FUNCTION(shape_jmp_mem_rip)
  jmp *pointer_tail(%rip)
END(shape_jmp_mem_rip)

FUNCTION(shape_jmp_reg)
  jmp *%rax
END(shape_jmp_reg)

FUNCTION(drive_jmp_reg)
  lea far_tail(%rip), %rax
  jmp shape_jmp_reg
END(drive_jmp_reg)

// The flags come from the caller: they must survive the probe.
FUNCTION(shape_jcc_short)
  jg 1f
  mov $100, %eax
  ret
1:mov $200, %eax
  ret
END(shape_jcc_short)

FUNCTION(drive_jcc_short)
  cmp $5, %rdi
  jmp shape_jcc_short
END(drive_jcc_short)

FUNCTION(shape_jcc_near)
  .byte 0x0f, 0x8f  // jg rel32
  .long jcc_taken - . - 4
  mov $100, %eax
  ret
END(shape_jcc_near)

FUNCTION(jcc_taken)
  mov $200, %eax
  ret
END(jcc_taken)

FUNCTION(drive_jcc_near)
  cmp $5, %rdi
  jmp shape_jcc_near
END(drive_jcc_near)

// Runs its own first instruction five times: rcx = 5 counts down to 0.
FUNCTION(shape_loop)
  loop 1f
  ret
1:inc %rax
  jmp shape_loop
END(shape_loop)

FUNCTION(drive_loop)
  mov %rdi, %rax
  mov $5, %ecx
  jmp shape_loop
END(drive_loop)

FUNCTION(shape_jrcxz)
  jrcxz 1f
  mov %rcx, %rax
  ret
1:mov $-1, %rax
  ret
END(shape_jrcxz)

FUNCTION(drive_jrcxz)
  mov %rdi, %rcx
  and $3, %ecx
  jmp shape_jrcxz
END(drive_jrcxz)

// A branch lands one byte behind the entry: no five-byte jump may be written here.
FUNCTION(shape_jump_into)
  nop
1:add $2, %rax
  dec %rdi
  jnz 1b
  ret
END(shape_jump_into)

FUNCTION(drive_jump_into)
  xor %eax, %eax
  and $7, %edi
  inc %rdi
  jmp shape_jump_into
END(drive_jump_into)

// ---- the stack ------------------------------------------------------------------------------------------------------

FUNCTION(shape_push)
  push %rbx
  .cfi_adjust_cfa_offset 8
  mov %rdi, %rbx
  lea 7(%rbx), %rax
  pop %rbx
  .cfi_adjust_cfa_offset -8
  ret
END(shape_push)

// push %rsp stores the value before the push.
FUNCTION(shape_push_rsp)
  push %rsp
  pop %rax
  sub %rsp, %rax
  ret
END(shape_push_rsp)

FUNCTION(shape_push_imm)
  push $-7
  pop %rax
  ret
END(shape_push_imm)

FUNCTION(shape_push_mem_rip)
  push value(%rip)
  pop %rax
  ret
END(shape_push_mem_rip)

FUNCTION(shape_pop)
  pop %rcx
  lea 3(%rdi), %rax
  push %rcx
  ret
END(shape_pop)

// Answers TF | CF of the flags it finds: CF was set by the caller, TF must never be seen.
FUNCTION(shape_pushf)
  pushf
  pop %rax
  and $0x101, %eax
  ret
END(shape_pushf)

FUNCTION(drive_pushf)
  stc
  jmp shape_pushf
END(drive_pushf)

// Entered by a jump with the flags to load on top of the stack and the return address below.
FUNCTION(shape_popf)
  popf
  setc %al
  movzx %al, %eax
  ret
END(shape_popf)

FUNCTION(drive_popf)
  pushf
  andq $-2, (%rsp)
  and $1, %edi
  or %rdi, (%rsp)
  jmp shape_popf
END(drive_popf)

// One byte long; shape_ret_neighbour begins right behind it.
FUNCTION(shape_ret)
  ret
END(shape_ret)
BARE_FUNCTION(shape_ret_neighbour)
  lea 4(%rdi), %rax
  ret
END(shape_ret_neighbour)

FUNCTION(drive_ret)
  lea 11(%rdi), %rax
  jmp shape_ret
END(drive_ret)

FUNCTION(shape_ret_imm)
  ret $16
END(shape_ret_imm)

// rax = x when the callee took its sixteen bytes with it.
FUNCTION(drive_ret_imm)
  mov %rsp, %rdx
  push %rdi
  push %rdi
  call shape_ret_imm
  sub %rsp, %rdx
  lea (%rdi, %rdx), %rax
  add %rdx, %rsp
  ret
END(drive_ret_imm)

FUNCTION(shape_enter)
  enter $16, $0
  lea 8(%rdi), %rax
  mov %rax, -8(%rbp)
  mov -8(%rbp), %rax
  leave
  ret
END(shape_enter)

// Entered by a jump with a frame to take down.
FUNCTION(shape_leave)
  leave
  ret
END(shape_leave)

FUNCTION(drive_leave)
  push %rbp
  mov %rsp, %rbp
  sub $64, %rsp
  lea 9(%rdi), %rax
  jmp shape_leave
END(drive_leave)

// ---- system calls and string instructions ---------------------------------------------------------------------------

// rax = number on entry; afterwards rcx holds the address behind the instruction.
FUNCTION(shape_syscall)
  syscall
.Lafter_syscall:
  lea .Lafter_syscall(%rip), %rdx
  cmp %rdx, %rcx
  je 1f
  mov $-1, %rax
1:ret
END(shape_syscall)

FUNCTION(drive_syscall)
  mov $110, %eax  // getppid
  jmp shape_syscall
END(drive_syscall)

FUNCTION(shape_rep_movsb)
  rep movsb
  mov %rdi, %rax
  ret
END(shape_rep_movsb)

// long rep_movsb(void* to, const void* from, long count): the end of what was written
FUNCTION(rep_movsb)
  mov %rdx, %rcx
  jmp shape_rep_movsb
END(rep_movsb)

// ---- rip-relative operands ------------------------------------------------------------------------------------------

FUNCTION(shape_lea_rip)
  lea value(%rip), %rax
  mov (%rax), %rax
  ret
END(shape_lea_rip)

FUNCTION(shape_mov_rip)
  mov value(%rip), %rax
  ret
END(shape_mov_rip)

// An immediate follows the displacement.
FUNCTION(shape_cmp_rip_imm32)
  cmpl $0x11223344, value(%rip)
  sete %al
  movzx %al, %eax
  ret
END(shape_cmp_rip_imm32)

FUNCTION(shape_cmp_rip_imm8)
  cmpb $0x44, value(%rip)
  sete %al
  movzx %al, %eax
  ret
END(shape_cmp_rip_imm8)

FUNCTION(shape_store_rip_imm32)
  movq $-12345, stored(%rip)
  mov stored(%rip), %rax
  ret
END(shape_store_rip_imm32)

FUNCTION(shape_lock_inc_rip)
  lock incq lock_incremented(%rip)
  mov %rdi, %rax
  ret
END(shape_lock_inc_rip)

FUNCTION(shape_xchg)
  xchg %rax, %rdi
  ret
END(shape_xchg)

FUNCTION(drive_xchg)
  mov $1, %eax
  jmp shape_xchg
END(drive_xchg)

FUNCTION(shape_xchg_mem)
  xchg %rdi, 8(%rsp)
  mov %rdi, %rax
  ret
END(shape_xchg_mem)

FUNCTION(drive_xchg_mem)
  lea 6(%rdi), %rax
  push %rax
  call shape_xchg_mem
  add $8, %rsp
  ret
END(drive_xchg_mem)

// rax uses every register name that a rip-relative rewrite may want to borrow.
FUNCTION(shape_imul_rip_imm)
  imul $3, value(%rip), %rax
  ret
END(shape_imul_rip_imm)

FUNCTION(shape_sse_rip)
  movdqa vector(%rip), %xmm0
  movq %xmm0, %rax
  ret
END(shape_sse_rip)

FUNCTION(shape_sse_rip_imm8)
  pshufd $0x4e, vector(%rip), %xmm0  // the high half comes down
  movq %xmm0, %rax
  ret
END(shape_sse_rip_imm8)

FUNCTION(shape_avx_rip)
  vmovdqu vector(%rip), %ymm0
  vmovq %xmm0, %rax
  vzeroupper
  ret
END(shape_avx_rip)

FUNCTION(shape_evex_rip)
  vpaddq value(%rip){1to8}, %zmm17, %zmm16
  vmovq %xmm16, %rax
  vzeroupper
  ret
END(shape_evex_rip)

FUNCTION(drive_evex_rip)
  vpxorq %zmm17, %zmm17, %zmm17
  jmp shape_evex_rip
END(drive_evex_rip)

// ---- others ---------------------------------------------------------------------------------------------------------

FUNCTION(shape_endbr)
  endbr64
  nopw 0x100(%rax, %rax, 1)
  lea 2(%rdi), %rax
  ret
END(shape_endbr)

// The thread pointer differs from thread to thread.
FUNCTION(shape_mov_fs)
  mov %fs:0, %rax
  sub %fs:0, %rax
  ret
END(shape_mov_fs)

// The red zone under the stack pointer belongs to the function.
FUNCTION(shape_red_zone)
  mov -8(%rsp), %rax
  ret
END(shape_red_zone)

FUNCTION(drive_red_zone)
  lea 13(%rdi), %rax
  mov %rax, -8(%rsp)
  xor %eax, %eax
  jmp shape_red_zone
END(drive_red_zone)

  .section .data.rel, "aw"
  .p2align 3
pointer_mem_rip: .quad callee_mem_rip
pointer_tail: .quad far_tail

  .data
  .p2align 6
value: .quad 0x0000000011223344
  .p2align 6
vector: .quad 0x0123456789abcdef, 0x1122334455667788, 3, 4, 5, 6, 7, 8
stored: .quad 0
  .globl lock_incremented
lock_incremented: .quad 0

  .section .note.GNU-stack, "", @progbits
