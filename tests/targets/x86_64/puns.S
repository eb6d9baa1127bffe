// Instructions of one to four bytes, each in front of a place that a branch leads to: no jump fits over them, nor one to
// an island, as there is no padding around. What follows them is such that a punned jump leads some 500 MB below the
// program, where nothing is.

#define FUNCTION(name) .globl name; .type name, @function; name: .cfi_startproc
#define END(name) .cfi_endproc; .size name, . - name
#define NO_PADDING .fill 160, 1, 0x06

  .text
  NO_PADDING

// long pun_one(long n): n + 1; 0x34e05678 for n < 0. The return is at +9.
FUNCTION(pun_one)
  test %rdi, %rdi
  js 1f
  lea 1(%rdi), %rax
  ret
1: mov $0x34e05678, %eax
  ret
END(pun_one)

// int pun_two(int n): 0xe111, + n for n < 0. The xor is at +4.
FUNCTION(pun_two)
  test %edi, %edi
  js 1f
  xor %edi, %edi
1: mov $0xe111, %ecx
  lea (%rdi, %rcx), %eax
  ret
END(pun_two)

// long pun_three(long n, long m): n + 0xe2, + m for m >= 0. The add is at +5.
FUNCTION(pun_three)
  test %rsi, %rsi
  js 1f
  add %rsi, %rdi
1: mov $0xe2, %eax
  add %rdi, %rax
  ret
END(pun_three)

// long pun_four(long n): n, + 1 for n >= 0. The lea is at +5.
FUNCTION(pun_four)
  test %rdi, %rdi
  js 1f
  lea 1(%rdi), %rdi
1: jmp 2f
  .byte 0x06
2: mov %rdi, %rax
  ret
END(pun_four)

  NO_PADDING
  .section .note.GNU-stack, "", @progbits
