// Programs that a traced command or a followed child executes: `trace`'s definitions go on there, and what ran without
// them is told.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/live/freezer.hpp"
#include "tests/live/probing.hpp"

namespace probed::live {
namespace {

constexpr const char* kOpens = "p:o libc:open64 path=+0($arg1):string";

struct Traced {
  Exit exit;
  std::vector<std::string> opened_by;  // "comm path", of the file that is asked for
  std::string errors;
};

// `probectl trace ARGUMENTS -- COMMAND`: who has opened `file`, by the events.
Traced trace(const Daemon& daemon, std::vector<std::string> arguments, const std::vector<std::string>& command,
             const std::string& file) {
  arguments.insert(arguments.begin(), {"trace", "--json"});
  arguments.push_back("--");
  arguments.insert(arguments.end(), command.begin(), command.end());
  const CommandResult result = probectl(daemon, arguments);
  Traced traced{result.exit, {}, result.err};
  std::string text = result.out;
  for (std::size_t at = 0, end; (end = text.find('\n', at)) != std::string::npos; at = end + 1) {
    if (text[at] != '{') continue;  // what the command itself prints
    const Json event = Json::parse(text.substr(at, end - at));
    if (event.at("args").at("path") == file) traced.opened_by.push_back(event.at("comm"));
  }
  return traced;
}

struct File {
  TempDir dir;
  std::string path = dir / "read.txt";
  File() { write_file(path, "text\n"); }
};

using Names = std::vector<std::string>;
const Names kCat{"cat"}, kTwoCats{"cat", "cat"};

TEST_CASE("U5: a command that executes another program is traced there, too") {
  const Daemon daemon;
  const File file;
  const Traced once = trace(daemon, {"-e", kOpens}, {"env", "A=1", "cat", file.path}, file.path);
  CHECK_MESSAGE(once.opened_by == kCat, once.errors);
  CHECK(once.exit == Exit{0, 0});
  CHECK(once.errors.find("runs cat now; armed 1 probe there\n") != std::string::npos);
  CHECK(once.errors.find("not traced") == std::string::npos);
  const Traced often = trace(daemon, {"-e", kOpens}, {"env", "nice", "setsid", "env", "cat", file.path}, file.path);
  CHECK_MESSAGE(often.opened_by == kCat, often.errors);
  const Traced breakpoints =
      trace(daemon, {"-e", kOpens, "--no-optimize"}, {"env", "A=1", "cat", file.path}, file.path);
  CHECK_MESSAGE(breakpoints.opened_by == kCat, breakpoints.errors);
}

TEST_CASE("U5: a followed child that executes another program is traced there, too") {
  const Daemon daemon;
  const File file;
  const std::string script = "cat " + file.path + "; (exec nice cat " + file.path + "); :";
  const Traced shell = trace(daemon, {"--follow-fork", "-e", kOpens}, {"sh", "-c", script}, file.path);
  CHECK_MESSAGE(shell.opened_by == kTwoCats, shell.errors);
  CHECK(shell.errors.find("not traced") == std::string::npos);
  const Traced timed = trace(daemon, {"--follow-fork", "-e", kOpens}, {"timeout", "50", "cat", file.path}, file.path);
  CHECK_MESSAGE(timed.opened_by == kCat, timed.errors);
}

TEST_CASE("U5: a trace that follows ends with the last process, and tells how the first has ended") {
  const Daemon daemon;
  const File file;
  const auto run = [&](const std::string& script) {
    return trace(daemon, {"--follow-fork", "-e", kOpens}, {"bash", "-c", script}, file.path);
  };
  const auto says = [](const Traced& traced, const std::string& text) {
    return traced.errors.find(text) != std::string::npos;
  };
  // A child that lives on, and ends otherwise.
  const Traced killed = run("(sleep 0.3; kill -11 $BASHPID) & exit 9");
  CHECK_MESSAGE(says(killed, "ended (exit code 9); the trace goes on with "), killed.errors);
  CHECK_FALSE(says(killed, "signal 11"));
  // One that executes another program when its parent has gone; at once, too.
  for (const std::string pause : {"sleep 0.3; ", ""}) {
    const Traced executed = run("(" + pause + "exec cat " + file.path + ") & exit 9");
    CHECK_MESSAGE(executed.opened_by == kCat, executed.errors);
    CHECK_MESSAGE(says(executed, "ended (exit code 9)"), executed.errors);
  }
  // Longer than the two seconds that a lost report of the end is waited for.
  const Traced daemonised = run("(sleep 3; cat " + file.path + "; :) & exit 0");
  CHECK_MESSAGE(daemonised.opened_by == kCat, daemonised.errors);
  CHECK_FALSE(says(daemonised, "not traced"));
}

TEST_CASE("U5: a child whose parent ends as it is born is followed as others are") {
  const Daemon daemon;
  const File file;
  for (int i = 0; i < 20; ++i) {
    const Traced orphan =
        trace(daemon, {"--follow-fork", "-e", kOpens}, {"sh", "-c", "cat " + file.path + " & exit 0"}, file.path);
    REQUIRE_MESSAGE(orphan.opened_by == kCat, orphan.errors);
  }
}

TEST_CASE("children that weren't followed are told of") {
  const Daemon daemon;
  const File file;
  const std::string script = "cat " + file.path + "; (nice cat " + file.path + "); :";
  const Traced shell = trace(daemon, {"-e", kOpens}, {"sh", "-c", script}, file.path);
  CHECK(shell.opened_by.empty());
  CHECK(shell.exit == Exit{0, 0});
  CHECK_MESSAGE(shell.errors.find("not traced") != std::string::npos, shell.errors);
}

TEST_CASE("children that weren't followed are told of while their parent lives, too") {
  const Daemon daemon;
  Process shell({"sh", "-c", "while :; do ( : ); done"});  // no other program
  const CommandResult traced =
      probectl(daemon, {"trace", "-p", std::to_string(shell.pid()), "-e", "libc:wait4", "--duration", "0.5"});
  CHECK(traced.ok());
  CHECK_MESSAGE(traced.err.find(" children were not traced (--follow-fork traces children)") != std::string::npos,
                traced.err);
  shell.signal(SIGKILL);
  CHECK(shell.wait());
}

TEST_CASE("children that weren't followed are told of when their parent's next program ends the trace, too") {
  const Daemon daemon;
  Process parent({"/bin/sh", "-c", "read x; for i in 1 2 3; do (exit 0); done; exec sleep 300"});
  Process traced(probectl_argv(daemon, {"trace", "-p", std::to_string(parent.pid()), "-e", "libc:fork"}));
  REQUIRE(eventually([&] { return traced.errors().find("armed 1 probe") != std::string::npos; }));
  parent.send("go\n");
  CHECK(traced.wait() == Exit{0, 0});
  CHECK_MESSAGE(traced.errors().find("runs sleep now") != std::string::npos, traced.errors());
  CHECK_MESSAGE(traced.errors().find("3 children were not traced (--follow-fork traces children)") != std::string::npos,
                traced.errors());
}

TEST_CASE("what a definition names may come with a later program, or never; a program runs on in any case") {
  const Daemon daemon;
  const File file;
  // Only in the first: an address would be another place in the second.
  const Traced gone = trace(daemon, {"-e", kOpens, "-e", "p:none env:nowhere", "--pending"},
                            {"env", "A=1", "cat", file.path}, file.path);
  CHECK_MESSAGE(gone.opened_by == kCat, gone.errors);
  CHECK(gone.errors.find("1 probe pending") != std::string::npos);
  const Traced limited = trace(daemon, {"-e", kOpens, "--filter", "path == \"" + file.path + "\"", "--count", "1"},
                               {"env", "A=1", "cat", file.path, file.path}, file.path);
  CHECK_MESSAGE(limited.opened_by == kCat, limited.errors);
}

// The exec may come in the middle of the attach: what was planted in the new program was forgotten, and ended it.
TEST_CASE("a program that executes itself again and again lives on, whoever attaches to it and would hold its execs") {
  Daemon daemon;
  unsigned attached = 0;
  for (const char* pause : {"2000", "7000", "11000"}) {
    CAPTURE(std::string(pause));
    Process program({target_path("reborn"), "60", pause});
    while (program.running()) {
      RpcClient client(daemon.socket());
      const Json reply =
          client.request("target.attach", {{"pid", program.pid()}, {"holdAtEntry", true}, {"followFork", true}});
      attached += reply.contains("result");
    }
    CHECK_MESSAGE((program.wait() == Exit{0, 0}), program.errors());
    CHECK(program.output() == "result ok\n");
  }
  CHECK(attached > 20);
}

TEST_CASE("a program that is held for a client which is killed goes on, untraced") {
  const Daemon daemon;
  const File file;
  Process trace(probectl_argv(
      daemon, {"trace", "--follow-fork", "-e", kOpens, "--", "sh", "-c",
               "i=0; while [ $i -lt 200 ]; do env A=1 true; i=$((i+1)); done; echo done > " + file.path + "; :"}));
  std::size_t programs = 0;
  while (programs < 5) {
    const auto line = trace.next_error_line(Millis{20'000});
    REQUIRE(line);
    programs += line->find(" runs ") != std::string::npos;
  }
  trace.signal(SIGKILL);
  CHECK(eventually([&] { return read_file(file.path) == "done\n"; }, Millis{30'000}));
  CHECK(eventually([&] { return probectl(daemon, {"ps"}).out.empty(); }));
}

TEST_CASE("a program that is held at its entry is held still when its thread comes back late from a call for us") {
  const Freezer freezer;
  if (!freezer.usable()) SKIP_TEST("no control group can be made here");
  for (const bool resumed_meanwhile : {false, true}) {
    CAPTURE(resumed_meanwhile);
    const Daemon daemon;
    RpcClient client(daemon.socket()), other(daemon.socket());
    Process shell({"/bin/sh", "-c", "echo here; read x; exec /bin/echo begun"});
    REQUIRE(shell.next_line() == "here");
    if (!freezer.take(shell.pid())) SKIP_TEST("the process can't be put into a control group here");
    const Json pid = {{"pid", shell.pid()}};
    client.call("target.attach", {{"pid", shell.pid()}, {"holdAtEntry", true}});
    shell.send("go\n");
    const auto is_ready = [&] {
      const auto message = client.notification();
      return message && message->at("method") == "target.ready";
    };
    REQUIRE(eventually(is_ready));
    REQUIRE(freezer.set(true));
    const Json add = {{"pid", shell.pid()}, {"probes", {{{"definition", "p:w libc:write"}}}}};
    CHECK(client.refusal("probe.add", add) != "");
    if (resumed_meanwhile) other.call("target.resume", pid);
    REQUIRE(freezer.set(false));
    if (resumed_meanwhile) {
      CHECK(shell.next_line() == "begun");
      CHECK(shell.wait() == Exit{0, 0});
      continue;
    }
    client.call("probe.add", add);  // by the thread that has come back
    CHECK(shell.output() == "here\n");
    CHECK(thread_states(shell.pid()).begin()->second == 't');
    Events events(client, {{"probes", {"w"}}});
    client.call("target.resume", pid);
    CHECK(shell.next_line() == "begun");
    CHECK(shell.wait() == Exit{0, 0});
    CHECK(events.reach(1));
  }
}

TEST_CASE("a frozen process is refused before long, let go, and traced when it is thawed") {
  const Freezer freezer;
  if (!freezer.usable()) SKIP_TEST("no control group can be made here");
  const Daemon daemon;
  RpcClient client(daemon.socket());
  Watched target("family");
  if (!freezer.take(target.pid())) SKIP_TEST("the process can't be put into a control group here");
  REQUIRE(freezer.set(true));
  target.target.send("call 2\n");
  const auto began = Clock::now();
  const Json error = add_error(client, target.pid(), {"p:w work"});
  CHECK(Clock::now() - began < scaled(Millis{4500}));
  CHECK(reason_of(error) == "timed-out");
  CHECK_MESSAGE(hint_of(error).find("froz") != std::string::npos, error.dump());
  CHECK(client.call("target.list").at("targets").empty());
  REQUIRE(freezer.set(false));
  CHECK(target.target.next_line() == "called 2");
  CHECK(target.unharmed());
  const Json probe = add(client, target.pid(), {"p:w work"}).at(0);
  CHECK(target.ask("call 3") == "called 3");
  CHECK(counts_of(client, probe).hits == 3);
}

}  // namespace
}  // namespace probed::live
