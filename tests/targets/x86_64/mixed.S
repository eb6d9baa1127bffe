// Functions with something else than instructions among them: padding, in which the second jump of two fits, and data.
// Linked to fixed addresses, so that addresses stand in the text as they are.

#define FUNCTION(name) .p2align 4; .globl name; .type name, @function; name: .cfi_startproc
#define END(name) .cfi_endproc; .size name, . - name

  .text

// int mixed_pad(int n): n + 1. Padding at +7, up to +0x10.
FUNCTION(mixed_pad)
  push %rbx
  mov %edi, %ebx
  test %edi, %edi
  jmp 2f
  .byte 0x66, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0
3: sub $8, %rsp
  xor %r9d, %r9d
  add $8, %rsp
  lea 1(%rbx), %eax
  pop %rbx
  ret
2: mov $5, %ecx
  jmp 3b
END(mixed_pad)

// int mixed_pads(int n): 2 * n + 3, of n >= 0. Three runs of padding, of several instructions each.
FUNCTION(mixed_pads)
  push %rbx
  mov %edi, %ebx
  jmp 2f
  nop
  nopl (%rax)
  xchg %ax, %ax
  nop
  .p2align 4
3: add %ebx, %ebx
  mov %ebx, %eax
  pop %rbx
  ret
  .p2align 4
2: test %ebx, %ebx
  js 3b
  add $1, %ebx
  inc %ebx
  sub $1, %ebx
  jmp 4f
  .p2align 4, 0xcc
4: add %ebx, %ebx
  inc %ebx
  mov %ebx, %eax
  pop %rbx
  ret
END(mixed_pads)

// int mixed_call(void): 7. Calls through an address in its middle.
FUNCTION(mixed_call)
  jmp 1f
mixed_call_data: .quad mixed_seven
1: sub $8, %rsp
  call *mixed_call_data(%rip)
  add $8, %rsp
  ret
END(mixed_call)

FUNCTION(mixed_seven)
  mov $7, %eax
  ret
END(mixed_seven)

// int mixed_jump(void): 7. Jumps through one, to itself.
FUNCTION(mixed_jump)
  jmp *mixed_jump_data(%rip)
mixed_jump_data: .quad 1f
  .quad 0xc3c3c3c3c3c3c3c3
1: mov $7, %eax
  ret
END(mixed_jump)

// int mixed_load(void): 7. Constants, of which one looks like padding, and one like instructions.
FUNCTION(mixed_load)
  jmp 1f
mixed_load_data: .quad 0x9090909090909090
  .quad 0xc3c3c3c3c3c3c3c3
1: mov mixed_load_data(%rip), %rax
  movdqu mixed_load_data(%rip), %xmm0
  movq %xmm0, %rdx
  sub %rdx, %rax
  movabs $0x9090909090909090, %rcx
  cmp %rcx, %rdx
  jne 2f
  add $7, %eax
2: ret
END(mixed_load)

// int mixed_lea(void): 7. Data by their address.
FUNCTION(mixed_lea)
  jmp 1f
mixed_lea_data: .byte 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x07, 0x50, 0x51
1: lea mixed_lea_data(%rip), %rcx
  movzbl 11(%rcx), %eax
  movzbl 3(%rcx), %edx
  cmp $0x90, %edx
  je 2f
  xor %eax, %eax
2: ret
END(mixed_lea)

// int mixed_table(int n): 10, 20, 30, 40 for the lowest bits of n. A table of distances in front of what it leads to.
FUNCTION(mixed_table)
  and $3, %edi
  lea mixed_table_data(%rip), %rcx
  movslq (%rcx, %rdi, 4), %rax
  add %rcx, %rax
  jmp *%rax
  .p2align 2
mixed_table_data: .long 1f - mixed_table_data, 2f - mixed_table_data, 3f - mixed_table_data, 4f - mixed_table_data
1: mov $10, %eax
  ret
2: mov $20, %eax
  ret
3: mov $30, %eax
  ret
4: mov $40, %eax
  ret
END(mixed_table)

// int mixed_string(void): 7. The address of a string is pushed as a call's return.
FUNCTION(mixed_string)
  call 1f
  .asciz "\007 steps"
1: pop %rcx
  movzbl (%rcx), %eax
  ret
END(mixed_string)

// int mixed_object(void): 7. A sized object inside.
FUNCTION(mixed_object)
  jmp 1f
  .type mixed_object_data, @object
mixed_object_data: .long 3, 4, 5
  .size mixed_object_data, 12
1: mov $mixed_object_data, %ecx
  mov (%rcx), %eax
  add 4(%rcx), %eax
  ret
END(mixed_object)

  .section .note.GNU-stack, "", @progbits
