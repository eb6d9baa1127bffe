// Follows every path through a function with the state of its stack, as far as that is known, and notes where it is
// left: the part that doesn't depend on the architecture. Internal to arch/; used by the exits.cpp of each folder.
// Pure.
//
// What a jump out of the function's known code is, a tail call or a way to another part of the same function, is
// decided by the stack: a tail call finds it as the function did. Where that doesn't tell (a part that is entered
// before anything was pushed, as shrink-wrapping makes them) it is a tail call if the other place is a function by its
// name or is called from anywhere.
//
// Code that runs on behind its last instruction is looked at in the same way, but there is no place for a probe between
// two functions: those are refused.
//
// Only code that is reached counts. What isn't may be data between code, where bytes that look like a return must not
// be written over.
//
// ExitAnalysis<Self, Insn, Stack>: Self knows the instructions.
//   Insn   one instruction: length() in bytes, target() of a branch or a direct call, and what it does:
//          jumps() to target, always or at times; calls(); leaps(): an indirect jump; ends(): doesn't go on behind
//          itself; is_nothing(): what padding is made of; falls_through(): may go on behind itself
//   Stack  what is known in front of an instruction. `sp`: bytes below where the stack pointer was at the function's
//          entry; nullopt: not known. Default: nothing is known. ==, and merge(a, b): what is true of both
//   Self   has, besides what is declared here as its part:
//          bool add_instructions(const FunctionFacts&)  add_step() for each; false: fail() was called
//          Stack at_entry(), stack_after(step)
//          bool trusts(const Stack&)        what all indirect jumps agree on holds where they may lead
//          bool is_within(target)           a branch there leads to an instruction, or behind its lock prefix
//          bool traps(step)                 it is a breakpoint, behind what isn't expected to come back
//          bool is_stub(target)             an entry of the procedure linkage table, or what linkers put between
//          void add_return(step), add_leap(step), add_jump(step)
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "arch/exits.hpp"

namespace probed::arch {

using Height = std::optional<std::int64_t>;  // bytes below where the stack pointer was at the entry; nullopt: not known

inline Height plus(const Height& height, std::int64_t bytes) { return height ? Height(*height + bytes) : std::nullopt; }
inline Height same(const Height& a, const Height& b) { return a == b ? a : std::nullopt; }

template <class Self, class Insn, class Stack>
class ExitAnalysis {
 public:
  ExitPlan run();

 protected:
  struct Step {
    std::uint64_t address = 0;
    Insn insn;
    bool reached = false;
    Stack before{};

    std::uint64_t end() const { return address + insn.length(); }
  };

  ExitAnalysis(const CodeFlow& flow, std::uint64_t entry, const NamedFunction& is_function)
      : flow_(flow), entry_(entry), is_function_(is_function) {}

  void add_step(std::uint64_t address, Insn insn) {
    steps_.emplace(address, Step{address, std::move(insn), false, {}});
  }
  bool has_step(std::uint64_t address) const { return steps_.contains(address); }
  const std::map<std::uint64_t, Step>& steps() const { return steps_; }
  std::span<const std::uint8_t> bytes_of(const Step& step) const {
    return flow_.bytes(step.address, step.insn.length());
  }
  std::span<const std::uint8_t> bytes_of(const FunctionFacts& facts) const {
    return flow_.bytes(facts.range.begin, facts.range.end - facts.range.begin);
  }

  bool fail(ExitRefusal why, std::uint64_t where) {
    out_.refusal = why;
    out_.where = where;
    return false;
  }
  void add_exit(const Step& step, ExitKind kind, Operand target = {}, std::optional<std::uint8_t> condition = {}) {
    out_.exits.push_back({step.address, kind, std::move(target), condition});
  }
  // The first reason stays.
  void refuse_exit(ExitRefusal why, const Step& step) {
    if (out_.refusal == ExitRefusal::none) fail(why, step.address);
  }
  static bool is_popped(const Stack& stack) { return stack.sp && *stack.sp < 0; }

  const CodeFlow& flow_;

 private:
  Self& self() { return static_cast<Self&>(*this); }
  const Self& self() const { return static_cast<const Self&>(*this); }

  ExitPlan refuse(ExitRefusal why, std::uint64_t where) {
    fail(why, where);
    out_.exits.clear();
    return std::move(out_);
  }
  bool in_body(std::uint64_t address) const {
    return std::ranges::any_of(out_.body, [=](const CodeRange& r) { return r.contains(address); });
  }
  bool add_part(const FunctionFacts& facts);

  void follow_all();
  Stack stack_of_leaps() const;
  void seed(Step& step, const Stack& stack);
  void reach(std::uint64_t address, const Stack& stack);
  void follow();

  using Parts = std::vector<const FunctionFacts*>;
  bool look_at_jumps(Parts& more);
  bool look_at_jump(const Step& step, Parts& more);
  bool runs_on(const Step& step) const;
  bool follows_call(const Step& step) const;
  bool look_behind(const Step& step, Parts& more);
  bool is_part(const Stack& stack, std::uint64_t target, const FunctionFacts* there) const;

  void collect();

  static constexpr std::uint64_t kMaxBody = 4 << 20;  // bytes
  static constexpr std::size_t kMaxParts = 64;

  const std::uint64_t entry_;
  const NamedFunction& is_function_;
  ExitPlan out_;
  std::uint64_t size_ = 0;
  std::map<std::uint64_t, Step> steps_;
  std::vector<std::uint64_t> open_;
};

template <class Self, class Insn, class Stack>
ExitPlan ExitAnalysis<Self, Insn, Stack>::run() {
  const FunctionFacts* const own = flow_.function_at(entry_);
  if (own == nullptr || !flow_.is_instruction(entry_)) return refuse(ExitRefusal::no_function, 0);
  if (!add_part(*own)) return std::move(out_);
  while (true) {
    follow_all();
    Parts more;
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

template <class Self, class Insn, class Stack>
bool ExitAnalysis<Self, Insn, Stack>::add_part(const FunctionFacts& facts) {
  if (in_body(facts.range.begin)) return true;
  if (!facts.decoded) return fail(ExitRefusal::not_decoded, facts.range.begin);
  if (!facts.understood) return fail(ExitRefusal::not_understood, facts.range.begin);
  size_ += facts.range.end - facts.range.begin;
  if (size_ > kMaxBody || out_.body.size() == kMaxParts) return fail(ExitRefusal::too_large, facts.range.begin);
  out_.body.push_back(facts.range);
  std::ranges::sort(out_.body, {}, &CodeRange::begin);
  return self().add_instructions(facts);
}

// ---- paths ----

template <class Self, class Insn, class Stack>
void ExitAnalysis<Self, Insn, Stack>::follow_all() {
  for (auto& [address, step] : steps_) step.reached = false;
  reach(entry_, self().at_entry());
  follow();
  // What tables and exception handlers lead to, with the stack of the indirect jumps if they agree on it.
  const Stack stack = stack_of_leaps();
  const auto is_begin = [&](std::uint64_t address) { return flow_.function_at(address)->range.begin == address; };
  for (auto& [address, step] : steps_)
    if (!step.reached && flow_.may_be_entered(address) && !is_begin(address)) seed(step, stack);
  follow();
}

template <class Self, class Insn, class Stack>
Stack ExitAnalysis<Self, Insn, Stack>::stack_of_leaps() const {
  std::optional<Stack> all;
  for (const auto& [address, step] : steps_)
    if (step.reached && step.insn.leaps()) all = all ? merge(*all, step.before) : step.before;
  return all && all->sp && self().trusts(*all) ? *all : Stack{};
}

template <class Self, class Insn, class Stack>
void ExitAnalysis<Self, Insn, Stack>::seed(Step& step, const Stack& stack) {
  step.reached = true;
  step.before = stack;
  open_.push_back(step.address);
}

template <class Self, class Insn, class Stack>
void ExitAnalysis<Self, Insn, Stack>::reach(std::uint64_t address, const Stack& stack) {
  const auto it = steps_.find(address);
  if (it == steps_.end()) return;
  Step& step = it->second;
  if (!step.reached) return seed(step, stack);
  const Stack both = merge(step.before, stack);
  if (both == step.before) return;
  step.before = both;
  open_.push_back(address);
}

template <class Self, class Insn, class Stack>
void ExitAnalysis<Self, Insn, Stack>::follow() {
  while (!open_.empty()) {
    const Step step = steps_.at(open_.back());
    open_.pop_back();
    const Stack after = self().stack_after(step);
    if (step.insn.jumps()) reach(step.insn.target(), after);
    if (step.insn.falls_through()) reach(step.end(), after);
  }
}

// ---- jumps out of what is known ----

template <class Self, class Insn, class Stack>
bool ExitAnalysis<Self, Insn, Stack>::look_at_jumps(Parts& more) {
  for (const auto& [address, step] : steps_) {
    if (!step.reached) continue;
    if (step.insn.jumps() && !look_at_jump(step, more)) return false;
    if (runs_on(step) && !look_behind(step, more)) return false;
  }
  return true;
}

template <class Self, class Insn, class Stack>
bool ExitAnalysis<Self, Insn, Stack>::look_at_jump(const Step& step, Parts& more) {
  const std::uint64_t target = step.insn.target();
  if (in_body(target)) return self().is_within(target) || fail(ExitRefusal::not_understood, step.address);
  if (is_popped(step.before)) return fail(ExitRefusal::odd_return, step.address);
  const FunctionFacts* const there = flow_.function_at(target);
  if (!is_part(step.before, target, there)) return true;
  if (there == nullptr) return fail(ExitRefusal::odd_jump, step.address);
  more.push_back(there);
  return true;
}

// Whether it leads out of the body without a jump. A call that does isn't expected to come back.
template <class Self, class Insn, class Stack>
bool ExitAnalysis<Self, Insn, Stack>::runs_on(const Step& step) const {
  if (!step.insn.falls_through() || step.insn.calls()) return false;
  return !steps_.contains(step.end()) && !follows_call(step) && !self().traps(step);
}

// Nothing but nops between it and a call, as Go puts one behind calls that don't come back.
template <class Self, class Insn, class Stack>
bool ExitAnalysis<Self, Insn, Stack>::follows_call(const Step& step) const {
  for (auto it = steps_.find(step.address); it->second.insn.is_nothing(); --it) {
    if (flow_.may_be_entered(it->first) || it == steps_.begin()) return false;
    const Step& previous = std::prev(it)->second;
    if (previous.end() != it->first) return false;
    if (previous.insn.calls()) return true;
  }
  return false;
}

template <class Self, class Insn, class Stack>
bool ExitAnalysis<Self, Insn, Stack>::look_behind(const Step& step, Parts& more) {
  const FunctionFacts* const there = flow_.function_at(step.end());
  if (there == nullptr || !is_part(self().stack_after(step), step.end(), there))
    return fail(ExitRefusal::runs_on, step.address);
  more.push_back(there);
  return true;
}

template <class Self, class Insn, class Stack>
bool ExitAnalysis<Self, Insn, Stack>::is_part(const Stack& stack, std::uint64_t target,
                                              const FunctionFacts* there) const {
  const Height& sp = stack.sp;
  if (sp && *sp != 0) return true;
  if (there == nullptr || is_function_(target) || self().is_stub(target)) return false;
  if (there->range.begin == target) return !flow_.is_called(target);
  return !sp;
}

// ---- exits ----

template <class Self, class Insn, class Stack>
void ExitAnalysis<Self, Insn, Stack>::collect() {
  for (const auto& [address, step] : steps_) {
    if (!step.reached) continue;
    if (step.insn.jumps() && step.insn.target() == entry_) out_.loops_to_entry = true;
    if (step.insn.ends())
      self().add_return(step);
    else if (step.insn.leaps())
      self().add_leap(step);
    else if (step.insn.jumps() && !in_body(step.insn.target()))
      self().add_jump(step);
  }
}

}  // namespace probed::arch
