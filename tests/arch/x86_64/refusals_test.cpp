// The table of refused instructions is the only thing that refuses, and every row of it works.
#include "arch/x86_64/refusals.hpp"

#include <doctest/doctest.h>

#include <array>
#include <iterator>
#include <map>
#include <random>
#include <set>
#include <sstream>
#include <string>

#include "arch/x86_64/decode.hpp"
#include "arch/x86_64/relocate.hpp"
#include "arch/x86_64/zydis.hpp"
#include "tests/arch/hex.hpp"

namespace probed::arch::x86_64 {
namespace {

constexpr std::uint64_t kOriginal = 0x401000, kNear = 0x501000, kFar = 0x7f00'0000'1000;

}  // namespace

TEST_CASE("every row of the table refuses its example, for its reason and no other row's") {
  std::set<std::string_view> described;
  std::ostringstream table;
  for (const RefusedForm& form : refused_forms()) {
    table << "\n  " << form.what << " (" << form.example << "): " << form.why;
    CAPTURE(form.what);
    CHECK(described.insert(form.what).second);
    CHECK(form.why.size() > 20);
    CHECK((form.by == RefusedBy::matches) == (form.matches != nullptr));
    const auto bytes = test::from_hex(form.example);
    const Insn insn = decode(bytes, kOriginal);
    if (form.by == RefusedBy::distance) {
      CHECK(insn.refusal == Refusal::none);
      CHECK(relocate(bytes, insn, kOriginal, kNear).refusal == Refusal::none);
      CHECK(relocate(bytes, insn, kOriginal, kFar).refusal == form.refusal);
      continue;
    }
    CHECK(insn.refusal == form.refusal);
    CHECK(relocate(bytes, insn, kOriginal, kNear).refusal == form.refusal);
    if (form.by == RefusedBy::decoder) continue;
    Decoded decoded;
    REQUIRE(decode_with_zydis(bytes, decoded));
    CHECK(find_refused(decoded) == &form);
  }
  MESSAGE("refused:" << table.str());
}

// A random stream is mostly no instruction or a short one; a prefix, an escape or a known opcode in front finds more.
TEST_CASE("whatever the bytes are, decoding and relocating keep their promises and refuse by the table only") {
  const std::uint64_t seed = std::random_device{}();
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  constexpr std::uint8_t kHeads[] = {0x0f, 0x66, 0x67, 0xf2, 0xf3, 0xf0, 0x48, 0x64, 0xc4, 0xc5, 0x62, 0x8f,
                                     0xff, 0xe8, 0xeb, 0x74, 0xe2, 0xe3, 0xc7, 0x41, 0x3e, 0x36, 0x4c, 0xcd};
  std::map<Refusal, int> refusals;
  for (int i = 0; i < 400'000; ++i) {
    std::array<std::uint8_t, kMaxInsnLength> bytes{};
    for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random());
    const std::size_t heads = random() % 5;
    for (std::size_t h = 0; h < heads; ++h) bytes[h] = kHeads[random() % std::size(kHeads)];
    const Insn insn = decode(bytes, kOriginal);
    ++refusals[insn.refusal];
    REQUIRE((insn.length == 0) <= (insn.refusal == Refusal::undecodable));
    REQUIRE(insn.length <= 15);
    REQUIRE((insn.emulable ? insn.refusal == Refusal::none : true));
    if (insn.length != 0) {
      // Cut to its own length it is the same instruction, and shorter it is none.
      REQUIRE(decode(std::span(bytes).first(insn.length), kOriginal).refusal == insn.refusal);
      REQUIRE(decode(std::span(bytes).first(insn.length - 1u), kOriginal).length == 0);
    }
    for (const std::uint64_t copy : {kNear + i % 8, kFar + i % 8}) {
      const RelocateResult result = relocate(bytes, insn, kOriginal, copy);
      if (insn.refusal != Refusal::none) REQUIRE(result.refusal == insn.refusal);
      if (result.refusal != Refusal::none && insn.refusal == Refusal::none)
        REQUIRE(result.refusal == Refusal::out_of_range);
      if (result.refusal != Refusal::none) continue;
      REQUIRE(result.copy.size > 0);
      REQUIRE(result.copy.size <= kMaxCopySize);
      REQUIRE(result.copy.at(0) != nullptr);
    }
  }
  // Otherwise the stream doesn't find what it is to find.
  for (const Refusal refusal : {Refusal::none, Refusal::undecodable, Refusal::breakpoint, Refusal::privileged,
                                Refusal::far_transfer, Refusal::software_interrupt, Refusal::operand_override})
    CHECK_MESSAGE(refusals[refusal] > 100, describe(refusal));
}

}  // namespace probed::arch::x86_64
