// The fast scanner against Zydis, on all the code that is loaded here and on random bytes.
#include "arch/x86_64/scan.hpp"

#include <dlfcn.h>
#include <doctest/doctest.h>
#include <link.h>

#include <random>
#include <span>
#include <string>
#include <vector>

#include "arch/x86_64/decode.hpp"
#include "arch/x86_64/stack_use.hpp"
#include "tests/arch/hex.hpp"

using namespace probed;
using namespace probed::arch;
using x86_64::scan;
using x86_64::Scan;
using x86_64::ScanKind;

namespace {

std::vector<std::span<const std::uint8_t>> loaded_text() {
  for (const char* name : {"libcrypto.so.3", "libpython3.11.so.1.0", "libstdc++.so.6"}) ::dlopen(name, RTLD_LAZY);
  std::vector<std::span<const std::uint8_t>> out;
  ::dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* data) {
        for (const ElfW(Phdr) & p : std::span(info->dlpi_phdr, info->dlpi_phnum))
          if (p.p_type == PT_LOAD && (p.p_flags & PF_X) != 0)
            static_cast<decltype(out)*>(data)->emplace_back(
                reinterpret_cast<const std::uint8_t*>(info->dlpi_addr + p.p_vaddr), p.p_memsz);
        return 0;
      },
      &out);
  return out;
}

ScanKind expected_kind(const Insn& insn, const Scan& got) {
  switch (insn.flow) {
    case Flow::jump: return ScanKind::jump;
    case Flow::cond_jump:
    case Flow::transaction: return ScanKind::branch;
    case Flow::call: return ScanKind::call;
    case Flow::indirect_call: return ScanKind::call_away;
    case Flow::indirect_jump: return ScanKind::leap;
    case Flow::ret: return ScanKind::end;
    // What ends or does nothing among the others isn't one of decode()'s facts.
    case Flow::next:
    case Flow::syscall: break;
  }
  const bool other = got.kind == ScanKind::nothing || got.kind == ScanKind::end;
  return other ? got.kind : ScanKind::plain;
}

// Whether it sets rsp, other than by a distance or to a multiple of something.
bool moves_stack_elsewhere(std::span<const std::uint8_t> bytes) {
  x86_64::Decoded decoded;
  if (!x86_64::decode_with_zydis(bytes, decoded) || !x86_64::sets_stack_pointer(decoded)) return false;
  switch (decoded.insn.mnemonic) {
    case ZYDIS_MNEMONIC_ADD:
    case ZYDIS_MNEMONIC_SUB:
    case ZYDIS_MNEMONIC_AND: return decoded.insn.operand_width != 64;
    default: return true;
  }
}

// Empty: the two agree, or Zydis takes it for no instruction.
std::string disagreement(std::span<const std::uint8_t> bytes, std::uint64_t address) {
  const Insn insn = x86_64::decode(bytes, address);
  const Scan got = scan(bytes, address);
  if (insn.length == 0) return {};
  const bool same =
      got.length == insn.length && got.kind == expected_kind(insn, got) && (!insn.target || *insn.target == got.target);
  if (same && (got.sets_stack || !moves_stack_elsewhere(bytes))) return {};
  return test::to_hex(bytes.first(std::min<std::size_t>(15, bytes.size()))) + ": length " +
         std::to_string(insn.length) + ", scanned " + std::to_string(got.length) + ", kind " +
         std::to_string(static_cast<int>(got.kind));
}

}  // namespace

TEST_CASE("the scanner agrees with Zydis on every instruction that is loaded here") {
  std::uint64_t checked = 0, wrong = 0;
  for (const auto text : loaded_text()) {
    for (std::size_t at = 0; at < text.size();) {
      const auto rest = text.subspan(at);
      const std::string difference = disagreement(rest, at);
      if (!difference.empty() && ++wrong < 10) FAIL_CHECK(difference);
      ++checked;
      at += std::max<std::size_t>(1, x86_64::decode(rest, at).length);
    }
  }
  CHECK(wrong == 0);
  CHECK(checked > 100'000);
  MESSAGE(checked << " instructions");
}

TEST_CASE("the scanner agrees with Zydis on random bytes that are an instruction") {
  std::mt19937_64 random(1);
  std::uint64_t wrong = 0;
  constexpr std::uint8_t kPrefixes[] = {0x66, 0xf2, 0xf3, 0x48, 0x41, 0x0f, 0x67, 0x2e, 0x64, 0xf0};
  for (int i = 0; i < 1'000'000; ++i) {
    std::array<std::uint8_t, 15> bytes;
    for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random());
    if (i % 2 == 1) bytes[0] = kPrefixes[random() % std::size(kPrefixes)];
    if (i % 4 == 3) bytes[1] = kPrefixes[random() % std::size(kPrefixes)];
    const std::string difference = disagreement(bytes, 0x1000);
    if (!difference.empty() && ++wrong < 20) FAIL_CHECK(difference);
  }
  CHECK(wrong == 0);
}

TEST_CASE("what a short rest of bytes holds is no instruction") {
  const std::uint8_t call[] = {0xe8, 1, 2, 3};
  CHECK(scan(call, 0).length == 0);
  CHECK(scan({}, 0).length == 0);
}
