#include "daemon/tracer/family/detacher.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "daemon/base/process.hpp"
#include "daemon/tracer/family/remote_calls.hpp"
#include "daemon/tracer/kernel/interrupted_calls.hpp"
#include "daemon/tracer/kernel/left_calls.hpp"
#include "daemon/tracer/kernel/sharing.hpp"
#include "daemon/tracer/recovery/left_landings.hpp"
#include "daemon/tracer/rooms.hpp"
#include "daemon/tracer/stops.hpp"

namespace probed::tracer {
namespace {

using namespace std::chrono_literals;
using ptrace::Outcome;
using Kind = WaitStatus::Kind;

constexpr std::size_t kRecentSpaces = 8;
constexpr std::size_t kLeaveAtOnce = 16;  // threads stopped at a time when a process is let go
constexpr auto kLeaveStalled = 50ms;      // none of these has come: ask all (they may be in uninterruptible waits)
constexpr auto kLeaveTogether = 200ms;    // then those that have come go without the others

bool leaves_together(const Process& process) { return process.letting_go && process.letting_go->together_until; }

}  // namespace

void Detacher::forget_if_gone(pid_t pid) {
  Process* process = targets_.find_process(pid);
  if (!process || ::kill(pid, 0) == 0 || errno != ESRCH) return;
  spdlog::warn("process {} has gone, and the kernel told of no end of {} of its threads", pid, process->threads.size());
  for (const pid_t tid : std::set<pid_t>(process->threads)) forget_tracee(tid);
  tell_end(*process, std::nullopt);
}

void Detacher::forget_tracee(pid_t tid) {
  const auto it = targets_.tracees.find(tid);
  if (it == targets_.tracees.end()) return;
  rooms_.slot_threads.leave_slot(it->second);
  rooms_.lanes.take_lanes(it->second);
  ptrace::note_event_stop(tid);
  forget_call_notes(tid);
  if (Journal* journal = rooms_.delivery.journal_of(it->second)) journal->forget_mask(tid);
  Process* process = it->second.process;
  if (process) process->threads.erase(tid);
  if (process && process->space && !process->detaching()) process->space->returns().thread_ended(tid);
  targets_.tracees.erase(it);
  if (process && process->detaching()) ask_to_leave(*process, 1);
}

void Detacher::forget_process(Process& process) {
  for (Job& job : process.jobs) job.fail(process::no_longer_there(process.id.pid));
  auto replies = std::move(process.detach_replies);
  const pid_t root = process.root;
  const std::shared_ptr<AddressSpace> space = process.space;
  targets_.processes.erase(process.id.pid);
  const bool last =
      space && std::ranges::none_of(targets_.processes, [&](const auto& p) { return p.second->space == space; });
  if (last) {
    rooms_.jump_memory.close_feeds(*space);
    space->drop_journal();
  }
  if (space && space->touched()) {
    targets_.recent_spaces.push_back(space);
    if (targets_.recent_spaces.size() > kRecentSpaces) targets_.recent_spaces.pop_front();
  }
  if (space && targets_.family_of(root).empty()) {
    for (const auto& [address, site] : space->sites())
      for (const ProgramPtr& program : site.programs) targets_.programs.erase(number(program->id));
  }
  for (auto& reply : replies) reply({});
  if (!targets_.processes.empty()) return;
  for (auto& done : std::exchange(all_detached_, {})) done();
}

void Detacher::detach(pid_t pid, Done done) {
  Process* process = targets_.find_process(pid);
  if (!process) return done(refuse(Reason::not_attached, fmt::format("process {} is not attached", pid)));
  const std::vector<Process*> family = targets_.family_of(process->root);
  auto left = std::make_shared<std::size_t>(family.size());
  auto reply = std::make_shared<Done>(std::move(done));
  // A process that can't be let go at once answers for itself with an error; the first answer of that kind wins.
  const auto one_gone = [left, reply](Result<void> result) {
    if (*left == 0) return;
    *left = result ? *left - 1 : 0;
    if (*left == 0) (*reply)(std::move(result));
  };
  std::vector<pid_t> pids;
  for (Process* member : family) {
    member->detach_replies.push_back(one_gone);
    pids.push_back(member->id.pid);
  }
  for (const pid_t member : pids) {
    if (Process* p = targets_.find_process(member)) start_detach(*p);
    if (Process* p = targets_.find_process(member)) finish_detach_if_empty(*p);
  }
}

void Detacher::detach_all(std::function<void()> done) {
  targets_.no_more = true;
  if (targets_.processes.empty()) return done();
  all_detached_.push_back(std::move(done));
  std::vector<pid_t> pids;
  for (auto& [pid, process] : targets_.processes) pids.push_back(pid);
  for (const pid_t pid : pids)
    if (Process* process = targets_.find_process(pid)) start_detach(*process);
}

void Detacher::start_detach(Process& process) {
  if (process.detaching()) return;
  process.begin_to_leave();
  for (Job& job : std::exchange(process.jobs, {}))
    job.fail(refuse(Reason::target_gone, fmt::format("process {} is being detached", process.id.pid)));
  // First the text, then the threads: from here on nobody can run into a breakpoint of ours.
  if (process.space) process.space->close();
  const pid_t pid = process.id.pid;
  const std::set<pid_t> threads = process.threads;
  for (const pid_t tid : threads) {
    const auto it = targets_.tracees.find(tid);
    if (it == targets_.tracees.end()) continue;
    // A main thread that has exited before the others reports so after the last of them: there is nothing to let go.
    if (tid == pid && process.threads.size() > 1 && process::is_dead_task(tid)) {
      forget_tracee(tid);
      continue;
    }
    if (it->second.is_held())
      rooms_.loop.carry_out(tid, Act::leave("it was held"));
    else
      process.letting_go->to_ask.push_back(tid);
  }
  if (!targets_.find_process(pid)) return;  // its last thread was held, and has left
  // A trap that is on its way to one thread may have reset what another one, once it is let go, is to find.
  const auto may_be_reset = [](const Arrangement& is) { return is.known && is.contended; };
  rooms_.masks.remember_watch(process);
  if (process.threads.size() > 1 &&
      (process.actions.of(SIGTRAP).known || std::ranges::any_of(process.actions.all, may_be_reset)))
    process.letting_go->together_until = Waiter::Clock::now() + kLeaveTogether;
  ask_to_leave(process, process.letting_go->together_until ? process.letting_go->to_ask.size() : kLeaveAtOnce);
}

// When a thread that has been let go already executes another program, those that haven't disappear without a word
// (fs/exec.c, de_thread), and its leader's id is that thread's, which is not ours any more.
void Detacher::forget_vanished(Process& process) {
  const auto is_ours = [](pid_t tid) {
    const auto tracer = process::tracer_pid(tid);
    return tracer && *tracer == gettid();
  };
  const std::set<pid_t> threads = process.threads;
  for (const pid_t tid : threads)
    if (!is_ours(tid)) forget_tracee(tid);
  finish_detach_if_empty(process);
}

// Whether one of those that haven't come yet may run into what is being taken out: it waits for a processor, or in a
// stop for us, and not in the kernel.
bool Detacher::some_still_run(const Process& process) const {
  return std::ranges::any_of(process.threads, [this](pid_t tid) {
    const char state = process::state(tid);
    return !targets_.tracees.at(tid).is_held() && (state == 'R' || state == 't');
  });
}

// No trap is on its way to any of them when all of them stand still.
void Detacher::leave_if_complete(Process& process) {
  const auto is_here = [this](pid_t tid) { return targets_.tracees.at(tid).is_held(); };
  if (leaves_together(process) && std::ranges::all_of(process.threads, is_here)) leave_together(process);
}

void Detacher::leave_incomplete(Process& process) {
  if (!leaves_together(process)) return;
  const auto now = Waiter::Clock::now();
  if (now < process.letting_go->deadline && some_still_run(process))
    process.letting_go->together_until = now + kLeaveTogether;  // it has no processor: that is no wait of our making
  else
    leave_together(process);
}

void Detacher::leave_together(Process& process) {
  const pid_t pid = process.id.pid;
  const std::set<pid_t> threads = process.threads;
  process.letting_go->together_until.reset();
  const auto is_held = [&](pid_t tid) {
    const auto it = targets_.tracees.find(tid);
    return targets_.find_process(pid) && it != targets_.tracees.end() && it->second.is_held();
  };
  // The first that may make calls does what is to be done; one that doesn't come back from them is let go later.
  Leaves left = rooms_.actions.owes_actions(process) ? Leaves::no : Leaves::yes;
  pid_t away = 0;
  for (const pid_t tid : threads) {
    if (left != Leaves::no || !is_held(tid)) continue;
    left = rooms_.actions.leave_actions(targets_.tracees.at(tid));
    if (left == Leaves::away) away = tid;
  }
  for (const pid_t tid : threads)
    if (tid != away && is_held(tid)) rooms_.loop.carry_out(tid, Act::leave("all threads of its process have come"));
}

// All at once would stand still until the last one's turn: a quarter of a second for a thousand.
void Detacher::ask_to_leave(Process& process, std::size_t count) {
  LettingGo& going = *process.letting_go;
  while (count > 0 && !going.to_ask.empty()) {
    const pid_t tid = going.to_ask.back();
    going.to_ask.pop_back();
    if (!process.threads.contains(tid)) continue;
    ptrace::interrupt(tid);
    --count;
  }
  going.ask_all_at = Waiter::Clock::now() + kLeaveStalled;
}

void Detacher::finish_detach_if_empty(Process& process) {
  if (process.threads.empty()) forget_process(process);
}

// The last thread of an address space takes what we injected out of it. False: it died meanwhile.
bool Detacher::leave_no_trace(Tracee& tracee, AddressSpace& space) {
  if (!space.copies_given_back() && targets_.alone_in_memory(tracee)) {
    space.take_out_islands();
    if (!rooms_.code_changes.give_back_copies(tracee, space)) return false;
  }
  space.take_out_islands();
  const bool others = space.has_pads_left() && !processes_sharing_memory(tracee.process->id.pid).empty();
  if (space.xol().areas().empty()) return space.erase_call_pads(others), true;
  const Layout layout = Layout::of(space.memory());
  const bool alive = rooms_.jobs.with_remote_calls(tracee, space, [&](RemoteSyscalls& remote) {
    for (const XolAreas::Area& area : space.areas_to_unmap()) {
      // The program may have mapped something of its own there.
      if (!space.is_ours(area, layout)) continue;
      remote.call(SYS_munmap, {area.base.value, area.size, 0, 0, 0, 0});
    }
  });
  if (alive) space.erase_call_pads(others);
  return alive;
}

void Detacher::tell_end(Process& process, std::optional<WaitStatus> how) {
  if (!process.detaching() || process.detach_replies.empty()) listener_.process_gone(process.root, process.id.pid, how);
  forget_process(process);
}

// Gets a thread that leaves out of code of ours; an act when that takes more than its registers.
std::optional<Act> Detacher::leave_our_code(Tracee& tracee, ptrace::Registers& regs, int signal) {
  if (tracee.process->space) {
    const DetourSpace& detours = tracee.process->space->detours();
    if (const auto site = detours.site_of_island(native_place(regs))) {
      regs.set_pc(site->value);
      ptrace::set_registers(tracee.tid, regs);
    } else if (const auto place = detours.find(native_place(regs))) {
      if (place->capture && is_job_control(tracee.tid, signal)) {
        ptrace::interrupt(tracee.tid);
        return Act::go_on("job control stops it in a detour before it leaves", signal);
      }
      if (place->capture && tracee.stepping()) return Act::go_on("stepping out of a detour before it leaves");
      if (place->capture) return rooms_.detour_threads.start_leaving(tracee, signal);
      rooms_.detour_threads.leave_tail(tracee, regs, *place);
      ptrace::set_registers(tracee.tid, regs);
    }
  }
  if (rooms_.slot_threads.move_out_of_slot(tracee, regs)) ptrace::set_registers(tracee.tid, regs);
  return std::nullopt;
}

// The step of a thread that leaves is over. The signal that it gets: `signal`, or the one that the step kept back.
int Detacher::end_step(Tracee& tracee, int signal) {
  if (!tracee.stepping()) return signal;
  const Stepping step = tracee.end_step();
  const bool can_get_it = signal == 0 && tracee.stop == Kind::signal;
  if (step.held_signal != 0 && !can_get_it)
    rooms_.delivery.send_again(tracee, step.held_info);  // which waits for the mask
  if (step.masked) rooms_.delivery.let_signals(tracee, step.mask);
  if (step.held_signal == 0 || !can_get_it) return signal;
  waiter_.take_report(tracee.tid);
  ptrace::set_siginfo(tracee.tid, step.held_info);
  return step.held_signal;
}

Act Detacher::prepare_to_leave(Tracee& tracee, const Act& wanted) {
  Process& process = *tracee.process;
  int signal = wanted.signal;
  // More signals of its are to follow this one, or the mask that it has isn't its own.
  if (tracee.leaving()) {
    ptrace::interrupt(tracee.tid);
    return signal != 0
               ? rooms_.detour_threads.go_on_with_own_mask(tracee, signal, "to get out of a detour before it leaves")
               : Act::go_on("to get out of a detour before it leaves");
  }
  ptrace::Registers regs;
  if (ptrace::get_registers(tracee.tid, regs) != Outcome::ok) return Act::dying();
  if (const auto act = leave_our_code(tracee, regs, signal)) return *act;
  signal = end_step(tracee, signal);
  if (rooms_.delivery.gets_sent_again(tracee)) {
    ptrace::interrupt(tracee.tid);
    return Act::go_on("to a signal that was sent to it again, before it leaves", signal);
  }
  AddressSpace* space = process.space.get();
  const bool last = space && space->touched() && targets_.tracees_sharing(*space) == 1;
  const bool owes = rooms_.actions.must_leave_actions(process);
  const bool clean = tracee.stop == Kind::interrupt || tracee.stop == Kind::group_stop || tracee.is_held();
  // With the first thread that goes everybody else still stands still, or will in a moment.
  const bool gives_back = space && space->touched() && !process.asked_to_give_back && !space->copies_given_back();
  if ((last || owes || gives_back || leaves_together(process)) && !clean) {
    // The injected code goes with the last thread. It can't make calls for us in the middle of a signal's delivery or
    // of its own fork; the interrupt stops it again before it executes anything else.
    ptrace::interrupt(tracee.tid);
    return Act::go_on("it leaves at its next stop, in which it can make calls for us", signal);
  }
  if (leaves_together(process)) return Act::wait(wanted.why);
  if (gives_back) {
    for (Process* member : targets_.family_of(process.root)) member->asked_to_give_back = true;
    if (!rooms_.code_changes.give_back_copies(tracee, *space)) return Act::away();
  }
  if (owes && rooms_.actions.leave_actions(tracee) == Leaves::away) return Act::away();
  if (space && space->touched()) space->keep_pads_of(process.id.pid, tracee.tid, regs);
  if (last && !leave_no_trace(tracee, *space)) return Act::away();
  return Act::detach(wanted.why, signal);
}

Act Detacher::go_on_or_leave(const Tracee& tracee, const char* why, int signal) {
  return tracee.process->detaching() ? Act::leave(why, signal) : Act::go_on(why, signal);
}

}  // namespace probed::tracer
