// Random operands through Zydis' encoder, then registers chosen so that the operands point at something.
#include "tests/arch/differential/generator.hpp"

#include <array>
#include <bit>
#include <charconv>
#include <cstring>
#include <iterator>
#include <optional>

#include "arch/x86_64/decode.hpp"
#include "arch/x86_64/zydis.hpp"
#include "tests/arch/differential/templates.hpp"
#include "tests/arch/hex.hpp"

namespace probed::test {

using arch::Flow;
using arch::x86_64::Decoded;
using arch::x86_64::Registers;

namespace {

constexpr std::uint64_t kFlags = 0xcd5;      // CF PF AF ZF SF DF OF
constexpr std::uint64_t kAlwaysOne = 0x202;  // bit 1 and IF

// In the order of encoding.
constexpr std::uint64_t Registers::*kGeneral[16] = {&Registers::rax, &Registers::rcx, &Registers::rdx, &Registers::rbx,
                                                    &Registers::rsp, &Registers::rbp, &Registers::rsi, &Registers::rdi,
                                                    &Registers::r8,  &Registers::r9,  &Registers::r10, &Registers::r11,
                                                    &Registers::r12, &Registers::r13, &Registers::r14, &Registers::r15};
constexpr unsigned kRsp = 4;

// The number of a general register of any width; nullopt: none, rip, a segment, a vector register.
std::optional<unsigned> general_number(ZydisRegister reg) {
  const ZydisRegister wide = ZydisRegisterGetLargestEnclosing(ZYDIS_MACHINE_MODE_LONG_64, reg);
  if (wide < ZYDIS_REGISTER_RAX || wide > ZYDIS_REGISTER_R15) return std::nullopt;
  return static_cast<unsigned>(wide - ZYDIS_REGISTER_RAX);
}

ZydisRegister numbered(ZydisRegister first, std::uint64_t number) {
  return static_cast<ZydisRegister>(first + static_cast<int>(number));
}

bool decode_bytes(const std::vector<std::uint8_t>& bytes, Decoded& decoded) {
  return arch::x86_64::decode_with_zydis(bytes, decoded);
}

}  // namespace

// One template filled with random operands.
class Request {
 public:
  Request(Generator& generator, const Template& from) : g_(generator), from_(from) {
    constexpr unsigned kSizes[] = {16, 32, 64};
    variable_size_ = kSizes[g_.below(3)];
    request_.machine_mode = ZYDIS_MACHINE_MODE_LONG_64;
    request_.mnemonic = from.mnemonic;
    request_.prefixes = from.prefix;
    std::string_view rest = from.operands;
    while (!rest.empty()) {
      const std::size_t comma = std::min(rest.find(','), rest.size());
      add(rest.substr(0, comma));
      rest.remove_prefix(std::min(comma + 1, rest.size()));
    }
    if (has_memory_ && g_.chance(4)) request_.prefixes |= ZYDIS_ATTRIB_HAS_SEGMENT_GS;
  }

  // Empty: Zydis knows no such encoding (an operand combination that doesn't exist).
  std::vector<std::uint8_t> encode() {
    // Which hints an instruction without operands needs is a property of its definition; the first that works is taken.
    constexpr ZydisOperandSizeHint kHints[] = {ZYDIS_OPERAND_SIZE_HINT_NONE, ZYDIS_OPERAND_SIZE_HINT_64};
    for (const ZydisOperandSizeHint hint : kHints) {
      ZydisEncoderRequest request = request_;
      request.operand_size_hint = hint;
      std::array<std::uint8_t, ZYDIS_MAX_INSTRUCTION_LENGTH> buffer{};
      ZyanUSize length = buffer.size();
      if (ZYAN_SUCCESS(ZydisEncoderEncodeInstructionAbsolute(&request, buffer.data(), &length, g_.places_.original)))
        return {buffer.begin(), buffer.begin() + static_cast<std::ptrdiff_t>(length)};
    }
    return {};
  }

 private:
  void add(std::string_view pattern) {
    ZydisEncoderOperand& operand = request_.operands[request_.operand_count++];
    operand = {};
    if (pattern == "cl") return set_register(operand, ZYDIS_REGISTER_CL);
    const unsigned size = size_of(pattern.substr(1));
    switch (pattern[0]) {
      case 'r':
        return set_register(operand, general(size));
      case 'e':
        return g_.chance(50) ? set_register(operand, general(size)) : set_memory(operand, size);
      case 'm':
        return set_memory(operand, size);
      case 'x':
        return set_register(operand, numbered(ZYDIS_REGISTER_XMM0, g_.below(16)));
      case 'y':
        return set_register(operand, numbered(ZYDIS_REGISTER_YMM0, g_.below(16)));
      case 'X':
        return vector_or_memory(operand, ZYDIS_REGISTER_XMM0, size);
      case 'Y':
        return vector_or_memory(operand, ZYDIS_REGISTER_YMM0, size);
      case 'i':
        return set_immediate(operand, pattern[1] == 'v' ? std::min(size, 32u) : size);
      default:
        return set_target(operand);
    }
  }

  unsigned size_of(std::string_view text) const {
    unsigned size = 0;
    if (text == "v") return variable_size_;
    std::from_chars(text.data(), text.data() + text.size(), size);
    return size;
  }

  ZydisRegister general(unsigned size) {
    switch (size) {
      case 8:
        return numbered(ZYDIS_REGISTER_AL, g_.below(ZYDIS_REGISTER_R15B - ZYDIS_REGISTER_AL + 1));
      case 16:
        return numbered(ZYDIS_REGISTER_AX, g_.below(16));
      case 32:
        return numbered(ZYDIS_REGISTER_EAX, g_.below(16));
      default:
        return numbered(ZYDIS_REGISTER_RAX, g_.below(16));
    }
  }

  void set_register(ZydisEncoderOperand& operand, ZydisRegister reg) {
    operand.type = ZYDIS_OPERAND_TYPE_REGISTER;
    operand.reg.value = reg;
    // A fourth register sits in an immediate (vpblendvb, vblendvps).
    operand.reg.is4 = request_.operand_count == 4;
  }

  void vector_or_memory(ZydisEncoderOperand& operand, ZydisRegister first, unsigned size) {
    if (g_.chance(40)) return set_register(operand, numbered(first, g_.below(16)));
    set_memory(operand, size);
  }

  void set_immediate(ZydisEncoderOperand& operand, unsigned bits) {
    operand.type = ZYDIS_OPERAND_TYPE_IMMEDIATE;
    const std::uint64_t value = g_.random_();
    if (bits < 8) {
      operand.imm.u = value & ((1u << bits) - 1);
    } else {
      operand.imm.s = static_cast<std::int64_t>(value << (64 - bits)) >> (64 - bits);
    }
  }

  void set_target(ZydisEncoderOperand& operand) {
    operand.type = ZYDIS_OPERAND_TYPE_IMMEDIATE;
    const std::uint64_t distance = 20 + g_.below(90);
    const std::uint64_t close = g_.chance(50) ? g_.places_.original + distance : g_.places_.original - distance;
    const bool short_only = from_.mnemonic == ZYDIS_MNEMONIC_LOOP || from_.mnemonic == ZYDIS_MNEMONIC_LOOPE ||
                            from_.mnemonic == ZYDIS_MNEMONIC_LOOPNE || from_.mnemonic == ZYDIS_MNEMONIC_JRCXZ ||
                            from_.mnemonic == ZYDIS_MNEMONIC_JECXZ;
    operand.imm.u = short_only || g_.chance(50) ? close : g_.places_.landing + g_.below(kPage);
  }

  void set_memory(ZydisEncoderOperand& operand, unsigned bits) {
    has_memory_ = true;
    operand.type = ZYDIS_OPERAND_TYPE_MEMORY;
    operand.mem.size = static_cast<ZyanU16>(bits / 8);
    if (g_.chance(18)) {
      operand.mem.base = ZYDIS_REGISTER_RIP;
      operand.mem.displacement = static_cast<ZyanI64>(g_.data_address());
      return;
    }
    // 32-bit addresses reach the sandbox only when it is below 4 GiB; above, they are one more way to fault.
    const bool narrow = g_.chance(5);
    const ZydisRegister first = narrow ? ZYDIS_REGISTER_EAX : ZYDIS_REGISTER_RAX;
    const std::uint64_t base = g_.chance(12) ? kRsp : g_.below(16);
    const bool indexed = g_.chance(25);
    if (!indexed || !g_.chance(15)) operand.mem.base = numbered(first, base);
    if (indexed) set_index(operand, first);
    if (g_.chance(60)) operand.mem.displacement = static_cast<std::int8_t>(g_.random_());
    if (base != kRsp && g_.chance(30)) operand.mem.displacement = static_cast<std::int32_t>(g_.random_()) / 4;
  }

  void set_index(ZydisEncoderOperand& operand, ZydisRegister first) {
    std::uint64_t index = g_.below(16);
    if (index == kRsp) index = 12;
    operand.mem.index = numbered(first, index);
    operand.mem.scale = static_cast<ZyanU8>(1u << g_.below(4));
  }

  Generator& g_;
  const Template& from_;
  unsigned variable_size_ = 64;
  bool has_memory_ = false;
  ZydisEncoderRequest request_{};
};

std::size_t template_count() {
  return std::size(kTemplates) + std::size(kRaw);
}

std::string disassemble(const std::vector<std::uint8_t>& bytes, std::uint64_t address) {
  Decoded decoded;
  if (!decode_bytes(bytes, decoded)) return "(bad)";
  ZydisFormatter formatter;
  ZydisFormatterInit(&formatter, ZYDIS_FORMATTER_STYLE_INTEL);
  char text[256];
  ZydisFormatterFormatInstruction(&formatter, &decoded.insn, decoded.operands, decoded.insn.operand_count_visible, text,
                                  sizeof text, address, nullptr);
  return text;
}

std::vector<std::uint8_t> encode_template(std::size_t number, Generator& generator) {
  if (number < std::size(kRaw)) {
    std::vector<std::uint8_t> bytes = from_hex(kRaw[number]);
    generator.aim(bytes);
    return bytes;
  }
  return Request(generator, kTemplates[number - std::size(kRaw)]).encode();
}

std::string template_name(std::size_t number) {
  if (number < std::size(kRaw)) return std::string(kRaw[number]);
  const Template& row = kTemplates[number - std::size(kRaw)];
  return std::string(ZydisMnemonicGetString(row.mnemonic)) + " " + std::string(row.operands);
}

Case Generator::next() {
  Case result;
  while (result.bytes.empty()) result.bytes = encode_template(below(template_count()), *this);
  fill(result.start);
  aim_registers(result.bytes, result.start);
  return result;
}

std::uint64_t Generator::data_address() {
  const std::uint64_t offset = below(kPage - 64);
  return places_.data + (chance(70) ? offset & ~std::uint64_t{63} : offset);
}

// Never an address of the test process itself: small, ours, or not canonical.
std::uint64_t Generator::random_value() {
  const std::uint64_t kind = below(100);
  if (kind < 25) return below(256);
  if (kind < 35) return ~below(256);
  if (kind < 65) return data_address();
  if (kind < 75) return places_.stack + below(kPage);
  if (kind < 80) return places_.landing + below(kPage);
  return (random_() | 1ULL << 62) & ~(1ULL << 63);
}

void Generator::fill(Machine& machine) {
  for (const auto member : kGeneral) machine.regs.*member = random_value();
  machine.regs.rsp = places_.stack + kPage / 2 + 8 * below(32) + (chance(5) ? below(8) : 0);
  machine.regs.eflags = (random_() & kFlags) | kAlwaysOne;
  const auto fill_words = [this](std::span<std::uint8_t> memory) {
    for (std::size_t i = 0; i + 8 <= memory.size(); i += 8) {
      const std::uint64_t word = chance(50) ? random_() : random_value();
      std::memcpy(memory.data() + i, &word, 8);
    }
  };
  fill_words(machine.data);
  fill_words(machine.stack);
  for (auto& reg : machine.ymm) {
    fill_words(reg);
    if (chance(50)) continue;
    for (std::size_t i = 0; i < reg.size(); i += 8) {
      const double number = static_cast<double>(static_cast<std::int32_t>(random_())) / 256;
      std::memcpy(reg.data() + i, &number, 8);
    }
  }
  if (chance(5)) machine.mxcsr &= ~(static_cast<std::uint32_t>(random_()) & 0x1f80);
  if (chance(5)) machine.fpu_control &= static_cast<std::uint16_t>(~(random_() & 0x3f));
  for (std::size_t i = 0; i < 8; ++i) {
    if (!chance(30)) continue;
    machine.fpu_tags |= static_cast<std::uint8_t>(1u << i);
    const std::uint64_t mantissa = random_() | 1ULL << 63;
    const auto exponent = static_cast<std::uint16_t>(0x3fff + below(64));
    std::memcpy(machine.st[i].data(), &mantissa, 8);
    std::memcpy(machine.st[i].data() + 8, &exponent, 2);
  }
}

// Gives written-out encodings a displacement that leads somewhere.
void Generator::aim(std::vector<std::uint8_t>& bytes) {
  Decoded decoded;
  if (!decode_bytes(bytes, decoded)) return;
  const auto& raw = decoded.insn.raw;
  const std::uint64_t next = places_.original + decoded.insn.length;
  const auto put = [&bytes](std::size_t offset, std::uint64_t value, std::size_t size) {
    std::memcpy(bytes.data() + offset, &value, size);
  };
  if (decoded.pc_relative_operand() != nullptr) put(raw.disp.offset, data_address() - next, 4);
  if (raw.imm[0].is_relative && raw.imm[0].size == 32) put(raw.imm[0].offset, places_.landing + below(kPage) - next, 4);
  if (raw.imm[0].is_relative && raw.imm[0].size == 8) put(raw.imm[0].offset, 20 + below(90), 1);
}

void Generator::place_target(std::uint64_t address, Machine& machine) {
  const std::uint64_t target = places_.landing + below(kPage);
  const auto put = [&](std::span<std::uint8_t> memory, std::uint64_t at) {
    if (address >= at && address + 8 <= at + memory.size()) std::memcpy(memory.data() + (address - at), &target, 8);
  };
  put(machine.data, places_.data);
  put(machine.stack, places_.stack);
}

namespace {

std::uint64_t effective_address(const ZydisDecodedOperandMem& mem, const Registers& regs, std::uint64_t next) {
  std::uint64_t sum = static_cast<std::uint64_t>(mem.disp.value);
  if (mem.base == ZYDIS_REGISTER_RIP) sum += next;
  if (const auto base = general_number(mem.base)) sum += regs.*kGeneral[*base];
  if (const auto index = general_number(mem.index)) sum += regs.*kGeneral[*index] * mem.scale;
  const bool narrow = ZydisRegisterGetWidth(ZYDIS_MACHINE_MODE_LONG_64, mem.base) == 32;
  return narrow ? static_cast<std::uint32_t>(sum) : sum;
}

// Solves the operand's address for its registers. rsp stays where the stack is.
void point_operand_at(const ZydisDecodedOperandMem& mem, std::uint64_t wanted, std::uint64_t small, Registers& regs) {
  const auto base = general_number(mem.base);
  const auto index = general_number(mem.index);
  const std::uint64_t rest = wanted - static_cast<std::uint64_t>(mem.disp.value);
  if (base == kRsp) {
    if (index) regs.*kGeneral[*index] = small;
  } else if (base && index && *base == *index) {
    regs.*kGeneral[*base] = rest / (1u + mem.scale);
  } else if (base && index) {
    regs.*kGeneral[*index] = small;
    regs.*kGeneral[*base] = rest - small * mem.scale;
  } else if (base) {
    regs.*kGeneral[*base] = rest;
  } else if (index) {
    regs.*kGeneral[*index] = rest / mem.scale;
  }
}

constexpr std::uint64_t kSafeSyscalls[] = {39 /* getpid */, 102 /* getuid */, ~0ULL /* ENOSYS */};
constexpr std::uint64_t kSafeInt80Calls[] = {20 /* getpid */, 0xffff /* ENOSYS */};

}  // namespace

bool reads_below_sp(const Case& one, std::uint64_t address) {
  Decoded decoded;
  if (!decode_bytes(one.bytes, decoded) || decoded.operands[0].type != ZYDIS_OPERAND_TYPE_MEMORY) return false;
  const Registers& regs = one.start.regs;
  const std::uint64_t at = effective_address(decoded.operands[0].mem, regs, address + one.bytes.size());
  return at + 8 > regs.rsp - 8 && at < regs.rsp;
}

void Generator::aim_registers(const std::vector<std::uint8_t>& bytes, Machine& machine) {
  Decoded decoded;
  if (!decode_bytes(bytes, decoded)) return;
  Registers& regs = machine.regs;
  const arch::Insn insn = arch::x86_64::decode(bytes, places_.original);
  const bool indirect = insn.flow == Flow::indirect_call || insn.flow == Flow::indirect_jump;
  const bool aimed = chance(93);
  if (insn.repeats && chance(95)) regs.rcx = below(120);
  if (insn.flow == Flow::ret && aimed) place_target(regs.rsp, machine);
  for (unsigned i = 0; i < decoded.insn.operand_count && aimed; ++i) {
    const ZydisDecodedOperand& operand = decoded.operands[i];
    if (operand.type == ZYDIS_OPERAND_TYPE_REGISTER && indirect && i == 0)
      if (const auto number = general_number(operand.reg.value); number && *number != kRsp)
        regs.*kGeneral[*number] = places_.landing + below(kPage);
    if (operand.type != ZYDIS_OPERAND_TYPE_MEMORY || operand.mem.segment == ZYDIS_REGISTER_FS) continue;
    point_operand_at(operand.mem, data_address(), below(16), regs);
    if (indirect && i == 0)
      place_target(effective_address(operand.mem, regs, places_.original + decoded.insn.length), machine);
  }
  if (decoded.insn.mnemonic == ZYDIS_MNEMONIC_LEAVE || decoded.insn.mnemonic == ZYDIS_MNEMONIC_ENTER)
    if (aimed) regs.rbp = places_.stack + kPage / 2 + 8 * below(64);
  // What popf loads must not trap (TF) or make the harness trap (AC); NT is better left alone too.
  if (decoded.insn.mnemonic == ZYDIS_MNEMONIC_POPFQ) {
    const std::uint64_t flags = (random_() & kFlags) | kAlwaysOne;
    std::memcpy(machine.stack.data() + (regs.rsp - places_.stack), &flags, 8);
  }
  if (decoded.insn.mnemonic == ZYDIS_MNEMONIC_SYSCALL) regs.rax = kSafeSyscalls[below(std::size(kSafeSyscalls))];
  if (decoded.insn.mnemonic == ZYDIS_MNEMONIC_INT) regs.rax = kSafeInt80Calls[below(std::size(kSafeInt80Calls))];
}

}  // namespace probed::test
