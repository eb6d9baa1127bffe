// 64-bit programs that go to 32-bit code and back, and whose segments the kernel sets for no tracer: they compute and
// see what they do without us, however they are traced, and let go at any time.
#include <doctest/doctest.h>
#include <signal.h>

#include <algorithm>
#include <sstream>
#include <thread>

#include "tests/live/probing.hpp"

namespace probed::live {
namespace {

#define NEEDS_32_BIT() \
  if (!executes_32bit_code()) SKIP_TEST("this kernel executes no 32-bit code (ia32_emulation)")

const std::vector<std::string> kCommands{"own 20", "calls 5", "ticks 20", "own16 20", "raise 20", "segments 20"};

struct Modes {
  Modes() : client(daemon.socket()), target("modes") {}
  void check(const std::string& command) { CHECK(target.ask(command) == command.substr(0, command.find(' ')) + " ok"); }
  void check_end() {
    target.target.send("end\n");
    const TargetReport report = target.target.finish();
    CHECK_MESSAGE(report.ok(), report.out, target.target.errors());
  }
  std::string tier() { return list_probes(client, target.pid()).at(0).value("tier", ""); }

  Daemon daemon;
  RpcClient client;
  Watched target;
};

// The parameters of the next probe.gone; null: none came.
Json told_of_gone(RpcClient& client) {
  while (const auto told = client.notification())
    if (told->value("method", "") == "probe.gone") return told->at("params");
  return nullptr;
}

TEST_CASE("signals, traps and calls in 32-bit and 16-bit code, and odd segments, are as without a tracer") {
  NEEDS_32_BIT();
  for (const bool step : {false, true}) {
    Modes modes;
    add(modes.client, modes.target.pid(), {"in_segments n=$arg1", "sigtrap", "run32"}, {{"x-step", step}});
    for (const std::string& command : kCommands) modes.check(command);
    modes.check_end();
  }
}

TEST_CASE("a thread that never leaves 32-bit code is let go in bounded time") {
  NEEDS_32_BIT();
  Modes modes;
  const Json probe = add(modes.client, modes.target.pid(), {"sigtrap"}).at(0);
  CHECK(modes.target.ask("stay 8000") == "in");
  const auto begin = std::chrono::steady_clock::now();
  CHECK(modes.client.request("target.detach", {{"pid", modes.target.pid()}}).contains("result"));
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(7));  // and not only when it is back
  CHECK(tracer_of(modes.target.pid()) == 0);
  CHECK(modes.target.target.next_line().value_or("") == "stay ok");
  modes.check("own 5");
  modes.check_end();
}

TEST_CASE("a thread that is stopped by job control in 32-bit code stays stopped, whatever it is wanted for") {
  NEEDS_32_BIT();
  Modes modes;
  const pid_t pid = modes.target.pid();
  modes.client.call("target.attach", {{"pid", pid}});
  CHECK(modes.target.ask("stay 3000") == "in");
  modes.target.target.signal(SIGSTOP);
  const auto stands = [&] { return std::string("Tt").find(thread_states(pid)[pid]) != std::string::npos; };
  CHECK(eventually(stands));
  REQUIRE(modes.client.send_raw(request_text("probe.add", add_params(pid, {"sigtrap"}, Json::object())) + "\n"));
  const auto ticks = [&] {  // proc_pid_stat(5): utime, behind the name
    std::istringstream stat(read_file("/proc/" + std::to_string(pid) + "/stat"));
    std::string word;
    while (stat >> word && !word.ends_with(')')) continue;
    for (int i = 0; i < 12; ++i) stat >> word;
    return std::stol(word);
  };
  const long before = ticks();
  std::this_thread::sleep_for(Millis{600});  // in which it would run
  CHECK(ticks() - before < 10);
  CHECK(stands());
  modes.target.target.signal(SIGCONT);
  CHECK(modes.target.target.next_line().value_or("") == "stay ok");
  modes.check("own 5");
  modes.check_end();
}

TEST_CASE("a thread that is in 32-bit code is attached to, and asked for memory when it is back") {
  NEEDS_32_BIT();
  Modes modes;
  CHECK(modes.target.ask("stay 1500") == "in");
  add(modes.client, modes.target.pid(), {"in_segments"});
  CHECK(modes.target.target.next_line().value_or("") == "stay ok");
  for (const std::string& command : kCommands) modes.check(command);
  modes.check_end();
}

TEST_CASE("a probe that 32-bit code runs into goes, is told of with the reason, and isn't taken there again") {
  NEEDS_32_BIT();
  for (const bool optimize : {false, true}) {
    CAPTURE(optimize);
    Modes modes;
    Json params = add_params(modes.target.pid(), {"answer32"});
    params["probes"][0] = {{"definition", "answer32"}, {"optimize", optimize}};
    const Json answer = modes.client.request("probe.add", params);
    REQUIRE_MESSAGE(answer.contains("result"), answer.dump());
    const Json probe = answer.at("result").at("probes").at(0);
    if (optimize)
      CHECK(eventually([&] {
        return list_probes(modes.client, modes.target.pid()).at(0).value("tierReason", "").find("64-bit") !=
               std::string::npos;
      }));
    modes.check("code 20");
    const Json gone = told_of_gone(modes.client);
    REQUIRE(gone.is_object());
    CHECK(gone.at("ids").at(0) == probe.at("id"));
    CHECK(gone.value("message", "").find("32-bit code") != std::string::npos);
    CHECK(!has_breakpoint(modes.target.pid(), address_of(probe)));
    const Json refused = add_error(modes.client, modes.target.pid(), {"answer32"});
    CHECK(reason_of(refused) == "unsupported-instruction");
    CHECK(refused.dump().find("32-bit code") != std::string::npos);
    modes.check("code 20");
    modes.check_end();
  }
}

TEST_CASE("code that is executed in both modes is no place for a probe") {
  NEEDS_32_BIT();
  Modes modes;
  const Json probe = add(modes.client, modes.target.pid(), {"either"}).at(0);
  for (int i = 0; i < 3; ++i) modes.check("both 20");
  CHECK(!has_breakpoint(modes.target.pid(), address_of(probe)));
  modes.check_end();
}

TEST_CASE("64-bit code below 4 GiB that no unwind table covers becomes a jump behind its first hit") {
  NEEDS_32_BIT();
  Modes modes;
  const Json probe = add(modes.client, modes.target.pid(), {"in_segments"}).at(0);
  modes.check("segments 2");
  CHECK(eventually([&] { return modes.tier() == "optimized"; }));
  modes.check("segments 20");
  CHECK(counts_of(modes.client, probe).hits >= 44);
  modes.check("own 2");
  modes.check("segments 20");
  modes.check_end();
}

TEST_CASE("no child is left when everything was torn down") { CHECK(joined(children_left()) == ""); }

}  // namespace
}  // namespace probed::live
