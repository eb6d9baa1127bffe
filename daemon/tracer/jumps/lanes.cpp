#include "daemon/tracer/jumps/lanes.hpp"

#include <unistd.h>

#include <algorithm>

#include "daemon/base/process.hpp"
#include "daemon/tracer/kernel/sharing.hpp"
#include "daemon/tracer/rooms.hpp"

namespace probed::tracer {
namespace {

namespace native = arch::native;
using ptrace::Outcome;
using namespace std::chrono_literals;

constexpr Waiter::Clock::duration kMeetAgain = 10ms, kMeetAtLeast = 1s;  // threads without a lane

}  // namespace

// ---- lanes ----------------------------------------------------------------------------------------------------------

void Lanes::meet(Tracee& tracee) {
  AddressSpace* space = tracee.process ? tracee.process->space.get() : nullptr;
  if (!space || tracee.process->detaching() || tracee.lanes.size() == space->detours().lines().size()) return;
  ptrace::Registers regs;
  if (ptrace::get_registers(tracee.tid, regs) == Outcome::ok) give_lanes(tracee, regs);
}

void Lanes::give_lanes(Tracee& tracee, const ptrace::Registers& regs) {
  if (!native::executes_native_code(regs)) return;  // there fs leads to whatever that code wants
  AddressSpace& space = *tracee.process->space;
  Optimisation& work = space.optimisation();
  const std::uint64_t pointer = ptrace::thread_pointer(tracee.tid, regs);
  if (tracee.thread_pointer == 0 && pointer != 0) {
    if (const auto it = work.thread_pointers.find(pointer); it != work.thread_pointers.end() && !tracee.vforked) {
      if (!process::is_exiting(it->second))
        return rooms_.optimiser.refuse_all(space, "two of its threads have the same thread pointer");
      take_lanes(targets_.tracees.at(it->second));
    }
    if (work.thread_pointers.try_emplace(pointer, tracee.tid).second) tracee.thread_pointer = pointer;
  }
  std::uint64_t word = pointer;
  if constexpr (native::kFindsPointerInMemory)
    if (!space.memory().read(RemoteAddr{pointer}, std::as_writable_bytes(std::span(&word, 1)))) word = 0;
  const bool found_by = tracee.thread_pointer != 0 && word == pointer;
  std::optional<RemoteAddr> rseq;
  if (!rooms_.features.cpu_number)
    if (const auto area = ptrace::rseq_area(tracee.tid)) rseq = RemoteAddr{*area};
  for (std::size_t i = tracee.lanes.size(); i < space.detours().lines().size(); ++i) {
    events::Feed& feed = *space.detours().lines()[i].feed;
    if (tracee.thread_pointer != 0) feed.threads.born(pointer, tracee.tid, native::record_clock());
    const auto lane = feed.channel->assign(static_cast<std::uint64_t>(tracee.tid), found_by ? pointer : 0, rseq);
    tracee.lanes.push_back(lane.value_or(events::LaneId::shared));
  }
}

// A vfork child has its creator's thread pointer, so its records look like its creator's: they are told apart by time.
// Its creator sleeps.
void Lanes::lend_lanes(Tracee& parent, pid_t child) {
  AddressSpace* space = parent.process ? parent.process->space.get() : nullptr;
  if (!space || space->detours().lines().empty() || !shares_memory(child, parent.process->id.pid)) return;
  ptrace::Registers regs;
  if (ptrace::get_registers(parent.tid, regs) != Outcome::ok) return;
  give_lanes(parent, regs);
  const auto& pointers = space->optimisation().thread_pointers;
  const auto owner = pointers.find(ptrace::thread_pointer(parent.tid, regs));
  if (owner == pointers.end() || ptrace::report_vfork_done(parent.tid) != Outcome::ok) return;
  parent.lender = owner->second;
  for (const auto& line : space->detours().lines())
    line.feed->threads.lend(parent.lender, child, native::record_clock());
}

Act Lanes::on_vfork_done(Tracee& parent) {
  const AddressSpace* space = parent.process->space.get();
  const pid_t lender = std::exchange(parent.lender, 0);
  if (space && lender != 0)
    for (const auto& line : space->detours().lines()) line.feed->threads.give_back(lender, native::record_clock());
  return rooms_.detacher.go_on_or_leave(parent, "its vfork child runs a program of its own, or has ended");
}

void Lanes::take_lanes(Tracee& tracee) {
  AddressSpace* space = tracee.process ? tracee.process->space.get() : nullptr;
  if (!space) return;
  Optimisation& work = space->optimisation();
  if (work.round) work.round->awaited.erase(tracee.tid);
  if (!tracee.process->detaching()) rooms_.calls.abandon_calls(tracee);
  const std::size_t lines = space->detours().lines().size();
  for (std::size_t i = 0; i < tracee.lanes.size() && i < lines; ++i) {
    events::Feed& feed = *space->detours().lines()[i].feed;
    if (tracee.lanes[i] != events::LaneId::shared)
      feed.channel->retire(tracee.lanes[i]);
    else if (tracee.thread_pointer != 0)
      feed.threads.died(tracee.thread_pointer);
  }
  tracee.lanes.clear();
  std::erase_if(work.own_stacks, [&](const auto& stack) { return stack.second.tid == tracee.tid; });
  if (tracee.thread_pointer != 0) work.thread_pointers.erase(std::exchange(tracee.thread_pointer, 0));
}

void Lanes::find_threads(pid_t pid) {
  const Process* process = targets_.find_process(pid);
  if (!process || !process->space || process->detaching()) return;
  const std::size_t lines = process->space->detours().lines().size();
  for (auto& [tid, tracee] : targets_.tracees) {
    if (!tracee.process || tracee.process->space != process->space || tracee.lanes.size() == lines) continue;
    // One that has waited in a call all the time has recorded nothing.
    if (tracee.runs() && glance(tid).kind == Glance::Kind::running) ptrace::interrupt(tid);
  }
}

// Threads that have waited all the time have not been asked to stop, and have no lane. Once they run, and count, they
// share their counters' cache lines and a lock prefix, which makes a hit several times as expensive: so the channel is
// asked whether there are such, and whoever runs then is stopped, once.
void Lanes::meet_soon(AddressSpace& space) {
  Optimisation& work = space.optimisation();
  work.meet_again = kMeetAgain;
  work.meet_at = Waiter::Clock::now() + work.meet_again;
  rooms_.optimiser.wake_optimiser(space, work.meet_again);
}

void Lanes::meet_the_rest(AddressSpace& space) {
  Optimisation& work = space.optimisation();
  const auto now = Waiter::Clock::now();
  if (now < work.meet_at) return void(work.at = std::min(work.at, work.meet_at));
  bool counted = false, strangers = false;
  for (const Line& line : space.detours().lines()) counted |= line.feed->channel->take_shared_counting();
  for (auto& [tid, tracee] : targets_.tracees) {
    if (!tracee.process || tracee.process->space.get() != &space) continue;
    if (tracee.lanes.size() == space.detours().lines().size()) continue;
    strangers = true;
    if (!counted || !tracee.runs() || glance(tid).kind != Glance::Kind::running) continue;
    tracee.interrupted_at = Waiter::Clock::now();
    ptrace::interrupt(tid);
  }
  work.meet_again = counted ? kMeetAgain : std::min(2 * work.meet_again, kMeetAtLeast);
  work.meet_at = strangers ? now + work.meet_again : Waiter::Clock::time_point::max();
  work.at = std::min(work.at, work.meet_at);
}

}  // namespace probed::tracer
