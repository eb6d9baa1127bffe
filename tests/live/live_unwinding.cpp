// Who unwinds a stack through functions that carry return probes sees the frames that it would see without: the program
// itself, a profiler beside it, a debugger afterwards.
//
// Thread: the test's own.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "tests/live/return_probes.hpp"

namespace probed::live {
namespace {

using Frames = std::vector<std::string>;

std::string first_line_of(const std::string& path) {
  const std::string text = read_file(path);
  return text.substr(0, text.find('\n'));
}

std::string text_of(const Frames& frames) {
  std::string text;
  for (const std::string& frame : frames) text += frame + " < ";
  return text;
}

// Of a profile's stacks: perf can't follow all of them, without probes either.
Frames most_frequent(const std::vector<Frames>& stacks) {
  const auto often = [&](const Frames& frames) { return std::ranges::count(stacks, frames); };
  return stacks.empty() ? Frames() : *std::ranges::max_element(stacks, {}, often);
}

// ---- perf -----------------------------------------------------------------------------------------------------------

// `perf script` with ip and sym: a line for each frame, "ADDRESS SYMBOL", samples in paragraphs. From spin() on.
std::vector<Frames> stacks_in(const std::string& script) {
  std::vector<Frames> stacks;
  Frames frames;
  std::istringstream lines(script + "\n");
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string address, symbol;
    if (words >> address >> symbol) {
      frames.push_back(symbol);
      continue;
    }
    const auto spin = std::ranges::find(frames, "spin");
    if (spin != frames.end()) stacks.emplace_back(spin, frames.end());
    frames.clear();
  }
  return stacks;
}

// While the program runs a command. Empty: perf can't, and `reason` says why.
std::vector<Frames> profile(Returns& program, const std::string& command, std::string& reason) {
  TempDir dir;
  const std::string file = dir / "perf.data";
  Process perf({"perf", "record", "-e", "cpu-clock", "-F", "499", "--call-graph", "dwarf,65528", "-o", file, "-p",
                std::to_string(program.pid()), "--", "sh", "-c", "echo on; cat"});
  if (perf.next_line() != "on") return reason = perf.errors(), std::vector<Frames>();
  program.ask(command);
  perf.close_input();
  perf.wait(Millis{30'000});
  const CommandResult script =
      run_command({"perf", "script", "-i", file, "-F", "ip,sym", "--no-inline"}, {}, Millis{60'000});
  reason = script.err;
  return stacks_in(script.out);
}

// ---- gdb ------------------------------------------------------------------------------------------------------------

// Where the kernel writes the core of a process that runs in that directory (core(5)); empty: to no file, or to one
// that we can't name.
std::string core_of(pid_t pid, const std::string& name, const std::string& directory) {
  const std::string pattern = first_line_of("/proc/sys/kernel/core_pattern");
  if (pattern.empty() || pattern[0] == '|') return {};
  std::string path;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '%' || i + 1 == pattern.size()) {
      path += pattern[i];
      continue;
    }
    switch (pattern[++i]) {
      case '%': path += '%'; break;
      case 'p':
      case 'P': path += std::to_string(pid); break;
      case 'e': path += name; break;
      default: return {};
    }
  }
  const bool has_pid = pattern.find("%p") != pattern.npos;
  if (!has_pid && first_line_of("/proc/sys/kernel/core_uses_pid") != "0") path += "." + std::to_string(pid);
  return path.starts_with('/') ? path : directory + "/" + path;
}

// "#3  0x... in NAME (...)" and "#0  NAME (...)"
Frames frames_in(const std::string& backtrace) {
  Frames frames;
  std::istringstream lines(backtrace);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with('#')) continue;
    std::istringstream words(line);
    std::string number, name, in;
    words >> number >> name;
    if (name.starts_with("0x")) words >> in >> name;
    frames.push_back(name);
  }
  return frames;
}

// Of its core dump, as gdb sees it. Empty: there is none, and `reason` says why.
Frames crash(Returns& program, const std::string& directory, std::string& reason) {
  const rlimit all{RLIM_INFINITY, RLIM_INFINITY};
  if (prlimit(program.pid(), RLIMIT_CORE, &all, nullptr) != 0) return reason = "RLIMIT_CORE can't be raised", Frames();
  const std::string core = core_of(program.pid(), "returns", directory);
  if (core.empty()) return reason = "core dumps don't go to a file here", Frames();
  program.target.send("crash 20\n");
  CHECK(program.target.wait() == Exit{-1, SIGABRT});
  if (!std::filesystem::exists(core)) return reason = "the kernel wrote no core file", Frames();
  const CommandResult gdb =
      run_command({"gdb", "-nx", "-batch", "-ex", "backtrace", target_path("returns"), core}, {}, Millis{60'000});
  std::filesystem::remove(core);
  reason = gdb.err;
  return frames_in(gdb.out);
}

}  // namespace

TEST_CASE("the program itself: backtrace(3) and libunwind") {
  for (const std::string name : {"returns", "returns-guarded"}) {
    CAPTURE(name);
    Session s(name);
    const std::string here = s.program.ask("unwind 100"), there = s.program.ask("libunwind 100");
    s.program.before = state_of(s.program.pid());  // with what the library has loaded and opened
    const Json probe = s.add_one("r:unwound unwound $retval");
    CHECK(s.program.ask("unwind 100") == here);
    CHECK(s.calls(probe) == Calls{101, 0, 0, 0, 0});
    CHECK(s.program.ask("libunwind 100") == there);
    CHECK(s.leaves_no_harm());
    if (there == "libunwind done -1") MESSAGE("libunwind8 is not installed: one unwinder less");
  }
}

TEST_CASE("perf, while a thread is below twenty probed frames") {
  Session s;
  std::string reason;
  const auto without = profile(s.program, "spin 20", reason);
  if (without.empty()) SKIP_TEST("perf record: " + reason);
  const Frames expected = most_frequent(without);
  REQUIRE_MESSAGE(std::ranges::count(expected, "unwound") == 21, text_of(expected));
  for (const bool optimize : {false, true}) {
    if (optimize && !kHasJumps) continue;
    CAPTURE(optimize);
    s.client.call("daemon.optimize", {{"enabled", optimize}});
    const Json probe = s.add_one("r:unwound unwound $retval");
    if (optimize) CHECK(eventually([&] { return s.client.call("daemon.status").at("optimized") == 1; }));
    const auto with = profile(s.program, "spin 20", reason);
    CHECK(with.size() > 20);
    const Frames seen = most_frequent(with);
    CHECK_MESSAGE(seen == expected, text_of(seen) << " without: " << text_of(expected));
    CHECK(std::ranges::count(with, expected) * 10 >= std::ssize(with) * 9);
    CHECK(s.calls(probe).hits == 21);
    remove_all(s.client, {probe});
  }
  CHECK(s.program.ends_well());
}

TEST_CASE("gdb, in the core of a program that died below twenty probed frames") {
  TempDir dir;
  std::string reason;
  Returns alone("returns", dir.path());
  const Frames expected = crash(alone, dir.path(), reason);
  if (expected.empty()) SKIP_TEST("no core: " + reason);
  REQUIRE(std::ranges::count(expected, "unwound") == 21);
  for (const bool optimize : {false, true}) {
    if (optimize && !kHasJumps) continue;
    CAPTURE(optimize);
    Daemon daemon;
    RpcClient client(daemon.socket());
    client.call("daemon.optimize", {{"enabled", optimize}});
    Returns program("returns", dir.path());
    const Json probe = add(client, program.pid(), {"r:unwound unwound $retval"}).at(0);
    if (optimize) CHECK(eventually([&] { return client.call("daemon.status").at("optimized") == 1; }));
    const Frames seen = crash(program, dir.path(), reason);
    CHECK_MESSAGE(seen == expected, text_of(seen) << reason);
  }
}

}  // namespace probed::live
