#include "daemon/base/own_limits.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <time.h>

#include <cerrno>
#include <cstring>

namespace probed {
namespace {

constexpr rlim_t kFewestDescriptors = 128;  // some 40 of its own, 64 to look at a process with

// RLIM_INFINITY needs CAP_SYS_RESOURCE.
void raise(__rlimit_resource_t what, bool without_bound) {
  rlimit limit{};
  if (::getrlimit(what, &limit) != 0) return;
  const rlimit all{RLIM_INFINITY, RLIM_INFINITY};
  if (without_bound && ::setrlimit(what, &all) == 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(what, &limit);
}

int make_timer_once() {
  sigevent event{};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGALRM;
  timer_t timer{};
  if (::timer_create(CLOCK_MONOTONIC, &event, &timer) != 0) return errno;
  ::timer_delete(timer);
  return 0;
}

}  // namespace

void raise_own_limits() {
  raise(RLIMIT_NOFILE, false);
  raise(RLIMIT_SIGPENDING, true);
}

Result<void> check_own_limits() {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < kFewestDescriptors)
    return Error{Reason::limit_exceeded,
                 fmt::format("probed needs {} file descriptors, and may have {}", kFewestDescriptors, files.rlim_cur),
                 "raise the limit: ulimit -n, LimitNOFILE=",
                 {}};
  if (const int error = make_timer_once(); error != 0)
    return Error{Reason::limit_exceeded,
                 fmt::format("probed needs timers, and can't make one: {}", std::strerror(error)),
                 "raise the limit of signals that wait: ulimit -i, LimitSIGPENDING=; or end programs of this user "
                 "that leave many waiting",
                 {}};
  return {};
}

}  // namespace probed
