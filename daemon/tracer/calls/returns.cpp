// Return probes at the breakpoints of a function's entry and of its exits: which stack a thread stands on, and whether
// a jump leaves the function. return_stacks.hpp says how calls and returns are matched.
#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "daemon/symbols/maps.hpp"
#include "daemon/tracer/calls/calls.hpp"
#include "daemon/tracer/rooms.hpp"

namespace probed::tracer {
namespace {

namespace native = arch::native;
using Role = ProbeProgram::Role;
using namespace std::chrono_literals;

// How far the main thread's stack may grow: between it and other mappings is a gap of this size at least
// (arch/x86/mm/mmap.c, SIZE_128M).
constexpr std::uint64_t kMostGrowth = 128u << 20;
constexpr auto kStackPatience = 50ms;  // of a thread whose stack isn't its own alone

std::optional<std::uint64_t> read_word(TargetMemory& memory, std::uint64_t address) {
  std::uint64_t word = 0;
  if (!memory.read(RemoteAddr{address}, std::as_writable_bytes(std::span(&word, 1)))) return std::nullopt;
  return word;
}

// The stack that the thread began on: the process's, or one that it stands on. A C library puts a thread's own data at
// the top of its stack's mapping; above them other mappings may have been merged with it, and below there is a guard
// page, mostly. The first thread's own data are elsewhere, and say nothing.
arch::CodeRange own_stack(const Tracee& tracee, const ptrace::Registers& regs) {
  const auto maps = symbols::read_maps(tracee.process->id.pid);
  if (!maps) return {};
  const bool is_first = tracee.tid == tracee.process->id.pid && !tracee.vforked;
  const std::uint64_t data = ptrace::thread_pointer(tracee.tid, regs);
  for (const symbols::Mapping& mapping : *maps) {
    const bool stands_there = mapping.contains(RemoteAddr{regs.sp()});
    const std::uint64_t start = mapping.start.value, end = start + mapping.size();
    if (mapping.path == "[stack]" && (is_first || stands_there))
      return {std::min(start, end - std::min(end, kMostGrowth)), end};
    if (stands_there && !is_first && data > regs.sp() && data < end) return {start, data};
  }
  return {};
}

// Where a goroutine's stack pointer is, whatever its stack's address is by now.
std::optional<StackPlace> goroutine_place(const ptrace::Registers& regs, TargetMemory& memory) {
  const std::uint64_t slot = native::return_slot(regs);
  const auto offset = static_cast<std::uint64_t>(native::kGoroutineFromThreadPointer);
  for (const auto& g : {std::optional(native::goroutine(regs)), read_word(memory, regs.thread_pointer() + offset)}) {
    if (!g || *g == 0) continue;
    const auto low = read_word(memory, *g), high = read_word(memory, *g + native::kWordSize);
    if (low && high && *low <= slot && slot < *high) return StackPlace{*g, slot - *high, *low - *high};
  }
  return std::nullopt;
}

std::optional<std::uint64_t> target_of(const arch::Operand& operand, const ptrace::Registers& regs,
                                       TargetMemory& memory) {
  const auto register_at = [&](std::size_t offset) {
    std::uint64_t value = 0;
    std::memcpy(&value, reinterpret_cast<const std::byte*>(&regs) + offset, sizeof value);
    return value;
  };
  if (operand.kind == arch::Operand::Kind::value) return register_at(*operand.base);
  std::uint64_t address = operand.number;
  if (operand.base) address += register_at(*operand.base);
  if (operand.index) address += register_at(*operand.index) << operand.scale;
  return read_word(memory, address);
}

bool stays(const ReturnProbe& probe, std::uint64_t target) {
  return std::ranges::any_of(probe.body, [=](const arch::CodeRange& part) { return part.contains(target); });
}

// Whether this execution of an exit's instruction leaves the function.
bool leaves(const Site& site, const ProbeProgram& program, const ptrace::Registers& regs, TargetMemory& memory) {
  ptrace::Registers after = regs;
  switch (program.exit.kind) {
    case arch::ExitKind::ret:
    case arch::ExitKind::jump: return true;
    case arch::ExitKind::branch:
      return native::emulate(site.plan.code(), site.plan.insn, after) && !stays(*program.returns, after.pc());
    case arch::ExitKind::leap: {
      const auto target = target_of(program.exit.target, regs, memory);
      return target && !stays(*program.returns, *target);
    }
  }
  return false;
}

}  // namespace

StackPlace Calls::stack_place(Tracee& tracee, const ptrace::Registers& regs, bool is_go) {
  TargetMemory& memory = tracee.process->space->memory();
  if (is_go)
    if (const auto place = goroutine_place(regs, memory)) return *place;
  if (!tracee.own_stack) {
    tracee.own_stack = own_stack(tracee, regs);
    claim_stack(tracee);
  }
  const std::uint64_t slot = native::return_slot(regs);
  return {0, slot, tracee.own_stack->contains(slot) ? tracee.own_stack->begin : slot, tracee.tid};
}

// What two threads would have for their own is the lower one's, up to its own data.
void Calls::claim_stack(Tracee& tracee) {
  if (tracee.vforked) return;  // it runs on its creator's
  auto& stacks = tracee.process->space->optimisation().own_stacks;
  arch::CodeRange& mine = *tracee.own_stack;
  for (auto other = stacks.upper_bound(mine.begin); other != stacks.end() && other->second.begin < mine.end;) {
    if (other->first < mine.end) {
      mine.begin = other->first;
      ++other;
    } else {
      limit_stack(*tracee.process->space, other, {mine.end, other->first});
      other = stacks.upper_bound(mine.begin);
    }
  }
  if (mine.begin < mine.end) stacks.emplace(mine.end, Optimisation::OwnStack{mine.begin, tracee.tid});
}

// Somebody else is in what was taken for one thread's stack: a coroutine has its stack there, and is resumed by several
// threads. From now on no thread keeps calls there itself.
void Calls::settle_dispute(const Tracee& tracee, const StackPlace& place) {
  AddressSpace& space = *tracee.process->space;
  if (place.stack != 0 || tracee.vforked || space.detours().lines().empty()) return;
  const auto& stacks = space.optimisation().own_stacks;
  const auto owner = stacks.upper_bound(place.slot);
  if (owner == stacks.end() || owner->second.begin > place.slot || owner->second.tid == tracee.tid) return;
  limit_stack(space, owner, {});
}

void Calls::limit_stack(AddressSpace& space, OwnStacks::const_iterator stack, const arch::CodeRange& rest) {
  auto& stacks = space.optimisation().own_stacks;
  const pid_t tid = stack->second.tid;
  stacks.erase(stack);
  const auto it = targets_.tracees.find(tid);
  if (it == targets_.tracees.end()) return;
  if (rest.begin < rest.end) stacks.emplace(rest.end, Optimisation::OwnStack{rest.begin, tid});
  it->second.own_stack = rest;
  it->second.stack_limited = true;
  if (it->second.runs()) {
    ptrace::interrupt(tid);
    waiter_.gather_from(std::array{tid}, kStackPatience);
  }
  limit_kept_calls(it->second);
}

// A function's only instruction may be its exit as well: entries come first.
void Calls::run_return_probes(const HitRecorder::Hit& hit, Site& site) {
  for (const Role role : {Role::entry, Role::exit})
    for (const ProgramPtr& program : site.programs)
      if (program->role == role && program->enabled) run_return_probe(hit, site, *program);
}

void Calls::run_return_probe(const HitRecorder::Hit& hit, const Site& site, ProbeProgram& program) {
  AddressSpace& space = *hit.tracee.process->space;
  if (program.role == Role::exit && !leaves(site, program, hit.regs, space.memory())) return;
  const StackPlace place = stack_place(hit.tracee, hit.regs, program.returns->is_go);
  settle_dispute(hit.tracee, place);
  take_calls(hit.tracee, hit.regs, place);
  bool was_last = false;
  if (program.role == Role::entry) {
    was_last = rooms_.recorder.run_entry(hit, program, space.returns(), place);
    mark_call(hit.tracee, hit.regs, place);
  } else {
    was_last = rooms_.recorder.run_exit(hit, program, space.returns(), place);
  }
  if (was_last) listener_.limit_reached(program.limit->probes);
}

// What is known of a probe's calls says nothing any more once some of them may come and go unseen. Those that threads
// keep are known by a number that is nobody's from now on.
void Calls::forget_calls(const ProbeProgram& program) {
  if (program.role != Role::entry) return;
  calls_by_tag_.erase(std::exchange(program.returns->tag, 0));
  for (const auto& [pid, process] : targets_.processes)
    if (process->space) process->space->returns().forget(*program.returns);
}

}  // namespace probed::tracer
