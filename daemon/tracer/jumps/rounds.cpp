// Rounds: every thread of an address space is seen once outside of what is about to be overwritten, and of generated
// code.
//
// Owning thread: the tracer thread. What a round proves, and how a thread is seen, is in quiesce.hpp; what it is good
// for in jumps/optimiser.cpp. Nobody waits here: threads that run are asked to stop, and their stops go on with the
// round.
#include "daemon/tracer/jumps/rounds.hpp"

#include <algorithm>

#include "daemon/base/process.hpp"
#include "daemon/symbols/maps.hpp"
#include "daemon/tracer/kernel/interrupted_calls.hpp"
#include "daemon/tracer/rooms.hpp"

namespace probed::tracer {
namespace {

namespace native = arch::native;
using ptrace::Outcome;
using namespace std::chrono_literals;
using Clock = Waiter::Clock;

constexpr auto kRoundPatience = 500ms;  // for threads that don't stop
constexpr auto kLookAgain = 5ms;
constexpr auto kAnswerAfter = 3s;
constexpr std::size_t kLooksAtATime = 64;  // threads
constexpr auto kPinnedAgain = 1s;

// Whether a thread with this stack pointer has left the frame that had the other one: a handler that ended with a jump.
bool has_left(std::span<const symbols::Mapping> maps, std::uint64_t frame, std::uint64_t sp) {
  const auto same = [=](const symbols::Mapping& m) {
    return m.contains(RemoteAddr{frame}) && m.contains(RemoteAddr{sp});
  };
  return sp > frame && std::ranges::any_of(maps, same);
}

}  // namespace

// ---- rounds ---------------------------------------------------------------------------------------------------------

void Rounds::looked_at(Tracee& tracee) {
  AddressSpace* space = tracee.process ? tracee.process->space.get() : nullptr;
  if (!space || !space->optimisation().round) return;
  Round& round = *space->optimisation().round;
  if (!round.awaited.contains(tracee.tid)) return;
  ptrace::Registers regs;
  if (ptrace::get_registers(tracee.tid, regs) != Outcome::ok) return;
  round.awaited.erase(tracee.tid);
  if (!native::executes_native_code(regs)) rooms_.optimiser.note_other_code(*space);
  if (!passes(*space, tracee, regs.pc(), regs.sp())) round.to_look_at.push_back(tracee.tid);
  rooms_.optimiser.wake_optimiser(*space, 0s);
}

// From when it was asked to stop, or from when we last had nothing to do if that is later, until now. That a thread
// which is asked to stop may first have to be given a processor is no pause of our making.
void Rounds::note_pause(const Tracee& tracee) {
  const auto pause = Waiter::Clock::now() - std::max(*tracee.interrupted_at, waiter_.idle_since());
  Process& process = *tracee.process;
  if (pause <= process.longest_pause) return;
  process.longest_pause = pause;
  listener_.longest_pause(process.root, static_cast<std::uint64_t>(std::chrono::nanoseconds(pause).count()));
}

void Rounds::start_round(AddressSpace& space, bool scan) {
  Optimisation& work = space.optimisation();
  Round round;
  round.number = space.detours().begin_round();
  const auto comes_back = [&](const auto& entry) {
    return entry.second.process && entry.second.process->space.get() == &space && !entry.second.rehits.empty();
  };
  round.scan = scan && (!work.places.empty() || std::ranges::any_of(targets_.tracees, comes_back));
  round.deadline = Clock::now() + kRoundPatience;
  for (const auto& [tid, tracee] : targets_.tracees)
    if (tracee.process && tracee.process->space.get() == &space) round.to_look_at.push_back(tid);
  if (!work.built.empty())
    for (const auto& [pid, process] : targets_.processes)
      if (process->space.get() == &space) rooms_.masks.watch_first_faults(*process);
  if (round.scan)
    if (auto maps = symbols::read_maps(targets_.anybody_in(space)->id.pid)) round.maps = std::move(maps).value();
  work.round_waited_for = round.number;
  work.round = std::move(round);
  work.at = Clock::now();
}

// Whether a thread that stands there doesn't hold the round up. What its stack refers to is noted.
bool Rounds::passes(AddressSpace& space, const Tracee& tracee, std::uint64_t pc, std::uint64_t sp) {
  Optimisation& work = space.optimisation();
  Round& round = *work.round;
  const RemoteAddr at{pc};
  if (work.places.site_of(pc) || space.detours().in_code(at) || space.detours().site_of_island(at)) return false;
  // A stop may not have been dealt with yet: behind a breakpoint that has been removed since, the thread will go back
  // to where that stood.
  if (work.places.site_of(arch::native::breakpoint_address(pc))) return false;
  RemoteAddr base;
  if (const Slot* slot = space.xol().find(at, base)) {
    const Site* site = space.find(slot->original);
    if (!site || site->jump) return false;
  }
  if (round.scan) {
    const bool main = tracee.tid == tracee.process->id.pid;
    scan_stack(work.places, round.maps, space.memory(), sp, tracee.thread_pointer, main, round.pinned);
  }
  // Who is to come back to a probed instruction that has been counted already would be counted again by a jump.
  for (const Rehit& rehit : tracee.rehits) {
    const Site* site = space.find(rehit.site);
    if (site && site->jump && !has_left(round.maps, rehit.regs.sp(), sp)) round.pinned.insert(rehit.site);
  }
  return true;
}

bool Rounds::awaits_interrupted() {
  return std::ranges::any_of(targets_.one_for_each_space(), [](const Process* process) {
    const auto& round = process->space->optimisation().round;
    return round && !round->awaited.empty();
  });
}

void Rounds::look_at(AddressSpace& space, pid_t tid) {
  Round& round = *space.optimisation().round;
  const auto it = targets_.tracees.find(tid);
  const Process* process = it == targets_.tracees.end() ? nullptr : it->second.process;
  if (!process || process->space.get() != &space) return;
  Tracee& tracee = it->second;
  const bool unknown = tracee.lanes.size() < space.detours().lines().size();
  const Glance seen = glance(tid);
  if (seen.kind == Glance::Kind::gone) return;
  // A thread that waits is left alone, unless nobody knows yet which it is and being asked does it no harm.
  const bool ask = seen.kind == Glance::Kind::running || (unknown && interruption_cost(tid) <= 1);
  if (!ask || !tracee.runs()) {
    if (seen.kind == Glance::Kind::running) return round.to_look_at.push_back(tid);
    if (!passes(space, tracee, seen.pc, seen.sp)) return round.to_look_at.push_back(tid);
    // Between the first look and the end of the scan it must not have run.
    const Glance after = glance(tid);
    if (after.kind != Glance::Kind::blocked || after.times_scheduled != seen.times_scheduled)
      round.to_look_at.push_back(tid);
    return;
  }
  tracee.interrupted_at = Clock::now();
  if (ptrace::interrupt(tid) == Outcome::ok) round.awaited.insert(tid);
}

void Rounds::go_on_with_round(AddressSpace& space) {
  Optimisation& work = space.optimisation();
  for (std::size_t n = std::min(work.round->to_look_at.size(), kLooksAtATime); n > 0; --n) {
    const pid_t tid = work.round->to_look_at.front();
    work.round->to_look_at.pop_front();
    look_at(space, tid);
  }
  const auto now = Clock::now();
  if (work.round->to_look_at.empty() && work.round->awaited.empty()) return round_is_over(space);
  if (now >= work.round->deadline) {
    // Somebody can't be seen: nothing is written, nothing is given back.
    work.round.reset();
    for (const Optimisation::Job& job : work.built) {
      Site* site = space.find(job.site);
      if (!site || !site->jump || site->jump->detour != job.detour) continue;
      space.drop_jump(*site);
      rooms_.optimiser.give_up(space, job.site, "a thread could not be seen outside of it in time", kPinnedAgain);
    }
    work.built.clear();
    if (work.phase == Phase::looking || work.phase == Phase::syncing) work.phase = Phase::idle;
    answer_waiting(space, 0);  // who waits for a round has the next one
    rooms_.optimiser.answer_fast(space, true);
    return rooms_.optimiser.wake_optimiser(
        space, work.after_round.empty() ? Clock::duration(kPinnedAgain) : Clock::duration(0s));
  }
  rooms_.optimiser.wake_optimiser(space,
                                  work.round->to_look_at.empty() ? Clock::duration(kLookAgain) : Clock::duration(0s));
}

void Rounds::round_is_over(AddressSpace& space) {
  Optimisation& work = space.optimisation();
  const Round round = std::move(*work.round);
  work.round.reset();
  for (const RemoteAddr address : round.pinned) {
    Site* site = space.find(address);
    if (!site || !site->jump || site->jump->state != Jump::State::planned) continue;
    space.drop_jump(*site);
    rooms_.optimiser.give_up(space, address, "a thread's stack refers to the middle of what the jump would replace",
                             kPinnedAgain);
  }
  const pid_t pid = targets_.anybody_in(space)->id.pid;
  std::unordered_map<std::size_t, std::vector<std::uint32_t>> unused;
  for (const auto& [line, index] : space.round_done(round.number)) unused[line].push_back(index);
  for (auto& [line, indices] : unused)
    listener_.taps_unused(space.detours().lines()[line].feed, std::move(indices), pid);
  answer_waiting(space, round.number);
  rooms_.optimiser.wake_optimiser(space, 0s);
}

void Rounds::answer_waiting(AddressSpace& space, std::uint64_t over) {
  Optimisation& work = space.optimisation();
  const auto now = Clock::now();
  std::vector<std::function<void()>> answers;
  std::erase_if(work.after_round, [&](Optimisation::Waiting& waiting) {
    if (waiting.round > over && now < waiting.until) return work.at = std::min(work.at, waiting.until), false;
    answers.push_back(std::move(waiting.done));
    return true;
  });
  for (const auto& answer : answers) answer();
  rooms_.optimiser.answer_fast(space, over == ~0ull);
}

// With more busy threads than processors it takes long until each has been seen. One that was in a detour delivers what
// it has seen, as it leaves, and who has the answer takes nothing more of these probes to come.
void Rounds::when_unused(std::vector<Process*> touched, std::function<void()> done) {
  auto left = std::make_shared<std::size_t>(touched.size());
  auto shared = std::make_shared<std::function<void()>>(std::move(done));
  if (touched.empty()) return (*shared)();
  for (Process* process : touched) {
    Optimisation& work = process->space->optimisation();
    work.after_round.push_back(
        {process->space->detours().rounds_begun() + 1, Clock::now() + kAnswerAfter, [left, shared] {
           if (--*left == 0) (*shared)();
         }});
    rooms_.optimiser.wake_optimiser(*process->space, 0s);
  }
}

}  // namespace probed::tracer
