// A user who may connect to a root daemon: what he is told while his process executes a set-user-ID program again and
// again, and who waits when he keeps every connection that he may have busy.
#include <doctest/doctest.h>
#include <pwd.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/live/probing.hpp"
#include "tests/live/users.hpp"

namespace probed::live {
namespace {

namespace fs = std::filesystem;

#define NEEDS_USERS() \
  if (::geteuid() != 0 || !::getpwnam("nobody")) SKIP_TEST("needs root and a user nobody")

// Executes the other one of two programs without end: a plain one, and a set-user-ID one of root's, which alone has
// secret_of_root(). The latter gives up its privileges before it executes the plain one.
constexpr const char* kHopper = R"(
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#ifdef PRIVILEGED
__attribute__((noinline, used)) int secret_of_root(int secret_argument) { return secret_argument + 1; }
#else
__attribute__((noinline, used)) int plain_of_user(int x) { return x - 1; }
#endif
int main(int argc, char **argv) {
  static char text[16];
  int hops = atoi(argv[3]) - 1;
  if (hops % 100 == 0) { printf("hops %d\n", hops); fflush(stdout); }
  if (hops <= 0) { puts("result ok"); return 0; }
  snprintf(text, sizeof text, "%d", hops);
  usleep(1000);
#ifdef PRIVILEGED
  if (setresgid(getgid(), getgid(), getgid()) || setresuid(getuid(), getuid(), getuid())) return 1;
  execl(argv[1], argv[1], argv[1], argv[2], text, (char *)0);
#else
  execl(argv[2], argv[2], argv[1], argv[2], text, (char *)0);
#endif
  return 1;
}
)";

struct Hopper {
  Hopper() {
    std::ofstream(dir / "secret.c") << kHopper;
    const std::string script = "cd " + dir.path() +
                               " && cc -w -g -O1 -o plain secret.c && cc -w -g -O1 -DPRIVILEGED -o privileged secret.c "
                               "&& chmod 755 . plain && chown root privileged && chmod 4755 privileged";
    built = run_command({"sh", "-c", script}).ok();
  }
  Process run(int hops) {
    SpawnOptions options;
    options.user = "nobody";
    options.directory = "/";
    return Process({dir / "plain", dir / "plain", dir / "privileged", std::to_string(hops)}, options);
  }
  TempDir dir;
  bool built = false;
};

// What a privileged program's answers have, whoever asks.
bool tells_secret(const std::string& answer) { return answer.find("secret_") != std::string::npos; }

// A debuginfod server that accepts and never answers, for the daemons that are started while it is there.
class SilentServer {
 public:
  SilentServer() : process_({"/usr/bin/python3", "-u", "-c", kCode}) {
    const std::string line = process_.next_line(Millis{30'000}).value_or("");
    REQUIRE(line.starts_with("port "));
    ::setenv("DEBUGINFOD_URLS", ("http://127.0.0.1:" + line.substr(5)).c_str(), 1);
    ::setenv("DEBUGINFOD_CACHE_PATH", cache_.path().c_str(), 1);
  }
  ~SilentServer() {
    ::unsetenv("DEBUGINFOD_URLS");
    ::unsetenv("DEBUGINFOD_CACHE_PATH");
  }
  bool was_asked() { return process_.next_line(Millis{30'000}).value_or("") == "asked"; }

 private:
  static constexpr const char* kCode =
      "import socket\n"
      "s = socket.create_server(('127.0.0.1', 0))\n"
      "print('port %d' % s.getsockname()[1], flush=True)\n"
      "kept = []\n"
      "while True:\n"
      "    kept.append(s.accept())\n"
      "    print('asked', flush=True)\n";
  TempDir cache_;
  Process process_;
};

// Copies that the user may execute.
class Programs {
 public:
  Programs() { ::chmod(dir_.path().c_str(), 0755); }
  std::unique_ptr<Process> run(const std::string& name, const std::string& as) {
    return run_file(target_path(name), as);
  }
  std::unique_ptr<Process> run_file(const std::string& file, const std::string& as) {
    fs::copy_file(file, dir_ / as);
    SpawnOptions options;
    options.user = "nobody";
    options.directory = "/";
    auto process = std::make_unique<Process>(std::vector<std::string>{dir_ / as}, options);
    REQUIRE(process->next_line().value_or("").starts_with("ready"));
    return process;
  }

 private:
  TempDir dir_;
};

}  // namespace

TEST_CASE("what a set-user-ID program is made of isn't told, whenever it is executed while somebody asks") {
  NEEDS_USERS();
  Hopper hopper;
  if (!hopper.built) SKIP_TEST("needs cc");
  Nobody both;
  REQUIRE(both.usable());
  RpcClient& client = *both.client;
  const int hops = chosen_cycles(1000);
  Process target = hopper.run(hops);
  REQUIRE(target.next_line().has_value());
  const Json pid{{"pid", target.pid()}};
  const auto with = [&](const char* key, const Json& value) {
    Json params = pid;
    params[key] = value;
    return params;
  };
  const std::vector<std::pair<std::string, Json>> questions{
      {"symbols.functions", with("glob", "*_of_*")},
      {"symbols.variables", with("location", "secret_of_root")},
      {"symbols.lines", with("file", "secret.c")},
  };
  int answers = 0, told = 0;
  std::string first;
  while (target.running()) {
    for (const auto& [method, params] : questions) {
      const Json answer = client.request(method, params);
      REQUIRE(!answer.is_null());
      ++answers;
      // The name of what was asked for is in refusals of the plain program, too.
      const std::string text = answer.contains("result") ? answer.at("result").dump() : std::string();
      if (tells_secret(text) && text.find("secret_of_root") != std::string::npos && ++told == 1) first = text;
    }
  }
  MESSAGE(answers, " answers about ", hops, " programs");
  CHECK_MESSAGE(told == 0, told, " of ", answers, " answers, the first: ", first.substr(0, 400));
  CHECK(answers > 20);
  CHECK(target.wait() == Exit{0, 0});
  CHECK(target.output().ends_with("result ok\n"));
}

TEST_CASE("a user who keeps twelve connections busy makes neither root wait nor his own changes to probes") {
  NEEDS_USERS();
  const bool linked = read_file(required_environment("PROBED_BIN")).find("libdebuginfod.so") != std::string::npos;
  if (!linked || ::access("/usr/bin/python3", X_OK) != 0)
    SKIP_TEST("needs probed built with libdebuginfod, and python3");
  SilentServer server;
  Nobody both;
  REQUIRE(both.usable());
  Programs programs;
  const auto stripped = programs.run("counter-stripped", "stripped"), own = programs.run("family", "own");
  std::vector<std::unique_ptr<RpcClient>> busy;
  for (int i = 0; i < 12; ++i) {
    busy.push_back(both.another());
    REQUIRE(busy.back()->send_raw(request_text("symbols.functions", {{"pid", stripped->pid()}, {"glob", "frame*"}})));
  }
  REQUIRE(server.was_asked());
  const auto nobody_answered = [&] {
    return std::ranges::none_of(busy, [](auto& client) { return client->receive_line(Millis{0}).has_value(); });
  };
  // What needs no debug file, by root and by the same user: added, switched, listed, removed, while all twelve wait.
  Target roots("family");
  RpcClient root(both.daemon.socket());
  for (const auto& [client, pid] : {std::pair{&root, roots.pid()}, std::pair{both.client.get(), own->pid()}}) {
    CAPTURE(pid);
    const Json added = client->request("probe.add", {{"pid", pid}, {"probes", {{{"definition", "p:w work"}}}}});
    CHECK_MESSAGE(added.contains("result"), added.dump());
    CHECK(nobody_answered());
    for (const char* method : {"probe.disable", "probe.enable", "probe.remove"})
      CHECK(client->request(method, {{"names", {"w"}}}).contains("result"));
    CHECK(client->request("probe.list", {{"pid", pid}}).contains("result"));
    CHECK(nobody_answered());
  }
  both.daemon.process().signal(SIGTERM);
  CHECK(both.daemon.process().wait() == Exit{0, 0});
}

TEST_CASE("a user has so many subscriptions in all, and root's probes in thousands of places don't wait for them") {
  NEEDS_USERS();
  Nobody both;
  REQUIRE(both.usable());
  constexpr int kEach = 256, kInAll = 1024;
  std::vector<std::unique_ptr<RpcClient>> connections;
  for (int i = 0; i < kInAll / kEach; ++i) {
    connections.push_back(both.another());
    for (int k = 0; k < kEach; ++k) REQUIRE(connections.back()->call("events.subscribe").contains("subscription"));
  }
  CHECK(both.client->refusal("events.subscribe") == "limit-exceeded");
  Target crowd("crowd", {"1"});
  RpcClient root(both.daemon.socket());
  CHECK(root.call("events.subscribe").contains("subscription"));
  Json params = add_params(crowd.pid(), {"crowd_*"});
  params["maxRate"] = 0;
  const auto begin = std::chrono::steady_clock::now();
  const Json added = root.request("probe.add", params, Millis{60'000});
  CHECK_MESSAGE(added.contains("result"), added.dump().substr(0, 300));
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(20));
  connections.pop_back();
  CHECK(eventually([&] { return both.client->request("events.subscribe").contains("result"); }));
}

TEST_CASE("a user's targets leave descriptors for root's") {
  NEEDS_USERS();
  Nobody both;
  REQUIRE(both.usable());
  const rlimit few{200, 200};
  REQUIRE(::prlimit(both.daemon.pid(), RLIMIT_NOFILE, &few, nullptr) == 0);
  SpawnOptions as_nobody;
  as_nobody.user = "nobody";
  as_nobody.directory = "/";
  std::vector<std::unique_ptr<Target>> targets;
  std::string refusal;
  for (int i = 0; i < 80 && refusal.empty(); ++i) {
    targets.push_back(std::make_unique<Target>("family", std::vector<std::string>{}, as_nobody));
    const Json answer = both.client->request("probe.add", add_params(targets.back()->pid(), {"work"}));
    if (!answer.contains("result")) refusal = answer.dump();
  }
  CHECK_MESSAGE(refusal.find("limit-exceeded") != std::string::npos, refusal);
  CHECK_MESSAGE(refusal.find("file descriptors") != std::string::npos, refusal);
  Target roots("family");
  RpcClient root(both.daemon.socket());
  CHECK(root.call("probe.add", add_params(roots.pid(), {"work"})).contains("probes"));
  // Those that go make room.
  targets.clear();
  Target next("family", {}, as_nobody);
  CHECK(eventually(
      [&] { return both.client->request("probe.add", add_params(next.pid(), {"work"})).contains("result"); }));
}

// A program with debug information of a megabyte that unfolds to hundreds: units of entries of one byte each.
constexpr const char* kUnfolding = R"(
import os, struct, subprocess, sys, zlib
base, out, mib = sys.argv[1], sys.argv[2], int(sys.argv[3])
abbrev = bytes.fromhex('0111010308130500000224000000' + '00')
body = struct.pack('<HBBI', 5, 1, 8, 0) + b'\x01a\0\x0c\0' + b'\x02' * (1 << 20) + b'\0'
info = (struct.pack('<I', len(body)) + body) * mib
open(out + '.i', 'wb').write(struct.pack('<IIQQ', 1, 0, len(info), 1) + zlib.compress(info, 9))
open(out + '.a', 'wb').write(abbrev)
subprocess.check_call(['objcopy', '--remove-section=.debug_*', '--add-section', '.debug_info=' + out + '.i',
                       '--add-section', '.debug_abbrev=' + out + '.a', base, out])
elf = bytearray(open(out, 'rb').read())
at = struct.unpack_from('<Q', elf, 40)[0]
size, count, names = struct.unpack_from('<HHH', elf, 58)
text = struct.unpack_from('<Q', elf, at + names * size + 24)[0]
for i in range(count):
    name = text + struct.unpack_from('<I', elf, at + i * size)[0]
    if elf[name:elf.index(b'\0', name)] == b'.debug_info':
        flags = struct.unpack_from('<Q', elf, at + i * size + 8)[0]
        struct.pack_into('<Q', elf, at + i * size + 8, flags | 0x800)
for i in range(int(sys.argv[4])):
    open('%s%d' % (out, i), 'wb').write(elf + b'%d' % i)
    os.chmod('%s%d' % (out, i), 0o755)
)";

TEST_CASE("what a user's debug information unfolds to is bounded, and ends nothing") {
  NEEDS_USERS();
  Nobody both;
  REQUIRE(both.usable());
  const TempDir dir;
  ::chmod(dir.path().c_str(), 0755);
  write_file(dir / "unfold.py", kUnfolding);
  write_file(dir / "base.c",
             "#include <unistd.h>\n__attribute__((noinline)) int work(int a) { return a + 1; }\n"
             "int main(void) { volatile int s = 0; for (;;) { usleep(10000); s = work(s); } }\n");
  constexpr int kFiles = 6;
  const CommandResult built =
      run_command({"sh", "-c", "cd " + dir.path() + " && gcc -O1 -o base base.c && python3 unfold.py base z 150 6"}, {},
                  Millis{120'000});
  REQUIRE_MESSAGE(built.ok(), built.err);
  // So that a daemon without a bound would end; an eighth of it is for a user.
  const rlimit room{rlim_t{3} << 30, rlim_t{3} << 30};
  REQUIRE(::prlimit(both.daemon.pid(), RLIMIT_AS, &room, nullptr) == 0);
  SpawnOptions as_nobody;
  as_nobody.user = "nobody";
  as_nobody.directory = "/";
  std::vector<std::unique_ptr<Process>> targets;
  std::vector<std::unique_ptr<RpcClient>> asking;
  for (int i = 0; i < kFiles; ++i) {
    targets.push_back(std::make_unique<Process>(std::vector<std::string>{dir / ("z" + std::to_string(i))}, as_nobody));
    for (const char* method : {"symbols.variables", "probe.add"}) {
      asking.push_back(both.another());
      Json params{{"pid", targets.back()->pid()}, {"location", "work"}};
      if (std::string(method) == "probe.add") params = add_params(targets.back()->pid(), {"work a"});
      REQUIRE(asking.back()->send_raw(request_text(method, params) + "\n"));
    }
  }
  int told = 0;
  for (const auto& client : asking) {
    const auto line = client->receive_line(Millis{120'000});
    REQUIRE(line);
    told += line->find("limit-exceeded") != std::string::npos;
  }
  CHECK(told > 0);
  const std::string status = read_file("/proc/" + std::to_string(both.daemon.pid()) + "/status");
  const long peak = std::atol(status.c_str() + status.find("VmHWM:") + 6) >> 10;
  MESSAGE(told << " of " << asking.size() << " were refused; the daemon had " << peak << " MiB at most");
  CHECK(peak < 900);
  // The same asked by root has its answer, and a user's smaller program, too.
  Target small("family", {}, as_nobody);
  CHECK(both.client->call("symbols.variables", {{"pid", small.pid()}, {"location", "work"}}).contains("variables"));
}

TEST_CASE("what a user has asked for and doesn't read is bounded, and makes nobody wait") {
  NEEDS_USERS();
  Nobody both;
  REQUIRE(both.usable());
  Programs programs;
  const auto many = programs.run_file(required_environment("MANY_FUNCTIONS"), "many");
  const std::string request = request_text("symbols.functions", {{"pid", many->pid()}, {"glob", "*"}}) + "\n";
  const auto own_mib = [&] {
    const std::string status = read_file("/proc/" + std::to_string(both.daemon.pid()) + "/status");
    return std::atol(status.c_str() + status.find("RssAnon:") + 8) / 1024;
  };
  const auto first = both.client->request("symbols.functions", {{"pid", many->pid()}, {"glob", "*"}}, Millis{30'000});
  REQUIRE(first.contains("result"));
  const auto answer_mib = static_cast<long>(first.dump().size() >> 20) + 1;
  std::vector<std::unique_ptr<RpcClient>> deaf;
  for (int i = 0; i < 100; ++i) {
    deaf.push_back(both.another());
    REQUIRE(deaf.back()->send_raw(request));
  }
  // Root is answered all the while.
  RpcClient root(both.daemon.socket());
  long most_mib = 0;
  std::chrono::steady_clock::duration longest{};
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(8);
  while (std::chrono::steady_clock::now() < until) {
    const auto begin = std::chrono::steady_clock::now();
    REQUIRE(root.request("daemon.status", Json::object(), Millis{30'000}).contains("result"));
    longest = std::max(longest, std::chrono::steady_clock::now() - begin);
    most_mib = std::max(most_mib, own_mib());
    std::this_thread::sleep_for(Millis{10});
  }
  MESSAGE("answers of " << answer_mib << " MiB: at most " << most_mib << " MiB, root waited "
                        << std::chrono::duration_cast<Millis>(longest).count() << " ms at most");
  CHECK(longest < std::chrono::seconds(3));
  CHECK(most_mib < 64 + 6 * answer_mib + 128);
  // Those that found no room are told.
  std::size_t refused = 0;
  for (auto& client : deaf)
    if (const auto line = client->receive_line(Millis{30'000}))
      refused += line->substr(0, 400).find("limit-exceeded") != std::string::npos;
  CHECK(refused > 0);
}

}  // namespace probed::live
