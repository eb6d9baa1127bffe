#include "daemon/base/process.hpp"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <vector>

namespace probed::process {

TEST_CASE("a stat file is read up to its last parenthesis, whatever the program calls itself") {
  const auto stat = parse_stat("77 (a) b) (x ) S 12 77 77 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987654321 1000 2 3\n");
  REQUIRE(stat.ok());
  CHECK(stat->comm == "a) b) (x ");
  CHECK(stat->state == 'S');
  CHECK(stat->parent == 12);
  CHECK(stat->flags == 4194560);
  CHECK(stat->threads == 1);
  CHECK(stat->start_time == 987654321);
  CHECK_FALSE(stat->kernel_thread());
}

TEST_CASE("what isn't a stat file is no stat") {
  for (const char* text :
       {"", "12", "12 (x", "12 x) S", "12 (x) S 1 2 3", "12 (x) SS 1 77 77 0 -1 1 1 2 3 4 5 6 7 8 20 0 1 0 9 1"}) {
    CAPTURE(text);
    CHECK_FALSE(parse_stat(text).ok());
  }
}

TEST_CASE("a process knows itself") {
  const pid_t self = ::getpid();
  const auto id = target_id(self);
  REQUIRE(id.ok());
  CHECK(id->pid == self);
  CHECK(id->start_time > 0);
  CHECK(comm(self) == "base-test");
  CHECK(exe(self).ends_with("/base-test"));
  CHECK(state(self) == 'R');
  CHECK_FALSE(is_kernel_thread(self));
  const auto who = credentials(self);
  REQUIRE(who.ok());
  CHECK(who->euid == ::geteuid());
  CHECK(who->rgid == ::getgid());
  const auto narrow = is_32bit(self);
  REQUIRE(narrow.ok());
  CHECK_FALSE(*narrow);
  const auto group = thread_group(self);
  REQUIRE(group.ok());
  CHECK(*group == self);
}

TEST_CASE("a name with blanks and parentheses is read whole") {
  char old[16] = {};
  ::prctl(PR_GET_NAME, old);
  ::prctl(PR_SET_NAME, ":) (S) 1 2");
  CHECK(comm(::getpid()) == ":) (S) 1 2");
  CHECK(state(::getpid()) == 'R');
  ::prctl(PR_SET_NAME, old);
}

TEST_CASE("every thread is listed") {
  pid_t other = 0;
  std::vector<pid_t> seen;
  std::thread thread([&] {
    other = ::gettid();
    const auto tids = thread_ids(::getpid());
    if (tids.ok()) seen = *tids;
  });
  thread.join();
  CHECK(std::find(seen.begin(), seen.end(), ::getpid()) != seen.end());
  CHECK(std::find(seen.begin(), seen.end(), other) != seen.end());
}

TEST_CASE("a tracer is named") {
  const pid_t child = ::fork();
  if (child == 0) {
    ::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
    ::raise(SIGSTOP);
    ::_exit(0);
  }
  ::waitpid(child, nullptr, WUNTRACED);
  const auto tracer = tracer_pid(child);
  CHECK((tracer.ok() && *tracer == ::getpid()));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  const auto none = tracer_pid(::getpid());
  REQUIRE(none.ok());
}

TEST_CASE("no process is no_such_process, everywhere") {
  for (const pid_t pid : {0, -1, 0x7fffffff}) {
    CAPTURE(pid);
    CHECK(target_id(pid).error().reason == Reason::no_such_process);
    CHECK(thread_ids(pid).error().reason == Reason::no_such_process);
    CHECK(tracer_pid(pid).error().reason == Reason::no_such_process);
    CHECK(credentials(pid).error().reason == Reason::no_such_process);
    CHECK(is_32bit(pid).error().reason == Reason::no_such_process);
    CHECK(comm(pid).empty());
    CHECK(exe(pid).empty());
    CHECK(state(pid) == '\0');
    CHECK_FALSE(is_kernel_thread(pid));
  }
}

}  // namespace probed::process
