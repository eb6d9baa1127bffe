// Loads in detours that don't end: the page belongs to a userfaultfd whose handler doesn't answer, or to a file on a
// server that doesn't. On the breakpoint tier the daemon reads such memory, and the kernel tells it that it can't; in a
// detour it is the program's own thread that waits, perhaps for a page that the program would never have touched. Then
// the argument is absent, as it is when the load faults.
#include <algorithm>

#include "daemon/tracer/places/detour_threads.hpp"
#include "daemon/tracer/rooms.hpp"
#include "daemon/tracer/stops.hpp"

namespace probed::tracer {
namespace {

using namespace std::chrono_literals;

constexpr auto kLookForLoadsEvery = 1s;
// One after the other, at the same instruction. A thread that runs isn't found at one instruction so often.
constexpr unsigned kMostStops = 64;

}  // namespace

bool DetourThreads::has_loads() const {
  const auto follows = [](const ProgramPtr& program) {
    return program && program->detour &&
           std::ranges::any_of(program->detour->capture.layout.items, &arch::CaptureItem::can_be_absent);
  };
  const auto has = [&](const Line& line) { return std::ranges::any_of(line.taps, follows); };
  return std::ranges::any_of(targets_.processes, [&](const auto& entry) {
    const auto& space = entry.second->space;
    return space && std::ranges::any_of(space->detours().lines(), has);
  });
}

// Looks at every thread without stopping it. One that has not run since the last time is in the same load still, for a
// second or two.
void DetourThreads::look_for_blocked_loads() {
  const auto now = Waiter::Clock::now();
  if (now < look_for_loads_at_) return;
  look_for_loads_at_ = has_loads() ? now + kLookForLoadsEvery : Waiter::Clock::time_point::max();
  for (auto& [tid, tracee] : targets_.tracees) {
    if (!tracee.runs() || !tracee.process || !tracee.process->space) continue;
    const DetourSpace& detours = tracee.process->space->detours();
    if (detours.areas_empty()) continue;
    const Glance seen = glance(tid);
    const auto place = seen.kind == Glance::Kind::blocked ? detours.find(RemoteAddr{seen.pc}) : std::nullopt;
    if (!place || !place->resume) continue;
    const bool again = tracee.load.pc == seen.pc && tracee.load.times_scheduled == seen.times_scheduled;
    tracee.load.pc = seen.pc;
    tracee.load.times_scheduled = seen.times_scheduled;
    if (!again) continue;
    tracee.load.blocked = true;
    ptrace::interrupt(tid);
  }
}

void DetourThreads::give_up_load(Tracee& tracee) {
  const AddressSpace* space = tracee.process ? tracee.process->space.get() : nullptr;
  ptrace::Registers regs;
  if (!space || space->detours().areas_empty() || ptrace::get_registers(tracee.tid, regs) != ptrace::Outcome::ok)
    return;
  const auto place = space->detours().find(native_place(regs));
  if (!place || !place->resume || tracee.load.pc != regs.pc()) {
    tracee.load = {};
    if (place && place->resume) tracee.load.pc = regs.pc();
    return;
  }
  if (!tracee.load.blocked && ++tracee.load.stops < kMostStops) return;
  tracee.load = {};
  regs.set_pc(place->resume->value);
  ptrace::set_registers(tracee.tid, regs);
  // The next hit would wait as long.
  constexpr const char* kWhy = "an argument's memory didn't become readable within a second";
  AddressSpace& owner = *tracee.process->space;
  if (!place->detour)
    return rooms_.optimiser.refuse_all(owner, kWhy);  // in the routine that copies strings: for whom isn't known
  const RemoteAddr address = place->detour->site;
  if (Site* site = owner.find(address); site && site->jump) owner.drop_jump(*site);
  rooms_.optimiser.give_up(owner, address, kWhy, {});
}

}  // namespace probed::tracer
