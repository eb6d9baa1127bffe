// Operands are solved for their registers, one after the other; then everything the instruction can touch is checked.
#include "tests/arch/differential/aim.hpp"

#include <algorithm>
#include <cstring>
#include <optional>

#include "arch/x86_64/decode.hpp"
#include "tests/arch/differential/encode.hpp"

namespace probed::test {

using arch::Flow;
using arch::Insn;
using arch::x86_64::Decoded;
using arch::x86_64::Registers;

namespace {

constexpr std::uint64_t kStatusFlags = 0xcd5;  // CF PF AF ZF SF DF OF
constexpr std::uint64_t kAlignmentCheck = 0x40000;

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

bool is_vsib(const ZydisDecodedOperandMem& mem) { return mem.type == ZYDIS_MEMOP_TYPE_VSIB; }

// lea and nop name memory without touching it.
bool touches_memory(const Decoded& decoded, const ZydisDecodedOperand& operand) {
  if (operand.type != ZYDIS_OPERAND_TYPE_MEMORY || operand.mem.type == ZYDIS_MEMOP_TYPE_AGEN) return false;
  return decoded.insn.mnemonic != ZYDIS_MNEMONIC_NOP;
}

std::uint64_t segment_base(const ZydisDecodedOperandMem& mem, const Registers& regs) {
  if (!Sandbox::has_segment_bases()) return 0;
  if (mem.segment == ZYDIS_REGISTER_FS) return regs.fs_base;
  return mem.segment == ZYDIS_REGISTER_GS ? regs.gs_base : 0;
}

bool is_narrow(const Decoded& decoded) { return decoded.insn.address_width == 32; }

// Without the index of a VSIB operand.
std::uint64_t linear_address(const Decoded& decoded, const ZydisDecodedOperandMem& mem, const Registers& regs,
                             std::uint64_t next) {
  auto sum = static_cast<std::uint64_t>(mem.disp.value);
  if (mem.base == ZYDIS_REGISTER_RIP) sum += next;
  if (const auto base = general_number(mem.base)) sum += regs.*kGeneral[*base];
  if (const auto index = general_number(mem.index)) sum += regs.*kGeneral[*index] * std::max<unsigned>(mem.scale, 1);
  if (is_narrow(decoded)) sum = static_cast<std::uint32_t>(sum);
  return sum + segment_base(mem, regs);
}

// bt and its kin take a register operand for a bit offset from the memory operand.
bool has_bit_offset(const Decoded& decoded) {
  const ZydisMnemonic m = decoded.insn.mnemonic;
  const bool bit_test =
      m == ZYDIS_MNEMONIC_BT || m == ZYDIS_MNEMONIC_BTS || m == ZYDIS_MNEMONIC_BTR || m == ZYDIS_MNEMONIC_BTC;
  return bit_test && decoded.operands[0].type == ZYDIS_OPERAND_TYPE_MEMORY &&
         decoded.operands[1].type == ZYDIS_OPERAND_TYPE_REGISTER;
}

std::int64_t bit_offset_bytes(const Decoded& decoded, const Registers& regs) {
  const auto number = general_number(decoded.operands[1].reg.value);
  const std::uint64_t bits = number ? regs.*kGeneral[*number] : 0;
  switch (decoded.operands[1].size) {
    case 16: return static_cast<std::int16_t>(bits) >> 3;
    case 32: return static_cast<std::int32_t>(bits) >> 3;
    default: return static_cast<std::int64_t>(bits) >> 3;
  }
}

class Aim {
 public:
  Aim(const std::vector<std::uint8_t>& bytes, const Decoded& decoded, Random& random, const Places& places,
      Machine& machine)
      : decoded_(decoded),
        insn_(arch::x86_64::decode(bytes, places.original)),
        next_(places.original + bytes.size()),
        random_(random),
        places_(places),
        machine_(machine),
        regs_(machine.regs) {}

  bool run() {
    fill_registers();
    const bool aimed = random_.chance(95);
    if (aimed) {
      for (unsigned i = 0; i < decoded_.insn.operand_count; ++i) aim_operand(i);
      special_values();
    }
    must_values();
    return is_safe();
  }

 private:
  bool indirect() const { return insn_.flow == Flow::indirect_call || insn_.flow == Flow::indirect_jump; }

  // Never an address of the test process itself: small, ours, or not canonical.
  std::uint64_t random_value() {
    const std::uint64_t kind = random_.below(100);
    if (kind < 25) return random_.below(256);
    if (kind < 35) return ~random_.below(256);
    if (kind < 60) return random_data_address(random_, places_);
    if (kind < 70) return places_.stack + random_.below(kPage);
    if (kind < 80) return places_.landing + random_.below(kPage);
    return (random_.word() | 1ULL << 62) & ~(1ULL << 63);
  }

  std::uint64_t random_base() {
    if (!Sandbox::has_segment_bases()) return 0;
    const std::uint64_t kind = random_.below(4);
    if (kind == 0) return 0;
    if (kind == 1) return random_.below(kPage);
    if (kind == 2) return random_data_address(random_, places_);
    return random_.word() >> 17;
  }

  void fill_registers() {
    for (const auto member : kGeneral) regs_.*member = random_value();
    regs_.rsp = places_.stack + kPage / 2 + 8 * random_.below(32) + (random_.chance(5) ? random_.below(8) : 0);
    if (random_.chance(2)) regs_.rsp = places_.stack + (random_.chance(50) ? 0 : kPage) + 8 * random_.below(3) - 8;
    regs_.eflags = (random_.word() & kStatusFlags) | kAlwaysOne;
    if (random_.chance(3)) regs_.eflags |= kAlignmentCheck;
    regs_.fs_base = random_base();
    regs_.gs_base = random_base();
    regs_.ds = regs_.es = regs_.fs = regs_.gs = 0;
  }

  // ---- operands ----

  void aim_operand(unsigned i) {
    const ZydisDecodedOperand& operand = decoded_.operands[i];
    if (operand.type == ZYDIS_OPERAND_TYPE_REGISTER && indirect() && i == 0) {
      const auto number = general_number(operand.reg.value);
      if (number && *number != kRsp) regs_.*kGeneral[*number] = landing();
    }
    if (operand.type != ZYDIS_OPERAND_TYPE_MEMORY) return;
    // Images of the processor's state must be aligned, and are large.
    const bool image = operand.size >= 8 * 512 && random_.chance(85);
    const std::uint64_t wanted = image ? places_.data + 64 * random_.below(16) : random_data_address(random_, places_);
    if (is_vsib(operand.mem))
      aim_vsib(operand.mem, wanted);
    else
      point_at(operand.mem, wanted);
    if (indirect() && i == 0) put_word(address_of(operand.mem), landing());
    if (insn_.flow == Flow::ret) put_word(regs_.rsp, landing());
  }

  std::uint64_t landing() { return random_.chance(96) ? places_.landing + random_.below(kPage) : random_target(); }
  std::uint64_t random_target() {
    const std::uint64_t kBad[] = {places_.hole(), 0, random_.below(kPage), 0xffff'8000'0000'1000,
                                  random_.word() | 1ULL << 62};
    return random_.pick(kBad);
  }

  std::uint64_t address_of(const ZydisDecodedOperandMem& mem) const {
    return linear_address(decoded_, mem, regs_, next_);
  }

  // Solves the operand's address for its registers. rsp stays where the stack is.
  void point_at(const ZydisDecodedOperandMem& mem, std::uint64_t wanted) {
    const auto base = general_number(mem.base), index = general_number(mem.index);
    std::uint64_t& segment = mem.segment == ZYDIS_REGISTER_FS ? regs_.fs_base : regs_.gs_base;
    const bool segmented = mem.segment == ZYDIS_REGISTER_FS || mem.segment == ZYDIS_REGISTER_GS;
    if (segmented && !Sandbox::has_segment_bases()) return;
    if (segmented && (!base || *base == kRsp) && !index) {
      segment = 0;
      const std::uint64_t offset = address_of(mem);
      segment = places_.may_access(offset) && random_.chance(60) ? 8 * random_.below(32) : canonical(wanted - offset);
      return;
    }
    const std::uint64_t rest = wanted - static_cast<std::uint64_t>(mem.disp.value) - segment_base(mem, regs_);
    const std::uint64_t some = random_.chance(50) || is_narrow(decoded_) ? random_.below(16) : random_.word();
    if (base == kRsp) {
      if (index) regs_.*kGeneral[*index] = random_.chance(80) ? random_.below(16) : ~random_.below(8);
    } else if (base && index && *base == *index) {
      regs_.*kGeneral[*base] = rest / (1u + mem.scale);
    } else if (base && index) {
      regs_.*kGeneral[*index] = some;
      regs_.*kGeneral[*base] = rest - some * mem.scale;
    } else if (base) {
      regs_.*kGeneral[*base] = rest;
    } else if (index) {
      regs_.*kGeneral[*index] = rest / mem.scale;
    }
    if (is_narrow(decoded_) && base && *base != kRsp && random_.chance(50))
      regs_.*kGeneral[*base] |= random_.word() << 32;
  }

  static std::uint64_t canonical(std::uint64_t value) {
    return static_cast<std::uint64_t>(static_cast<std::int64_t>(value << 16) >> 16);
  }

  // ---- gathers and scatters: the index is a vector ----

  std::uint8_t* vector_bytes(ZydisRegister reg) {
    const auto number = static_cast<std::uint8_t>(ZydisRegisterGetId(reg));
    return machine_.ymm[number % machine_.ymm.size()].data();
  }

  bool wide_indices() const {
    const ZydisMnemonic m = decoded_.insn.mnemonic;
    return m == ZYDIS_MNEMONIC_VGATHERQPS || m == ZYDIS_MNEMONIC_VGATHERQPD || m == ZYDIS_MNEMONIC_VPGATHERQD ||
           m == ZYDIS_MNEMONIC_VPGATHERQQ || m == ZYDIS_MNEMONIC_VSCATTERQPS || m == ZYDIS_MNEMONIC_VSCATTERQPD ||
           m == ZYDIS_MNEMONIC_VPSCATTERQD || m == ZYDIS_MNEMONIC_VPSCATTERQQ;
  }

  void aim_vsib(const ZydisDecodedOperandMem& mem, std::uint64_t wanted) {
    const auto base = general_number(mem.base);
    if (base && *base != kRsp) {
      regs_.*kGeneral[*base] = 0;
      regs_.*kGeneral[*base] = wanted - vsib_origin(mem);
    }
    const std::size_t size = wide_indices() ? 8 : 4;
    std::uint8_t* index = vector_bytes(mem.index);
    for (std::size_t at = 0; at + size <= 32; at += size) {
      std::uint64_t value = random_.below(48);
      if (!base) value = (places_.data + 8 * value - vsib_origin(mem)) / mem.scale;
      std::memcpy(index + at, &value, size);
    }
  }

  std::uint64_t vsib_origin(const ZydisDecodedOperandMem& mem) const {
    ZydisDecodedOperandMem without = mem;
    without.index = ZYDIS_REGISTER_NONE;
    return address_of(without);
  }

  bool is_safe_vsib(const ZydisDecodedOperandMem& mem) {
    if (ZydisRegisterGetId(mem.index) >= 16 || decoded_.insn.avx.vector_length > 256) return false;
    const std::size_t size = wide_indices() ? 8 : 4;
    const std::uint8_t* index = vector_bytes(mem.index);
    for (std::size_t at = 0; at + size <= 32; at += size) {
      std::int64_t value = 0;
      std::memcpy(&value, index + at, size);
      if (size == 4) value = static_cast<std::int32_t>(value);
      std::uint64_t address =
          vsib_origin(mem) - segment_base(mem, regs_) + static_cast<std::uint64_t>(value) * mem.scale;
      if (is_narrow(decoded_)) address = static_cast<std::uint32_t>(address);
      if (!places_.may_access(address + segment_base(mem, regs_))) return false;
    }
    return true;
  }

  // ---- values that make an instruction do something ----

  // Addresses are of any kind, those at the very end included.
  static bool inside(std::uint64_t address, std::size_t size, std::uint64_t at, std::size_t room) {
    return address >= at && address - at <= room - size;
  }
  void put(std::uint64_t address, const void* value, std::size_t size) {
    const auto into = [&](std::span<std::uint8_t> memory, std::uint64_t at) {
      if (inside(address, size, at, memory.size())) std::memcpy(memory.data() + (address - at), value, size);
    };
    into(machine_.data, places_.data);
    into(machine_.stack, places_.stack);
  }
  void put_word(std::uint64_t address, std::uint64_t word) { put(address, &word, 8); }
  std::uint64_t word_at(std::uint64_t address) const {
    std::uint64_t word = 0xcccc'cccc'cccc'cccc;
    const auto from = [&](std::span<const std::uint8_t> memory, std::uint64_t at) {
      if (inside(address, 8, at, memory.size())) std::memcpy(&word, memory.data() + (address - at), 8);
    };
    from(machine_.data, places_.data);
    from(machine_.stack, places_.stack);
    return word;
  }

  const ZydisDecodedOperandMem* memory_operand() const {
    for (unsigned i = 0; i < decoded_.insn.operand_count_visible; ++i)
      if (decoded_.operands[i].type == ZYDIS_OPERAND_TYPE_MEMORY) return &decoded_.operands[i].mem;
    return nullptr;
  }

  void special_values() {
    if (insn_.repeats) regs_.rcx = random_.chance(90) ? random_.below(24) : random_.below(200);
    if (insn_.flow == Flow::cond_jump && random_.chance(60)) regs_.rcx = random_.below(3) | (random_.word() & 1) << 32;
    if (has_bit_offset(decoded_))
      if (const auto number = general_number(decoded_.operands[1].reg.value); number && *number != kRsp)
        regs_.*kGeneral[*number] = random_.below(16000) - 8000;
    switch (decoded_.insn.mnemonic) {
      case ZYDIS_MNEMONIC_LEAVE:
      case ZYDIS_MNEMONIC_ENTER: regs_.rbp = places_.stack + kPage / 2 + 8 * random_.below(64); break;
      case ZYDIS_MNEMONIC_DIV:
      case ZYDIS_MNEMONIC_IDIV:
        if (random_.chance(70)) regs_.rdx = 0;
        if (random_.chance(50)) regs_.rax &= 0xff;
        break;
      case ZYDIS_MNEMONIC_CMPXCHG:
      case ZYDIS_MNEMONIC_CMPXCHG8B:
      case ZYDIS_MNEMONIC_CMPXCHG16B: compare_equal(); break;
      case ZYDIS_MNEMONIC_LDMXCSR:
      case ZYDIS_MNEMONIC_VLDMXCSR: control_word(0xffff); break;
      case ZYDIS_MNEMONIC_CLZERO: regs_.rax = random_data_address(random_, places_); break;
      case ZYDIS_MNEMONIC_MOV: selector(); break;
      case ZYDIS_MNEMONIC_FXRSTOR:
      case ZYDIS_MNEMONIC_FXRSTOR64:
      case ZYDIS_MNEMONIC_XRSTOR:
      case ZYDIS_MNEMONIC_XRSTOR64: saved_state(); break;
      case ZYDIS_MNEMONIC_WRFSBASE:
      case ZYDIS_MNEMONIC_WRGSBASE:
        if (const auto number = general_number(decoded_.operands[0].reg.value); number && random_.chance(70))
          if (*number != kRsp) regs_.*kGeneral[*number] = canonical(random_.word());
        break;
      default: break;
    }
  }

  void compare_equal() {
    const ZydisDecodedOperandMem* mem = memory_operand();
    if (mem == nullptr || random_.chance(50)) return;
    const std::uint64_t wide =
        decoded_.insn.mnemonic == ZYDIS_MNEMONIC_CMPXCHG8B ? (regs_.rax & 0xffffffff) | regs_.rdx << 32 : regs_.rax;
    put_word(address_of(*mem), wide);
    if (decoded_.insn.mnemonic == ZYDIS_MNEMONIC_CMPXCHG16B) put_word(address_of(*mem) + 8, regs_.rdx);
  }

  void control_word(std::uint32_t allowed) {
    const ZydisDecodedOperandMem* mem = memory_operand();
    const auto value = static_cast<std::uint32_t>(random_.word()) & allowed;
    if (mem != nullptr && random_.chance(75)) put(address_of(*mem), &value, sizeof value);
  }

  void selector() {
    const ZydisDecodedOperand& to = decoded_.operands[0];
    const ZydisDecodedOperand& from = decoded_.operands[1];
    if (to.type != ZYDIS_OPERAND_TYPE_REGISTER || from.type != ZYDIS_OPERAND_TYPE_REGISTER) return;
    if (ZydisRegisterGetClass(to.reg.value) != ZYDIS_REGCLASS_SEGMENT) return;
    constexpr std::uint16_t kSelectors[] = {0, 1, 2, 3, 0x2b, 0x33, 0x23, 0x10, 0x63};
    const auto number = general_number(from.reg.value);
    if (number && *number != kRsp) regs_.*kGeneral[*number] = random_.pick(kSelectors);
  }

  // An image that (f)xrstor mostly takes: sane control words, an XSAVE header without reserved bits.
  void saved_state() {
    const ZydisDecodedOperandMem* mem = memory_operand();
    if (mem == nullptr || random_.chance(20)) return;
    const std::uint64_t at = address_of(*mem);
    const auto mxcsr = static_cast<std::uint32_t>(random_.word() & 0xffbf);
    put(at + 24, &mxcsr, sizeof mxcsr);
    for (std::uint64_t i = 0; i < 8; ++i) put_word(at + 512 + 8 * i, 0);
    put_word(at + 512, random_.below(8));
    regs_.rax = random_.below(8);
    regs_.rdx = 0;
  }

  // ---- values that must not be anything else ----

  void must_values() {
    switch (decoded_.insn.mnemonic) {
      case ZYDIS_MNEMONIC_POPFQ:
      case ZYDIS_MNEMONIC_POPF: popped_flags(); break;
      case ZYDIS_MNEMONIC_SYSCALL: system_call(); break;
      case ZYDIS_MNEMONIC_INT: {
        constexpr std::uint64_t kCalls[] = {20 /* getpid */, 24 /* getuid */, 0xffff /* ENOSYS */};
        regs_.rax = random_.pick(kCalls);
        break;
      }
      // XINUSE, which index 1 reads, depends on what the kernel did with the registers between two runs.
      case ZYDIS_MNEMONIC_XGETBV: regs_.rcx = random_.chance(60) ? 0 : 2 + random_.below(1000); break;
      case ZYDIS_MNEMONIC_CPUID:
        regs_.rax = random_.below(0x20) | random_.below(2) << 31;
        regs_.rcx = random_.below(8);
        break;
      default: break;
    }
  }

  // TF would trap in the harness: relocate.hpp says what a copy does with it.
  void popped_flags() {
    constexpr std::uint64_t kFlags = kStatusFlags | kAlignmentCheck | 0x4000 /* NT */ | 0x200000 /* ID */ | 0x3000;
    put_word(regs_.rsp, (random_.word() & kFlags) | kAlwaysOne);
  }

  void system_call() {
    struct Call {
      std::uint64_t number;
      bool takes_memory;
    };
    constexpr Call kCalls[] = {{39, false} /* getpid */,
                               {102, false} /* getuid */,
                               {186, false} /* gettid */,
                               {24, false} /* sched_yield */,
                               {~0ULL, false} /* ENOSYS */,
                               {63, true} /* uname */,
                               {3, false} /* close, bad */,
                               {165, false} /* mount: EFAULT or EPERM */,
                               {14, true} /* rt_sigprocmask, reading */};
    const Call& call = random_.pick(kCalls);
    regs_.rax = call.number;
    regs_.rdi = call.takes_memory ? random_data_address(random_, places_) : ~0ULL;
    if (call.number == 14) {
      regs_.rdx = regs_.rdi;
      regs_.rdi = regs_.rsi = 0;
      regs_.r10 = 8;
    }
    if (call.number == 165) regs_.rdi = regs_.rsi = regs_.rdx = 1;
  }

  // ---- safety ----

  // Where the kernel doesn't let programs set segment bases, what changes one takes the test's own thread pointer away.
  bool keeps_segment_bases() const {
    switch (decoded_.insn.mnemonic) {
      case ZYDIS_MNEMONIC_RDFSBASE:
      case ZYDIS_MNEMONIC_RDGSBASE:
      case ZYDIS_MNEMONIC_WRFSBASE:
      case ZYDIS_MNEMONIC_WRGSBASE: return false;
      default: break;
    }
    for (unsigned i = 0; i < decoded_.insn.operand_count; ++i) {
      const ZydisDecodedOperand& operand = decoded_.operands[i];
      if (operand.type != ZYDIS_OPERAND_TYPE_REGISTER || !(operand.actions & ZYDIS_OPERAND_ACTION_MASK_WRITE)) continue;
      if (operand.reg.value == ZYDIS_REGISTER_FS || operand.reg.value == ZYDIS_REGISTER_GS) return false;
    }
    return true;
  }

  bool is_safe() {
    if (!Sandbox::has_segment_bases() && !keeps_segment_bases()) return false;
    for (unsigned i = 0; i < decoded_.insn.operand_count; ++i) {
      const ZydisDecodedOperand& operand = decoded_.operands[i];
      if (!touches_memory(decoded_, operand)) continue;
      if (is_vsib(operand.mem) ? !is_safe_vsib(operand.mem) : !is_safe_operand(operand.mem)) return false;
      if (indirect() && i == 0 && !places_.may_execute(word_at(address_of(operand.mem)))) return false;
    }
    if (decoded_.insn.mnemonic == ZYDIS_MNEMONIC_CLZERO && !places_.may_access(regs_.rax)) return false;
    if (decoded_.insn.mnemonic == ZYDIS_MNEMONIC_ENTER && !places_.may_access(regs_.rbp - 0x100)) return false;
    if (insn_.flow == Flow::ret && !places_.may_execute(word_at(regs_.rsp))) return false;
    return !indirect() || is_safe_register_target();
  }

  bool is_safe_operand(const ZydisDecodedOperandMem& mem) const {
    const bool segmented = mem.segment == ZYDIS_REGISTER_FS || mem.segment == ZYDIS_REGISTER_GS;
    if (segmented && !Sandbox::has_segment_bases()) return false;
    std::uint64_t address = address_of(mem);
    if (has_bit_offset(decoded_)) address += static_cast<std::uint64_t>(bit_offset_bytes(decoded_, regs_));
    return places_.may_access(address);
  }

  bool is_safe_register_target() const {
    if (decoded_.operands[0].type != ZYDIS_OPERAND_TYPE_REGISTER) return true;
    const auto number = general_number(decoded_.operands[0].reg.value);
    return number && places_.may_execute(regs_.*kGeneral[*number]);
  }

  const Decoded& decoded_;
  const Insn insn_;
  const std::uint64_t next_;
  Random& random_;
  const Places& places_;
  Machine& machine_;
  Registers& regs_;
};

}  // namespace

bool aim(const std::vector<std::uint8_t>& bytes, Random& random, const Places& places, Machine& machine) {
  Decoded decoded;
  if (!arch::x86_64::decode_with_zydis(bytes, decoded)) return false;
  return Aim(bytes, decoded, random, places, machine).run();
}

bool reads_below_sp(const std::vector<std::uint8_t>& bytes, const Machine& start, std::uint64_t address) {
  Decoded decoded;
  if (!arch::x86_64::decode_with_zydis(bytes, decoded)) return false;
  if (decoded.operands[0].type != ZYDIS_OPERAND_TYPE_MEMORY) return false;
  const std::uint64_t at = linear_address(decoded, decoded.operands[0].mem, start.regs, address + bytes.size());
  return at + 8 > start.regs.rsp - 8 && at < start.regs.rsp;
}

}  // namespace probed::test
