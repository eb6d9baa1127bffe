// What the analysis of a function's exits has to know of aarch64; arch/exit_analysis.hpp has the rest. The places of
// the return address are followed, too. Jumps to it by another register than its own are refused.
#include "arch/aarch64/exits.hpp"

#include <algorithm>
#include <bitset>
#include <optional>

#include "arch/aarch64/decode.hpp"
#include "arch/aarch64/forms.hpp"
#include "arch/aarch64/leap.hpp"
#include "arch/aarch64/operands.hpp"
#include "arch/aarch64/stack_use.hpp"
#include "arch/aarch64/word.hpp"
#include "arch/aarch64/written.hpp"
#include "arch/exit_analysis.hpp"

namespace probed::arch::aarch64 {
namespace {

constexpr unsigned kFramePointer = 29, kStackPointer = 31, kRegisters = 31;
constexpr unsigned kLastChangedByCalls = 18;  // AAPCS64 6.1.1; and x30

using RegisterSet = std::bitset<kRegisters>;

struct Stack {
  Height sp;
  Height fp;                   // x29, where it is a frame pointer
  Height saved;                // where the return address is kept
  RegisterSet returns{};       // what may hold the return address
  RegisterSet from_nowhere{};  // what may hold a word from a stack of which it isn't known where in it that was
  bool operator==(const Stack&) const = default;
};

Stack merge(const Stack& a, const Stack& b) {
  return {same(a.sp, b.sp), same(a.fp, b.fp), same(a.saved, b.saved), a.returns | b.returns,
          a.from_nowhere | b.from_nowhere};
}

unsigned result(std::uint32_t word) { return field(word, 0, 5); }
unsigned operand(std::uint32_t word) { return field(word, 5, 5); }

// ---- instructions ----

// add, sub of a number, 64 bits; mov from and to sp.
std::optional<std::int64_t> added(std::uint32_t word) {
  if ((word & 0xbf800000) != 0x91000000) return std::nullopt;
  const std::int64_t number = std::int64_t{field(word, 10, 12)} << (field(word, 22, 1) * 12);
  return field(word, 30, 1) != 0 ? -number : number;
}

bool is_move(std::uint32_t word) { return (word & 0xffe0ffe0) == 0xaa0003e0; }  // mov x, x

// A load or store that moves its base, before it accesses memory or afterwards.
struct Moving {
  std::int64_t by = 0;
  bool before = false;
};
std::optional<Moving> moves_base(std::uint32_t word) {
  if ((word & 0x3a000000) == 0x28000000 && field(word, 23, 1) != 0) {  // pairs
    const unsigned opc = field(word, 30, 2);
    const std::int64_t unit = field(word, 26, 1) != 0 ? 4 << opc : opc == 2 ? 8 : 4;
    return Moving{signed_field(word, 15, 7) * unit, field(word, 24, 1) != 0};
  }
  if ((word & 0x3b200400) == 0x38000400) return Moving{signed_field(word, 12, 9), field(word, 11, 1) != 0};
  return std::nullopt;
}

// A load or store of whole general registers at a base plus a constant, one that moves its base as well.
std::optional<WordAccess> access_of(std::uint32_t word) {
  if (const auto plain = word_access(word)) return plain;
  const auto moving = moves_base(word);
  if (!moving || field(word, 26, 1) != 0) return std::nullopt;
  const std::int64_t offset = moving->before ? moving->by : 0;
  const bool is_load = field(word, 22, 1) != 0;
  if ((word & 0xfe000000) == 0xa8000000)
    return WordAccess{is_load, operand(word), offset, result(word), field(word, 10, 5)};
  if ((word & 0xffa00000) == 0xf8000000) return WordAccess{is_load, operand(word), offset, result(word)};
  return std::nullopt;
}

bool traps(std::uint32_t word) { return is_brk(word) || form_of(word).form == Form::udf; }

// ---- one instruction's effect ----

Height base_of(unsigned reg, const Stack& before) {
  return reg == kStackPointer ? before.sp : reg == kFramePointer ? before.fp : std::nullopt;
}

// What an addition of a number to sp or x29 comes to.
Height sum(std::uint32_t word, const Stack& before) {
  const auto number = added(word);
  return number ? plus(base_of(operand(word), before), -*number) : std::nullopt;
}

Height sp_after(std::uint32_t word, const Stack& before) {
  if (sets_stack_pointer(word)) return sum(word, before);
  const bool is_base = operand(word) == kStackPointer;
  if (const auto moving = moves_base(word); moving && is_base) return plus(before.sp, -moving->by);
  const bool moves_vectors = (word & 0xbe800000) == 0x0c800000;  // ld1 and its kin, which move their base
  return moves_vectors && is_base ? std::nullopt : before.sp;
}

Height fp_after(std::uint32_t word, const Stack& before) {
  if (!may_write(word, kFramePointer)) return before.fp;
  return added(word) && result(word) == kFramePointer ? sum(word, before) : std::nullopt;
}

// Where in the stack the access's first word is.
Height place_of(const WordAccess& access, const Stack& before) {
  return plus(base_of(access.base, before), -access.offset);
}

void note_loaded(unsigned reg, const Height& place, bool is_stack, const Stack& before, Stack& after) {
  if (reg >= kRegisters) return;
  after.returns[reg] = place && before.saved == place;
  after.from_nowhere[reg] = !place && is_stack;
}

void note_access(const WordAccess& access, const Stack& before, Stack& after) {
  const Height place = place_of(access, before);
  const bool is_stack = access.base == kStackPointer;
  const auto each = [&](unsigned reg, std::int64_t behind) {
    const Height here = plus(place, -behind);
    if (access.is_load) return note_loaded(reg, here, is_stack, before, after);
    if (reg == kLinkRegister && before.returns.test(reg) && here) after.saved = here;
  };
  each(access.first, 0);
  if (access.second) each(*access.second, kWordSize);
}

Stack after_plain(std::uint32_t word, const Stack& before) {
  Stack after = before;
  after.sp = sp_after(word, before);
  after.fp = fp_after(word, before);
  for (unsigned reg = 0; reg < kRegisters; ++reg)
    if (may_write(word, reg)) after.returns.reset(reg), after.from_nowhere.reset(reg);
  if (is_move(word) && result(word) < kRegisters && field(word, 16, 5) < kRegisters) {
    after.returns[result(word)] = before.returns.test(field(word, 16, 5));
    after.from_nowhere[result(word)] = before.from_nowhere.test(field(word, 16, 5));
  }
  if (const auto access = access_of(word)) note_access(*access, before, after);
  return after;
}

Stack after_call(const Stack& before) {
  Stack after = before;
  for (unsigned reg = 0; reg <= kLastChangedByCalls; ++reg) after.returns.reset(reg), after.from_nowhere.reset(reg);
  after.returns.reset(kLinkRegister);
  after.from_nowhere.reset(kLinkRegister);
  return after;
}

struct ExitInsn {
  std::uint32_t word = 0;
  Insn insn;

  static constexpr std::uint64_t length() { return kInsnSize; }
  std::uint64_t target() const { return *insn.target; }
  bool jumps() const { return insn.flow == Flow::jump || insn.flow == Flow::cond_jump; }
  bool calls() const { return insn.flow == Flow::call || insn.flow == Flow::indirect_call; }
  bool leaps() const { return insn.flow == Flow::indirect_jump; }
  bool ends() const { return insn.flow == Flow::ret; }
  bool is_nothing() const { return form_of(word).form == Form::nop; }
  bool falls_through() const {
    return insn.flow == Flow::next || insn.flow == Flow::cond_jump || insn.flow == Flow::syscall || calls();
  }
};

class Analysis : public ExitAnalysis<Analysis, ExitInsn, Stack> {
 public:
  Analysis(const CodeFlow& flow, std::uint64_t entry, const NamedFunction& is_function)
      : ExitAnalysis(flow, entry, is_function) {}

 private:
  friend class ExitAnalysis<Analysis, ExitInsn, Stack>;

  bool add_instructions(const FunctionFacts& facts) {
    const auto bytes = bytes_of(facts);
    for (std::uint64_t at = 0; at + kInsnSize <= bytes.size(); at += kInsnSize) {
      const std::uint64_t address = facts.range.begin + at;
      const auto insn = bytes.subspan(at, kInsnSize);
      add_step(address, {load_word(insn), decode(insn, address)});
    }
    return true;
  }

  static Stack at_entry() {
    Stack stack;
    stack.sp = 0;
    stack.returns.set(kLinkRegister);
    return stack;
  }

  static Stack stack_after(const Step& step) {
    if (step.insn.calls()) return after_call(step.before);
    if (step.insn.insn.flow != Flow::next) return step.before;
    return after_plain(step.insn.word, step.before);
  }

  bool trusts(const Stack& stack) const { return *stack.sp != 0 || leads_by_tables(); }

  // Whether all of its indirect jumps do: what they lead to then finds the stack as they do.
  bool leads_by_tables() const {
    return std::ranges::all_of(steps(), [&](const auto& entry) {
      const Step& step = entry.second;
      return !step.reached || !step.insn.leaps() || jumps_by_table(step);
    });
  }

  bool is_within(std::uint64_t target) const { return has_step(target); }

  static bool traps(const Step& step) { return aarch64::traps(step.insn.word); }

  // An entry of the procedure linkage table, or what linkers put between far places: adrp x16, and soon br x16 or x17.
  bool is_stub(std::uint64_t target) const {
    constexpr std::uint32_t kBranch = 0xd61f0200, kAnyOfTwo = 1u << 5;
    constexpr unsigned kLongest = 5;
    const auto code = flow_.bytes(target, kLongest * kInsnSize);
    bool has_page = false;
    for (std::size_t at = 0; at + kInsnSize <= code.size(); at += kInsnSize) {
      const std::uint32_t word = load_word(code.subspan(at));
      if ((word & ~kAnyOfTwo) == kBranch) return has_page;
      if (decode(code.subspan(at), target + at).flow != Flow::next) return false;
      has_page = has_page || form_of(word).form == Form::adrp;
    }
    return false;
  }

  // Whether it jumps has to be told from the registers.
  void add_jump(const Step& step) {
    const bool always = step.insn.insn.flow == Flow::jump;
    if (!always && !step.insn.insn.emulable) return refuse_exit(ExitRefusal::not_understood, step);
    std::optional<std::uint8_t> condition;
    if (form_of(step.insn.word).form == Form::branch_condition)
      condition = static_cast<std::uint8_t>(field(step.insn.word, 0, 4));
    add_exit(step, always ? ExitKind::jump : ExitKind::branch, {}, condition);
  }

  // Not eret, nor a jump that is written as one.
  void add_return(const Step& step) {
    if (step.insn.insn.refusal == Refusal::privileged) return;
    if (form_of(step.insn.word).form == Form::ret && branch_register(step.insn.word) != kLinkRegister)
      return refuse_exit(ExitRefusal::odd_return, step);
    add_exit(step, ExitKind::ret);
  }

  bool jumps_by_table(const Step& step) const {
    const FunctionFacts& there = *flow_.function_at(step.address);
    const auto bytes = bytes_of(there);
    const FunctionWalk walk(bytes, there.range.begin, [](std::uint64_t) { return FunctionWalk::Entry::none; });
    return walk.table_of(step.address - there.range.begin).has_value();
  }

  // With something of the function's own on the stack, or by way of a table of distances, it leads to another part.
  void add_leap(const Step& step) {
    const Height& sp = step.before.sp;
    if (is_popped(step.before)) return refuse_exit(ExitRefusal::odd_return, step);
    if (sp && *sp != 0) return;
    if (jumps_by_table(step)) return;
    const unsigned reg = branch_register(step.insn.word);
    if (reg >= kRegisters) return refuse_exit(ExitRefusal::not_understood, step);
    const bool returns = step.before.returns.test(reg);
    if (sp && returns && reg == kLinkRegister) return add_exit(step, ExitKind::ret);
    if (returns || (!sp && step.before.from_nowhere.test(reg))) return refuse_exit(ExitRefusal::odd_return, step);
    Operand target;
    target.kind = Operand::Kind::value;
    target.base = offsetof(Registers, x) + reg * sizeof(std::uint64_t);
    add_exit(step, ExitKind::leap, target);
  }
};

}  // namespace

ExitPlan plan_exits(const CodeFlow& flow, std::uint64_t entry, const NamedFunction& is_function) {
  return Analysis(flow, entry, is_function).run();
}

}  // namespace probed::arch::aarch64
