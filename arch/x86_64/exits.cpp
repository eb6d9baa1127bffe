// What the analysis of a function's exits has to know of x86-64; arch/exit_analysis.hpp has the rest. The height of the
// stack counts from the return address. Jumps to a return address that was taken off the stack are refused.
#include "arch/x86_64/exits.hpp"

#include <algorithm>
#include <bitset>
#include <optional>

#include "arch/exit_analysis.hpp"
#include "arch/x86_64/leap.hpp"
#include "arch/x86_64/scan.hpp"
#include "arch/x86_64/zydis.hpp"

namespace probed::arch::x86_64 {
namespace {

constexpr std::uint64_t kLockPrefixSize = 1;

using RegisterSet = std::bitset<16>;

struct Stack {
  Height sp;
  Height fp;             // rbp, where it is a frame pointer
  RegisterSet popped{};  // what may hold a word of the stack
  bool operator==(const Stack&) const = default;
};
constexpr Stack kUnknown{};

Stack merge(const Stack& a, const Stack& b) { return {same(a.sp, b.sp), same(a.fp, b.fp), a.popped | b.popped}; }

bool is(const ZydisDecodedOperand& operand, ZydisRegister reg) {
  return operand.type == ZYDIS_OPERAND_TYPE_REGISTER && operand.reg.value == reg;
}

// What lea loads, if it counts from the stack.
Height loaded(const ZydisDecodedOperandMem& mem, const Stack& before) {
  if (mem.index != ZYDIS_REGISTER_NONE) return std::nullopt;
  if (mem.base == ZYDIS_REGISTER_RSP) return plus(before.sp, -mem.disp.value);
  if (mem.base == ZYDIS_REGISTER_RBP) return plus(before.fp, -mem.disp.value);
  return std::nullopt;
}

std::int64_t operand_bytes(const Decoded& d) { return d.insn.operand_width / 8; }

// rsp after an instruction that isn't a branch.
Height sp_after(const Decoded& d, const Stack& before) {
  const ZydisDecodedOperand& to = d.operands[0];
  const ZydisDecodedOperand& from = d.operands[1];
  switch (d.insn.mnemonic) {
    case ZYDIS_MNEMONIC_PUSH:
    case ZYDIS_MNEMONIC_PUSHFQ: return plus(before.sp, operand_bytes(d));
    case ZYDIS_MNEMONIC_POP:
      if (is(to, ZYDIS_REGISTER_RSP)) return std::nullopt;
      return plus(before.sp, -operand_bytes(d));
    case ZYDIS_MNEMONIC_POPFQ: return plus(before.sp, -operand_bytes(d));
    case ZYDIS_MNEMONIC_LEAVE: return plus(before.fp, -std::int64_t{kWordSize});
    case ZYDIS_MNEMONIC_CALL: return before.sp;
    default: break;
  }
  if (!d.writes(ZYDIS_REGISTER_RSP)) return before.sp;
  if (!is(to, ZYDIS_REGISTER_RSP)) return std::nullopt;
  const bool immediate = from.type == ZYDIS_OPERAND_TYPE_IMMEDIATE;
  switch (d.insn.mnemonic) {
    case ZYDIS_MNEMONIC_SUB: return immediate ? plus(before.sp, from.imm.value.s) : std::nullopt;
    case ZYDIS_MNEMONIC_ADD: return immediate ? plus(before.sp, -from.imm.value.s) : std::nullopt;
    case ZYDIS_MNEMONIC_LEA: return loaded(from.mem, before);
    case ZYDIS_MNEMONIC_MOV: return is(from, ZYDIS_REGISTER_RBP) ? before.fp : std::nullopt;
    default: return std::nullopt;
  }
}

Height fp_after(const Decoded& d, const Stack& before) {
  if (!d.writes(ZYDIS_REGISTER_RBP)) return before.fp;
  const bool moved = d.insn.mnemonic == ZYDIS_MNEMONIC_MOV && is(d.operands[0], ZYDIS_REGISTER_RBP);
  if (moved && is(d.operands[1], ZYDIS_REGISTER_RSP)) return before.sp;
  if (d.insn.mnemonic == ZYDIS_MNEMONIC_LEA) return loaded(d.operands[1].mem, before);
  return std::nullopt;
}

std::optional<std::size_t> index_of(ZydisRegister reg) {
  const ZydisRegister whole = ZydisRegisterGetLargestEnclosing(ZYDIS_MACHINE_MODE_LONG_64, reg);
  if (whole < ZYDIS_REGISTER_RAX || whole > ZYDIS_REGISTER_R15) return std::nullopt;
  return static_cast<std::size_t>(whole - ZYDIS_REGISTER_RAX);
}

bool is_on_stack(const ZydisDecodedOperand& operand) {
  return operand.type == ZYDIS_OPERAND_TYPE_MEMORY && operand.mem.base == ZYDIS_REGISTER_RSP;
}

RegisterSet popped_after(const Decoded& d, const Stack& before) {
  RegisterSet popped = before.popped;
  for (unsigned i = 0; i < d.insn.operand_count; ++i) {
    const ZydisDecodedOperand& o = d.operands[i];
    if (o.type != ZYDIS_OPERAND_TYPE_REGISTER || (o.actions & ZYDIS_OPERAND_ACTION_MASK_WRITE) == 0) continue;
    if (const auto written = index_of(o.reg.value)) popped.reset(*written);
  }
  const auto to = d.operands[0].type == ZYDIS_OPERAND_TYPE_REGISTER ? index_of(d.operands[0].reg.value) : std::nullopt;
  if (!to) return popped;
  if (d.insn.mnemonic == ZYDIS_MNEMONIC_POP) popped.set(*to);
  if (d.insn.mnemonic != ZYDIS_MNEMONIC_MOV) return popped;
  const ZydisDecodedOperand& from = d.operands[1];
  const auto source = from.type == ZYDIS_OPERAND_TYPE_REGISTER ? index_of(from.reg.value) : std::nullopt;
  popped.set(*to, is_on_stack(from) || (source && before.popped.test(*source)));
  return popped;
}

std::optional<std::size_t> offset_of(ZydisRegister reg) {
  if (reg == ZYDIS_REGISTER_NONE) return std::nullopt;
  return register_offset(ZydisRegisterGetString(reg));
}

// nullopt: a segment's, or 32 bits wide.
std::optional<Operand> leap_target(const Decoded& d, std::uint64_t end) {
  const ZydisDecodedOperand& o = d.operands[0];
  Operand out;
  if (o.type == ZYDIS_OPERAND_TYPE_REGISTER) {
    out.kind = Operand::Kind::value;
    out.base = offset_of(o.reg.value);
    return out.base ? std::optional(out) : std::nullopt;
  }
  if (o.type != ZYDIS_OPERAND_TYPE_MEMORY || d.insn.address_width != 64) return std::nullopt;
  if (o.mem.segment == ZYDIS_REGISTER_FS || o.mem.segment == ZYDIS_REGISTER_GS) return std::nullopt;
  out.kind = Operand::Kind::memory;
  out.number = static_cast<std::uint64_t>(o.mem.disp.value);
  if (o.mem.base == ZYDIS_REGISTER_RIP) {
    out.number += end;
    out.symbol = "rip";  // its address is counted from where the file is loaded
  } else {
    out.base = offset_of(o.mem.base);
    out.index = offset_of(o.mem.index);
    while (o.mem.scale > 1u << out.scale) ++out.scale;
  }
  return out;
}

// jcc without prefixes, short or near (Intel SDM 2A, Jcc).
std::optional<std::uint8_t> flags_condition(std::span<const std::uint8_t> jump) {
  constexpr std::uint8_t kShort = 0x70, kNear = 0x80, kTwoBytes = 0x0f, kOpcode = 0xf0;
  if (!jump.empty() && (jump[0] & kOpcode) == kShort) return jump[0] & 0xf;
  if (jump.size() > 1 && jump[0] == kTwoBytes && (jump[1] & kOpcode) == kNear) return jump[1] & 0xf;
  return std::nullopt;
}

struct ExitInsn : Scan {
  std::uint8_t length() const { return Scan::length; }
  std::uint64_t target() const { return Scan::target; }
  bool jumps() const { return kind == ScanKind::jump || kind == ScanKind::branch; }
  bool calls() const { return kind == ScanKind::call || kind == ScanKind::call_away; }
  bool leaps() const { return kind == ScanKind::leap; }
  bool ends() const { return kind == ScanKind::end; }
  bool is_nothing() const { return kind == ScanKind::nothing; }
  bool falls_through() const { return x86_64::falls_through(kind); }
};

class Analysis : public ExitAnalysis<Analysis, ExitInsn, Stack> {
 public:
  Analysis(const CodeFlow& flow, std::uint64_t entry, const NamedFunction& is_function)
      : ExitAnalysis(flow, entry, is_function) {}

 private:
  friend class ExitAnalysis<Analysis, ExitInsn, Stack>;

  bool add_instructions(const FunctionFacts& facts) {
    const auto bytes = bytes_of(facts);
    for (std::uint64_t at = 0; at < bytes.size();) {
      const std::uint64_t address = facts.range.begin + at;
      if (!flow_.is_instruction(address)) {  // data
        ++at;
        continue;
      }
      const Scan s = scan(bytes.subspan(at), address);
      if (s.length == 0) return fail(ExitRefusal::not_decoded, address);
      add_step(address, {s});
      at += s.length;
    }
    return true;
  }

  static Stack at_entry() { return {0, std::nullopt, {}}; }

  Stack stack_after(const Step& step) const {
    if (step.insn.kind != ScanKind::plain) return step.before;
    Decoded decoded;
    if (!decode_with_zydis(bytes_of(step), decoded)) return kUnknown;
    return {sp_after(decoded, step.before), fp_after(decoded, step.before), popped_after(decoded, step.before)};
  }

  static bool trusts(const Stack& stack) { return *stack.sp != 0; }

  bool is_within(std::uint64_t target) const { return has_step(target) || has_step(target - kLockPrefixSize); }

  // int3, or Go's longer form of it, behind what isn't expected to come back.
  bool traps(const Step& step) const {
    constexpr std::uint8_t kInt3 = 0xcc, kInt = 0xcd, kTrap = 3;
    const auto bytes = bytes_of(step);
    return bytes[0] == kInt3 || (bytes[0] == kInt && bytes[1] == kTrap);
  }

  // An entry of the procedure linkage table: (endbr64) jmp *GOT.
  bool is_stub(std::uint64_t target) const {
    for (unsigned n = 0; n < 2; ++n) {
      const Scan s = scan(flow_.bytes(target, kMaxInsnLength), target);
      if (s.kind == ScanKind::leap && s.has_address) return true;
      if (s.length == 0 || s.kind != ScanKind::plain) return false;
      target += s.length;
    }
    return false;
  }

  void add_jump(const Step& step) {
    const bool always = step.insn.kind == ScanKind::jump;
    const auto condition = always ? std::nullopt : flags_condition(bytes_of(step));
    add_exit(step, always ? ExitKind::jump : ExitKind::branch, {}, condition);
  }

  // Not ud2, hlt.
  void add_return(const Step& step) {
    Decoded decoded;
    if (decode_with_zydis(bytes_of(step), decoded) && decoded.insn.meta.category == ZYDIS_CATEGORY_RET)
      add_exit(step, ExitKind::ret);
  }

  // With something of the function's own on the stack, or by way of a table of distances, it leads to another part.
  void add_leap(const Step& step) {
    const Height& sp = step.before.sp;
    if (is_popped(step.before)) return refuse_exit(ExitRefusal::odd_return, step);
    if (sp && *sp != 0) return;
    const FunctionFacts& there = *flow_.function_at(step.address);
    const FunctionWalk walk(bytes_of(there), there.range.begin,
                            [](std::uint64_t) { return FunctionWalk::Entry::none; });
    if (walk.jumps_by_table(step.address - there.range.begin)) return;
    Decoded decoded;
    if (!decode_with_zydis(bytes_of(step), decoded)) return refuse_exit(ExitRefusal::not_understood, step);
    if (!sp && comes_from_stack(decoded, step.before)) return refuse_exit(ExitRefusal::odd_return, step);
    const auto target = leap_target(decoded, step.end());
    if (!target) return refuse_exit(ExitRefusal::not_understood, step);
    add_exit(step, ExitKind::leap, *target);
  }

  // As what switches to another stack does, to the place where that one was left.
  static bool comes_from_stack(const Decoded& leap, const Stack& before) {
    const ZydisDecodedOperand& to = leap.operands[0];
    if (to.type != ZYDIS_OPERAND_TYPE_REGISTER) return is_on_stack(to);
    const auto index = index_of(to.reg.value);
    return index && before.popped.test(*index);
  }
};

}  // namespace

ExitPlan plan_exits(const CodeFlow& flow, std::uint64_t entry, const NamedFunction& is_function) {
  return Analysis(flow, entry, is_function).run();
}

}  // namespace probed::arch::x86_64
