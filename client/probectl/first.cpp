// See first.hpp.
#include "client/probectl/first.hpp"

#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>

namespace probed::client {
namespace {

// us: half a million events that are still to be printed take most of a second. On a single processor nobody else would
// have any of it.
constexpr rlim_t kMost = 1'000'000, kMostAlone = 300'000;
constexpr int kNice = -10;

void be_ordinary(int) {
  const sched_param none{};
  ::sched_setscheduler(0, SCHED_OTHER, &none);
}

}  // namespace

void go_first() {
  if (::sched_getscheduler(0) != SCHED_OTHER) return;  // somebody has chosen
  // setrlimit(2): SIGXCPU after so much time of a processor without a call that blocks, with a real-time priority.
  struct sigaction action {};
  action.sa_handler = be_ordinary;
  action.sa_flags = SA_RESTART;
  rlimit limit{};
  if (::getrlimit(RLIMIT_RTTIME, &limit) != 0 || ::sigaction(SIGXCPU, &action, nullptr) != 0) return;
  limit.rlim_cur = std::min(limit.rlim_max, ::sysconf(_SC_NPROCESSORS_ONLN) > 1 ? kMost : kMostAlone);
  sched_param param{};
  param.sched_priority = ::sched_get_priority_min(SCHED_RR);
  const bool bounded = ::setrlimit(RLIMIT_RTTIME, &limit) == 0;
  if (bounded && ::sched_setscheduler(0, SCHED_RR | SCHED_RESET_ON_FORK, &param) == 0) return;
  ::setpriority(PRIO_PROCESS, 0, kNice);
}

}  // namespace probed::client
