// Walking through code fast: the length of an instruction and where it leads, nothing else. A file has millions of
// them, and Zydis takes some 200 ns for each. What compilers emit seldom (VEX, EVEX, three-byte maps, odd prefixes)
// goes to Zydis, so that the two agree on every instruction that a processor executes; bytes that no processor takes
// for an instruction may still get a length here. Internal to arch/x86_64. Pure; any thread.
#pragma once

#include <cstdint>
#include <span>

namespace probed::arch::x86_64 {

enum class ScanKind : std::uint8_t {
  plain,      // goes on behind itself, as a system call does
  nothing,    // a nop of whatever length, or int3: what padding is made of
  jump,       // to target, always
  branch,     // to target, sometimes
  call,       // to target
  call_away,  // through a register or memory
  leap,       // an indirect jump
  end,        // ret, ud2, hlt: does not go on behind itself
};

struct Scan {
  std::uint8_t length = 0;  // 0: no instruction
  ScanKind kind = ScanKind::plain;
  bool has_address = false;    // has a rip-relative operand
  bool takes_address = false;  // and is a lea
  bool sets_stack = false;     // may set rsp, other than by pushing and popping or with add, sub, and
  bool has_constant = false;   // an immediate or displacement that may be an absolute address
  std::uint64_t target = 0;    // of a branch or a call
  std::uint64_t address = 0;   // of the rip-relative operand
  std::uint64_t constant = 0;  // sign-extended
};

// bytes: from the instruction on, as many as there are. address: where they are.
Scan scan(std::span<const std::uint8_t> bytes, std::uint64_t address);

// Whether control may reach what stands behind an instruction of this kind.
constexpr bool falls_through(ScanKind kind) {
  return kind != ScanKind::jump && kind != ScanKind::leap && kind != ScanKind::end;
}

}  // namespace probed::arch::x86_64
