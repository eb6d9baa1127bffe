#include "daemon/tracer/family/attacher.hpp"

#include <fmt/format.h>
#include <linux/capability.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "daemon/base/capability.hpp"
#include "daemon/base/out_of_descriptors.hpp"
#include "daemon/base/own_processes.hpp"
#include "daemon/base/process.hpp"
#include "daemon/tracer/kernel/interrupted_calls.hpp"
#include "daemon/tracer/kernel/left_calls.hpp"
#include "daemon/tracer/kernel/may_not_trace.hpp"
#include "daemon/tracer/kernel/sharing.hpp"
#include "daemon/tracer/recovery/left_landings.hpp"
#include "daemon/tracer/rooms.hpp"

namespace probed::tracer {
namespace {

using namespace std::chrono_literals;
using ptrace::Outcome;

constexpr auto kSettleTimeout = 20ms;
constexpr int kMostReplaced = 16;     // times that a leader is another one by the time it is looked at
constexpr auto kExecTimeout = 500ms;  // until a thread that executes another program has the others' end behind it

Error just_exited(pid_t pid) { return refuse(Reason::no_such_process, fmt::format("process {} has just exited", pid)); }

// /proc names the thread that traces; people know the process.
Error already_traced(pid_t pid, pid_t tracer_thread) {
  const auto group = process::thread_group(tracer_thread);
  const pid_t tracer = daemon_of(group ? *group : tracer_thread);
  const std::string name = process::comm(tracer);
  struct stat owner {};
  const bool is_daemon = name == "probed" && ::stat(fmt::format("/proc/{}", tracer).c_str(), &owner) == 0;
  return refuse(Reason::already_traced, fmt::format("process {} is already traced by {} (pid {})", pid, name, tracer),
                is_daemon ? fmt::format("as user {} trace with that daemon, or have it let go: `probectl detach {}`",
                                        owner.st_uid, pid)
                          : fmt::format("end that tracer (kill {}), or have it detach, and try again", tracer));
}

// io_uring's and vhost's workers are listed among the threads: the kernel's own code in the process's name. They can't
// be stopped as threads are (include/linux/sched.h: PF_IO_WORKER, PF_USER_WORKER).
bool never_runs_user_code(pid_t tid) {
  constexpr std::uint32_t kIoWorker = 0x10, kUserWorker = 0x4000;
  const auto stat = process::read_stat(tid);
  return stat && (stat->flags & (kIoWorker | kUserWorker)) != 0;
}

}  // namespace

// ---- attach ---------------------------------------------------------------------------------------------------------

Result<void> Attacher::check_attachable(pid_t pid) const {
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

Result<std::size_t> Attacher::seize_threads(Process& process) {
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
        targets_.add_tracee(tid, process);
        found = true;
      } else if (outcome == Outcome::failed && !process::is_dead_task(tid)) {
        const int error = errno;
        if (targets_.tracees.contains(tid)) continue;  // seized a moment ago by way of its creator
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
bool Attacher::forget_replaced_leader(Process& process) {
  const pid_t pid = process.id.pid;
  if (!process.threads.contains(pid)) return false;
  const auto tracer = process::tracer_pid(pid);
  // A zombie that is ours is told of by its tracer, too; without a status nobody is left who could report anything.
  if (tracer ? *tracer == gettid() : ::kill(pid, 0) == 0 || errno != ESRCH) return false;
  rooms_.detacher.forget_tracee(pid);
  return true;
}

// A thread that was in the middle of clone() when it was seized makes a child that nobody traces: the kernel looks at
// the tracer's options when the call begins (kernel/fork.c, kernel_clone), /proc shows the child when it ends. So every
// thread that may be there is made to stop once; what it created is then visible to the next pass.
void Attacher::settle(pid_t pid) {
  const Process* process = targets_.find_process(pid);
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
      std::erase_if(unsettled, [this](pid_t tid) { return !targets_.tracees.contains(tid) || !may_be_cloning(tid); });
  }
  waiter_.wake();  // one of those that were taken may have announced a command
}

// The thread whose stop it was; nullopt: there was none, at most for so long. Takes wake-ups, which the caller is to
// make again.
std::optional<pid_t> Attacher::handle_next(Waiter::Clock::duration at_most) {
  waiter_.set_alarm(Waiter::Clock::now() + at_most);
  while (true) {
    if (const auto stop = waiter_.wait()) {
      rooms_.loop.handle(*stop);
      return stop->tid;
    }
    if (waiter_.take_wake()) return std::nullopt;
  }
}

// Processes that vfork or clone(CLONE_VM) made before we came share the text that we are going to write to. Those made
// from now on by the ones we have are reported by the kernel; so a pass that finds nobody new has found everybody.
Result<void> Attacher::seize_sharers(Process& process) {
  for (bool found = true; found;) {
    found = false;
    for (const pid_t pid : processes_sharing_memory(process.id.pid)) {
      if (targets_.find_process(pid)) continue;
      auto id = process::target_id(pid);
      if (!id) continue;
      auto& owned = targets_.processes[pid] = std::make_unique<Process>();
      owned->id = *id;
      owned->root = process.root;
      owned->space = process.space;
      owned->follow_fork = process.follow_fork;
      owned->hold_at_execs = process.hold_at_execs && process.follow_fork;
      auto seized = seize_threads(*owned);
      found |= seized.ok();
      if (seized) continue;
      const bool gone = owned->threads.empty() && seized.error().reason == Reason::no_such_process;
      if (owned->threads.empty()) targets_.processes.erase(pid);
      if (!gone && shares_memory(process.id.pid, pid)) return std::move(seized).error();
    }
  }
  return {};
}

// A thread that executes another program ends all the others, and has the leader's id from then on: who looks meanwhile
// finds threads none of which is there any more a moment later.
Result<AttachResult> Attacher::attach(pid_t pid, const AttachParams& params) {
  if (targets_.no_more)
    return Error{Reason::target_gone,
                 fmt::format("process {} is not attached to: this daemon ends", pid),
                 "try again when another one has taken its place",
                 {}};
  const auto deadline = Waiter::Clock::now() + kExecTimeout;
  auto attached = try_attach(pid, params);
  const auto not_there = [&] { return !attached && attached.error().reason == Reason::no_such_process; };
  while (not_there() && !process::has_ended(pid) && Waiter::Clock::now() < deadline) {
    do {
      handle_next(1ms);
    } while (targets_.find_process(pid) && Waiter::Clock::now() < deadline);  // what could be had of it is let go
    waiter_.wake();
    attached = try_attach(pid, params);
  }
  return attached;
}

// One that is attached to already: for somebody else, or before.
static Result<AttachResult> attach_again(Process& known, const AttachParams& params) {
  const pid_t pid = known.id.pid;
  if (known.detaching())
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

Result<AttachResult> Attacher::try_attach(pid_t pid, const AttachParams& params) {
  if (Process* known = targets_.find_process(pid)) return attach_again(*known, params);
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
  targets_.processes.emplace(pid, std::move(owned));

  auto seized = seize_threads(process);
  for (std::size_t before = 0; seized && before != *seized;) {
    before = *seized;
    settle(pid);
    if (targets_.find_process(pid) != &process) return just_exited(pid);
    seized = seize_threads(process);
  }
  if (!seized) {
    rooms_.detacher.start_detach(process);
    rooms_.detacher.finish_detach_if_empty(process);
    return std::move(seized).error();
  }
  process.attaching = false;
  // Opened before the seize, the memory could be that of an earlier program of the same pid. Children that it has made
  // since go along: those that share it are to have its probes.
  const auto before = std::exchange(process.space, std::make_shared<AddressSpace>(TargetMemory::open(pid)));
  for (const auto& [child, other] : targets_.processes) {
    if (other->space == before) other->space = process.space;
    if (other->copy_of == before) other->copy_of = process.space;
  }
  if (!process.space->memory().valid()) {
    const int error = errno;
    rooms_.detacher.start_detach(process);
    if (error == ESRCH || error == ENOENT) return just_exited(pid);
    if (lacks_descriptors(error)) return no_descriptors(pid);
    return refuse(Reason::permission_denied,
                  fmt::format("the memory of process {} can't be opened: {}", pid, std::strerror(error)),
                  "run probed as root");
  }
  if (auto sharers = seize_sharers(process); !sharers) {
    for (Process* member : targets_.family_of(pid)) rooms_.detacher.start_detach(*member);
    return std::move(sharers).error();
  }
  // A landing that is there handles SIGTRAP. What its daemon has left could not be taken out: ours is to lead on from
  // there as well, and to be in its place before anything is written.
  const auto actions = dispositions_of(pid);
  if (actions && (*actions)[forced_index(SIGTRAP)] != Disposition::standard && find_left(pid, process.space))
    rooms_.jobs.request_job(
        process, Job{[this](Tracee& tracee) { rooms_.actions.prepare_landing(tracee, 0); }, [](const Error&) {}, {}});
  return AttachResult{process.id, static_cast<std::uint32_t>(*seized), process.execs, process.space->overlay()};
}

}  // namespace probed::tracer
