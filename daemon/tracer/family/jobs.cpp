#include "daemon/tracer/family/jobs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "daemon/base/process.hpp"
#include "daemon/tracer/kernel/interrupted_calls.hpp"
#include "daemon/tracer/recovery/left_landings.hpp"
#include "daemon/tracer/rooms.hpp"
#include "daemon/tracer/signals/action_calls.hpp"

namespace probed::tracer {
namespace {

using namespace std::chrono_literals;

constexpr auto kJobTimeout = 5s;
constexpr auto kWidenAfter = 20ms;        // one thread was asked to stop and didn't: ask all that a stop does no harm
constexpr auto kWidenToAllAfter = 500ms;  // then those whose calls might fail
constexpr auto kStuckAfter = 2s;          // none of them can stop: a frozen control group, a file server that is gone
constexpr std::size_t kThreadsLookedAt = 64;  // when choosing the one to stop
// Of a whole process, to be sure that nobody writes to a page that is about to be given back.
constexpr auto kOthersPatience = 50ms;
constexpr auto kMostOthersPatience = 200ms;  // for threads that only wait for a processor
constexpr auto kStopPatience = 100ms;
constexpr auto kMostPatience = 2s;  // for threads that only wait for a processor

}  // namespace

// ---- jobs -----------------------------------------------------------------------------------------------------------

void Jobs::request_job(Process& process, Job job) {
  job.deadline = Waiter::Clock::now() + kJobTimeout;
  process.jobs.push_back(std::move(job));
  if (process.runs_jobs != 0) return;  // it does this one next: no need to stop another thread
  for (const pid_t tid : process.threads) {
    Tracee& tracee = targets_.tracees.at(tid);
    if (tracee.is_held()) return run_jobs(tracee);
  }
  interrupt_some(process, Ask::best);
}

void Jobs::interrupt_some(Process& process, Ask whom) {
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

// Whether any thread can stop at all.
static Waiter::Clock::time_point looks_at(const Job& job) { return job.deadline - kJobTimeout + kStuckAfter; }

Waiter::Clock::time_point Jobs::widens_at(const Process& process, const Job& job) {
  switch (process.asked) {
    case Ask::best: return job.deadline - kJobTimeout + kWidenAfter;
    case Ask::harmless: return job.deadline - kJobTimeout + kWidenToAllAfter;
    case Ask::everyone: break;
  }
  return job.somebody_waits && !job.looked_at ? looks_at(job) : job.deadline;
}

bool Jobs::none_can_stop(const Process& process) {
  return !process.threads.empty() &&
         std::ranges::all_of(process.threads, [](pid_t tid) { return process::state(tid) == 'D'; });
}

void Jobs::run_jobs(Tracee& tracee) {
  const pid_t tid = tracee.tid, pid = tracee.process->id.pid;
  const auto is_here = [&] {
    return targets_.tracees.contains(tid) &&
           std::ranges::none_of(targets_.ended_meanwhile, [&](const Stop& s) { return s.tid == tid; });
  };
  tracee.process->runs_jobs = tid;
  Process* process = tracee.process;
  while (process && !process->jobs.empty() && is_here() && !targets_.tracees.at(tid).away()) {
    Job job = std::move(process->jobs.front());
    process->jobs.pop_front();
    job.run(targets_.tracees.at(tid));
    process = targets_.find_process(pid);
  }
  if (!process) return;
  process->runs_jobs = 0;
  // It has gone, or is late: another one does the rest.
  if (!process->jobs.empty()) interrupt_some(*process, Ask::best);
}

void Jobs::look_after_jobs(Process& process, Waiter::Clock::time_point now, std::vector<std::function<void()>>& late) {
  if (process.jobs.empty()) return;
  if (process.asked != Ask::everyone && now >= widens_at(process, process.jobs.front()))
    interrupt_some(process, process.asked == Ask::best ? Ask::harmless : Ask::everyone);
  const auto give_up = [&](Job& job, Error error) {
    late.push_back([fail = std::move(job.fail), error = std::move(error)] { fail(error); });
  };
  std::erase_if(process.jobs, [&](Job& job) {
    const bool is_due = job.somebody_waits && !job.looked_at && now >= looks_at(job);
    if (!is_due) return false;
    job.looked_at = true;
    if (!none_can_stop(process)) return false;
    give_up(job, refuse(Reason::timed_out,
                        fmt::format("no thread of process {} can be stopped: all are in an uninterruptible wait",
                                    process.id.pid),
                        "thaw it if it is frozen (docker pause, a cgroup's freezer); `ps -L -o tid,stat,wchan -p PID` "
                        "shows where they wait"));
    return true;
  });
  while (!process.jobs.empty() && now >= process.jobs.front().deadline) {
    give_up(process.jobs.front(),
            refuse(Reason::timed_out,
                   fmt::format("no thread of process {} could make a system call for probed within {} s",
                               process.id.pid, kJobTimeout / 1s),
                   "all of them are in an uninterruptible wait, or execute 32-bit code; try again later"));
    process.jobs.pop_front();
  }
}

// ---- others that stand still ----------------------------------------------------------------------------------------

// A thread that listens to job control doesn't run, nor does one that is held.
bool Jobs::others_stopped(const Tracee& tracee, Sleepers sleepers) {
  std::vector<pid_t> others;
  for (const auto& [tid, other] : targets_.tracees) {
    const bool shares = other.process && other.process->space == tracee.process->space;
    if (tid == tracee.tid || !shares || !other.runs()) continue;
    if (sleepers == Sleepers::leave && may_lose_its_call(tid)) continue;
    // Those that are to be let go have been asked already, or will be; they go on afterwards until it is their turn.
    if (!other.process->detaching() || other.process->waits_to_be_asked(tid)) ptrace::interrupt(tid);
    others.push_back(tid);
  }
  return waiter_.gather_from(others, kOthersPatience, kMostOthersPatience);
}

// False: some haven't stopped. One that only waits for a processor is waited for; one in an uninterruptible wait (for a
// vfork child, say) is not: when that is over it stops before it executes anything (kernel/entry/common.c,
// exit_to_user_mode_loop).
bool Jobs::stop_others(const Tracee& tracee, Sleepers sleepers) {
  std::vector<pid_t> others;
  for (const pid_t tid : tracee.process->threads) {
    if (tid == tracee.tid || !targets_.tracees.at(tid).runs()) continue;
    if (sleepers == Sleepers::leave && may_lose_its_call(tid)) continue;
    ptrace::interrupt(tid);
    if (process::state(tid) != 'D') others.push_back(tid);
  }
  // One may have begun such a wait meanwhile.
  const auto executes_nothing = [](pid_t tid) {
    const char state = process::state(tid);
    return state == 't' || state == 'D';
  };
  return waiter_.gather_from(others, kStopPatience, kMostPatience) || std::ranges::all_of(others, executes_nothing);
}

// Before an action is replaced by another: what a thread sets in between would be undone for a moment, in which a
// signal ends the program. Where there are many threads, that is left to chance; and of threads that wait in calls
// which could fail because of the stop, that they don't wake and change it within these microseconds.
void Jobs::stop_few_others(const Tracee& tracee) {
  if (tracee.process->threads.size() <= kMostLookedAt) stop_others(tracee, Sleepers::leave);
}

}  // namespace probed::tracer
