// Follows every path through a function with the height of its stack, as far as that is known, and notes where it is
// left.
//
// What a jump out of the function's known code is, a tail call or a way to another part of the same function, is
// decided by the stack: a tail call finds it as the function did. Where that doesn't tell (a part that is entered
// before anything was pushed, as shrink-wrapping makes them) it is a tail call if the other place is a function by its
// name or is called from anywhere.
//
// Code that runs on behind its last instruction is looked at in the same way, but there is no place for a probe between
// two functions: those are refused. So are jumps to a return address that was taken off the stack.
//
// Only code that is reached counts. What isn't may be data between code, where a byte that looks like a return must not
// be written over.
#include "arch/x86_64/exits.hpp"

#include <algorithm>
#include <bitset>
#include <map>
#include <optional>

#include "arch/x86_64/leap.hpp"
#include "arch/x86_64/scan.hpp"
#include "arch/x86_64/zydis.hpp"

namespace probed::arch::x86_64 {
namespace {

constexpr std::uint64_t kMaxBody = 4 << 20;  // bytes
constexpr std::size_t kMaxParts = 64;
constexpr std::uint64_t kLockPrefixSize = 1;

using Height = std::optional<std::int64_t>;  // bytes below the return address; nullopt: not known

using RegisterSet = std::bitset<16>;

struct Stack {
  Height sp;             // rsp
  Height fp;             // rbp, where it is a frame pointer
  RegisterSet popped{};  // what may hold a word of the stack
  bool operator==(const Stack&) const = default;
};
constexpr Stack kUnknown{};

Stack merge(const Stack& a, const Stack& b) {
  return {a.sp == b.sp ? a.sp : std::nullopt, a.fp == b.fp ? a.fp : std::nullopt, a.popped | b.popped};
}

bool is(const ZydisDecodedOperand& operand, ZydisRegister reg) {
  return operand.type == ZYDIS_OPERAND_TYPE_REGISTER && operand.reg.value == reg;
}

Height plus(const Height& height, std::int64_t bytes) { return height ? Height(*height + bytes) : std::nullopt; }

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

class Analysis {
 public:
  Analysis(const CodeFlow& flow, std::uint64_t entry, const NamedFunction& is_function)
      : flow_(flow), entry_(entry), is_function_(is_function) {}

  ExitPlan run() {
    const FunctionFacts* const own = flow_.function_at(entry_);
    if (own == nullptr || !flow_.is_instruction(entry_)) return refuse(ExitRefusal::no_function, 0);
    if (!add_part(*own)) return std::move(out_);
    while (true) {
      follow_all();
      std::vector<const FunctionFacts*> more;
      if (!look_at_jumps(more)) return std::move(out_);
      if (more.empty()) break;
      for (const FunctionFacts* part : more)
        if (!add_part(*part)) return std::move(out_);
    }
    collect();
    if (out_.refusal != ExitRefusal::none) return refuse(out_.refusal, out_.where);
    if (out_.exits.empty()) return refuse(ExitRefusal::no_exit, 0);
    return std::move(out_);
  }

 private:
  struct Step {
    std::uint64_t address = 0;
    Scan scan;
    bool reached = false;
    Stack before;
  };

  ExitPlan refuse(ExitRefusal why, std::uint64_t where) {
    out_.refusal = why;
    out_.where = where;
    out_.exits.clear();
    return std::move(out_);
  }
  bool fail(ExitRefusal why, std::uint64_t where) {
    out_.refusal = why;
    out_.where = where;
    return false;
  }

  bool in_body(std::uint64_t address) const {
    return std::ranges::any_of(out_.body, [=](const CodeRange& r) { return r.contains(address); });
  }

  bool add_part(const FunctionFacts& facts) {
    if (in_body(facts.range.begin)) return true;
    if (!facts.decoded) return fail(ExitRefusal::not_decoded, facts.range.begin);
    if (!facts.understood) return fail(ExitRefusal::not_understood, facts.range.begin);
    size_ += facts.range.end - facts.range.begin;
    if (size_ > kMaxBody || out_.body.size() == kMaxParts) return fail(ExitRefusal::too_large, facts.range.begin);
    out_.body.push_back(facts.range);
    std::ranges::sort(out_.body, {}, &CodeRange::begin);
    const auto bytes = flow_.bytes(facts.range.begin, facts.range.end - facts.range.begin);
    for (std::uint64_t at = 0; at < bytes.size();) {
      const std::uint64_t address = facts.range.begin + at;
      if (!flow_.is_instruction(address)) {  // data
        ++at;
        continue;
      }
      const Scan s = scan(bytes.subspan(at), address);
      if (s.length == 0) return fail(ExitRefusal::not_decoded, address);
      steps_.emplace(address, Step{address, s, false, {}});
      at += s.length;
    }
    return true;
  }

  // ---- paths ----

  void follow_all() {
    for (auto& [address, step] : steps_) step.reached = false;
    reach(entry_, {0, std::nullopt});
    follow();
    // What tables and exception handlers lead to, with the stack of the indirect jumps if they agree on it.
    const Stack stack = stack_of_leaps();
    for (auto& [address, step] : steps_)
      if (!step.reached && flow_.may_be_entered(address) && address != function_begin(address)) seed(step, stack);
    follow();
  }

  std::uint64_t function_begin(std::uint64_t address) const { return flow_.function_at(address)->range.begin; }

  Stack stack_of_leaps() const {
    std::optional<Stack> all;
    for (const auto& [address, step] : steps_)
      if (step.reached && step.scan.kind == ScanKind::leap) all = all ? merge(*all, step.before) : step.before;
    return all && all->sp && *all->sp != 0 ? *all : kUnknown;
  }

  void seed(Step& step, const Stack& stack) {
    step.reached = true;
    step.before = stack;
    open_.push_back(step.address);
  }

  void reach(std::uint64_t address, const Stack& stack) {
    const auto it = steps_.find(address);
    if (it == steps_.end()) return;
    Step& step = it->second;
    if (!step.reached) return seed(step, stack);
    const Stack both = merge(step.before, stack);
    if (both == step.before) return;
    step.before = both;
    open_.push_back(address);
  }

  void follow() {
    while (!open_.empty()) {
      const Step step = steps_.at(open_.back());
      open_.pop_back();
      const Stack after = stack_after(step);
      if (step.scan.kind == ScanKind::jump || step.scan.kind == ScanKind::branch) reach(step.scan.target, after);
      if (falls_through(step.scan.kind)) reach(step.address + step.scan.length, after);
    }
  }

  Stack stack_after(const Step& step) const {
    if (step.scan.kind != ScanKind::plain) return step.before;
    Decoded decoded;
    if (!decode(step, decoded)) return kUnknown;
    return {sp_after(decoded, step.before), fp_after(decoded, step.before), popped_after(decoded, step.before)};
  }

  bool decode(const Step& step, Decoded& out) const {
    return decode_with_zydis(flow_.bytes(step.address, step.scan.length), out);
  }

  // ---- jumps out of what is known ----

  bool look_at_jumps(std::vector<const FunctionFacts*>& more) {
    for (const auto& [address, step] : steps_) {
      if (!step.reached) continue;
      if ((step.scan.kind == ScanKind::jump || step.scan.kind == ScanKind::branch) && !look_at_jump(step, more))
        return false;
      if (runs_on(step) && !look_behind(step, more)) return false;
    }
    return true;
  }

  bool look_at_jump(const Step& step, std::vector<const FunctionFacts*>& more) {
    const std::uint64_t target = step.scan.target;
    if (in_body(target)) {
      const bool known = steps_.contains(target) || steps_.contains(target - kLockPrefixSize);
      return known || fail(ExitRefusal::not_understood, step.address);
    }
    if (is_popped(step.before)) return fail(ExitRefusal::odd_return, step.address);
    const FunctionFacts* const there = flow_.function_at(target);
    if (!is_part(step.before, target, there)) return true;
    if (there == nullptr) return fail(ExitRefusal::odd_jump, step.address);
    more.push_back(there);
    return true;
  }

  // Whether it leads out of the body without a jump. A call that does isn't expected to come back.
  bool runs_on(const Step& step) const {
    const ScanKind kind = step.scan.kind;
    if (!falls_through(kind) || kind == ScanKind::call || kind == ScanKind::call_away) return false;
    return !steps_.contains(step.address + step.scan.length) && !follows_call(step) && !traps(step);
  }

  // int3, or Go's longer form of it, behind what isn't expected to come back.
  bool traps(const Step& step) const {
    constexpr std::uint8_t kInt3 = 0xcc, kInt = 0xcd, kTrap = 3;
    const auto bytes = flow_.bytes(step.address, step.scan.length);
    return bytes[0] == kInt3 || (bytes[0] == kInt && bytes[1] == kTrap);
  }

  // Nothing but nops between it and a call, as Go puts one behind calls that don't come back.
  bool follows_call(const Step& step) const {
    for (auto it = steps_.find(step.address); it->second.scan.kind == ScanKind::nothing; --it) {
      if (flow_.may_be_entered(it->first) || it == steps_.begin()) return false;
      const auto& [before, previous] = *std::prev(it);
      if (before + previous.scan.length != it->first) return false;
      if (previous.scan.kind == ScanKind::call || previous.scan.kind == ScanKind::call_away) return true;
    }
    return false;
  }

  bool look_behind(const Step& step, std::vector<const FunctionFacts*>& more) {
    const std::uint64_t next = step.address + step.scan.length;
    const FunctionFacts* const there = flow_.function_at(next);
    if (there == nullptr || !is_part(stack_after(step), next, there)) return fail(ExitRefusal::runs_on, step.address);
    more.push_back(there);
    return true;
  }

  static bool is_popped(const Stack& stack) { return stack.sp && *stack.sp < 0; }

  bool is_part(const Stack& stack, std::uint64_t target, const FunctionFacts* there) const {
    const Height& sp = stack.sp;
    if (sp && *sp != 0) return true;
    if (there == nullptr || is_function_(target) || is_stub(target)) return false;
    if (there->range.begin == target) return !flow_.is_called(target);
    return !sp;
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

  // ---- exits ----

  void collect() {
    for (const auto& [address, step] : steps_) {
      if (!step.reached) continue;
      const bool jumps = step.scan.kind == ScanKind::jump || step.scan.kind == ScanKind::branch;
      if (jumps && step.scan.target == entry_) out_.loops_to_entry = true;
      if (step.scan.kind == ScanKind::end)
        add_return(step);
      else if (step.scan.kind == ScanKind::leap)
        add_leap(step);
      else if (jumps && !in_body(step.scan.target))
        add_jump(step);
    }
  }

  void add_jump(const Step& step) {
    const bool always = step.scan.kind == ScanKind::jump;
    const auto condition = always ? std::nullopt : flags_condition(flow_.bytes(step.address, step.scan.length));
    out_.exits.push_back({step.address, always ? ExitKind::jump : ExitKind::branch, {}, condition});
  }

  // Not ud2, hlt.
  void add_return(const Step& step) {
    Decoded decoded;
    if (decode(step, decoded) && decoded.insn.meta.category == ZYDIS_CATEGORY_RET)
      out_.exits.push_back({step.address, ExitKind::ret, {}, {}});
  }

  // With something of the function's own on the stack, or by way of a table of distances, it leads to another part.
  void add_leap(const Step& step) {
    const Height& sp = step.before.sp;
    if (is_popped(step.before)) return refuse_leap(ExitRefusal::odd_return, step);
    if (sp && *sp != 0) return;
    const FunctionFacts& there = *flow_.function_at(step.address);
    const auto bytes = flow_.bytes(there.range.begin, there.range.end - there.range.begin);
    const FunctionWalk walk(bytes, there.range.begin, [](std::uint64_t) { return FunctionWalk::Entry::none; });
    if (walk.jumps_by_table(step.address - there.range.begin)) return;
    Decoded decoded;
    if (!decode(step, decoded)) return refuse_leap(ExitRefusal::not_understood, step);
    if (!sp && comes_from_stack(decoded, step.before)) return refuse_leap(ExitRefusal::odd_return, step);
    const auto target = leap_target(decoded, step.address + step.scan.length);
    if (!target) return refuse_leap(ExitRefusal::not_understood, step);
    out_.exits.push_back({step.address, ExitKind::leap, *target, {}});
  }

  // As what switches to another stack does, to the place where that one was left.
  static bool comes_from_stack(const Decoded& leap, const Stack& before) {
    const ZydisDecodedOperand& to = leap.operands[0];
    if (to.type != ZYDIS_OPERAND_TYPE_REGISTER) return is_on_stack(to);
    const auto index = index_of(to.reg.value);
    return index && before.popped.test(*index);
  }

  void refuse_leap(ExitRefusal why, const Step& step) {
    if (out_.refusal == ExitRefusal::none) fail(why, step.address);
  }

  const CodeFlow& flow_;
  const std::uint64_t entry_;
  const NamedFunction& is_function_;
  ExitPlan out_;
  std::uint64_t size_ = 0;
  std::map<std::uint64_t, Step> steps_;
  std::vector<std::uint64_t> open_;
};

}  // namespace

ExitPlan plan_exits(const CodeFlow& flow, std::uint64_t entry, const NamedFunction& is_function) {
  return Analysis(flow, entry, is_function).run();
}

}  // namespace probed::arch::x86_64
