// What another probed in the way is known by.
#include "daemon/api/advice.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

using namespace probed;
using namespace probed::api;
using namespace std::string_view_literals;

TEST_CASE("where another daemon listens is read from how it was started") {
  struct Row {
    std::string_view cmdline, environ;
    const char* socket;
    bool for_one_trace;
  };
  const Row rows[] = {
      {"probed\0"sv, "", "/run/probed/probed.sock", false},
      {"probed\0--socket\0/tmp/d.sock\0"sv, "PROBED_SOCKET=/x\0"sv, "/tmp/d.sock", false},
      {"probed\0--socket=/tmp/d.sock\0"sv, "", "/tmp/d.sock", false},
      {"probed\0"sv, "A=b\0PROBED_SOCKET=/x\0"sv, "/x", false},
      {"probed\0"sv, "PROBED_SOCKET=\0"sv, "/run/probed/probed.sock", false},
      {"probed\0--socket-mode\0000660\0"sv, "", "/run/probed/probed.sock", false},
      {"probed\0--socket\0/r/s\0--lifetime-fd\0005\0"sv, "", "/r/s", true},
      {"probed\0--socket"sv, "", "/run/probed/probed.sock", false},
      {"", "", "/run/probed/probed.sock", false},
  };
  for (const Row& row : rows) {
    CAPTURE(row.cmdline);
    const OtherDaemon daemon = describe_daemon(row.cmdline, row.environ);
    CHECK(daemon.socket == row.socket);
    CHECK(daemon.for_one_trace == row.for_one_trace);
  }
}

TEST_CASE("errors that another daemon has no part in stay as they are") {
  for (const Reason reason : {Reason::no_such_process, Reason::already_traced}) {
    const Error error =
        with_advice({reason, "m", "h", {}}, getpid(), getuid());  // which nobody traces, or no probed does
    CHECK(error.message == "m");
    CHECK(error.hint == "h");
  }
}
