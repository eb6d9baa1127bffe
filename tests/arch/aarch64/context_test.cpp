// What surrounds an aarch64 instruction.
#include "arch/aarch64/context.hpp"

#include <doctest/doctest.h>

#include <initializer_list>
#include <string>
#include <vector>

#include "arch/aarch64/word.hpp"

namespace probed::arch::aarch64 {
namespace {

constexpr std::uint32_t kNop = 0xd503201f, kRet = 0xd65f03c0;
constexpr std::uint32_t kLoadExclusive = 0x885ffc02, kStoreExclusive = 0x8803fc01, kClear = 0xd5033f5f;

std::vector<std::uint8_t> code_of(const std::vector<std::uint32_t>& words) {
  std::vector<std::uint8_t> code;
  for (const std::uint32_t word : words) {
    const auto bytes = word_bytes(word);
    code.insert(code.end(), bytes.begin(), bytes.end());
  }
  return code;
}

// One letter for each instruction: '.' may carry a probe, 'x' exclusive, 's' sequence, 'd' data.
std::string refusals(const std::vector<std::uint32_t>& words) {
  const auto code = code_of(words);
  std::string out;
  for (std::size_t at = 0; at < code.size(); at += kInsnSize) switch (refusal_in_context(code, at)) {
      case Refusal::none: out += '.'; break;
      case Refusal::exclusive: out += 'x'; break;
      case Refusal::sequence: out += 's'; break;
      case Refusal::undecodable: out += 'd'; break;
      default: out += '?'; break;
    }
  return out;
}

}  // namespace

// The exclusive instructions themselves are decode()'s to refuse.
TEST_CASE("nothing is probed between an exclusive load and its store") {
  // __aarch64_cas4_acq_rel of libgcc, without the check for LSE:
  //   mov w16, w0; ldaxr w0, [x2]; cmp w0, w16; b.ne 1f; stlxr w17, w1, [x2]; cbnz w17, ldaxr; 1: ret
  CHECK(refusals({0x2a0003f0, 0x885ffc40, 0x6b10001f, 0x54000061, 0x8811fc41, 0x35ffff91, kRet}) == "..xx...");
  // A loop that counts: ldxr; add w2, w2, #1; stxr; cbnz w3, ldxr
  CHECK(refusals({kNop, kLoadExclusive, 0x11000442, kStoreExclusive, 0x35ffffa3, kRet}) == "..x...");
}

TEST_CASE("an exclusive sequence is followed along its branches") {
  // ldxr; b 2f; 1: stxr; ret; nop; 2: nop; b 1b
  CHECK(refusals({kLoadExclusive, 0x14000004, kStoreExclusive, kRet, kNop, kNop, 0x17fffffc}) == ".x...xx");
  // Given up: ldxr; cbz w2, 2f; stxr; ret; 2: clrex; nop; ret
  CHECK(refusals({kLoadExclusive, 0x34000062, kStoreExclusive, kRet, kClear, kNop, kRet}) == ".x.....");
}

TEST_CASE("an exclusive load without a store, and a store without a load, keep nothing from being probed") {
  CHECK(refusals({kLoadExclusive, kNop, kRet}) == "...");
  CHECK(refusals({kNop, kStoreExclusive, kNop, kRet}) == "....");
  CHECK(refusals({kLoadExclusive, kNop, kRet, kNop, kStoreExclusive}) == ".....");
  // wfe loop: ldxr; cbz w2, out; wfe; b ldxr; out: ret
  CHECK(refusals({kLoadExclusive, 0x34000062, 0xd503205f, 0x17fffffd, kRet}) == ".....");
}

TEST_CASE("an exclusive sequence ends at a call") {
  CHECK(refusals({kLoadExclusive, 0x94000100, kNop, kStoreExclusive, kRet}) == ".....");
}

TEST_CASE("what movprfx prepares is not probed") {
  CHECK(refusals({kNop, 0x0420bc20, 0x04800000, kNop}) == "..s.");  // movprfx z0, z1; add-like on z0
}

TEST_CASE("data that a load of the same function reads is no instruction") {
  // ldr x0, . + 16; ldr w1, . + 20; ret; nop; .quad; .word; nop
  CHECK(refusals({0x58000080, 0x180000a1, kRet, kNop, kNop, kNop, kNop, kNop}) == "....ddd.");
  CHECK(refusals({0x9c000040, kRet, 1, 2, 3, 4, kNop}) == "..dddd.");  // ldr q0, . + 8
  CHECK(refusals({kNop, kNop, 0x58ffffc0, kRet}) == "dd..");           // ldr x0, . - 8
}

TEST_CASE("a neighbourhood of any size can be looked at") {
  std::vector<std::uint32_t> words(4 * kContextReach / kInsnSize, kNop);
  words[words.size() / 2] = kLoadExclusive;
  words[words.size() / 2 + 2] = kStoreExclusive;
  std::string expected(words.size(), '.');
  expected[words.size() / 2 + 1] = 'x';
  CHECK(refusals(words) == expected);
}

}  // namespace probed::arch::aarch64
