#include "daemon/tracer/recovery/stopped_threads.hpp"

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <thread>

#include "arch/arch.hpp"
#include "daemon/base/process.hpp"
#include "daemon/tracer/kernel/interrupted_calls.hpp"
#include "daemon/tracer/kernel/left_calls.hpp"
#include "daemon/tracer/kernel/memory.hpp"
#include "daemon/tracer/kernel/ptrace.hpp"
#include "daemon/tracer/kernel/quiesce.hpp"
#include "daemon/tracer/stops.hpp"

namespace probed::tracer {
namespace {

namespace native = arch::native;
using namespace std::chrono_literals;
using ptrace::Outcome;
using Clock = Waiter::Clock;
using Kind = WaitStatus::Kind;

constexpr auto kAllStopped = 2s;         // until every thread stands still
constexpr auto kOnFullMachine = 5s;      // for threads that only wait for a processor
constexpr auto kSeizeAgain = 2ms;        // threads that another tracer has yet
constexpr auto kLookForThreads = 5ms;    // for threads that are new, or haven't stopped
constexpr auto kInjectPatience = 100ms;  // a stopped thread that goes on

class Patience {
 public:
  explicit Patience(Clock::duration usual) : until_(Clock::now() + usual) {}
  // Longer than usual as long as waiting for more promises to be of use.
  template <class F>
  bool lasts(F promises) const {
    const auto now = Clock::now();
    return now < until_ || (now < most_ && promises());
  }

 private:
  Clock::time_point until_, most_ = Clock::now() + kOnFullMachine;
};

bool traced_by_us(pid_t tid) {
  const auto tracer = process::tracer_pid(tid);
  return tracer && *tracer == gettid();
}

void put_back_interrupted_call(pid_t tid) {
  ptrace::Registers regs;
  if (ptrace::get_registers(tid, regs) != Outcome::ok || !was_only_interrupted(tid, regs)) return;
  if (make_again(tid, regs)) ptrace::set_registers(tid, regs);
}

}  // namespace

bool StoppedThreads::seize() {
  if (ptrace::seize(pid_) != Outcome::ok) return seize_others();
  running_.insert(pid_);
  return true;
}

bool StoppedThreads::stop() {
  const Patience patience(kAllStopped);
  const auto may_yet_stop = [this] {
    const auto is_on_its_way = [](pid_t tid) {
      const char state = process::state(tid);
      return state == 'R' || state == 't';
    };
    return running_.empty() ? !refused_ : std::ranges::any_of(running_, is_on_its_way);
  };
  while (patience.lasts(may_yet_stop)) {
    const bool found = seize_others();
    for (const pid_t tid : running_) ptrace::interrupt(tid);
    if (!found && running_.empty() && !refused_ && !forget_replaced_leader()) return true;
    if (running_.empty()) std::this_thread::sleep_for(kSeizeAgain);  // whoever has the others needs the processor
    gather();
    std::erase_if(running_, [](pid_t tid) { return !traced_by_us(tid); });
  }
  return false;
}

void StoppedThreads::now_stands_in(pid_t tid, std::optional<Kind> stop) {
  stopped_.erase(tid);
  if (stop) stopped_.emplace(tid, *stop);
}

void StoppedThreads::skip_calls(const std::set<std::uint64_t>& to_come) const {
  for (const auto& [tid, stop] : stopped_) {
    ptrace::Registers regs;
    if (ptrace::get_registers(tid, regs) != Outcome::ok || !to_come.contains(native_place(regs).value)) continue;
    regs.set_pc(regs.pc() + native::kAfterCall);
    ptrace::set_registers(tid, regs);
  }
}

void StoppedThreads::give_back(HeldSignals& held) {
  const auto stopped = stopped_.find(held.tid);
  std::uint64_t mask = 0;
  if (stopped == stopped_.end() || ptrace::get_sigmask(held.tid, mask) != Outcome::ok) return;
  if (mask != (held.ours & ~kNeverBlocked)) return;
  if (ptrace::set_sigmask(held.tid, held.mask) != Outcome::ok || held.taken == 0) return;
  HeldSignals signal = held;
  held.taken = 0;
  if (signal.taken < 0 && ptrace::signal_queued(signal.tid, signal.info)) return;
  signal.taken = std::abs(signal.taken);
  send_back(signal, stopped->second);
}

void StoppedThreads::let_go() {
  for (const auto& [tid, stop] : stopped_) ptrace::detach(tid, 0);
  stopped_.clear();
}

void StoppedThreads::send_back(const HeldSignals& held, Kind stop) {
  // A signal can only be injected at a stop that reports one. A standard one that is pending stands for both.
  if (held.taken < kFirstRealTime && signal_pending(held.tid, held.taken)) return;
  siginfo_t ours = held.info;
  ours.si_code = SI_QUEUE;
  ours.si_pid = getpid();
  if (syscall(SYS_rt_tgsigqueueinfo, pid_, held.tid, held.taken, &ours) != 0) return;
  if (stop == Kind::interrupt) inject(held);
}

// True: there were some that we didn't have. A daemon that is dying lets its tracees go one after the other: those
// that it still has are refused, and may have a trap on their way.
bool StoppedThreads::seize_others() {
  const Waiter::Collecting collecting(waiter_);
  bool found = false;
  refused_ = false;
  const auto ids = process::thread_ids(pid_);
  for (const pid_t tid : ids ? *ids : std::vector<pid_t>()) {
    if (running_.contains(tid) || stopped_.contains(tid)) continue;
    collecting.note_progress();
    // The kernel has attached us to those that one of ours has made (PTRACE_O_TRACECLONE).
    if (collecting.during([tid] { return ptrace::seize(tid); }) == Outcome::ok || traced_by_us(tid))
      found = running_.insert(tid).second;
    else
      refused_ |= !process::is_exiting(tid);
  }
  return found;
}

void StoppedThreads::gather() {
  waiter_.set_alarm(Clock::now() + kLookForThreads);
  while (!running_.empty()) {
    const auto stop = waiter_.wait();
    if (stop)
      handle(*stop);
    else if (waiter_.take_wake())
      return;
  }
}

void StoppedThreads::handle(const Stop& stop) {
  const Kind kind = stop.status.kind();
  if (!stop.status.stopped()) return forget(stop.tid);
  if (!running_.contains(stop.tid) && !is_ours(stop.tid)) return void(ptrace::detach(stop.tid, 0));
  running_.insert(stop.tid);
  if (kind == Kind::interrupt || kind == Kind::group_stop) {
    ptrace::note_event_stop(stop.tid);
    // What it has run into is to be delivered while there is somebody to take it.
    if (synchronous_signal_pending(stop.tid) || is_landing(stop.tid)) return void(ptrace::resume(stop.tid, 0));
    running_.erase(stop.tid);
    stopped_.insert_or_assign(stop.tid, kind);
    if (kind == Kind::interrupt) put_back_interrupted_call(stop.tid);
    settle_call_note(stop.tid);
    return;
  }
  ptrace::interrupt(stop.tid);
  const int signal = kind == Kind::signal ? stop.status.signal() : 0;
  ptrace::Registers regs;
  if (signal != 0 && ptrace::get_registers(stop.tid, regs) == Outcome::ok) note_handler(stop.tid, regs, signal);
  ptrace::resume(stop.tid, signal);
}

// Lets the thread go on to the signal that has just been queued for it. Those of the same number that were queued
// before take their turns behind: each is given what the one before it was.
void StoppedThreads::inject(const HeldSignals& held) {
  siginfo_t next = held.info;
  stopped_.erase(held.tid);
  ptrace::resume(held.tid, 0);
  const Patience patience(kInjectPatience);
  while (patience.lasts([&] { return process::state(held.tid) == 'R'; })) {
    waiter_.set_alarm(Clock::now() + kInjectPatience);
    const auto stop = waiter_.wait();
    if (!stop) {
      waiter_.take_wake();  // maybe of an alarm that was set before
      continue;
    }
    if (stop->tid != held.tid) {  // a new task
      handle(*stop);
      continue;
    }
    if (!stop->status.stopped()) return;
    if (stop->status.kind() == Kind::group_stop) return void(stopped_.emplace(held.tid, Kind::group_stop));
    const int signal = stop->status.kind() == Kind::signal ? stop->status.signal() : 0;
    siginfo_t info{};
    if (signal != held.taken || ptrace::get_siginfo(held.tid, info) != Outcome::ok) {
      ptrace::resume(held.tid, signal);
      continue;
    }
    ptrace::set_siginfo(held.tid, next);
    if (info.si_code == SI_QUEUE && info.si_pid == getpid()) return void(ptrace::detach(held.tid, signal));
    next = info;
    ptrace::resume(held.tid, signal);
  }
  running_.insert(held.tid);
}

// A new task of one that we have; a thread of it, or another process.
bool StoppedThreads::is_ours(pid_t tid) const { return process::is_thread_of(tid, pid_); }

// In our handler, whose end gives it the mask that it had at the beginning.
bool StoppedThreads::is_landing(pid_t tid) const {
  ptrace::Registers regs;
  return ptrace::get_registers(tid, regs) == Outcome::ok && std::ranges::any_of(landings_, [&](std::uint64_t landing) {
           return landing != 0 && regs.pc() / kPageSize == landing / kPageSize;
         });
}

// A thread that executes another program goes on under the leader's number. Its own and the leader are gone then
// without a word (fs/exec.c, de_thread), and it may be one that has not been seized. True: the number is not that of
// the one that has stopped.
bool StoppedThreads::forget_replaced_leader() {
  if (!stopped_.contains(pid_)) return false;
  const bool ours = traced_by_us(pid_);
  if (ours && process::state(pid_) == 't') return false;
  stopped_.erase(pid_);
  if (ours) running_.insert(pid_);
  return true;
}

void StoppedThreads::forget(pid_t tid) {
  running_.erase(tid);
  stopped_.erase(tid);
}

std::set<std::uint64_t> StoppedThreads::places() const {
  std::set<std::uint64_t> places;
  ptrace::Registers regs;
  for (const auto& [tid, stop] : stopped_)
    if (ptrace::get_registers(tid, regs) == Outcome::ok) places.insert(regs.pc());
  return places;
}

}  // namespace probed::tracer
