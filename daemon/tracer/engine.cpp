// Processes: attach, detach, jobs, deadlines.
#include "daemon/tracer/engine.hpp"

#include <fmt/format.h>
#include <linux/capability.h>
#include <spdlog/spdlog.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "daemon/base/capability.hpp"
#include "daemon/base/own_processes.hpp"
#include "daemon/base/process.hpp"
#include "daemon/tracer/engine_remote.hpp"
#include "daemon/tracer/interrupted_calls.hpp"
#include "daemon/tracer/left_calls.hpp"
#include "daemon/tracer/left_landings.hpp"
#include "daemon/tracer/may_not_trace.hpp"
#include "daemon/tracer/sharing.hpp"
#include "proto/base/check.hpp"

namespace probed::tracer {
namespace {

using namespace std::chrono_literals;
using ptrace::Outcome;

constexpr auto kJobTimeout = 5s;
constexpr auto kWidenAfter = 20ms;        // one thread was asked to stop and didn't: ask all that a stop does no harm
constexpr auto kWidenToAllAfter = 500ms;  // then those whose calls might fail
constexpr auto kSettleTimeout = 20ms;
constexpr int kMostReplaced = 16;     // times that a leader is another one by the time it is looked at
constexpr auto kExecTimeout = 500ms;  // until a thread that executes another program has the others' end behind it
constexpr std::size_t kRecentSpaces = 8;
constexpr std::size_t kLeaveAtOnce = 16;      // threads stopped at a time when a process is let go
constexpr auto kLeaveStalled = 50ms;          // none of these has come: ask all (they may be in uninterruptible waits)
constexpr auto kLeaveTogether = 200ms;        // then those that have come go without the others
constexpr std::size_t kThreadsLookedAt = 64;  // when choosing the one to stop

Error refuse(Reason reason, std::string message, std::string hint = "") {
  return Error{reason, std::move(message), std::move(hint), {}};
}

Error just_exited(pid_t pid) { return refuse(Reason::no_such_process, fmt::format("process {} has just exited", pid)); }

// /proc names the thread that traces; people know the process.
Error already_traced(pid_t pid, pid_t tracer_thread) {
  const auto group = process::thread_group(tracer_thread);
  const pid_t tracer = daemon_of(group ? *group : tracer_thread);
  return refuse(Reason::already_traced,
                fmt::format("process {} is already traced by {} (pid {})", pid, process::comm(tracer), tracer),
                fmt::format("end that tracer (kill {}), or detach it, and try again", tracer));
}

// io_uring's and vhost's workers are listed among the threads: the kernel's own code in the process's name. They can't
// be stopped as threads are (include/linux/sched.h: PF_IO_WORKER, PF_USER_WORKER).
bool never_runs_user_code(pid_t tid) {
  constexpr std::uint32_t kIoWorker = 0x10, kUserWorker = 0x4000;
  const auto stat = process::read_stat(tid);
  return stat && (stat->flags & (kIoWorker | kUserWorker)) != 0;
}

bool task_is_dead(pid_t tid) {
  const auto stat = process::read_stat(tid);
  return !stat || stat->zombie();
}

}  // namespace

Process* Engine::find_process(pid_t pid) {
  const auto it = processes_.find(pid);
  return it == processes_.end() ? nullptr : it->second.get();
}

// ---- attach ---------------------------------------------------------------------------------------------------------

Result<void> Engine::check_attachable(pid_t pid) const {
  if (pid == tracer_process() || pid == daemon_process())
    return refuse(Reason::unsupported_target, "probed can't trace itself");
  auto stat = process::read_stat(pid);
  if (!stat) return std::move(stat).error();
  if (stat->kernel_thread())
    return refuse(Reason::unsupported_target, fmt::format("process {} ({}) is a kernel thread", pid, stat->comm),
                  "only user-space programs can be traced");
  if (auto group = process::thread_group(pid); group && *group != pid)
    return refuse(Reason::unsupported_target, fmt::format("{} is a thread of process {}", pid, *group),
                  fmt::format("use -p {}: probes always cover every thread", *group));
  if (stat->zombie() && process::has_ended(pid))
    return refuse(Reason::unsupported_target,
                  fmt::format("process {} ({}) is a zombie: it has already exited", pid, stat->comm),
                  "nothing is left to trace");
  // Ours: one that had been seized by another id executes another program, and isn't claimed yet.
  if (auto tracer = process::tracer_pid(pid); tracer && *tracer != 0 && *tracer != gettid())
    return already_traced(pid, *tracer);
  if (shares_memory(pid, stat->parent))
    return refuse(
        Reason::unsupported_target,
        fmt::format("process {} ({}) shares its memory with its parent {} (vfork)", pid, stat->comm, stat->parent),
        fmt::format("trace process {}: its probes cover this one", stat->parent));
  auto is_32bit = process::is_32bit(pid);
  if (is_32bit && *is_32bit)
    return refuse(Reason::unsupported_target, fmt::format("process {} ({}) is a 32-bit program", pid, stat->comm),
                  "only 64-bit programs can be traced");
  return {};
}

Result<std::size_t> Engine::seize_threads(Process& process) {
  const Waiter::Collecting collecting(waiter_);
  const pid_t pid = process.id.pid;
  // A thread that a not yet seized thread creates is seen by a later pass; one that a seized thread creates is ours
  // from the start (TRACECLONE). So a pass that finds nothing new has found everything.
  std::map<pid_t, int> refused;
  for (bool found = true; found;) {
    found = false;
    auto ids = process::thread_ids(pid);
    if (!ids) break;
    for (const pid_t tid : *ids) {
      if (process.threads.contains(tid) || never_runs_user_code(tid)) continue;
      collecting.note_progress();
      const Outcome outcome = collecting.during([tid] { return ptrace::seize(tid); });
      if (outcome == Outcome::ok) {
        add_tracee(tid, process);
        found = true;
      } else if (outcome == Outcome::failed && !task_is_dead(tid)) {
        const int error = errno;
        if (tracees_.contains(tid)) continue;  // seized a moment ago by way of its creator
        const auto tracer = process::tracer_pid(tid);
        if (tracer && *tracer == gettid()) continue;  // ours by way of its creator; its first stop is on its way
        if (tracer && *tracer != 0) return already_traced(pid, *tracer);
        // The leader may have been a zombie, and is alive again: a thread that executes another program has its id.
        if (refused[tid]++ < kMostReplaced) {
          found = true;
          continue;
        }
        return refuse(
            Reason::permission_denied,
            fmt::format("process {} ({}) may not be traced: {}", pid, process::comm(pid), std::strerror(error)),
            hint_may_not_trace(has_capability(CAP_SYS_PTRACE), yama_scope()));
      }
    }
    if (!found) found = forget_replaced_leader(process);
  }
  if (process.threads.empty()) return just_exited(pid);
  std::ranges::for_each(process.threads, look_again_at_call);
  return process.threads.size();
}

// A thread that wasn't seized yet when it executed another program has the leader's id now, and the leader that was
// seized is gone without a report (fs/exec.c, de_thread). True: it was so, and is forgotten.
bool Engine::forget_replaced_leader(Process& process) {
  const pid_t pid = process.id.pid;
  if (!process.threads.contains(pid)) return false;
  const auto tracer = process::tracer_pid(pid);
  // A zombie that is ours is told of by its tracer, too; without a status nobody is left who could report anything.
  if (tracer ? *tracer == gettid() : ::kill(pid, 0) == 0 || errno != ESRCH) return false;
  forget_tracee(pid);
  return true;
}

void Engine::forget_if_gone(pid_t pid) {
  Process* process = find_process(pid);
  if (!process || ::kill(pid, 0) == 0 || errno != ESRCH) return;
  spdlog::warn("process {} has gone, and the kernel told of no end of {} of its threads", pid, process->threads.size());
  for (const pid_t tid : std::set<pid_t>(process->threads)) forget_tracee(tid);
  tell_end(*process, std::nullopt);
}

// A thread that was in the middle of clone() when it was seized makes a child that nobody traces: the kernel looks at
// the tracer's options when the call begins (kernel/fork.c, kernel_clone), /proc shows the child when it ends. So every
// thread that may be there is made to stop once; what it created is then visible to the next pass.
void Engine::settle(pid_t pid) {
  const Process* process = find_process(pid);
  if (!process) return;
  // Asked for first and stopped then: looking at a thousand of them takes longer than any should stand still.
  std::vector<pid_t> suspects;
  std::ranges::copy_if(process->threads, std::back_inserter(suspects), may_be_cloning);
  std::set<pid_t> unsettled;
  for (const pid_t tid : suspects)
    if (ptrace::interrupt(tid) == Outcome::ok) unsettled.insert(tid);
  const auto deadline = Waiter::Clock::now() + kSettleTimeout;
  while (!unsettled.empty() && Waiter::Clock::now() < deadline) {
    if (const auto stop = handle_next(1ms))
      unsettled.erase(*stop);
    else
      std::erase_if(unsettled, [this](pid_t tid) { return !tracees_.contains(tid) || !may_be_cloning(tid); });
  }
  waiter_.wake();  // one of those that were taken may have announced a command
}

// The thread whose stop it was; nullopt: there was none, at most for so long. Takes wake-ups, which the caller is to
// make again.
std::optional<pid_t> Engine::handle_next(Waiter::Clock::duration at_most) {
  waiter_.set_alarm(Waiter::Clock::now() + at_most);
  while (true) {
    if (const auto stop = waiter_.wait()) {
      handle(*stop);
      return stop->tid;
    }
    if (waiter_.take_wake()) return std::nullopt;
  }
}

// Processes that vfork or clone(CLONE_VM) made before we came share the text that we are going to write to. Those made
// from now on by the ones we have are reported by the kernel; so a pass that finds nobody new has found everybody.
Result<void> Engine::seize_sharers(Process& process) {
  for (bool found = true; found;) {
    found = false;
    for (const pid_t pid : processes_sharing_memory(process.id.pid)) {
      if (find_process(pid)) continue;
      auto id = process::target_id(pid);
      if (!id) continue;
      auto& owned = processes_[pid] = std::make_unique<Process>();
      owned->id = *id;
      owned->root = process.root;
      owned->space = process.space;
      auto seized = seize_threads(*owned);
      found |= seized.ok();
      if (seized) continue;
      const bool gone = owned->threads.empty() && seized.error().reason == Reason::no_such_process;
      if (owned->threads.empty()) processes_.erase(pid);
      if (!gone && shares_memory(process.id.pid, pid)) return std::move(seized).error();
    }
  }
  return {};
}

// A thread that executes another program ends all the others, and has the leader's id from then on: who looks meanwhile
// finds threads none of which is there any more a moment later.
Result<AttachResult> Engine::attach(pid_t pid, const AttachParams& params) {
  const auto deadline = Waiter::Clock::now() + kExecTimeout;
  auto attached = try_attach(pid, params);
  const auto not_there = [&] { return !attached && attached.error().reason == Reason::no_such_process; };
  while (not_there() && !process::has_ended(pid) && Waiter::Clock::now() < deadline) {
    do {
      handle_next(1ms);
    } while (find_process(pid) && Waiter::Clock::now() < deadline);  // what could be had of it is let go
    waiter_.wake();
    attached = try_attach(pid, params);
  }
  return attached;
}

// One that is attached to already: for somebody else, or before.
static Result<AttachResult> attach_again(Process& known, const AttachParams& params) {
  const pid_t pid = known.id.pid;
  if (known.detaching)
    return refuse(Reason::already_traced, fmt::format("process {} is being detached", pid), "try again in a moment");
  if (known.root != pid)
    return refuse(Reason::already_traced,
                  fmt::format("process {} ({}) is traced already as a child of process {}, whose probes it carries",
                              pid, process::comm(pid), known.root),
                  fmt::format("add probes to process {}, or detach that first", known.root));
  known.follow_fork |= params.follow_fork;
  known.keep_after_exec |= params.keep_after_exec;
  known.hold_at_entry |= params.hold_at_entry;
  known.hold_at_execs |= params.hold_at_execs;
  return AttachResult{known.id, static_cast<std::uint32_t>(known.threads.size()), known.execs, known.space->overlay()};
}

Result<AttachResult> Engine::try_attach(pid_t pid, const AttachParams& params) {
  if (Process* known = find_process(pid)) return attach_again(*known, params);
  if (auto fit = check_attachable(pid); !fit) return std::move(fit).error();
  auto id = process::target_id(pid);
  if (!id) return std::move(id).error();

  auto owned = std::make_unique<Process>();
  Process& process = *owned;
  process.id = *id;
  process.root = pid;
  process.attaching = true;
  process.follow_fork = params.follow_fork;
  process.keep_after_exec = params.keep_after_exec;
  process.hold_at_entry = params.hold_at_entry;
  process.hold_at_execs = params.hold_at_execs;
  process.space = std::make_shared<AddressSpace>(TargetMemory::open(pid));
  processes_.emplace(pid, std::move(owned));

  auto seized = seize_threads(process);
  for (std::size_t before = 0; seized && before != *seized;) {
    before = *seized;
    settle(pid);
    if (find_process(pid) != &process) return just_exited(pid);
    seized = seize_threads(process);
  }
  if (!seized) {
    start_detach(process);
    finish_detach_if_empty(process);
    return std::move(seized).error();
  }
  process.attaching = false;
  // Opened before the seize, the memory could be that of an earlier program of the same pid. Children that it has made
  // since go along: those that share it are to have its probes.
  const auto before = std::exchange(process.space, std::make_shared<AddressSpace>(TargetMemory::open(pid)));
  for (const auto& [child, other] : processes_) {
    if (other->space == before) other->space = process.space;
    if (other->copy_of == before) other->copy_of = process.space;
  }
  if (!process.space->memory().valid()) {
    const int error = errno;
    start_detach(process);
    if (error == ESRCH || error == ENOENT) return just_exited(pid);
    return refuse(Reason::permission_denied,
                  fmt::format("the memory of process {} can't be opened: {}", pid, std::strerror(error)),
                  "run probed as root");
  }
  if (auto sharers = seize_sharers(process); !sharers) {
    for (Process* member : family_of(pid)) start_detach(*member);
    return std::move(sharers).error();
  }
  // A landing that is there handles SIGTRAP. What its daemon has left could not be taken out: ours is to lead on from
  // there as well, and to be in its place before anything is written.
  const auto actions = dispositions_of(pid);
  if (actions && (*actions)[forced_index(SIGTRAP)] != Disposition::standard && find_left(pid, process.space))
    request_job(process, Job{[this](Tracee& tracee) { prepare_landing(tracee, 0); }, [](const Error&) {}, {}});
  return AttachResult{process.id, static_cast<std::uint32_t>(*seized), process.execs, process.space->overlay()};
}

Tracee& Engine::add_tracee(pid_t tid, Process& process) {
  Tracee& tracee = tracees_[tid];
  tracee.tid = tid;
  tracee.process = &process;
  tracee.state = Tracee::State::running;
  process.threads.insert(tid);
  return tracee;
}

void Engine::forget_tracee(pid_t tid) {
  const auto it = tracees_.find(tid);
  if (it == tracees_.end()) return;
  leave_slot(it->second);
  take_lanes(it->second);
  ptrace::note_event_stop(tid);
  forget_call_notes(tid);
  if (Journal* journal = journal_of(it->second)) journal->forget_mask(tid);
  Process* process = it->second.process;
  if (process) process->threads.erase(tid);
  if (process && process->space && !process->detaching) process->space->returns().thread_ended(tid);
  tracees_.erase(it);
  if (process && process->detaching) ask_to_leave(*process, 1);
}

void Engine::forget_process(Process& process) {
  for (Job& job : process.jobs)
    job.fail(refuse(Reason::target_gone, fmt::format("process {} has gone", process.id.pid)));
  auto replies = std::move(process.detach_replies);
  const pid_t root = process.root;
  const std::shared_ptr<AddressSpace> space = process.space;
  processes_.erase(process.id.pid);
  const bool last = space && std::ranges::none_of(processes_, [&](const auto& p) { return p.second->space == space; });
  if (last) {
    close_feeds(*space);
    space->drop_journal();
  }
  if (space && space->touched()) {
    recent_spaces_.push_back(space);
    if (recent_spaces_.size() > kRecentSpaces) recent_spaces_.pop_front();
  }
  if (space && family_of(root).empty()) {
    for (const auto& [address, site] : space->sites())
      for (const ProgramPtr& program : site.programs) programs_.erase(number(program->id));
  }
  for (auto& reply : replies) reply({});
  if (!processes_.empty()) return;
  for (auto& done : std::exchange(all_detached_, {})) done();
}

// ---- detach ---------------------------------------------------------------------------------------------------------

std::vector<Process*> Engine::family_of(pid_t root) {
  std::vector<Process*> family;
  for (auto& [pid, process] : processes_)
    if (process->root == root) family.push_back(process.get());
  return family;
}

std::size_t Engine::tracees_sharing(const AddressSpace& space) const {
  return static_cast<std::size_t>(std::count_if(tracees_.begin(), tracees_.end(), [&](const auto& entry) {
    return entry.second.process && entry.second.process->space.get() == &space;
  }));
}

void Engine::detach(pid_t pid, Done done) {
  Process* process = find_process(pid);
  if (!process) return done(refuse(Reason::not_attached, fmt::format("process {} is not attached", pid)));
  const std::vector<Process*> family = family_of(process->root);
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
    if (Process* p = find_process(member)) start_detach(*p);
    if (Process* p = find_process(member)) finish_detach_if_empty(*p);
  }
}

void Engine::detach_all(std::function<void()> done) {
  if (processes_.empty()) return done();
  all_detached_.push_back(std::move(done));
  std::vector<pid_t> pids;
  for (auto& [pid, process] : processes_) pids.push_back(pid);
  for (const pid_t pid : pids)
    if (Process* process = find_process(pid)) start_detach(*process);
}

void Engine::start_detach(Process& process) {
  if (process.detaching) return;
  process.begin_to_leave();
  for (Job& job : std::exchange(process.jobs, {}))
    job.fail(refuse(Reason::target_gone, fmt::format("process {} is being detached", process.id.pid)));
  // First the text, then the threads: from here on nobody can run into a breakpoint of ours.
  if (process.space) process.space->close();
  const pid_t pid = process.id.pid;
  const std::set<pid_t> threads = process.threads;
  for (const pid_t tid : threads) {
    const auto it = tracees_.find(tid);
    if (it == tracees_.end()) continue;
    // A main thread that has exited before the others reports so after the last of them: there is nothing to let go.
    if (tid == pid && process.threads.size() > 1 && task_is_dead(tid)) {
      forget_tracee(tid);
      continue;
    }
    if (it->second.state == Tracee::State::held)
      carry_out(tid, Act::leave("it was held"));
    else
      process.to_ask.push_back(tid);
  }
  if (!find_process(pid)) return;  // its last thread was held, and has left
  // A trap that is on its way to one thread may have reset what another one, once it is let go, is to find.
  const auto may_be_reset = [](const Arrangement& is) { return is.known && is.contended; };
  remember_watch(process);
  if (process.threads.size() > 1 &&
      (process.actions.of(SIGTRAP).known || std::ranges::any_of(process.actions.all, may_be_reset)))
    process.leave_together_until = Waiter::Clock::now() + kLeaveTogether;
  ask_to_leave(process, process.leave_together_until ? process.to_ask.size() : kLeaveAtOnce);
}

// When a thread that has been let go already executes another program, those that haven't disappear without a word
// (fs/exec.c, de_thread), and its leader's id is that thread's, which is not ours any more.
void Engine::forget_vanished(Process& process) {
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
bool Engine::some_still_run(const Process& process) const {
  return std::ranges::any_of(process.threads, [this](pid_t tid) {
    const char state = process::state(tid);
    return tracees_.at(tid).state != Tracee::State::held && (state == 'R' || state == 't');
  });
}

// No trap is on its way to any of them when all of them stand still.
void Engine::leave_if_complete(Process& process) {
  const auto is_here = [this](pid_t tid) { return tracees_.at(tid).state == Tracee::State::held; };
  if (process.leave_together_until && std::ranges::all_of(process.threads, is_here)) leave_together(process);
}

void Engine::leave_together(Process& process) {
  const pid_t pid = process.id.pid;
  const std::set<pid_t> threads = process.threads;
  process.leave_together_until.reset();
  const auto is_held = [&](pid_t tid) {
    const auto it = tracees_.find(tid);
    return find_process(pid) && it != tracees_.end() && it->second.state == Tracee::State::held;
  };
  // The first that may make calls does what is to be done; one that doesn't come back from them is let go later.
  Leaves left = owes_actions(process) ? Leaves::no : Leaves::yes;
  pid_t away = 0;
  for (const pid_t tid : threads) {
    if (left != Leaves::no || !is_held(tid)) continue;
    left = leave_actions(tracees_.at(tid));
    if (left == Leaves::away) away = tid;
  }
  for (const pid_t tid : threads)
    if (tid != away && is_held(tid)) carry_out(tid, Act::leave("all threads of its process have come"));
}

// Stops so many more of those that are to be let go. All at once would stand still until the last one's turn: a quarter
// of a second for a thousand.
void Engine::ask_to_leave(Process& process, std::size_t count) {
  while (count > 0 && !process.to_ask.empty()) {
    const pid_t tid = process.to_ask.back();
    process.to_ask.pop_back();
    if (!process.threads.contains(tid)) continue;
    ptrace::interrupt(tid);
    --count;
  }
  process.ask_all_at = Waiter::Clock::now() + kLeaveStalled;
}

void Engine::finish_detach_if_empty(Process& process) {
  if (process.threads.empty()) forget_process(process);
}

// The last thread of an address space takes what we injected out of it. False: it died meanwhile.
bool Engine::leave_no_trace(Tracee& tracee, AddressSpace& space) {
  if (!space.copies_given_back() && alone_in_memory(tracee)) {
    space.take_out_islands();
    if (!give_back_copies(tracee, space)) return false;
  }
  space.take_out_islands();
  const bool others = space.has_pads_left() && !processes_sharing_memory(tracee.process->id.pid).empty();
  if (space.xol().areas().empty()) return space.erase_call_pads(others), true;
  const Layout layout = Layout::of(space.memory());
  const bool alive = with_remote_calls(tracee, space, [&](RemoteSyscalls& remote) {
    for (const XolAreas::Area& area : space.areas_to_unmap()) {
      // The program may have mapped something of its own there.
      if (!space.is_ours(area, layout)) continue;
      remote.call(SYS_munmap, {area.base.value, area.size, 0, 0, 0, 0});
    }
  });
  if (alive) space.erase_call_pads(others);
  return alive;
}

Result<void> Engine::resume_held(pid_t pid) {
  Process* process = find_process(pid);
  if (!process) return refuse(Reason::not_attached, fmt::format("process {} is not attached", pid));
  resume_held_threads(*process);
  return {};
}

void Engine::forget_hold(pid_t pid) {
  Process* process = find_process(pid);
  if (!process) return;
  process->hold_at_entry = false;
  for (auto& [other, member] : processes_)
    if (member->root == pid) member->hold_at_execs = false;
  resume_held_threads(*process);
}

void Engine::forget_keep(pid_t pid) {
  if (Process* process = find_process(pid)) process->keep_after_exec = false;
}

void Engine::resume_held_threads(const Process& process) {
  for (const pid_t tid : process.threads)
    if (tracees_.at(tid).is_held(Hold::entry)) carry_out(tid, Act::go_on("it is held no longer"));
}

// ---- jobs -----------------------------------------------------------------------------------------------------------

void Engine::request_job(Process& process, Job job) {
  job.deadline = Waiter::Clock::now() + kJobTimeout;
  process.jobs.push_back(std::move(job));
  if (process.runs_jobs != 0) return;  // it does this one next: no need to stop another thread
  for (const pid_t tid : process.threads) {
    Tracee& tracee = tracees_.at(tid);
    if (tracee.state == Tracee::State::held) return run_jobs(tracee);
  }
  interrupt_some(process, Ask::best);
}

void Engine::interrupt_some(Process& process, Ask whom) {
  process.asked = whom;
  if (whom != Ask::best) {
    for (const pid_t tid : process.threads)
      if (whom == Ask::everyone || !may_lose_its_call(tid)) ptrace::interrupt(tid);
    return;
  }
  pid_t best = 0;
  int best_cost = 0;
  std::size_t looked_at = 0;
  for (const pid_t tid : process.threads) {
    const int cost = interruption_cost(tid);
    if (best == 0 || cost < best_cost) {
      best = tid;
      best_cost = cost;
    }
    if (best_cost == 0 || ++looked_at == kThreadsLookedAt) break;
  }
  if (best != 0) ptrace::interrupt(best);
}

// When more threads are asked to stop for a job than have been.
Waiter::Clock::time_point Engine::widens_at(const Process& process, const Job& job) {
  switch (process.asked) {
    case Ask::best: return job.deadline - kJobTimeout + kWidenAfter;
    case Ask::harmless: return job.deadline - kJobTimeout + kWidenToAllAfter;
    case Ask::everyone: break;
  }
  return job.deadline;
}

void Engine::run_jobs(Tracee& tracee) {
  const pid_t tid = tracee.tid, pid = tracee.process->id.pid;
  const auto is_here = [&] {
    return tracees_.contains(tid) &&
           std::ranges::none_of(ended_meanwhile_, [&](const Stop& s) { return s.tid == tid; });
  };
  tracee.process->runs_jobs = tid;
  Process* process = tracee.process;
  while (process && !process->jobs.empty() && is_here() && !tracees_.at(tid).borrowed) {
    Job job = std::move(process->jobs.front());
    process->jobs.pop_front();
    job.run(tracees_.at(tid));
    process = find_process(pid);
  }
  if (!process) return;
  process->runs_jobs = 0;
  // It has gone, or is late: another one does the rest.
  if (!process->jobs.empty()) interrupt_some(*process, Ask::best);
}

// ---- deadlines ------------------------------------------------------------------------------------------------------

std::optional<Waiter::Clock::time_point> Engine::next_deadline() const {
  std::optional<Waiter::Clock::time_point> next;
  const auto consider = [&](Waiter::Clock::time_point t) { next = next ? std::min(*next, t) : t; };
  if (look_for_loads_at_ != Waiter::Clock::time_point::max()) consider(look_for_loads_at_);
  for (const auto& [tid, tracee] : tracees_) {
    if (tracee.state == Tracee::State::unclaimed) consider(tracee.unclaimed_until);
    if (tracee.loader_ticket != 0) consider(tracee.loader_until);
  }
  for (const auto& [pid, process] : processes_) {
    if (process->detaching && !process->detach_replies.empty()) consider(process->detach_deadline);
    if (process->ask_again) consider(*process->ask_again);
    if (process->actions.look_at) consider(*process->actions.look_at);
    if (process->space && process->space->optimisation().at != Waiter::Clock::time_point::max())
      consider(process->space->optimisation().at);
    if (process->detaching) consider(process->ask_all_at);
    if (process->give_back_at) consider(*process->give_back_at);
    if (process->leave_together_until) consider(*process->leave_together_until);
    for (const Job& job : process->jobs) consider(widens_at(*process, job));
  }
  return next;
}

static void tell_late_detach(Process& process, std::vector<std::function<void()>>& late) {
  const Error error = refuse(Reason::timed_out,
                             fmt::format("process {}: its text is restored, but {} of its threads can't be stopped now "
                                         "(uninterruptible wait)",
                                         process.id.pid, process.threads.size()),
                             "each is let go as soon as it wakes; nothing more is needed");
  for (auto& reply : std::exchange(process.detach_replies, {}))
    late.push_back([reply = std::move(reply), error] { reply(error); });
}

void Engine::look_after_jobs(Process& process, Waiter::Clock::time_point now,
                             std::vector<std::function<void()>>& late) {
  if (process.jobs.empty()) return;
  if (process.asked != Ask::everyone && now >= widens_at(process, process.jobs.front()))
    interrupt_some(process, process.asked == Ask::best ? Ask::harmless : Ask::everyone);
  while (!process.jobs.empty() && now >= process.jobs.front().deadline) {
    const Error error = refuse(Reason::timed_out,
                               fmt::format("no thread of process {} could make a system call for probed within {} s",
                                           process.id.pid, kJobTimeout / 1s),
                               "all of them are in an uninterruptible wait, or execute 32-bit code; try again later");
    late.push_back([fail = std::move(process.jobs.front().fail), error] { fail(error); });
    process.jobs.pop_front();
  }
}

void Engine::check_deadlines() {
  const auto now = Waiter::Clock::now();
  std::vector<std::function<void()>> late;
  std::vector<pid_t> givers, incomplete, stalled, trapped;
  for (auto& [pid, process] : processes_) {
    if (process->actions.look_at && now >= *process->actions.look_at) trapped.push_back(pid);
    if (process->give_back_at && now >= *process->give_back_at) givers.push_back(pid);
    if (process->leave_together_until && now >= *process->leave_together_until) incomplete.push_back(pid);
    if (process->detaching && now >= process->detach_deadline) tell_late_detach(*process, late);
    if (process->detaching && now >= process->ask_all_at) stalled.push_back(pid);
    if (process->ask_again && now >= *process->ask_again) {
      process->ask_again.reset();
      for (const pid_t tid : process->threads)
        if (std::exchange(tracees_.at(tid).interrupt_again, false)) ptrace::interrupt(tid);
    }
    look_after_jobs(*process, now, late);
  }
  for (const pid_t pid : trapped)
    if (Process* process = find_process(pid)) look_behind_traps(*process);
  for (const pid_t pid : givers)
    if (Process* process = find_process(pid)) give_back_soon(*process);
  for (Process* process : one_for_each_space())
    if (process->space->optimisation().at <= now) {
      heal_if_moved(*process->space);
      optimise(*process->space);
    }
  std::vector<pid_t> orphans;
  for (const auto& [tid, tracee] : tracees_) {
    // Its creator's event may be among what has been reported since and nobody has looked at yet.
    const bool seen_all = waiter_.idle_since() >= tracee.unclaimed_until;
    if (tracee.state == Tracee::State::unclaimed && now >= tracee.unclaimed_until && seen_all) orphans.push_back(tid);
  }
  for (const pid_t tid : orphans) release_orphan(tid);
  release_late_loaders();
  for (const pid_t pid : stalled) {
    Process* process = find_process(pid);
    if (!process) continue;
    ask_to_leave(*process, process->to_ask.size());
    forget_vanished(*process);
  }
  for (const pid_t pid : incomplete) {
    Process* process = find_process(pid);
    if (!process) continue;
    if (now < process->detach_deadline && some_still_run(*process))
      process->leave_together_until = now + kLeaveTogether;  // it has no processor: that is no wait of our making
    else
      leave_together(*process);
  }
  for (auto& call : late) call();
  look_for_blocked_loads();
}

}  // namespace probed::tracer
