// Functions that begin with an awkward instruction, aarch64. shape_* are what the tests probe; drive_* set up what the
// first instruction needs (flags, registers, the stack) and are called from C as long drive_X(long x). A shape without a
// drive_* is called directly: x in x0, result in x0.
//
// Wherever an instruction can tell that it did not run at its own address, the shape looks and answers wrongly when it
// did not.

#define FUNCTION(name) .p2align 4; .globl name; .type name, %function; name: .cfi_startproc
#define END(name) .cfi_endproc; .size name, . - name

  .arch armv8.5-a
  .text

// ---- calls: the callee checks the return address it was given -------------------------------------------------------

// Expects the right return address in x30; x0 = x + 1, or 0 when it was called from elsewhere.
#define CALLEE(name, expected)                                                                        \
  FUNCTION(name); adr x9, expected; add x0, x0, 1; cmp x9, x30; csel x0, x0, xzr, eq; ret; END(name)

CALLEE(callee_bl, .Lafter_bl)
CALLEE(callee_blr, .Lafter_blr)

// Entered by a jump with the caller's return address in x19, which the caller keeps.
#define AFTER_CALL add x0, x0, x0, lsl 1; mov x30, x19; ldr x19, [sp], 16; ret

#define BEFORE_CALL str x19, [sp, -16]!; mov x19, x30

FUNCTION(shape_bl)
  bl callee_bl
.Lafter_bl:
  AFTER_CALL
END(shape_bl)

FUNCTION(drive_bl)
  BEFORE_CALL
  b shape_bl
END(drive_bl)

FUNCTION(shape_blr)
  blr x10
.Lafter_blr:
  AFTER_CALL
END(shape_blr)

FUNCTION(drive_blr)
  BEFORE_CALL
  adr x10, callee_blr
  b shape_blr
END(drive_blr)

// The register that holds the target is the one that gets the return address.
FUNCTION(callee_link)
  adr x9, .Lafter_link
  add x0, x0, 1
  cmp x9, x30
  csel x0, x0, xzr, eq
  ret
END(callee_link)

FUNCTION(shape_blr_link)
  blr x30
.Lafter_link:
  AFTER_CALL
END(shape_blr_link)

FUNCTION(drive_blr_link)
  BEFORE_CALL
  adr x30, callee_link
  b shape_blr_link
END(drive_blr_link)

// ---- jumps ----------------------------------------------------------------------------------------------------------

FUNCTION(far_tail)
  add x0, x0, 5
  ret
END(far_tail)

FUNCTION(shape_b)
  b far_tail
END(shape_b)

FUNCTION(shape_br)
  br x16
END(shape_br)

FUNCTION(drive_br)
  adr x16, far_tail
  b shape_br
END(drive_br)

// The flags come from the caller: they must survive the probe.
FUNCTION(shape_b_cond)
  b.gt 1f
  mov x0, 100
  ret
1:mov x0, 200
  ret
END(shape_b_cond)

FUNCTION(drive_b_cond)
  cmp x0, 5
  b shape_b_cond
END(drive_b_cond)

FUNCTION(shape_cbz)
  cbz x1, 1f
  mov x0, x1
  ret
1:mov x0, -1
  ret
END(shape_cbz)

FUNCTION(drive_cbz)
  and x1, x0, 3
  b shape_cbz
END(drive_cbz)

FUNCTION(shape_tbnz)
  tbnz x0, 0, 1f
  mov x0, 0
  ret
1:mov x0, 1
  ret
END(shape_tbnz)

// Runs its own first instruction six times: x1 = 5 counts down to 0.
FUNCTION(shape_loop)
  cbz x1, 1f
  add x0, x0, 1
  sub x1, x1, 1
  b shape_loop
1:ret
END(shape_loop)

FUNCTION(drive_loop)
  mov x1, 5
  b shape_loop
END(drive_loop)

// ---- returns and signatures -----------------------------------------------------------------------------------------

FUNCTION(shape_ret)
  ret
END(shape_ret)

FUNCTION(drive_ret)
  add x0, x0, 11
  b shape_ret
END(drive_ret)

// Signs the return address; what checks it depends on sp.
FUNCTION(shape_paciasp)
  paciasp
  stp x29, x30, [sp, -16]!
  add x0, x0, 7
  ldp x29, x30, [sp], 16
  autiasp
  ret
END(shape_paciasp)

FUNCTION(shape_retaa)
  retaa
END(shape_retaa)

FUNCTION(drive_retaa)
  paciasp
  add x0, x0, 9
  b shape_retaa
END(drive_retaa)

FUNCTION(shape_bti)
  bti c
  add x0, x0, 2
  ret
END(shape_bti)

// ---- the stack ------------------------------------------------------------------------------------------------------

FUNCTION(shape_stp)
  stp x29, x30, [sp, -32]!
  add x0, x0, 8
  str x0, [sp, 16]
  ldr x0, [sp, 16]
  ldp x29, x30, [sp], 32
  ret
END(shape_stp)

// Entered by a jump with a frame to take down.
FUNCTION(shape_ldp)
  ldp x29, x30, [sp], 16
  ret
END(shape_ldp)

FUNCTION(drive_ldp)
  stp x29, x30, [sp, -16]!
  mov x29, sp
  mov x30, 0
  add x0, x0, 9
  b shape_ldp
END(drive_ldp)

// ---- system calls ---------------------------------------------------------------------------------------------------

FUNCTION(shape_svc)
  svc 0
  ret
END(shape_svc)

FUNCTION(drive_svc)
  mov x8, 173  // getppid
  b shape_svc
END(drive_svc)

// ---- what depends on the pc -----------------------------------------------------------------------------------------

FUNCTION(shape_adr)
  adr x0, .Lvalue
  ldr x0, [x0]
  ret
END(shape_adr)

FUNCTION(shape_adrp)
  adrp x0, data_value
  ldr x0, [x0, :lo12:data_value]
  ret
END(shape_adrp)

FUNCTION(shape_ldr_literal)
  ldr x0, .Lvalue
  ret
END(shape_ldr_literal)

FUNCTION(shape_ldr_literal_w)
  ldr w0, .Lvalue
  ret
END(shape_ldr_literal_w)

FUNCTION(shape_ldrsw_literal)
  ldrsw x0, .Lminus_seven
  ret
END(shape_ldrsw_literal)

FUNCTION(shape_ldr_literal_d)
  ldr d0, .Lvalue
  fmov x0, d0
  ret
END(shape_ldr_literal_d)

FUNCTION(shape_ldr_literal_q)
  ldr q0, .Lvector
  mov x0, v0.d[1]
  ret
END(shape_ldr_literal_q)

// The copy keeps x0 on the stack meanwhile.
FUNCTION(shape_ldr_literal_keeps)
  ldr q1, .Lvector
  add x0, x0, 13
  ret
END(shape_ldr_literal_keeps)

FUNCTION(shape_prfm_literal)
  prfm pldl1keep, .Lvalue
  add x0, x0, 3
  ret
END(shape_prfm_literal)

  .p2align 4
.Lvector:
  .quad 0x0123456789abcdef, 0x1122334455667788
.Lvalue:
  .quad 0x11223344
.Lminus_seven:
  .word -7
  .word 0

// ---- everything else ------------------------------------------------------------------------------------------------

FUNCTION(shape_nop)
  nop
  add x0, x0, 2
  ret
END(shape_nop)

FUNCTION(shape_cmp)
  cmp x0, 5
  b.gt 1f
  mov x0, 100
  ret
1:mov x0, 200
  ret
END(shape_cmp)

// An atomic addition in one instruction (LSE).
FUNCTION(shape_ldadd)
  .arch_extension lse
  ldadd x2, x3, [x1]
  ret
END(shape_ldadd)

FUNCTION(drive_ldadd)
  adrp x1, lock_incremented
  add x1, x1, :lo12:lock_incremented
  mov x2, 1
  b shape_ldadd
END(drive_ldadd)

// tpidr_el0, where the C library keeps the thread's own data.
FUNCTION(shape_mrs)
  mrs x1, tpidr_el0
  mrs x2, tpidr_el0
  sub x0, x1, x2
  ret
END(shape_mrs)

  .data
  .p2align 4
  .globl lock_incremented
data_value:
  .quad 0x11223344
lock_incremented:
  .quad 0

  .section .note.GNU-stack, "", %progbits
