// Assembling at random, with the decoder as judge.
#include "tests/arch/differential/encode.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "arch/x86_64/decode.hpp"
#include "arch/x86_64/zydis.hpp"

namespace probed::test {
namespace {

using arch::x86_64::Decoded;

constexpr std::size_t kLongest = 15;

class Assembler {
 public:
  Assembler(const Form& form, Random& random) : form_(form), random_(random) {
    bytes_.reserve(32);
    rxb_ = static_cast<unsigned>(random_.below(8));
    choose_modrm();
  }

  std::vector<std::uint8_t> assemble() {
    switch (form_.encoding) {
      case Encoding::legacy:
      case Encoding::now3d: legacy_head(); break;
      case Encoding::vex:
      case Encoding::xop: vex_head(); break;
      case Encoding::evex: evex_head(); break;
    }
    bytes_.insert(bytes_.end(), operand_.begin(), operand_.end());
    if (form_.encoding == Encoding::now3d) add(form_.opcode);
    return std::move(bytes_);
  }

 private:
  void add(unsigned byte) { bytes_.push_back(static_cast<std::uint8_t>(byte)); }

  // ---- ModRM, SIB, displacement ----

  void choose_modrm() {
    if (!form_.has_modrm) return;
    unsigned combination = 0;
    do combination = static_cast<unsigned>(random_.below(64));
    while ((form_.modrm >> combination & 1) == 0);
    const unsigned reg = combination >> 3;
    if (!form_.memory) {
      operand_ = {static_cast<std::uint8_t>(0xc0 | combination)};
      return;
    }
    choose_memory(reg);
  }

  void choose_memory(unsigned reg) {
    const std::uint64_t kind = random_.below(100);
    if (kind < 20) return put_operand(0, reg, 5, {}, 4);  // rip
    const unsigned mod = static_cast<unsigned>(random_.below(3));
    if (kind < 24) return put_operand(0, reg, 4, sib(static_cast<unsigned>(random_.below(8)), 5), 4);
    if (kind < 36) {  // rsp or r12
      if (random_.chance(75)) rxb_ &= ~1u;
      const unsigned index = random_.chance(70) ? 4 : static_cast<unsigned>(random_.below(8));
      if (index == 4) rxb_ &= ~2u;
      return put_operand(mod, reg, 4, sib(index, 4), displacement_size(mod));
    }
    if (kind < 60) {
      const unsigned base = static_cast<unsigned>(random_.below(8));
      const std::size_t size = mod == 0 && base == 5 ? 4 : displacement_size(mod);
      return put_operand(mod, reg, 4, sib(static_cast<unsigned>(random_.below(8)), base), size);
    }
    unsigned base = static_cast<unsigned>(random_.below(7));
    if (base >= 4) ++base;  // 4 means SIB
    put_operand(mod == 0 && base == 5 ? 1 : mod, reg, base, {}, displacement_size(mod == 0 && base == 5 ? 1 : mod));
  }

  std::vector<std::uint8_t> sib(unsigned index, unsigned base) {
    return {static_cast<std::uint8_t>(random_.below(4) << 6 | index << 3 | base)};
  }

  static std::size_t displacement_size(unsigned mod) { return mod == 1 ? 1 : mod == 2 ? 4 : 0; }

  void put_operand(unsigned mod, unsigned reg, unsigned rm, const std::vector<std::uint8_t>& sib, std::size_t size) {
    operand_ = {static_cast<std::uint8_t>(mod << 6 | reg << 3 | rm)};
    operand_.insert(operand_.end(), sib.begin(), sib.end());
    const bool small = size == 4 && random_.chance(50);
    const auto value = static_cast<std::uint32_t>(small ? random_.below(0x400) : random_.word());
    for (std::size_t i = 0; i < size; ++i) operand_.push_back(static_cast<std::uint8_t>(value >> (8 * i)));
  }

  // ---- prefixes and opcode ----

  void legacy_head() {
    legacy_prefixes();
    if (form_.wide || random_.chance(60)) add(0x40u | (form_.wide ? 8u : 0u) | rxb_);
    if (form_.encoding == Encoding::now3d) {
      add(0x0f);
      add(0x0f);
      return;
    }
    constexpr std::uint8_t kEscapes[][2] = {{0, 0}, {0x0f, 0}, {0x0f, 0x38}, {0x0f, 0x3a}};
    for (const std::uint8_t byte : kEscapes[form_.map])
      if (byte != 0) add(byte);
    add(form_.opcode);
  }

  void legacy_prefixes() {
    if (form_.prefix != 0) add(form_.prefix);
    if (form_.prefix == 0x66 && random_.chance(8)) add(0x66);
    segment_and_address_prefixes();
    if (form_.memory && random_.chance(12)) add(0xf0);
    for (std::size_t i = bytes_.size(); i > 1; --i) std::swap(bytes_[i - 1], bytes_[random_.below(i)]);
  }

  void segment_and_address_prefixes() {
    constexpr std::uint8_t kSegments[] = {0x64, 0x65, 0x64, 0x65, 0x2e, 0x3e, 0x26, 0x36};
    if (random_.chance(14)) add(random_.pick(kSegments));
    if (random_.chance(5)) add(0x67);
  }

  // The bits of VEX and EVEX that are stored inverted.
  unsigned inverted_rxb() const { return (~rxb_ & 7u) << 5; }
  unsigned inverted_vvvv() { return (random_.chance(40) ? 0xfu : static_cast<unsigned>(random_.below(16))) << 3; }

  void vex_head() {
    segment_and_address_prefixes();
    const unsigned last = inverted_vvvv() | static_cast<unsigned>(form_.length) << 2 | form_.prefix;
    const bool short_form = form_.encoding == Encoding::vex && form_.map == 1 && !form_.wide && (rxb_ & 3) == 0;
    if (short_form && random_.chance(70)) {
      add(0xc5);
      add(((~rxb_ & 4u) << 5) | last);
    } else {
      add(form_.encoding == Encoding::vex ? 0xc4 : 0x8f);
      add(inverted_rxb() | form_.map);
      add((form_.wide ? 0x80u : 0u) | last);
    }
    add(form_.opcode);
  }

  void evex_head() {
    segment_and_address_prefixes();
    add(0x62);
    add(inverted_rxb() | (random_.chance(50) ? 0x10u : 0u) | form_.map);
    add((form_.wide ? 0x80u : 0u) | inverted_vvvv() | 4u | form_.prefix);
    const unsigned mask = form_.masked ? 1 + static_cast<unsigned>(random_.below(7)) : 0;
    add((form_.zeroing ? 0x80u : 0u) | static_cast<unsigned>(form_.length) << 5 | (form_.broadcast ? 0x10u : 0u) |
        (random_.chance(70) ? 8u : 0u) | mask);
    add(form_.opcode);
  }

  const Form& form_;
  Random& random_;
  std::vector<std::uint8_t> bytes_;
  std::vector<std::uint8_t> operand_;
  unsigned rxb_ = 0;  // R 4, X 2, B 1, as REX has them
};

// Random, but now and then made of bytes that would start something if they were executed.
void fill_immediate(std::uint8_t* at, std::size_t size, Random& random) {
  constexpr std::uint8_t kTelling[] = {0xcc, 0xcd, 0xf1, 0x0f, 0xe8, 0xe9, 0xc3, 0x00, 0xff, 0x01};
  const bool telling = random.chance(30);
  for (std::size_t i = 0; i < size; ++i) at[i] = telling ? random.pick(kTelling) : random.byte();
}

}  // namespace

std::vector<std::uint8_t> encode(const Form& form, Random& random, const Places& places) {
  std::vector<std::uint8_t> bytes = Assembler(form, random).assemble();
  if (form.encoding != Encoding::now3d) {
    const std::size_t head = bytes.size();
    bytes.resize(head + 8);
    fill_immediate(bytes.data() + head, 8, random);
    if (form.mnemonic == ZYDIS_MNEMONIC_INT) bytes[head] = 0x80;
    if (form.mnemonic == ZYDIS_MNEMONIC_ENTER && random.chance(90)) bytes[head + 2] &= 0xe3;
  }
  Decoded decoded;
  if (!arch::x86_64::decode_with_zydis(std::span(bytes).first(std::min(bytes.size(), kLongest)), decoded)) return {};
  if (decoded.insn.mnemonic != form.mnemonic) return {};
  bytes.resize(decoded.insn.length);
  aim_displacements(bytes, random, places);
  const arch::Insn insn = arch::x86_64::decode(bytes, places.original);
  if (insn.refusal != form.refusal || insn.length != bytes.size()) return {};
  return bytes;
}

void aim_displacements(std::vector<std::uint8_t>& bytes, Random& random, const Places& places) {
  Decoded decoded;
  if (!arch::x86_64::decode_with_zydis(bytes, decoded)) return;
  const auto& raw = decoded.insn.raw;
  const std::uint64_t next = places.original + decoded.insn.length;
  const auto put = [&bytes](std::size_t offset, std::uint64_t value, std::size_t size) {
    std::memcpy(bytes.data() + offset, &value, size);
  };
  if (decoded.pc_relative_operand() != nullptr) put(raw.disp.offset, random_data_address(random, places) - next, 4);
  if (raw.imm[0].is_relative == 0) return;
  const std::uint64_t target = random.chance(95) ? places.landing + random.below(kPage) : places.hole();
  if (raw.imm[0].size == 32) put(raw.imm[0].offset, target - next, 4);
  // Neither into the instruction itself nor out of the page.
  if (raw.imm[0].size == 8)
    put(raw.imm[0].offset, random.chance(50) ? 20 + random.below(100) : -20 - random.below(100), 1);
}

std::uint64_t random_data_address(Random& random, const Places& places) {
  const std::uint64_t kind = random.below(100);
  const std::uint64_t inside = random.below(kPage - 64);
  if (kind < 62) return places.data + (inside & ~std::uint64_t{63});
  if (kind < 88) return places.data + inside;
  if (kind < 92) return places.data + kPage - random.below(64);  // across the end
  if (kind < 95) return places.stack + inside;
  if (kind < 98) return places.landing + inside;  // not writable
  return places.hole() + inside;
}

std::string disassemble(const std::vector<std::uint8_t>& bytes, std::uint64_t address) {
  Decoded decoded;
  if (!arch::x86_64::decode_with_zydis(bytes, decoded)) return "(bad)";
  ZydisFormatter formatter;
  ZydisFormatterInit(&formatter, ZYDIS_FORMATTER_STYLE_INTEL);
  char text[256];
  ZydisFormatterFormatInstruction(&formatter, &decoded.insn, decoded.operands, decoded.insn.operand_count_visible, text,
                                  sizeof text, address, nullptr);
  return text;
}

}  // namespace probed::test
