// Registers that system calls may change (the Scalable Vector Extension's): a thread that is borrowed for calls in the
// middle of its work has them back afterwards.
#include <doctest/doctest.h>

#include "tests/live/probing.hpp"

namespace probed::live {
namespace {

TEST_CASE("vector registers of threads that are interrupted, and make calls for us, keep all of their bits") {
  constexpr Exit kLacking{77, 0};
  if (run_command({target_path("vectors")}).exit == kLacking) SKIP_TEST("this processor has no SVE");
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched vectors("vectors");
  vectors.target.go();
  REQUIRE(vectors.runs_threads(3));
  for (int round = 0; round < 40; ++round) {
    remove_all(client, add(client, vectors.pid(), {"work", "libc:getppid"}, {{"x-step", round % 2 == 1}}));
    if (round % 4 == 0) client.request("target.detach", {{"pid", vectors.pid()}});
  }
  CHECK(vectors.unharmed());
  vectors.target.go();
  const TargetReport report = vectors.target.finish();
  CHECK_MESSAGE(report.ok(), report.out, vectors.target.errors());
  CHECK(report.value("rounds") > 100);
}

}  // namespace
}  // namespace probed::live
