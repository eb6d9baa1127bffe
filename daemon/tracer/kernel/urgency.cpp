#include "daemon/tracer/kernel/urgency.hpp"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "daemon/base/own_processes.hpp"
#include "daemon/base/process.hpp"
#include "daemon/tracer/kernel/apart.hpp"

namespace probed::tracer {
namespace {

using namespace std::chrono_literals;
using std::chrono::nanoseconds;

// Where there are other processors for the rest: enough for the second in which all functions of a large library are
// armed and become jumps, with a program that runs through them all the time.
constexpr Allowance::Limits kWithOtherProcessors{1s, 60, 6ms};
constexpr auto kLookEvery = 4ms;
constexpr auto kRestAfter = 100ms;
constexpr int kNice = -10;
constexpr std::uint64_t kSlice = 200'000;    // ns; the kernel's own is some milliseconds
constexpr nanoseconds kNothing = 50us;       // of processor time between two looks
constexpr nanoseconds kWorthTelling = 20ms;  // a wait for a processor
constexpr auto kTellEvery = 60s;

nanoseconds read_clock(clockid_t clock) {
  timespec t{};
  clock_gettime(clock, &t);
  return std::chrono::seconds(t.tv_sec) + nanoseconds(t.tv_nsec);
}

// sched_setattr(2), which glibc 2.36 has no function for; struct sched_attr, version 0.
struct Attributes {
  std::uint32_t size = sizeof(Attributes), policy = SCHED_OTHER;
  std::uint64_t flags = 1;  // SCHED_FLAG_RESET_ON_FORK
  std::int32_t nice = 0;
  std::uint32_t priority = 0;
  std::uint64_t runtime = 0, deadline = 0, period = 0;
};

// Kernels before 6.12 accept the slice and ignore it: only what can be read back is there.
bool take_slice(pid_t tid, int nice) {
  Attributes wanted, now;
  wanted.nice = nice;
  wanted.runtime = kSlice;
  if (syscall(SYS_sched_setattr, tid, &wanted, 0) != 0) return false;
  return syscall(SYS_sched_getattr, tid, &now, sizeof now, 0) == 0 && now.runtime == kSlice;
}

bool set_policy(pid_t tid, int policy, int above_lowest) {
  sched_param param{};
  if (policy == SCHED_RR) param.sched_priority = ::sched_get_priority_min(policy) + above_lowest;
  return ::sched_setscheduler(tid, policy | SCHED_RESET_ON_FORK, &param) == 0;
}

bool set_nice(pid_t tid, int nice) { return ::setpriority(PRIO_PROCESS, static_cast<id_t>(tid), nice) == 0; }

bool is_realtime(int policy) { return policy == SCHED_FIFO || policy == SCHED_RR || policy == SCHED_DEADLINE; }

const char* what_helps(Urgency::Means means) {
  if (means == Urgency::Means::realtime)
    return "it has used up what it may have before others: probe less that stays a breakpoint (probectl list -v says "
           "why)";
  return "let probed have a real-time priority: run it as root, or raise its limit (LimitRTPRIO=2, ulimit -r 2)";
}

}  // namespace

Urgency::~Urgency() {
  if (!keeper_.joinable()) return;
  stopping_.store(true);
  wake();
  keeper_.join();
}

void Urgency::bind_to_this_thread() {
  tracer_ = gettid();
  policy_ = ::sched_getscheduler(0) & ~SCHED_RESET_ON_FORK;
  nice_ = ::getpriority(PRIO_PROCESS, 0);
  is_apart_ = tracer_process() == ::getpid() && tracer_process() != daemon_process();
  if (is_apart_)
    ::clock_getcpuclockid(tracer_, &tracer_clock_);
  else
    pthread_getcpuclockid(pthread_self(), &tracer_clock_);
  schedstat_.reset(::open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC));
}

// Without a keeper nobody goes first.
void Urgency::begin() {
  if (is_realtime(policy_)) return means_.store(Means::realtime);
  if (::sysconf(_SC_NPROCESSORS_ONLN) > 1) tracer_allowance_ = Allowance(kWithOtherProcessors);
  bell_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!bell_) return;
  last_active_ = Clock::now();
  active_.store(true);
  // No handler of this process is its business.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  keeper_ = std::thread([this] { keep(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  while (keeper_tid_.load() == 0) ::sched_yield();
}

void Urgency::note_activity() {
  active_.store(true);
  if (asleep_.load()) wake();
}

void Urgency::hurry_others(Clock::duration how_long) {
  const Clock::rep until = (Clock::now() + how_long).time_since_epoch().count();
  Clock::rep before = others_until_.load();
  while (before < until && !others_until_.compare_exchange_weak(before, until)) {
  }
  note_activity();
}

void Urgency::wake() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = ::write(bell_.get(), &one, sizeof one);  // only fails when it is ringing already
}

// ---- the keeper -----------------------------------------------------------------------------------------------------

void Urgency::keep() {
  pthread_setname_np(pthread_self(), "urgency");
  choose_means();
  keeper_tid_.store(gettid());
  while (!stopping_.load()) {
    look();
    rest(may_rest(Clock::now()));
  }
}

// Nothing is lost between the look and the sleep: who becomes active either sees that we are asleep, or is seen.
void Urgency::rest(bool until_woken) {
  asleep_.store(true);
  const bool again = active_.exchange(false);
  pollfd bell{bell_.get(), POLLIN, 0};
  const int limit = until_woken && !again ? -1 : static_cast<int>(kLookEvery / 1ms);
  if (again) last_active_ = Clock::now();
  if (limit > 0) asleep_.store(false);  // it looks soon enough by itself
  if (!stopping_.load()) ::poll(&bell, 1, limit);
  asleep_.store(false);
  std::uint64_t rings = 0;
  [[maybe_unused]] const ssize_t n = ::read(bell_.get(), &rings, sizeof rings);
}

bool Urgency::may_rest(Clock::time_point now) {
  return tracer_first_ && hurried_.empty() && now - last_active_ > kRestAfter &&
         now.time_since_epoch().count() >= others_until_.load();
}

void Urgency::choose_means() {
  const pid_t own = gettid();
  const bool slice = take_slice(tracer_, nice_);
  const pid_t waiting = waiting_thread();
  if ((set_policy(own, SCHED_RR, 1) || set_policy(own, SCHED_RR, 0)) && set_policy(tracer_, SCHED_RR, 0)) {
    if (waiting != 0) set_policy(waiting, SCHED_RR, 0);  // it only ever runs to end, and the tracer is told of that
    return means_.store(Means::realtime);
  }
  const int why = errno;
  set_policy(own, SCHED_OTHER, 0);
  if (set_nice(tracer_, kNice)) {
    set_nice(own, kNice);
    means_.store(Means::nice);
  } else if (slice) {
    take_slice(own, nice_);
    means_.store(Means::slice);
  }
  spdlog::info(
      "the tracer thread may not have a real-time priority ({}), and has a {} instead: on a busy machine threads "
      "of targets stand still while it waits for a processor; {}",
      std::strerror(why),
      means() == Means::nice    ? "nice value of -10"
      : means() == Means::slice ? "short time slice"
                                : "place in line like others",
      what_helps(means()));
}

bool Urgency::put_first(pid_t tid) const {
  return means() == Means::realtime ? set_policy(tid, SCHED_RR, 0) : set_nice(tid, kNice);
}

void Urgency::hurry_to_the_end() const {
  put_first(tracer_);
  if (const auto ids = process::thread_ids(daemon_process()))
    for (const pid_t tid : *ids) put_first(tid);
}

void Urgency::put_back(pid_t tid) const {
  if (means() == Means::realtime)
    set_policy(tid, policy_, 0);
  else
    set_nice(tid, nice_);
}

void Urgency::look() {
  const auto now = Clock::now();
  const nanoseconds used = read_clock(tracer_clock_);
  if (used - last_used_ > kNothing) last_active_ = now;
  last_used_ = used;
  look_for_starvation(now);
  if (means() != Means::realtime && means() != Means::nice) return;
  const bool first = tracer_allowance_.look(now.time_since_epoch(), used);
  if (first != std::exchange(tracer_first_, first)) first ? void(put_first(tracer_)) : put_back(tracer_);
  look_at_others(now, read_clock(CLOCK_PROCESS_CPUTIME_ID) - (is_apart_ ? nanoseconds(0) : used));
}

void Urgency::look_at_others(Clock::time_point now, nanoseconds used) {
  const bool wanted = now.time_since_epoch().count() < others_until_.load();
  const bool first = others_allowance_.look(now.time_since_epoch(), used) && wanted;
  if (!first) {
    for (const pid_t tid : std::exchange(hurried_, {})) put_back(tid);
    return;
  }
  for (const pid_t tid : other_threads())
    if (!hurried_.contains(tid) && put_first(tid)) hurried_.insert(tid);
}

std::set<pid_t> Urgency::other_threads() const {
  std::set<pid_t> others;
  if (const auto ids = process::thread_ids(getpid())) others.insert(ids->begin(), ids->end());
  others.erase(tracer_);
  others.erase(keeper_tid_.load());
  return others;
}

// Documentation/scheduler/sched-stats.rst: time run, time waited for a processor, times run. Of several waits since the
// last look only the sum is known: their average is what is told.
void Urgency::look_for_starvation(Clock::time_point now) {
  char text[96] = {};
  unsigned long long ran = 0, waited = 0, times = 0;
  if (!schedstat_ || ::pread(schedstat_.get(), text, sizeof text - 1, 0) <= 0) return;
  if (std::sscanf(text, "%llu %llu %llu", &ran, &waited, &times) != 3) return;
  const std::uint64_t since = waited - std::exchange(waited_, waited);
  const std::uint64_t runs = std::max<std::uint64_t>(1, times - std::exchange(times_run_, times));
  const nanoseconds wait(since / runs);
  if (wait < kWorthTelling) return;
  starved_.fetch_add(since);
  longest_wait_.store(std::max(longest_wait_.load(), static_cast<std::uint64_t>(wait.count())));
  tell_starved(wait, now);
}

void Urgency::tell_starved(nanoseconds wait, Clock::time_point now) {
  if (told_ != Clock::time_point() && now - told_ < kTellEvery) return;
  told_ = now;
  spdlog::warn(
      "the tracer thread has waited {} ms for a processor: threads of targets that were stopped for it stood still "
      "for as long; {}",
      wait / 1ms, what_helps(means()));
}

}  // namespace probed::tracer
