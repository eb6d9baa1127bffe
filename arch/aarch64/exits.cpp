// Follows every path through a function with the height of its stack and the places of its return address, as far as
// they are known, and notes where it is left.
//
// What a jump out of the function's known code is, a tail call or a way to another part of the same function, is
// decided by the stack: a tail call finds it as the function did. Where that doesn't tell (a part that is entered
// before anything was pushed, as shrink-wrapping makes them) it is a tail call if the other place is a function by its
// name or is called from anywhere.
//
// Code that runs on behind its last instruction is looked at in the same way, but there is no place for a probe between
// two functions: those are refused. So are jumps to the return address by another register than its own.
//
// Only code that is reached counts. What isn't may be data between code, where a word that looks like a return must not
// be written over.
#include "arch/aarch64/exits.hpp"

#include <algorithm>
#include <bitset>
#include <map>
#include <optional>

#include "arch/aarch64/decode.hpp"
#include "arch/aarch64/forms.hpp"
#include "arch/aarch64/leap.hpp"
#include "arch/aarch64/operands.hpp"
#include "arch/aarch64/stack_use.hpp"
#include "arch/aarch64/word.hpp"
#include "arch/aarch64/written.hpp"

namespace probed::arch::aarch64 {
namespace {

constexpr std::uint64_t kMaxBody = 4 << 20;  // bytes
constexpr std::size_t kMaxParts = 64;
constexpr unsigned kFramePointer = 29, kStackPointer = 31, kRegisters = 31;
constexpr unsigned kLastChangedByCalls = 18;  // AAPCS64 6.1.1; and x30

using Height = std::optional<std::int64_t>;  // bytes below the stack pointer at the entry; nullopt: not known
using RegisterSet = std::bitset<kRegisters>;

struct Stack {
  Height sp;                   // sp
  Height fp;                   // x29, where it is a frame pointer
  Height saved;                // where the return address is kept
  RegisterSet returns{};       // what may hold the return address
  RegisterSet from_nowhere{};  // what may hold a word from a stack of which it isn't known where in it that was
  bool operator==(const Stack&) const = default;
};
constexpr Stack kUnknown{};

Height same(const Height& a, const Height& b) { return a == b ? a : std::nullopt; }

Stack merge(const Stack& a, const Stack& b) {
  return {same(a.sp, b.sp), same(a.fp, b.fp), same(a.saved, b.saved), a.returns | b.returns,
          a.from_nowhere | b.from_nowhere};
}

Height plus(const Height& height, std::int64_t bytes) { return height ? Height(*height + bytes) : std::nullopt; }

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

Stack at_entry() {
  Stack stack;
  stack.sp = 0;
  stack.returns.set(kLinkRegister);
  return stack;
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
    std::uint32_t word = 0;
    Insn insn;
    bool reached = false;
    Stack before;

    bool jumps() const { return insn.flow == Flow::jump || insn.flow == Flow::cond_jump; }
    bool calls() const { return insn.flow == Flow::call || insn.flow == Flow::indirect_call; }
    bool falls_through() const {
      return insn.flow == Flow::next || insn.flow == Flow::cond_jump || insn.flow == Flow::syscall || calls();
    }
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
    for (std::uint64_t at = 0; at + kInsnSize <= bytes.size(); at += kInsnSize) {
      const std::uint64_t address = facts.range.begin + at;
      const auto insn = bytes.subspan(at, kInsnSize);
      steps_.emplace(address, Step{address, load_word(insn), decode(insn, address), false, {}});
    }
    return true;
  }

  // ---- paths ----

  void follow_all() {
    for (auto& [address, step] : steps_) step.reached = false;
    reach(entry_, at_entry());
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
      if (step.reached && step.insn.flow == Flow::indirect_jump) all = all ? merge(*all, step.before) : step.before;
    const bool by_table = all && all->sp == 0 && leads_by_tables();
    return all && all->sp && (*all->sp != 0 || by_table) ? *all : kUnknown;
  }

  // Whether all of its indirect jumps do: what they lead to then finds the stack as they do.
  bool leads_by_tables() const {
    return std::ranges::all_of(steps_, [&](const auto& entry) {
      const Step& step = entry.second;
      return !step.reached || step.insn.flow != Flow::indirect_jump || jumps_by_table(step);
    });
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
      if (step.jumps()) reach(*step.insn.target, after);
      if (step.falls_through()) reach(step.address + kInsnSize, after);
    }
  }

  static Stack stack_after(const Step& step) {
    if (step.calls()) return after_call(step.before);
    if (step.insn.flow != Flow::next) return step.before;
    return after_plain(step.word, step.before);
  }

  // ---- jumps out of what is known ----

  bool look_at_jumps(std::vector<const FunctionFacts*>& more) {
    for (const auto& [address, step] : steps_) {
      if (!step.reached) continue;
      if (step.jumps() && !look_at_jump(step, more)) return false;
      if (runs_on(step) && !look_behind(step, more)) return false;
    }
    return true;
  }

  bool look_at_jump(const Step& step, std::vector<const FunctionFacts*>& more) {
    const std::uint64_t target = *step.insn.target;
    if (in_body(target)) return steps_.contains(target) || fail(ExitRefusal::not_understood, step.address);
    if (is_popped(step.before)) return fail(ExitRefusal::odd_return, step.address);
    const FunctionFacts* const there = flow_.function_at(target);
    if (!is_part(step.before, target, there)) return true;
    if (there == nullptr) return fail(ExitRefusal::odd_jump, step.address);
    more.push_back(there);
    return true;
  }

  // Whether it leads out of the body without a jump. A call that does isn't expected to come back.
  bool runs_on(const Step& step) const {
    if (!step.falls_through() || step.calls()) return false;
    return !steps_.contains(step.address + kInsnSize) && !follows_call(step) && !traps(step.word);
  }

  // Nothing but nops between it and a call, as Go puts one behind calls that don't come back.
  bool follows_call(const Step& step) const {
    for (auto it = steps_.find(step.address); form_of(it->second.word).form == Form::nop; --it) {
      if (flow_.may_be_entered(it->first) || it == steps_.begin()) return false;
      const auto& [before, previous] = *std::prev(it);
      if (before + kInsnSize != it->first) return false;
      if (previous.calls()) return true;
    }
    return false;
  }

  bool look_behind(const Step& step, std::vector<const FunctionFacts*>& more) {
    const std::uint64_t next = step.address + kInsnSize;
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

  // ---- exits ----

  void collect() {
    for (const auto& [address, step] : steps_) {
      if (!step.reached) continue;
      if (step.jumps() && *step.insn.target == entry_) out_.loops_to_entry = true;
      if (step.insn.flow == Flow::ret)
        add_return(step);
      else if (step.insn.flow == Flow::indirect_jump)
        add_leap(step);
      else if (step.jumps() && !in_body(*step.insn.target))
        add_jump(step);
    }
  }

  // Whether it jumps has to be told from the registers.
  void add_jump(const Step& step) {
    const bool always = step.insn.flow == Flow::jump;
    if (!always && !step.insn.emulable) return refuse_exit(ExitRefusal::not_understood, step);
    std::optional<std::uint8_t> condition;
    if (form_of(step.word).form == Form::branch_condition)
      condition = static_cast<std::uint8_t>(field(step.word, 0, 4));
    out_.exits.push_back({step.address, always ? ExitKind::jump : ExitKind::branch, {}, condition});
  }

  // Not eret, nor a jump that is written as one.
  void add_return(const Step& step) {
    if (step.insn.refusal == Refusal::privileged) return;
    if (form_of(step.word).form == Form::ret && branch_register(step.word) != kLinkRegister)
      return refuse_exit(ExitRefusal::odd_return, step);
    out_.exits.push_back({step.address, ExitKind::ret, {}, {}});
  }

  bool jumps_by_table(const Step& step) const {
    const FunctionFacts& there = *flow_.function_at(step.address);
    const auto bytes = flow_.bytes(there.range.begin, there.range.end - there.range.begin);
    const FunctionWalk walk(bytes, there.range.begin, [](std::uint64_t) { return FunctionWalk::Entry::none; });
    return walk.table_of(step.address - there.range.begin).has_value();
  }

  // With something of the function's own on the stack, or by way of a table of distances, it leads to another part.
  void add_leap(const Step& step) {
    const Height& sp = step.before.sp;
    if (is_popped(step.before)) return refuse_exit(ExitRefusal::odd_return, step);
    if (sp && *sp != 0) return;
    if (jumps_by_table(step)) return;
    const unsigned reg = branch_register(step.word);
    if (reg >= kRegisters) return refuse_exit(ExitRefusal::not_understood, step);
    const bool returns = step.before.returns.test(reg);
    if (sp && returns && reg == kLinkRegister) return out_.exits.push_back({step.address, ExitKind::ret, {}, {}});
    if (returns || (!sp && step.before.from_nowhere.test(reg))) return refuse_exit(ExitRefusal::odd_return, step);
    Operand target;
    target.kind = Operand::Kind::value;
    target.base = offsetof(Registers, x) + reg * sizeof(std::uint64_t);
    out_.exits.push_back({step.address, ExitKind::leap, target, {}});
  }

  void refuse_exit(ExitRefusal why, const Step& step) {
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

}  // namespace probed::arch::aarch64
