// What can't be executed here is checked without executing it, and what is refused for faulting is shown to fault.
#include <doctest/doctest.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <set>
#include <sstream>
#include <string>

#include "arch/x86_64/decode.hpp"
#include "arch/x86_64/relocate.hpp"
#include "arch/x86_64/zydis.hpp"
#include "tests/arch/differential/aim.hpp"
#include "tests/arch/differential/cpu.hpp"
#include "tests/arch/differential/encode.hpp"
#include "tests/arch/differential/options.hpp"
#include "tests/arch/hex.hpp"

namespace probed::test {
namespace {

using arch::Flow;
using arch::Insn;
using arch::Refusal;
using arch::RelocateResult;
using arch::x86_64::Decoded;

constexpr std::uint64_t kBase = 0x3000'0000, kFarBase = 0x2345'6789'0000;
constexpr int kAttempts = 60;
constexpr int kCasesPerForm = 3;

// One instruction's text with absolute addresses: equal for equal effects, wherever it stands.
std::string text_at(std::span<const std::uint8_t> bytes, std::uint64_t address) {
  Decoded decoded;
  if (!arch::x86_64::decode_with_zydis(bytes, decoded)) return "(bad)";
  return disassemble({bytes.begin(), bytes.begin() + decoded.insn.length}, address);
}

// The copy must begin with the same instruction, of the same length, its prefixes and operands untouched but for a
// displacement that leads to the same address, and jump back behind it.
void check_moved(const std::vector<std::uint8_t>& bytes, const Places& places) {
  const Insn insn = arch::x86_64::decode(bytes, places.original);
  const std::uint64_t copy = places.original + 0x10000;
  const RelocateResult result = arch::x86_64::relocate(bytes, insn, places.original, copy);
  INFO(to_hex(bytes) << "  " << text_at(bytes, places.original));
  REQUIRE(result.refusal == Refusal::none);
  const auto code = std::span(result.copy.code).first(result.copy.size);
  REQUIRE(code.size() >= bytes.size());
  CHECK(text_at(code, copy) == text_at(bytes, places.original));
  std::size_t different = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) different += bytes[i] != code[i] ? 1 : 0;
  CHECK(different <= (insn.pc_relative || insn.flow == Flow::transaction ? 4 : 0));
  if (insn.flow != Flow::next) return;
  const Insn back = arch::x86_64::decode(code.subspan(bytes.size()), copy + bytes.size());
  CHECK(back.flow == Flow::jump);
  CHECK(back.target == places.original + bytes.size());
}

}  // namespace

TEST_CASE("what this processor lacks is moved unchanged but for what refers to its own place") {
  const Places places(kBase);
  const std::uint64_t seed = chosen_seed();
  INFO("seed " << seed);
  Random random(seed);
  std::size_t count = 0, relative = 0;
  for (const auto all : {forms(), evex_forms()})
    for (const Form& form : all) {
      if (form.refusal != Refusal::none || executed_here(form)) continue;
      for (int attempt = 0, cases = 0; attempt < kAttempts && cases < kCasesPerForm; ++attempt) {
        const auto bytes = encode(form, random, places);
        if (bytes.empty()) continue;
        check_moved(bytes, places);
        ++cases;
        ++count;
        relative += arch::x86_64::decode(bytes, places.original).pc_relative ? 1 : 0;
      }
    }
  std::ostringstream out;
  for (const auto& [reason, mnemonics] : not_executed()) {
    out << "  " << reason << ": " << mnemonics.size() << " mnemonics (";
    std::size_t shown = 0;
    for (const std::string& name : mnemonics)
      if (shown++ < 6) out << (shown > 1 ? " " : "") << name;
    out << (mnemonics.size() > 6 ? " ...)\n" : ")\n");
  }
  MESSAGE(count << " copies compared by decoding, " << relative << " of them rip-relative; not executed here:\n"
                << out.str());
  CHECK(relative * 20 > count);
}

TEST_CASE("AVX-512 instructions are among those that are executed") {
  if (!cpu_has("avx512f")) {
    std::puts(
        "[skip] AVX-512 instructions are among those that are executed: this processor has no avx512f; their copies "
        "are compared by decoding only");
    return;
  }
  CHECK(Sandbox::has_wide_state());
  bool found = false;
  for (const Family& family : families()) found |= family.name == "avx-512";
  CHECK(found);
}

TEST_CASE("what is refused as privileged faults where it stands") {
  Sandbox sandbox(kBase, kFarBase);
  const Places places(sandbox);
  const std::uint64_t seed = chosen_seed();
  INFO("seed " << seed);
  Random random(seed);
  std::map<std::string, std::set<int>> seen;
  Machine start;
  Outcome outcome;
  for (const Form& form : forms()) {
    if (form.refusal != Refusal::privileged) continue;
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      const auto bytes = encode(form, random, places);
      if (bytes.empty() || !aim(bytes, random, places, start)) continue;
      sandbox.write(sandbox.original(), bytes);
      start.regs.rip = sandbox.original();
      sandbox.run(start, outcome);
      sandbox.erase(sandbox.original(), bytes.size());
      INFO(to_hex(bytes) << "  " << disassemble(bytes, sandbox.original()));
      CHECK((outcome.signal == SIGSEGV || outcome.signal == SIGILL));
      CHECK(outcome.machine.regs.rip == sandbox.original());
      seen[ZydisMnemonicGetString(form.mnemonic)].insert(outcome.signal);
      break;
    }
  }
  CHECK(seen.size() > 40);
  for (const char* name : {"hlt", "in", "outsb", "cli", "rdmsr", "lgdt", "invlpg", "clts", "swapgs"})
    CHECK_MESSAGE(seen.contains(name), name);
}

}  // namespace probed::test
