/* Debug information (DWARF 5) of liar.c: structures that are each other's bases 40 times; 50,000 parameters. */
  .section .note.GNU-stack, "", %progbits
  .section .debug_abbrev, "", %progbits
.Labbreviations:
  .uleb128 1; .uleb128 0x11; .byte 1            /* compile unit: name, low_pc, high_pc, language */
  .uleb128 0x03; .uleb128 0x08; .uleb128 0x11; .uleb128 0x01; .uleb128 0x12; .uleb128 0x07; .uleb128 0x13; .uleb128 0x0b; .byte 0, 0
  .uleb128 2; .uleb128 0x2e; .byte 1            /* function: name, low_pc, high_pc */
  .uleb128 0x03; .uleb128 0x08; .uleb128 0x11; .uleb128 0x01; .uleb128 0x12; .uleb128 0x07; .byte 0, 0
  .uleb128 3; .uleb128 0x05; .byte 0            /* parameter: name, type, location */
  .uleb128 0x03; .uleb128 0x08; .uleb128 0x49; .uleb128 0x13; .uleb128 0x02; .uleb128 0x18; .byte 0, 0
  .uleb128 4; .uleb128 0x13; .byte 1            /* structure: name, size */
  .uleb128 0x03; .uleb128 0x08; .uleb128 0x0b; .uleb128 0x0b; .byte 0, 0
  .uleb128 5; .uleb128 0x1c; .byte 0            /* base: type, offset */
  .uleb128 0x49; .uleb128 0x13; .uleb128 0x38; .uleb128 0x0b; .byte 0, 0
  .byte 0

  .section .debug_info, "", %progbits
.Lunit:
  .long .Lend - .Lbegin
.Lbegin:
  .short 5
  .byte 1, 8
  .long .Labbreviations
  .uleb128 1
  .string "liar.c"
  .quad liar, 4
  .byte 0x1d
.Lone:
  .uleb128 4
  .string "One"
  .byte 8
  .rept 40
  .uleb128 5
  .long .Lother - .Lunit
  .byte 0
  .endr
  .byte 0
.Lother:
  .uleb128 4
  .string "Other"
  .byte 8
  .rept 40
  .uleb128 5
  .long .Lone - .Lunit
  .byte 0
  .endr
  .byte 0
  .uleb128 2
  .string "liar"
  .quad liar, 4
  .rept 50000
  .uleb128 3
  .string "p"
  .long .Lone - .Lunit
  .uleb128 9
  .byte 3
  .quad kept
  .endr
  .uleb128 3
  .string "last"
  .long .Lone - .Lunit
  .uleb128 9
  .byte 3
  .quad kept
  .byte 0
  .byte 0
.Lend:
