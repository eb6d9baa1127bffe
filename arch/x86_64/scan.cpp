// Opcode tables (SDM volume 2, appendix A) with one byte of facts for each opcode.
#include "arch/x86_64/scan.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "arch/common.hpp"
#include "arch/x86_64/decode.hpp"
#include "arch/x86_64/stack_use.hpp"
#include "arch/x86_64/zydis.hpp"

namespace probed::arch::x86_64 {
namespace {

// What follows an opcode, and what kind it is: the low three bits are one of the first group.
enum Facts : std::uint8_t {
  kNone = 0,   // no immediate
  kByte = 1,   // ib
  kWord = 2,   // iw
  kFull = 3,   // iz: 4 bytes, 2 with 66h and no REX.W
  kWide = 4,   // iv: like iz, 8 bytes with REX.W
  kRel8 = 5,   //
  kRel32 = 6,  //
  kAsk = 7,    // Zydis knows
  kModrm = 8,
  kBranch = 16,  // with kRel8 and kRel32: conditional
  kCall = 32,    // with kRel32
  kEnd = 64,     // doesn't go on
  kIdle = 128,   // does nothing
};

using Table = std::array<std::uint8_t, 256>;

constexpr void fill(Table& table, unsigned first, unsigned last, unsigned facts) {
  for (unsigned i = first; i <= last; ++i) table[i] = static_cast<std::uint8_t>(facts);
}

constexpr Table one_byte_map() {
  Table t{};
  fill(t, 0x00, 0xff, kAsk);
  for (unsigned row = 0x00; row < 0x40; row += 8) {  // add, or, adc, sbb, and, sub, xor, cmp
    fill(t, row, row + 3, kModrm);
    t[row + 4] = kByte;
    t[row + 5] = kFull;
  }
  fill(t, 0x50, 0x5f, kNone);
  t[0x63] = kModrm;
  t[0x68] = kFull;
  t[0x69] = kModrm | kFull;
  t[0x6a] = kByte;
  t[0x6b] = kModrm | kByte;
  fill(t, 0x70, 0x7f, kRel8 | kBranch);
  t[0x80] = t[0x83] = kModrm | kByte;
  t[0x81] = kModrm | kFull;
  fill(t, 0x84, 0x8e, kModrm);
  fill(t, 0x90, 0x99, kNone);
  t[0x90] = kNone | kIdle;
  fill(t, 0x9b, 0x9f, kNone);
  fill(t, 0xa4, 0xa7, kNone);
  t[0xa8] = kByte;
  t[0xa9] = kFull;
  fill(t, 0xaa, 0xaf, kNone);
  fill(t, 0xb0, 0xb7, kByte);
  fill(t, 0xb8, 0xbf, kWide);
  t[0xc0] = t[0xc1] = kModrm | kByte;
  t[0xc2] = kWord | kEnd;
  t[0xc3] = kNone | kEnd;
  t[0xc6] = kModrm | kByte;
  t[0xc7] = kModrm | kFull;
  t[0xc9] = kNone;
  t[0xcc] = kNone | kIdle;
  fill(t, 0xd0, 0xd3, kModrm);
  fill(t, 0xd8, 0xdf, kModrm);
  fill(t, 0xe0, 0xe3, kRel8 | kBranch);
  t[0xe8] = kRel32 | kCall;
  t[0xe9] = kRel32;
  t[0xeb] = kRel8;
  t[0xf4] = kNone | kEnd;
  t[0xf5] = kNone;
  t[0xf6] = kModrm | kByte;  // the immediate with /0 and /1 only, see immediate()
  t[0xf7] = kModrm | kFull;
  fill(t, 0xf8, 0xfd, kNone);
  t[0xfe] = t[0xff] = kModrm;
  return t;
}

constexpr Table two_byte_map() {
  Table t{};
  fill(t, 0x00, 0xff, kAsk);
  t[0x05] = kNone;
  t[0x0b] = kNone | kEnd;
  fill(t, 0x10, 0x17, kModrm);
  t[0x18] = kModrm;
  t[0x1f] = kModrm | kIdle;
  fill(t, 0x28, 0x2f, kModrm);
  t[0x31] = kNone;
  fill(t, 0x40, 0x6f, kModrm);
  fill(t, 0x70, 0x73, kModrm | kByte);
  fill(t, 0x74, 0x76, kModrm);
  t[0x77] = kNone;
  fill(t, 0x7c, 0x7f, kModrm);
  fill(t, 0x80, 0x8f, kRel32 | kBranch);
  fill(t, 0x90, 0x9f, kModrm);
  t[0xa2] = kNone;
  t[0xa3] = t[0xa5] = t[0xab] = t[0xad] = t[0xaf] = kModrm;
  t[0xa4] = t[0xac] = kModrm | kByte;
  fill(t, 0xb0, 0xb1, kModrm);
  t[0xb3] = t[0xb6] = t[0xb7] = kModrm;
  t[0xba] = kModrm | kByte;
  t[0xbb] = kModrm;
  fill(t, 0xbc, 0xbf, kModrm);
  fill(t, 0xc0, 0xc1, kModrm);
  t[0xc2] = t[0xc4] = t[0xc5] = t[0xc6] = kModrm | kByte;
  fill(t, 0xc8, 0xcf, kNone);
  fill(t, 0xd1, 0xfe, kModrm);
  return t;
}

constexpr Table kOneByte = one_byte_map(), kTwoByte = two_byte_map();

constexpr std::array<bool, 256> prefixes() {
  std::array<bool, 256> is{};
  for (const unsigned byte : {0x26u, 0x2eu, 0x36u, 0x3eu, 0x64u, 0x65u, 0x66u, 0x67u, 0xf0u, 0xf2u, 0xf3u})
    is[byte] = true;
  return is;
}
constexpr std::array<bool, 256> kIsPrefix = prefixes();
constexpr std::size_t kLongest = 15;

std::uint64_t signed_at(const std::uint8_t* from, std::size_t size) {
  std::uint64_t value = 0;
  std::memcpy(&value, from, size);
  const unsigned unused = static_cast<unsigned>(64 - 8 * size);
  return size == 0 ? 0 : static_cast<std::uint64_t>(static_cast<std::int64_t>(value << unused) >> unused);
}

ScanKind kind_of(const Decoded& decoded, const Insn& insn) {
  switch (insn.flow) {
    case Flow::next: break;
    case Flow::jump: return ScanKind::jump;
    case Flow::cond_jump:
    case Flow::transaction: return ScanKind::branch;
    case Flow::call: return ScanKind::call;
    case Flow::indirect_call: return ScanKind::call_away;
    case Flow::indirect_jump: return ScanKind::leap;
    case Flow::ret: return ScanKind::end;
    case Flow::syscall: return ScanKind::plain;
  }
  switch (decoded.insn.mnemonic) {
    case ZYDIS_MNEMONIC_NOP: return ScanKind::nothing;
    case ZYDIS_MNEMONIC_IRET:
    case ZYDIS_MNEMONIC_IRETD:
    case ZYDIS_MNEMONIC_IRETQ:
    case ZYDIS_MNEMONIC_UD0:
    case ZYDIS_MNEMONIC_UD1:
    case ZYDIS_MNEMONIC_UD2: return ScanKind::end;
    default: return ScanKind::plain;
  }
}

Scan ask(std::span<const std::uint8_t> bytes, std::uint64_t address) {
  Scan out;
  Decoded decoded;
  if (!decode_with_zydis(bytes, decoded)) return out;
  const Insn insn = decode(bytes, address);
  out.length = insn.length;
  out.kind = kind_of(decoded, insn);
  out.target = insn.target.value_or(0);
  out.sets_stack = sets_stack_pointer(decoded);
  if (insn.pc_relative) {
    out.has_address = true;
    out.takes_address = decoded.insn.mnemonic == ZYDIS_MNEMONIC_LEA;
    out.address = address + insn.length + static_cast<std::uint64_t>(decoded.insn.raw.disp.value);
  }
  return out;
}

// One instruction being read.
class Reader {
 public:
  Reader(std::span<const std::uint8_t> bytes, std::uint64_t address) : bytes_(bytes), address_(address) {}

  // False: ask Zydis.
  bool read() {
    if (!skip_prefixes()) return false;
    unsigned opcode = bytes_[at_++];
    const bool two_bytes = opcode == 0x0f;
    if (two_bytes) {
      if (at_ == bytes_.size()) return false;
      opcode = bytes_[at_++];
    }
    const unsigned facts = two_bytes ? kTwoByte[opcode] : kOneByte[opcode];
    if ((facts & 7) == kAsk) return false;
    const bool relative = (facts & 7) == kRel8 || (facts & 7) == kRel32;
    if (relative && short_operand_) return false;
    if ((facts & kModrm) != 0 && !operand()) return false;
    if (!special(two_bytes, opcode, facts)) return false;
    return finish(two_bytes, opcode, facts);
  }
  const Scan& scan() const { return out_; }

 private:
  bool skip_prefixes() {
    for (; at_ < bytes_.size(); ++at_) {
      const unsigned byte = bytes_[at_];
      if ((byte & 0xf0) == 0x40) {
        rex_w_ = (byte & 8) != 0;
        rex_r_ = (byte & 4) != 0;
        rex_b_ = (byte & 1) != 0;
        rex_ = true;
        continue;
      }
      if (!kIsPrefix[byte]) return true;
      if (rex_) return false;  // a REX in front of another prefix is void
      short_operand_ = short_operand_ || byte == 0x66;
      prefixed_ = true;
      if (byte == 0x67 || byte == 0xf0) odd_ = true;
    }
    return false;
  }

  // ModRM, SIB, displacement.
  bool operand() {
    if (odd_ || at_ == bytes_.size()) return false;
    modrm_ = bytes_[at_++];
    const unsigned mod = modrm_ >> 6, rm = modrm_ & 7;
    if (mod == 3) return true;
    unsigned size = mod == 1 ? 1 : mod == 2 ? 4 : 0;
    if (rm == 4) {
      if (at_ == bytes_.size()) return false;
      const unsigned sib = bytes_[at_++];
      if (mod == 0 && (sib & 7) == 5) size = 4, absolute_ = true;
    } else if (mod == 0 && rm == 5) {
      size = 4, rip_relative_ = true;
    }
    if (bytes_.size() - at_ < size) return false;
    displacement_ = signed_at(bytes_.data() + at_, size);
    if (size == 4 && !rip_relative_) note_constant(displacement_);
    at_ += size;
    return true;
  }

  void note_constant(std::uint64_t value) {
    out_.has_constant = true;
    out_.constant = value;
  }

  // Opcodes that mean different things with different ModRM bytes. False: ask.
  bool special(bool two_bytes, unsigned opcode, unsigned) {
    const unsigned mod = modrm_ >> 6, digit = modrm_ >> 3 & 7;
    if (two_bytes) return opcode != 0xb8 && opcode != 0xc7;
    switch (opcode) {
      case 0x8d: return mod != 3;
      case 0xc6:
      case 0xc7: return digit == 0;
      case 0xfe: return digit <= 1;
      case 0xff: return digit == 0 || digit == 1 || digit == 2 || digit == 4 || digit == 6;
      default: return true;
    }
  }

  std::size_t immediate(bool two_bytes, unsigned opcode, unsigned facts) const {
    if (!two_bytes && (opcode & 0xfe) == 0xf6 && (modrm_ >> 3 & 7) > 1) return 0;  // not, neg, mul, ...
    const std::size_t full = short_operand_ && !rex_w_ ? 2 : 4;
    switch (facts & 7) {
      case kByte:
      case kRel8: return 1;
      case kWord: return 2;
      case kFull: return full;
      case kWide: return rex_w_ ? 8 : full;
      case kRel32: return 4;
      default: return 0;
    }
  }

  bool finish(bool two_bytes, unsigned opcode, unsigned facts) {
    const std::size_t size = immediate(two_bytes, opcode, facts);
    if (bytes_.size() - at_ < size || at_ + size > kLongest) return false;
    const std::uint64_t value = signed_at(bytes_.data() + at_, size);
    at_ += size;
    out_.length = static_cast<std::uint8_t>(at_);
    const bool relative = (facts & 7) == kRel8 || (facts & 7) == kRel32;
    if (relative) out_.target = address_ + at_ + value;
    if (!relative && size >= 4) note_constant(value);
    if (rip_relative_) {
      out_.has_address = true;
      out_.takes_address = !two_bytes && opcode == 0x8d;
      out_.address = address_ + at_ + displacement_;
    }
    out_.kind = kind(two_bytes, opcode, facts, relative);
    out_.sets_stack = (facts & kModrm) != 0 ? may_set_stack(two_bytes, opcode) : may_set_stack_alone(two_bytes, opcode);
    return true;
  }

  // Register 4 where a 64-bit register may be written: seldom more than that.
  bool may_set_stack(bool two_bytes, unsigned opcode) const {
    const unsigned digit = modrm_ >> 3 & 7;
    const bool reg = digit == 4 && !rex_r_, rm = (modrm_ & 0xc7) == 0xc4 && !rex_b_;
    if (!reg && !rm) return false;
    if (two_bytes) return !is_vector(opcode);
    if (opcode < 0x40) return ((opcode & 2) != 0 ? reg : rm) && may_move(opcode >> 3, (opcode & 1) != 0);
    switch (opcode) {
      case 0x63:
      case 0x69:
      case 0x6b:
      case 0x8a:
      case 0x8b:
      case 0x8d: return reg;
      case 0x84:
      case 0x85: return false;
      case 0x81:
      case 0x83: return rm && may_move(digit, true);
      case 0x86:
      case 0x87: return true;
      default: return rm && (opcode & 0xf8) != 0xd8;
    }
  }
  // Of the eight operations: all but cmp, and add, sub and and of all 64 bits.
  bool may_move(unsigned operation, bool wide) const {
    const bool moves_by = operation == 0 || operation == 4 || operation == 5;
    return operation != 7 && !(moves_by && wide && rex_w_);
  }
  // Whose registers are vectors', or which write none; what moves one to a general register is not among them.
  static constexpr bool is_vector(unsigned opcode) {
    if (opcode == 0x2c || opcode == 0x2d || opcode == 0x50 || opcode == 0x7e || opcode == 0xc5 || opcode == 0xd7)
      return false;
    return (opcode >= 0x10 && opcode < 0x30) || (opcode > 0x50 && opcode < 0x80) || (opcode >= 0xc2 && opcode < 0xc7) ||
           opcode >= 0xd0;
  }
  // pop rsp; xchg rsp, rax; mov rsp, imm
  bool may_set_stack_alone(bool two_bytes, unsigned opcode) const {
    if (rex_b_) return false;
    return two_bytes ? opcode == 0xcc : opcode == 0x5c || opcode == 0x94 || opcode == 0xb4 || opcode == 0xbc;
  }

  ScanKind kind(bool two_bytes, unsigned opcode, unsigned facts, bool relative) const {
    if (relative)
      return (facts & kCall) != 0 ? ScanKind::call : (facts & kBranch) != 0 ? ScanKind::branch : ScanKind::jump;
    if ((facts & kEnd) != 0) return ScanKind::end;
    if ((facts & kIdle) != 0) return is_idle(two_bytes, opcode) ? ScanKind::nothing : ScanKind::plain;
    if (two_bytes || opcode != 0xff) return ScanKind::plain;
    const unsigned digit = modrm_ >> 3 & 7;
    return digit == 2 ? ScanKind::call_away : digit == 4 ? ScanKind::leap : ScanKind::plain;
  }

  // 90h is a nop unless REX.B makes it an xchg with r8; 0f 1f is one with /0 only.
  bool is_idle(bool two_bytes, unsigned opcode) const {
    if (two_bytes) return (modrm_ >> 3 & 7) == 0;
    return opcode == 0xcc ? !prefixed_ && !rex_ : !rex_;
  }

  std::span<const std::uint8_t> bytes_;
  std::uint64_t address_;
  std::size_t at_ = 0;
  unsigned modrm_ = 0;
  bool short_operand_ = false, rex_ = false, rex_w_ = false, rex_r_ = false, rex_b_ = false, prefixed_ = false,
       odd_ = false;
  bool rip_relative_ = false, absolute_ = false;
  std::uint64_t displacement_ = 0;
  Scan out_;
};

}  // namespace

Scan scan(std::span<const std::uint8_t> bytes, std::uint64_t address) {
  bytes = bytes.first(std::min(bytes.size(), kMaxInsnLength));
  Reader reader(bytes, address);
  return reader.read() ? reader.scan() : ask(bytes, address);
}

}  // namespace probed::arch::x86_64
