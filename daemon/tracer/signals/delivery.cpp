#include "daemon/tracer/signals/delivery.hpp"

#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "daemon/tracer/kernel/interrupted_calls.hpp"
#include "daemon/tracer/kernel/left_calls.hpp"
#include "daemon/tracer/recovery/left_landings.hpp"
#include "daemon/tracer/rooms.hpp"
#include "daemon/tracer/stops.hpp"

namespace probed::tracer {
namespace {

namespace native = arch::native;
using ptrace::Outcome;

}  // namespace

// The other threads may run through the program's own text for some microseconds until the dying one has had them
// killed; what they do then can't be of consequence to anybody but themselves.
void Delivery::hide_from_core_dump(Tracee& tracee) {
  AddressSpace* space = tracee.process->space.get();
  // Others that share the memory outlive the dump (fs/coredump.c, zap_threads: one thread group).
  if (!space || targets_.tracees_sharing(*space) != tracee.process->threads.size()) return;
  const Layout layout = Layout::of(space->memory());
  for (const auto& [address, site] : space->sites_in_order()) space->set_armed(*site, false, layout);
  tracee.hidden = true;
}

// Such signals don't end init of a pid namespace; or a handler was set at the last moment.
void Delivery::show_again(Tracee& tracee) {
  AddressSpace* space = tracee.process->space.get();
  if (!std::exchange(tracee.hidden, false) || !space) return;
  const Layout layout = Layout::of(space->memory());
  for (const auto& [address, site] : space->sites_in_order()) rooms_.probes.update_arming(*space, *site, layout);
}

// Not where a step's trap would unblock SIGTRAP, reset its action, or be merged with one that is pending.
bool Delivery::may_hold_signals(Tracee& tracee, std::uint64_t mask) {
  if ((mask & signal_bit(SIGTRAP)) != 0) return false;
  const auto now = rooms_.actions.actions_now(tracee);
  return now && (*now)[forced_index(SIGTRAP)] != Disposition::ignored;
}

// Whoever cleans up when this daemon has been killed finds both in the journal.
void Delivery::hold_signals(const Tracee& tracee, std::uint64_t mask, std::uint64_t ours) {
  if (Journal* journal = journal_of(tracee)) journal->note_mask(tracee.tid, mask, ours);
  ptrace::set_sigmask(tracee.tid, ours);
}

void Delivery::note_taken(const Tracee& tracee, int signal, const siginfo_t& info) {
  if (Journal* journal = journal_of(tracee); journal && signal != 0) journal->note_taken(tracee.tid, signal, info);
}

void Delivery::note_gone_on(const Tracee& tracee) {
  if (Journal* journal = journal_of(tracee)) journal->note_gone_on(tracee.tid);
}

void Delivery::let_signals(const Tracee& tracee, std::uint64_t mask) {
  ptrace::set_sigmask(tracee.tid, mask);
  if (Journal* journal = journal_of(tracee)) journal->forget_mask(tracee.tid);
}

// What a program has sent with a value, the kernel takes as it was; the rest says who sent it first when it is reported
// (kernel/signal.c, do_rt_tgsigqueueinfo).
void Delivery::send_again(Tracee& tracee, siginfo_t info) {
  // It would wake its process, which has been stopped since. Only another one does that, and stands for both.
  if (info.si_signo == SIGCONT && tracee.group_stopped) return;
  const pid_t pid = tracee.process->id.pid;
  const bool as_it_was = info.si_code < 0 && info.si_code != SI_TKILL;
  const long result = as_it_was ? ::syscall(SYS_rt_tgsigqueueinfo, pid, tracee.tid, info.si_signo, &info)
                                : ::tgkill(pid, tracee.tid, info.si_signo);
  if (result != 0)
    return spdlog::error("signal {} of thread {} is lost: it can't be sent again: {}", info.si_signo, tracee.tid,
                         std::strerror(errno));
  if (!as_it_was) tracee.sent_again = info;
}

void Delivery::mend_sent_again(Tracee& tracee, int signal) {
  siginfo_t info{}, first = *tracee.sent_again;
  if (signal != first.si_signo || ptrace::get_siginfo(tracee.tid, info) != Outcome::ok) return;
  // 0: its pid namespace is another.
  const bool is_ours = info.si_code == SI_TKILL && (info.si_pid == ::getpid() || info.si_pid == 0);
  // Where another one was pending, that is it; but those of a real-time signal are queued.
  if (is_ours || signal < kFirstRealTime) tracee.sent_again.reset();
  if (!is_ours) return;
  waiter_.take_report(tracee.tid);
  ptrace::set_siginfo(tracee.tid, first);
}

// A thread that job control has stopped goes nowhere.
bool Delivery::gets_sent_again(const Tracee& tracee) {
  std::uint64_t mask = 0;
  if (!tracee.sent_again || tracee.group_stopped) return false;
  const int signal = tracee.sent_again->si_signo;
  return ptrace::get_sigmask(tracee.tid, mask) == Outcome::ok && (mask & signal_bit(signal)) == 0 &&
         ptrace::signal_queued(tracee.tid, signal);
}

Journal* Delivery::journal_of(const Tracee& tracee) {
  return tracee.process && tracee.process->space ? tracee.process->space->journal() : nullptr;
}

void Delivery::move_fault(const Tracee& tracee, siginfo_t& info, std::uint64_t from, std::uint64_t to) {
  if (reinterpret_cast<std::uint64_t>(info.si_addr) != from || info.si_code <= 0) return;
  info.si_addr = reinterpret_cast<void*>(to);
  ptrace::set_siginfo(tracee.tid, info);
}

Act Delivery::deliver(Tracee& tracee, int signal) {
  if (is_forced_signal(signal))
    if (const auto act = rooms_.actions.before_own_signal(tracee, signal)) return *act;
  ptrace::Registers regs;
  if (ptrace::get_registers(tracee.tid, regs) != Outcome::ok) return Act::dying();
  if (!native::executes_native_code(regs)) rooms_.optimiser.note_other_code(*tracee.process->space);
  // (A SIGCONT that finds nobody stopped has stopped every thread before, see Loop::on_interrupt().)
  if (signal != SIGCONT && was_only_interrupted(tracee.tid, regs) && would_be_ignored(tracee.tid, signal)) {
    rooms_.restarts.make_call_again(tracee, regs);
  } else if (tracee.made_again && !would_be_ignored(tracee.tid, signal) && unmake(tracee.made_again, regs)) {
    ptrace::set_registers(tracee.tid, regs);
  }
  const bool job_control = is_job_control(tracee.tid, signal);
  if (!job_control) note_handler(tracee.tid, regs, signal);
  if (tracee.process->detaching() && !tracee.leaving()) return Act::leave("with a signal of its own", signal);
  if (job_control) return Act::go_on("job control, wherever it is", signal);
  const DetourSpace& detours = tracee.process->space->detours();
  if (const auto place = detours.find(native_place(regs)))
    return rooms_.detour_threads.deliver_in_detour(tracee, signal, regs, *place);
  if (const auto site = detours.site_of_island(native_place(regs))) {
    regs.set_pc(site->value);
    ptrace::set_registers(tracee.tid, regs);
  }
  RemoteAddr base;
  Slot* slot = tracee.process->space->xol().find(native_place(regs), base);
  if (slot) return rooms_.slot_threads.deliver_in_slot(tracee, signal, regs, *slot, base);
  rooms_.slot_threads.leave_slot(tracee);
  return rooms_.detour_threads.go_on_with_own_mask(tracee, signal, "a signal of its own");
}

}  // namespace probed::tracer
