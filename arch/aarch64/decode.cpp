// Control flow of aarch64 instructions from a table of bit patterns (Arm ARM C4.1.66, Branches, Exception Generating
// and System instructions).
#include "arch/aarch64/decode.hpp"

#include <algorithm>
#include <iterator>

#include "arch/aarch64/word.hpp"

namespace probed::arch::aarch64 {
namespace {

struct Pattern {
  std::uint32_t mask;
  std::uint32_t value;
  Flow flow;
  std::uint8_t offset_lsb;   // of the branch offset field, which counts instructions
  std::uint8_t offset_bits;  // 0: no direct target
};

constexpr Pattern kBranches[] = {
    {0xfc000000, 0x14000000, Flow::jump, 0, 26},          // b
    {0xfc000000, 0x94000000, Flow::call, 0, 26},          // bl
    {0xff000000, 0x54000000, Flow::cond_jump, 5, 19},     // b.cond, bc.cond
    {0x7e000000, 0x34000000, Flow::cond_jump, 5, 19},     // cbz, cbnz
    {0x7e000000, 0x36000000, Flow::cond_jump, 5, 14},     // tbz, tbnz
    {0xfffffc1f, 0xd61f0000, Flow::indirect_jump, 0, 0},  // br
    {0xfefff800, 0xd61f0800, Flow::indirect_jump, 0, 0},  // braa, brab, braaz, brabz
    {0xfffffc1f, 0xd63f0000, Flow::indirect_call, 0, 0},  // blr
    {0xfefff800, 0xd63f0800, Flow::indirect_call, 0, 0},  // blraa, blrab, blraaz, blrabz
    {0xfffffc1f, 0xd65f0000, Flow::ret, 0, 0},            // ret
    {0xfffffbff, 0xd65f0bff, Flow::ret, 0, 0},            // retaa, retab
    {0xffe0001f, 0xd4000001, Flow::syscall, 0, 0},        // svc
};

constexpr Pattern kPcRelative[] = {
    {0x1f000000, 0x10000000, Flow::next, 0, 0},  // adr, adrp
    {0x3b000000, 0x18000000, Flow::next, 0, 0},  // ldr, ldrsw, prfm (literal), integer and SIMD
};

const Pattern* match(std::span<const Pattern> table, std::uint32_t word) {
  const auto row = std::ranges::find_if(table, [word](const Pattern& p) { return (word & p.mask) == p.value; });
  return row == table.end() ? nullptr : &*row;
}

std::uint64_t branch_offset(const Pattern& pattern, std::uint32_t word) {
  const unsigned above = 32u - pattern.offset_lsb - pattern.offset_bits;
  const auto signed_field = static_cast<std::int32_t>(word << above) >> (32 - pattern.offset_bits);
  return static_cast<std::uint64_t>(std::int64_t{signed_field} * std::int64_t{kInsnSize});
}

}  // namespace

Insn decode(std::span<const std::uint8_t> bytes, std::uint64_t address) {
  Insn result;
  result.refusal = Refusal::undecodable;
  if (bytes.size() < kInsnSize || address % kInsnSize != 0) return result;
  const std::uint32_t word = load_word(bytes);
  result.length = kInsnSize;
  result.refusal = is_brk(word) ? Refusal::breakpoint : Refusal::unsupported;
  result.pc_relative = match(kPcRelative, word) != nullptr;
  if (const Pattern* branch = match(kBranches, word)) {
    result.flow = branch->flow;
    if (branch->offset_bits != 0) result.target = address + branch_offset(*branch, word);
  }
  result.may_block = result.flow == Flow::syscall;
  return result;
}

}  // namespace probed::arch::aarch64
