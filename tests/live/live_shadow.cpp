// What others see of a process that we trace, and of one that we have let go: readers of its memory, debuggers, core
// dumps.
//
// Thread: the test's own.
#include <doctest/doctest.h>
#include <elf.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "tests/live/probing.hpp"
#include "tests/live/servers.hpp"

namespace probed::live {
namespace {

namespace fs = std::filesystem;

TEST_CASE("who reads a traced process's text sees one byte changed a probe, and none once it is disabled or gone") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched counter("counter");
  client.call("daemon.optimize", {{"enabled", false}});  // a jump changes more than one byte
  const std::vector<Json> probes = add(client, counter.pid(), {"work", "libc:getppid"});
  CHECK(text_differences(counter.pid()).size() == 2);
  client.call("probe.disable", ids_of({probes[0]}));
  CHECK(text_differences(counter.pid()).size() == 1);
  client.call("daemon.disarm");
  CHECK(text_differences(counter.pid()).empty());
  client.call("daemon.arm");
  CHECK(text_differences(counter.pid()).size() == 1);
  remove_all(client, probes);
  CHECK(text_differences(counter.pid()).empty());
  CHECK(counter.unharmed());
}

// ---- debuggers ------------------------------------------------------------------------------------------------------

CommandResult gdb(pid_t pid, const std::vector<std::string>& commands) {
  std::vector<std::string> argv{find_program("gdb"), "-nx", "-q", "-batch", "-p", std::to_string(pid)};
  for (const std::string& command : commands) argv.insert(argv.end(), {"-ex", command});
  SpawnOptions options;
  options.environment = {"DEBUGINFOD_URLS="};
  return run_command(argv, options, Millis{60'000});
}

const std::vector<std::string> kDebug = {"break work", "continue", "print a", "finish", "delete", "detach"};

bool debugged_normally(const CommandResult& result) {
  return result.ok() && result.out.find("Breakpoint 1, ") != std::string::npos &&
         result.out.find("Value returned is") != std::string::npos;
}

TEST_CASE("a debugger is kept out while we trace, does no harm by trying, and debugs normally once we have let go") {
  if (find_program("gdb").empty()) SKIP_TEST("gdb is not installed");
  Daemon daemon;
  Watched counter("counter", {"1", "0"});
  {
    RpcClient client(daemon.socket());
    const Json probe = add(client, counter.pid(), {"work"}, {{"x-step", true}}).at(0);
    counter.target.go();
    const CommandResult refused = gdb(counter.pid(), kDebug);
    CHECK(!debugged_normally(refused));
    CHECK_MESSAGE((refused.out + refused.err).find("ptrace: ") != std::string::npos, refused.out, refused.err);
    const std::uint64_t hits = counts_of(client, probe).hits;
    CHECK(eventually([&] { return counts_of(client, probe).hits > hits; }));
    client.call("target.detach", {{"pid", counter.pid()}});
  }
  REQUIRE(eventually([&] { return tracer_of(counter.pid()) == 0; }));
  const CommandResult debugged = gdb(counter.pid(), kDebug);
  CHECK_MESSAGE(debugged_normally(debugged), debugged.out, debugged.err);
  // And we trace normally once it has let go.
  RpcClient client(daemon.socket());
  const Json probe = add(client, counter.pid(), {"work"}).at(0);
  CHECK(eventually([&] { return counts_of(client, probe).hits > 10; }));
  counter.target.go();
  const TargetReport report = counter.target.finish();
  CHECK_MESSAGE(report.ok(), report.out, counter.target.errors());
}

// ---- core dumps -----------------------------------------------------------------------------------------------------

// The bytes that a core file holds of an address; empty when it has none of it.
std::vector<std::uint8_t> bytes_in_core(const std::string& core, std::uint64_t address, std::size_t size) {
  Elf64_Ehdr header{};
  if (core.size() < sizeof header) return {};
  std::memcpy(&header, core.data(), sizeof header);
  for (unsigned i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment{};
    std::memcpy(&segment, core.data() + header.e_phoff + i * sizeof segment, sizeof segment);
    const std::uint64_t offset = address - segment.p_vaddr;
    if (segment.p_type != PT_LOAD || address < segment.p_vaddr || offset + size > segment.p_filesz) continue;
    const auto* at = reinterpret_cast<const std::uint8_t*>(core.data()) + segment.p_offset + offset;
    return {at, at + size};
  }
  return {};
}

std::string only_core_in(const std::string& directory) {
  for (const auto& entry : fs::directory_iterator(directory))
    if (entry.path().filename().string().starts_with("core")) return read_file(entry.path());
  return {};
}

TEST_CASE("a core dump of a probed program holds the program's own bytes") {
  if (!read_file("/proc/sys/kernel/core_pattern").starts_with("core")) SKIP_TEST("core dumps don't go to a file here");
  for (const int signal : {SIGABRT, SIGQUIT}) {
    CAPTURE(signal);
    TempDir dir;
    SpawnOptions options;
    options.directory = dir.path();
    Process target({target_path("confined"), "free"}, options);
    REQUIRE(target.next_line().value_or("").starts_with("ready "));
    rlimit limit{RLIM_INFINITY, RLIM_INFINITY};
    if (prlimit(target.pid(), RLIMIT_CORE, &limit, nullptr) != 0) SKIP_TEST("RLIMIT_CORE can't be raised");
    Daemon daemon;
    RpcClient client(daemon.socket());
    const std::vector<Json> probes = add(client, target.pid(), {"work", "libc:write"}, {{"x-step", true}});
    target.send("go\n");
    REQUIRE(target.next_line() == "done 100 0");
    target.signal(signal);
    CHECK(target.wait() == Exit{-1, signal});
    const std::string core = only_core_in(dir.path());
    if (core.empty()) SKIP_TEST("the kernel wrote no core file");
    for (const Json& probe : probes) {
      CHECK(!begins_with_probe(bytes_in_core(core, address_of(probe), 4)));
    }
  }
}

TEST_CASE("no child is left when everything was torn down") { CHECK(joined(children_left()) == ""); }

}  // namespace
}  // namespace probed::live
