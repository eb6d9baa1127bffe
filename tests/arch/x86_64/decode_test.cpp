// Facts and refusals, as tables of bytes.
#include "arch/x86_64/decode.hpp"

#include <doctest/doctest.h>

#include <set>
#include <string>

#include "tests/arch/hex.hpp"

namespace probed::arch::x86_64 {
namespace {

constexpr std::uint64_t kAddress = 0x401000;

// The facts that are true, one letter each: p pc_relative, b may_block, r repeats, t sees_trap_flag, e emulable.
std::string facts(const Insn& insn) {
  std::string text;
  if (insn.pc_relative) text += 'p';
  if (insn.may_block) text += 'b';
  if (insn.repeats) text += 'r';
  if (insn.sees_trap_flag) text += 't';
  if (insn.emulable) text += 'e';
  return text;
}

}  // namespace

TEST_CASE("instructions that can carry a probe are described rightly") {
  struct Row {
    std::string hex;
    Flow flow;
    const char* facts;
    std::uint64_t target;  // 0: none
  };
  const Row rows[] = {
      {"55", Flow::next, "", 0},                                 // push rbp
      {"48 89 e5", Flow::next, "", 0},                           // mov rbp, rsp
      {"48 8b 05 10 00 00 00", Flow::next, "p", 0},              // mov rax, [rip+0x10]
      {"48 8d 3d 10 00 00 00", Flow::next, "p", 0},              // lea rdi, [rip+0x10]
      {"c5 fc 58 05 10 00 00 00", Flow::next, "p", 0},           // vaddps ymm0, ymm0, [rip+0x10]
      {"62 f1 7c 48 58 05 10 00 00 00", Flow::next, "p", 0},     // vaddps zmm0, zmm0, [rip+0x10]
      {"8b 04 25 10 00 00 00", Flow::next, "", 0},               // mov eax, [0x10]: absolute, not relative
      {"67 8b 00", Flow::next, "", 0},                           // mov eax, [eax]
      {"90", Flow::next, "e", 0},                                // nop
      {"66 90", Flow::next, "e", 0},                             // xchg ax, ax
      {"48 90", Flow::next, "e", 0},                             // rex.W nop
      {"0f 1f 44 00 00", Flow::next, "e", 0},                    // nop [rax+rax]
      {"0f 1f 05 00 00 00 00", Flow::next, "pe", 0},             // nop [rip]
      {"f3 0f 1e fa", Flow::next, "e", 0},                       // endbr64
      {"f3 0f 1e fb", Flow::next, "e", 0},                       // endbr32
      {"41 90", Flow::next, "", 0},                              // xchg r8d, eax is no nop
      {"87 c0", Flow::next, "", 0},                              // xchg eax, eax clears the upper half
      {"f3 48 0f 1e c8", Flow::next, "", 0},                     // rdsspq rax is no nop
      {"0f 0d c8", Flow::next, "", 0},                           // nop eax to Zydis, #UD to AMD
      {"0f 0d 00", Flow::next, "", 0},                           // prefetch [rax]
      {"0f 18 20", Flow::next, "", 0},                           // a hint that may come to mean something
      {"f3 0f 1a c0", Flow::next, "", 0},                        // a nop without MPX
      {"f3 90", Flow::next, "", 0},                              // pause
      {"0f 0b", Flow::next, "", 0},                              // ud2 faults in the copy too
      {"0f 01 00", Flow::next, "", 0},                           // sgdt: emulated by the kernel under UMIP
      {"0f a2", Flow::next, "", 0},                              // cpuid
      {"0f 31", Flow::next, "", 0},                              // rdtsc
      {"0f 01 f9", Flow::next, "", 0},                           // rdtscp
      {"0f 33", Flow::next, "", 0},                              // rdpmc
      {"0f 01 d0", Flow::next, "", 0},                           // xgetbv
      {"f0 48 0f b1 0f", Flow::next, "", 0},                     // lock cmpxchg [rdi], rcx
      {"64 48 8b 04 25 28 00 00 00", Flow::next, "", 0},         // mov rax, fs:[0x28]
      {"f3 a4", Flow::next, "r", 0},                             // rep movsb
      {"f3 48 ab", Flow::next, "r", 0},                          // rep stosq
      {"f2 ae", Flow::next, "r", 0},                             // repne scasb
      {"f3 a6", Flow::next, "r", 0},                             // repe cmpsb
      {"a4", Flow::next, "", 0},                                 // movsb
      {"8e d0", Flow::next, "t", 0},                             // mov ss, eax: no trap between it and the next one
      {"8e d8", Flow::next, "", 0},                              // mov ds, eax
      {"9c", Flow::next, "t", 0},                                // pushfq
      {"66 9c", Flow::next, "t", 0},                             // pushf
      {"9d", Flow::next, "t", 0},                                // popfq
      {"66 9d", Flow::next, "t", 0},                             // popf
      {"c8 10 00 01", Flow::next, "", 0},                        // enter 16, 1
      {"c9", Flow::next, "", 0},                                 // leave
      {"eb 10", Flow::jump, "e", 0x401012},                      // jmp rel8
      {"e9 fb ff ff ff", Flow::jump, "e", 0x401000},             // jmp rel32, backwards
      {"f2 e9 00 00 00 00", Flow::jump, "e", 0x401006},          // bnd jmp
      {"66 48 eb 00", Flow::jump, "e", 0x401004},                // data16 rex.W jmp: REX.W wins everywhere
      {"75 80", Flow::cond_jump, "e", 0x400f82},                 // jne
      {"0f 8f 00 01 00 00", Flow::cond_jump, "e", 0x401106},     // jg rel32
      {"e2 fe", Flow::cond_jump, "e", 0x401000},                 // loop
      {"67 e3 00", Flow::cond_jump, "e", 0x401003},              // jecxz
      {"f3 e2 fe", Flow::cond_jump, "", 0x401001},               // rep loop: AMD takes the prefix for a condition
      {"f2 67 e1 10", Flow::cond_jump, "", 0x401014},            // repne loope
      {"f2 75 00", Flow::cond_jump, "e", 0x401003},              // bnd jne
      {"e8 00 01 00 00", Flow::call, "", 0x401105},              // call
      {"66 66 48 e8 00 01 00 00", Flow::call, "", 0x401108},     // data16 data16 rex.W call: TLS general dynamic
      {"66 48 e8 00 01 00 00", Flow::call, "", 0x401107},        // data16 rex.W call
      {"67 e8 00 01 00 00", Flow::call, "", 0x401106},           // addr32 call: a relaxed call through the GOT
      {"66 48 ff 15 00 00 00 00", Flow::indirect_call, "p", 0},  // data16 rex.W call [rip]
      {"ff d0", Flow::indirect_call, "", 0},                     // call rax
      {"3e ff d0", Flow::indirect_call, "", 0},                  // notrack call rax
      {"f2 ff 10", Flow::indirect_call, "", 0},                  // bnd call [rax]
      {"ff 15 00 00 00 00", Flow::indirect_call, "p", 0},        // call [rip]
      {"ff e0", Flow::indirect_jump, "", 0},                     // jmp rax
      {"ff 25 00 00 00 00", Flow::indirect_jump, "p", 0},        // jmp [rip]
      {"c3", Flow::ret, "", 0},                                  // ret
      {"f3 c3", Flow::ret, "", 0},                               // rep ret: not a repetition
      {"f2 c3", Flow::ret, "", 0},                               // bnd ret
      {"c2 08 00", Flow::ret, "", 0},                            // ret 8
      {"66 48 c3", Flow::ret, "", 0},                            // data16 rex.W ret
      {"0f 05", Flow::syscall, "bt", 0},                         // syscall
      {"cd 80", Flow::syscall, "b", 0},                          // int 0x80
      {"c7 f8 10 00 00 00", Flow::transaction, "", 0x401016},    // xbegin
      {"c6 f8 00", Flow::next, "", 0},                           // xabort
      {"0f 01 d5", Flow::next, "", 0},                           // xend
  };
  for (const Row& row : rows) {
    CAPTURE(row.hex);
    const auto bytes = test::from_hex(row.hex);
    const Insn insn = decode(bytes, kAddress);
    CHECK(describe(insn.refusal) == describe(Refusal::none));
    CHECK(insn.length == bytes.size());
    CHECK(static_cast<int>(insn.flow) == static_cast<int>(row.flow));
    CHECK(facts(insn) == row.facts);
    CHECK(insn.target.value_or(0) == row.target);
  }
}

TEST_CASE("instructions that cannot carry a probe are refused, each for its reason") {
  struct Row {
    std::string hex;
    Refusal refusal;
  };
  const Row rows[] = {
      {"c5 f8 84 00 00 00 00", Refusal::undecodable},             // jkzd: Knights Corner only
      {"c5 f8 85 00 00 00 00", Refusal::undecodable},             // jknzd
      {"cc", Refusal::breakpoint},                                // int3
      {"66 cc", Refusal::breakpoint},                             // data16 int3
      {"cd 03", Refusal::breakpoint},                             // int 3, long form
      {"f1", Refusal::breakpoint},                                // int1
      {"cd 21", Refusal::software_interrupt},                     // int 0x21
      {"cd 04", Refusal::software_interrupt},                     // int 4
      {"cd ff", Refusal::software_interrupt},                     // int 0xff
      {"f4", Refusal::privileged},                                // hlt
      {"e4 60", Refusal::privileged},                             // in al, 0x60
      {"ed", Refusal::privileged},                                // in eax, dx
      {"e6 60", Refusal::privileged},                             // out 0x60, al
      {"ef", Refusal::privileged},                                // out dx, eax
      {"6c", Refusal::privileged},                                // insb
      {"66 6d", Refusal::privileged},                             // insw
      {"f3 6d", Refusal::privileged},                             // rep insd
      {"6e", Refusal::privileged},                                // outsb
      {"66 6f", Refusal::privileged},                             // outsw
      {"f3 6f", Refusal::privileged},                             // rep outsd
      {"fa", Refusal::privileged},                                // cli
      {"fb", Refusal::privileged},                                // sti
      {"0f 30", Refusal::privileged},                             // wrmsr
      {"0f 32", Refusal::privileged},                             // rdmsr
      {"0f 06", Refusal::privileged},                             // clts
      {"0f 08", Refusal::privileged},                             // invd
      {"0f 01 f8", Refusal::privileged},                          // swapgs
      {"0f 20 c0", Refusal::privileged},                          // mov rax, cr0
      {"0f 23 c0", Refusal::privileged},                          // mov dr0, rax
      {"0f 01 10", Refusal::privileged},                          // lgdt
      {"0f 01 df", Refusal::privileged},                          // invlpga
      {"0f 01 d8", Refusal::privileged},                          // vmrun
      {"0f 37", Refusal::privileged},                             // getsec
      {"0f 00 d8", Refusal::privileged},                          // ltr
      {"0f 01 d1", Refusal::privileged},                          // xsetbv
      {"0f 01 ca", Refusal::privileged},                          // clac
      {"cf", Refusal::far_transfer},                              // iretd
      {"48 cf", Refusal::far_transfer},                           // iretq
      {"66 cf", Refusal::far_transfer},                           // iret
      {"cb", Refusal::far_transfer},                              // retf
      {"ca 08 00", Refusal::far_transfer},                        // retf 8
      {"48 cb", Refusal::far_transfer},                           // rex.W retf
      {"ff 18", Refusal::far_transfer},                           // call far [rax]
      {"48 ff 1d 00 00 00 00", Refusal::far_transfer},            // rex.W call far [rip]
      {"ff 28", Refusal::far_transfer},                           // jmp far [rax]
      {"0f 34", Refusal::far_transfer},                           // sysenter
      {"0f 35", Refusal::far_transfer},                           // sysexit
      {"0f 07", Refusal::far_transfer},                           // sysret
      {"48 0f 07", Refusal::far_transfer},                        // rex.W sysret
      {"66 e8 00 00 00 00", Refusal::operand_override},           // data16 call: rel16 on AMD
      {"66 e9 00 00 00 00", Refusal::operand_override},           // data16 jmp
      {"66 eb 00", Refusal::operand_override},                    // data16 jmp rel8: rip cut to 16 bits on AMD
      {"66 75 00", Refusal::operand_override},                    // data16 jne
      {"66 0f 85 00 00 00 00", Refusal::operand_override},        // data16 jne rel32
      {"66 e2 00", Refusal::operand_override},                    // data16 loop
      {"66 67 e3 00", Refusal::operand_override},                 // data16 jecxz
      {"66 ff d0", Refusal::operand_override},                    // data16 call rax
      {"66 ff 20", Refusal::operand_override},                    // data16 jmp [rax]
      {"66 c3", Refusal::operand_override},                       // data16 ret
      {"66 c2 08 00", Refusal::operand_override},                 // data16 ret 8
      {"48 66 e8 00 00 00 00", Refusal::operand_override},        // a REX in front of a prefix is void
      {"66 c7 f8 00 00", Refusal::operand_override},              // xbegin rel16
      {"67 48 8b 05 00 00 00 00", Refusal::operand_override},     // mov rax, [eip]
      {"67 ff 15 00 00 00 00", Refusal::operand_override},        // call [eip]
      {"67 c5 fc 58 05 00 00 00 00", Refusal::operand_override},  // vaddps ymm0, ymm0, [eip]
      {"0f 01 d7", Refusal::unsupported},                         // enclu
  };
  for (const Row& row : rows) {
    CAPTURE(row.hex);
    const auto bytes = test::from_hex(row.hex);
    const Insn insn = decode(bytes, kAddress);
    CHECK(describe(insn.refusal) == describe(row.refusal));
    CHECK(insn.length == bytes.size());
    CHECK_FALSE(insn.emulable);
  }
}

TEST_CASE("what is no instruction has length 0") {
  for (const std::string hex : {
           "",                                                 // nothing readable
           "06", "ce", "60", "9a", "d6", "62", "c4",           // not in 64-bit mode, or cut off
           "48", "66", "0f", "e8 00 00 00", "48 8b 05 00 00",  // cut off
           "f0 90", "f0 cc",                                   // lock where it is not allowed
           "66 66 66 66 66 66 66 66 66 66 66 66 66 66 66 90",  // 16 bytes
           "0f 04", "0f ff",                                   // undefined, cut off
       }) {
    CAPTURE(hex);
    const Insn insn = decode(test::from_hex(hex), kAddress);
    CHECK(insn.length == 0);
    CHECK(describe(insn.refusal) == describe(Refusal::undecodable));
  }
}

TEST_CASE("refused instructions still say how control goes on") {
  CHECK(decode(test::from_hex("ff 28"), kAddress).flow == Flow::indirect_jump);  // jmp far
  CHECK(decode(test::from_hex("ff 18"), kAddress).flow == Flow::indirect_call);  // call far
  CHECK(decode(test::from_hex("cb"), kAddress).flow == Flow::ret);               // retf
  CHECK(decode(test::from_hex("48 cf"), kAddress).flow == Flow::ret);            // iretq
  CHECK(decode(test::from_hex("66 75 10"), kAddress).target == 0x401013);
}

TEST_CASE("bytes behind an instruction don't matter, and at most 16 are looked at") {
  const auto bytes = test::from_hex("48 89 e5 cc cc cc cc cc cc cc cc cc cc cc cc cc cc cc cc cc");
  CHECK(decode(bytes, kAddress).length == 3);
  CHECK(decode(std::span(bytes).first(3), kAddress).length == 3);
  CHECK(decode(std::span(bytes).first(2), kAddress).refusal == Refusal::undecodable);
}

TEST_CASE("every refusal has a sentence of its own") {
  std::set<std::string_view> sentences;
  for (int i = 0; i <= static_cast<int>(Refusal::unsupported); ++i) {
    const std::string_view sentence = describe(static_cast<Refusal>(i));
    CHECK(sentence.size() > 20);
    CHECK(sentence.back() != '.');
    CHECK(sentences.insert(sentence).second);
  }
}

}  // namespace probed::arch::x86_64
