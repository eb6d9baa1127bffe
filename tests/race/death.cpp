// The daemon is killed at random moments while its targets run through its probes, together with its guard or alone: no
// target dies, hangs or computes something else, and afterwards nothing of ours is in its text.
//
// PROBED_TEST_SEED=N repeats a run; PROBED_TEST_KILLS=N says how often (default 30; 200 is a good long run).
#include <dirent.h>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <thread>

#include "arch/arch.hpp"
#include "tests/live/probing.hpp"
#include "tests/race/kills.hpp"

namespace probed::live {
namespace {

void remove_journals(const std::string& state) {
  for (const auto& entry : std::filesystem::directory_iterator(state))
    if (entry.path().extension() == ".journal") std::filesystem::remove(entry.path());
}

// What a client does until its daemon dies under it.
void work_until_killed(const std::string& socket, pid_t pid, const Mode& mode, unsigned random_seed) try {
  std::mt19937 random(random_seed);
  RpcClient client(socket);
  if (!mode.optimize) client.request("daemon.optimize", {{"enabled", false}});
  for (;;) {
    Json probes = Json::array();
    for (const std::string& definition : mode.definitions)
      if (random() % 3 != 0) probes.push_back({{"definition", definition}});
    Json params = mode.options;
    params["pid"] = pid;
    params["probes"] = probes;
    const Json reply = client.request("probe.add", params, Millis{5000});
    if (reply.is_null()) return;                                                // killed
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 30'000));  // a random moment is the point
    if (random() % 2 == 0 && client.request("target.detach", {{"pid", pid}}, Millis{5000}).is_null()) return;
    if (!reply.contains("result")) continue;
    Json ids = Json::array();
    for (const Json& probe : reply.at("result").at("probes")) ids.push_back(probe.at("id"));
    if (client.request("probe.remove", {{"ids", ids}}, Millis{5000}).is_null()) return;
  }
} catch (...) {  // its daemon has gone
}

const std::vector kAllKinds{Killed::daemon, Killed::with_tracer, Killed::with_guard};

Killed in_turn(unsigned i, const std::vector<Killed>& kinds = kAllKinds) { return kinds[i % kinds.size()]; }

// False: the target has died or computed something else.
bool one_kill(Target& target, const std::string& directory, const Mode& mode, std::mt19937& random, Killed whom) {
  const std::string socket = directory + "/s", state = socket + ".state";
  const auto daemon = start_daemon(socket);
  CAPTURE(whom);
  const pid_t guard = guard_of(state);
  std::thread client([&, s = random()] { work_until_killed(socket, target.pid(), mode, static_cast<unsigned>(s)); });
  std::this_thread::sleep_for(std::chrono::microseconds(20'000 + random() % 150'000));  // a random moment is the point
  kill_daemon(daemon->pid(), whom, guard);
  client.join();
  REQUIRE(daemon->wait());
  if (target.wait(Millis{0}) || !target.errors().empty()) return false;
  if (whom == Killed::with_guard) recover(socket);
  return is_unharmed(target, state);
}

void kill_again_and_again(const Mode& mode, unsigned times, const std::vector<Killed>& kinds = kAllKinds) {
  CAPTURE(std::string(mode.name));
  std::mt19937 random(seed());
  TempDir directory;
  const auto start = [&] {
    const auto& program = mode.program;
    auto target = std::make_unique<Target>(program[0], std::vector(program.begin() + 1, program.end()));
    target->go();
    return target;
  };
  auto started = start();
  unsigned lost = 0;
  for (unsigned i = 0; i < times; ++i) {
    CAPTURE(i);
    if (one_kill(*started, directory.path(), mode, random, in_turn(i, kinds))) continue;
    ++lost;
    started = start();
  }
  MESSAGE(std::string(mode.name) << ": " << times << " kills, " << lost << " targets lost");
  CHECK(lost == 0);
  Target& target = *started;
  // And it can be probed as any other.
  Daemon daemon;
  RpcClient client(daemon.socket());
  const std::vector<Json> probes = add(client, target.pid(), {mode.definitions[0]}, Json::object());
  CHECK(eventually([&] { return counts_of(client, probes[0]).hits > 0; }));
  remove_all(client, probes);
  target.send(mode.last_word + "\n");
  const TargetReport report = target.finish();
  CHECK_MESSAGE(report.ok(), report.out << "exit " << report.exit.code << " signal " << report.exit.signal);
}

}  // namespace

TEST_CASE("a daemon that is killed while threads hit its breakpoints leaves them alive, and their text whole") {
  kill_again_and_again({"boosted", false, {"work a=$arg1:s32", "work+0", "libc:strlen"}, Json::object()},
                       kills(30) / 3);
  kill_again_and_again({"stepped", false, {"work a=$arg1:s32"}, {{"x-step", true}}}, kills(30) / 3);
}

TEST_CASE("a daemon that is killed while breakpoints become jumps, and are taken out, leaves every target alive") {
  kill_again_and_again({"jumps", true, {"work a=$arg1:s32", "work s=+0($arg3):string", "libc:strlen"}, Json::object()},
                       kills(30) - 2 * (kills(30) / 3));
  kill_again_and_again(
      {"returns", true, {"r:work work a=$arg1:s32 ret=$retval", "work", "libc:strlen"}, Json::object()}, kills(30) / 3);
}

// ---- the daemon alone -----------------------------------------------------------------------------------------------

// Its tracer outlives it by the moment in which everything is let go: there is no moment in which a program that
// handles SIGTRAP itself, or blocks it, or a load behind a bad pointer, meets a breakpoint that nobody answers for.
TEST_CASE("a daemon that is killed under breakpoints of programs that handle or block SIGTRAP themselves harms none") {
  std::mt19937 random(seed());
  TempDir directory;
  const std::string socket = directory.path() + "/s";
  for (const std::string name : {"handler_in_place", "blocked_alone", "blocked_with_all", "waited_for", "suspended",
                                 "not_deferred", "reset_on_delivery", "default_and_all_blocked", "in_threads"})
    for (unsigned i = 0; i < 3; ++i) {
      CAPTURE(name);
      CAPTURE(i);
      Target traps("traps");
      const auto daemon = start_daemon(socket);
      RpcClient client(socket);
      client.call("daemon.optimize", {{"enabled", false}});
      add(client, traps.pid(), {"tick", "one_byte_tick"}, {{"x-step", i == 1}});
      traps.send(name + " 400\n");
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 60'000));  // a random moment is the point
      kill_daemon(daemon->pid(), Killed::daemon);
      CHECK(daemon->wait() == Exit{-1, SIGKILL});
      CHECK(eventually([&] { return tracer_of(traps.pid()) == 0 && guard_of(socket + ".state") == 0; }));
      const auto answer = traps.next_line(Millis{20'000});
      CHECK_MESSAGE(answer == name + " ok", (answer ? *answer : "nothing"), traps.errors());
      CHECK_FALSE(has_journals(socket + ".state"));
      const auto differences = text_differences(traps.pid());
      CHECK_MESSAGE(differences.empty(), joined(differences));
      traps.send("end\n");
      const TargetReport report = traps.finish();
      CHECK_MESSAGE(report.ok(), report.out, report.exit);
    }
}

TEST_CASE("a daemon that is killed under breakpoints of threads that block every signal leaves them alive") {
  kill_again_and_again(
      {"blocking", false, {"work a=$arg1:s32", "leaf"}, Json::object(), {"soaked", "3", "blocking"}, "quit"},
      kills(30) / 3, {Killed::daemon});
}

// So many that the landing's table is written together with the text that it speaks of.
TEST_CASE("a daemon that is killed while thousands of probes come, become jumps and go leaves every target alive") {
  const Json options{{"maxRate", 0}};
  kill_again_and_again({"thousands", true, {"crowd_*"}, options, {"crowd", "6"}}, kills(30) / 2);
}

// Its first byte is that of the jump that had replaced it.
TEST_CASE("a jump of the program's own that was probed once is whole when daemon and guard have been killed") {
  NEEDS_JUMPS();
  TempDir directory;
  const std::string socket = directory.path() + "/s";
  Target target("faults");
  const auto daemon = start_daemon(socket);
  {
    RpcClient client(socket);
    const std::vector<Json> probes = add(client, target.pid(), {"leads_on", "point"}, Json::object());
    const auto is_jump = [](const Json& probe) { return probe.at("tier") == "optimized"; };
    REQUIRE(eventually([&] { return std::ranges::all_of(list_probes(client), is_jump); }));
    client.call("probe.remove", {{"ids", {probes[0].at("id")}}});
  }
  kill_daemon(daemon->pid(), Killed::with_guard, guard_of(socket + ".state"));
  REQUIRE(daemon->wait());
  recover(socket);
  const auto differences = text_differences(target.pid());
  CHECK_MESSAGE(differences.empty(), joined(differences));
  target.send("handler_in_place 2\nend\n");
  const TargetReport report = target.finish();
  CHECK_MESSAGE(report.ok(), report.exit, report.out, target.errors());
}

// Where a jump of ours was once.
TEST_CASE("a breakpoint of the program's own stays when daemon and guard have been killed") {
  NEEDS_JUMPS();
  TempDir directory;
  const std::string socket = directory.path() + "/s";
  Target target("soaked", {"1"});
  const auto daemon = start_daemon(socket);
  RpcClient client(socket);
  const std::vector<Json> probes = add(client, target.pid(), {"leaf", "nest"}, Json::object());
  REQUIRE(eventually([&] { return list_probes(client)[0].at("tier") == "optimized"; }));
  client.call("probe.disable", {{"ids", {probes[0].at("id")}}});
  const std::uint64_t at = std::stoull(probes[0].at("address").get<std::string>(), nullptr, 16);
  const UniqueFd memory(::open(("/proc/" + std::to_string(target.pid()) + "/mem").c_str(), O_RDWR | O_CLOEXEC));
  const std::uint8_t breakpoint = 0xcc;
  std::uint8_t now = 0;
  REQUIRE(::pwrite(memory.get(), &breakpoint, 1, static_cast<off_t>(at)) == 1);
  kill_daemon(daemon->pid(), Killed::with_guard, guard_of(socket + ".state"));
  REQUIRE(daemon->wait());
  recover(socket);
  CHECK(::pread(memory.get(), &now, 1, static_cast<off_t>(at)) == 1);
  CHECK(now == breakpoint);
}

namespace {

// Arms a breakpoint there, and kills the guard and the daemon when it is hit.
void arm_and_kill(const std::string& socket, pid_t pid, const std::string& definition) {
  const auto daemon = start_daemon(socket);
  RpcClient client(socket);
  client.call("daemon.optimize", {{"enabled", false}});
  const std::vector<Json> probes = add(client, pid, {definition}, Json::object());
  REQUIRE(eventually([&] { return counts_of(client, probes[0]).hits > 0; }));
  kill_daemon(daemon->pid(), Killed::with_guard, guard_of(socket + ".state"));
  REQUIRE(daemon->wait());
}

void check_computes(Target& target) {
  target.send("pause\nresume\n");
  const auto line = target.next_line();
  CHECK_MESSAGE((line && line->ends_with(" 0")), (line ? *line : "no answer"), target.wait(Millis{0}));
  CHECK(target.next_line());
}

void check_restored(Target& target, const TargetState& before) {
  const auto differences = text_differences(target.pid());
  CHECK_MESSAGE(differences.empty(), joined(differences));
  CHECK(state_of(target.pid()).signals == before.signals);
}

bool handles_trap(pid_t pid) { return (signals_of(pid, "SigCgt") & 1ULL << (SIGTRAP - 1)) != 0; }

// Keeps one CPU busy for a while, and everybody off it who isn't as urgent.
pid_t start_hog(int cpu, std::chrono::seconds time) {
  const pid_t hog = fork();
  if (hog != 0) return hog;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(cpu, &one);
  if (sched_setaffinity(0, sizeof one, &one) != 0 || setpriority(PRIO_PROCESS, 0, -20) != 0) _exit(1);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const auto until = std::chrono::steady_clock::now() + time;
  while (std::chrono::steady_clock::now() < until) {
  }
  _exit(0);
}

}  // namespace

TEST_CASE("threads that get no processor are waited for when daemon and guard have been killed") {
  TempDir directory;
  Target target("soaked", {"4"});
  const TargetState before = state_of(target.pid());
  target.go();
  REQUIRE(eventually([&] { return thread_states(target.pid()).size() == 5; }));
  cpu_set_t may, one;
  REQUIRE(sched_getaffinity(0, sizeof may, &may) == 0);
  if (CPU_COUNT(&may) < 2) SKIP_TEST("there is one CPU only: who recovers would get none, either");
  int cpu = 0;
  while (!CPU_ISSET(cpu, &may)) ++cpu;
  CPU_ZERO(&one);
  CPU_SET(cpu, &one);
  arm_and_kill(directory.path() + "/s", target.pid(), "work");
  for (const auto& [tid, state] : thread_states(target.pid())) {
    CHECK(sched_setaffinity(tid, sizeof one, &one) == 0);
    CHECK(setpriority(PRIO_PROCESS, static_cast<id_t>(tid), 19) == 0);
  }
  const pid_t hog = start_hog(cpu, std::chrono::seconds(3));
  recover(directory.path() + "/s");
  int status = 0;
  CHECK(waitpid(hog, &status, 0) == hog);
  CHECK_MESSAGE((WIFEXITED(status) && WEXITSTATUS(status) == 0), "the CPU was not kept busy");
  CHECK(state_of(target.pid()).signals == before.signals);
  const auto differences = text_differences(target.pid());
  CHECK_MESSAGE(differences.empty(), joined(differences));
  check_computes(target);
  target.send("quit\n");
  CHECK(target.finish().ok());
}

namespace {

// probed --recover in namespaces of its own, after `setup`.
CommandResult recover_apart(const std::string& socket, const std::vector<std::string>& namespaces,
                            const std::string& setup) {
  std::vector<std::string> argv{"unshare"};
  argv.insert(argv.end(), namespaces.begin(), namespaces.end());
  const std::string script = setup + R"( && exec "$0" --recover --socket "$1")";
  argv.insert(argv.end(), {"sh", "-c", script, required_environment("PROBED_BIN"), socket});
  return run_command(argv);
}

}  // namespace

// As systemd-nspawn and sandboxes do to that file.
TEST_CASE("who sees another boot id recovers what is there all the same") {
  if (geteuid() != 0) SKIP_TEST("only root may mount");
  TempDir directory;
  const std::string socket = directory.path() + "/s", other = directory.path() + "/boot_id";
  REQUIRE(write_file(other, "01234567-89ab-cdef-0123-456789abcdef\n"));
  Target target("soaked", {"1"});
  const TargetState before = state_of(target.pid());
  target.go();
  REQUIRE(eventually([&] { return thread_states(target.pid()).size() == 2; }));
  arm_and_kill(socket, target.pid(), "work");
  const CommandResult recovered =
      recover_apart(socket, {"-m"}, "mount --bind " + other + " /proc/sys/kernel/random/boot_id");
  CHECK_MESSAGE(recovered.ok(), recovered.err);
  CHECK(recovered.err.find("put back 1 places") != std::string::npos);
  const auto differences = text_differences(target.pid());
  CHECK_MESSAGE(differences.empty(), joined(differences));
  CHECK(state_of(target.pid()).signals == before.signals);
  CHECK_FALSE(has_journals(socket + ".state"));
  check_computes(target);
  target.send("quit\n");
  CHECK(target.finish().ok());
}

TEST_CASE("who can't see the process of a journal says so, and deletes nothing") {
  if (geteuid() != 0) SKIP_TEST("only root may have a pid namespace of its own");
  TempDir directory;
  const std::string socket = directory.path() + "/s";
  Target target("soaked", {"1"});
  target.go();
  REQUIRE(eventually([&] { return thread_states(target.pid()).size() == 2; }));
  arm_and_kill(socket, target.pid(), "work");
  std::vector<std::string> namespaces{"-m", "-p", "-f"};
  SUBCASE("another pid namespace") { namespaces.push_back("--mount-proc"); }
  SUBCASE("whose /proc is that of the first") {}
  const CommandResult recovered = recover_apart(socket, namespaces, "true");
  CHECK(recovered.exit == Exit{1, 0});
  CHECK_MESSAGE(recovered.err.find("pid namespace") != std::string::npos, recovered.err);
  CHECK(has_journals(socket + ".state"));
  check_computes(target);
  recover(socket);
  const auto differences = text_differences(target.pid());
  CHECK_MESSAGE(differences.empty(), joined(differences));
  CHECK_FALSE(has_journals(socket + ".state"));
  target.send("quit\n");
  CHECK(target.finish().ok());
}

TEST_CASE("a daemon that is killed while its tracer is stopped leaves nobody standing") {
  Daemon daemon;
  const std::string state = daemon.socket() + ".state";
  RpcClient client(daemon.socket());
  Target target("soaked", {"1"});
  target.go();
  Json params = add_params(target.pid(), {"work"});
  params["probes"][0]["optimize"] = false;
  REQUIRE(client.request("probe.add", params).contains("result"));
  const pid_t tracer = tracer_process_of(daemon.pid());
  REQUIRE(tracer > 0);
  ::kill(tracer, SIGSTOP);
  daemon.kill();
  CHECK(eventually([&] { return tracer_of(target.pid()) == 0 && guard_of(state) == 0; }));
  const auto differences = text_differences(target.pid());
  CHECK_MESSAGE(differences.empty(), joined(differences));
  check_computes(target);
  target.send("quit\n");
  CHECK(target.finish().ok());
}

// As one that was killed in the middle of a call that it had a thread make, with threads that can't be stopped.
void leave_pad_in_vdso(pid_t pid) {
  const std::string maps = read_file("/proc/" + std::to_string(pid) + "/maps");
  const std::size_t line = maps.rfind('\n', maps.find("[vdso]")) + 1;
  REQUIRE(line > 0);
  const std::uint64_t end = std::stoull(maps.substr(maps.find('-', line) + 1), nullptr, 16);
  const std::uint64_t pad = end - arch::native::kCallPadSize;
  std::vector<std::uint8_t> bytes = arch::native::build_call_pad(pad);
  bytes.resize(arch::native::kCallPadData);
  arch::CallPadHead head;
  head.busy = 1;
  const auto* const words = reinterpret_cast<const std::uint8_t*>(&head);
  bytes.insert(bytes.end(), words, words + sizeof head);
  std::fstream memory("/proc/" + std::to_string(pid) + "/mem", std::ios::in | std::ios::out | std::ios::binary);
  memory.seekp(static_cast<std::streamoff>(pad));
  memory.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  REQUIRE(memory.flush().good());
}

TEST_CASE("what a killed daemon has left where threads make calls for it goes when the next one lets the target go") {
  if (!arch::native::kPadsInFiles) SKIP_TEST("calls are made in the landing's page here, which goes with it");
  for (const bool by_detach : {true, false}) {
    CAPTURE(by_detach);
    Target target("soaked", {"2"});
    const TargetState before = state_of(target.pid());
    target.go();
    REQUIRE(eventually([&] { return thread_states(target.pid()).size() == 3; }));
    leave_pad_in_vdso(target.pid());
    CHECK(vdso_difference(target.pid()) != "");
    Daemon daemon;
    RpcClient client(daemon.socket());
    add(client, target.pid(), {"work", "r:back nest"});
    by_detach ? void(client.call("target.detach", {{"pid", target.pid()}})) : daemon.process().signal(SIGTERM);
    CHECK(left_unharmed(target.pid(), before));
    check_computes(target);
    target.send("quit\n");
    CHECK(target.finish().ok());
  }
}

namespace {

constexpr std::uint64_t kPage = 4096;

// A pad that a thread has been sent to for a call (arch/orphan.hpp).
bool has_busy_pad(pid_t pid) {
  const std::string process = "/proc/" + std::to_string(pid);
  std::istringstream maps(read_file(process + "/maps"));
  std::ifstream memory(process + "/mem", std::ios::binary);
  const auto is_busy = [&](std::uint64_t pad) {
    arch::CallPadHead head{0, 0};
    memory.clear();
    memory.seekg(static_cast<std::streamoff>(pad + arch::native::kCallPadData));
    memory.read(reinterpret_cast<char*>(&head), sizeof head);
    return head.mark == arch::CallPadHead::kMark && head.busy != 0;
  };
  for (std::string line; std::getline(maps, line);) {
    unsigned long start = 0, end = 0;
    char may_write = 0, may_execute = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx %*c%c%c", &start, &end, &may_write, &may_execute) != 4) continue;
    if (may_execute != 'x' || may_write == 'w' || line.find("[vsyscall]") != line.npos) continue;
    const bool in_pages = line.find('/') == line.npos;  // a landing's page may be any of them
    for (std::uint64_t last = in_pages ? start + kPage : end; last <= end; last += kPage)
      for (std::uint64_t n = 1; n <= 2; ++n)
        if (is_busy(last - n * arch::native::kCallPadSize)) return true;
  }
  return false;
}

}  // namespace

// The signal comes when the way back unblocks it, and behind its handler the way goes on. Nobody else is sent there
// meanwhile.
TEST_CASE("a thread whose way back from a call is interrupted by a handler finds it, whoever cleans up meanwhile") {
  TempDir directory;
  const std::string socket = directory.path() + "/s";
  std::mt19937 random(seed());
  Target target("handling");
  target.go();
  const auto expect = [&](const std::string& what) {
    const auto line = target.next_line();
    REQUIRE_MESSAGE(line == what, (line ? *line : "no answer"), target.errors(), target.wait(Millis{0}));
  };
  const int times = 6;
  for (int i = 1; i <= times; ++i) {
    CAPTURE(i);
    const auto daemon = start_daemon(socket);
    const Mode mode{"returns", true, {"r:work work", "work"}, Json::object()};
    std::thread client([&, s = random()] { work_until_killed(socket, target.pid(), mode, static_cast<unsigned>(s)); });
    const bool borrowed = eventually([&] {
      const pid_t tracer = tracer_process_of(daemon->pid());
      if (tracer == 0) return false;
      ::kill(tracer, SIGSTOP);
      const bool stopped = eventually([&] { return thread_states(tracer)[tracer] == 'T'; });
      if (stopped && has_busy_pad(target.pid())) return true;
      ::kill(tracer, SIGCONT);
      return false;
    });
    ::kill(target.pid(), SIGUSR1);
    kill_daemon(daemon->pid(), Killed::with_tracer);
    client.join();
    CHECK(daemon->wait());
    REQUIRE(borrowed);
    expect("handling " + std::to_string(i));
    REQUIRE(eventually([&] { return !has_journals(socket + ".state") && guard_of(socket + ".state") == 0; }));
    target.send(i == times ? "stop\n" : "go on\n");
    expect("back " + std::to_string(i));
  }
  const TargetReport report = target.finish();
  CHECK_MESSAGE(report.ok(), report.out, report.exit);
}

namespace {

class SmallFileSystem {
 public:
  explicit SmallFileSystem(const std::string& path, const char* size) : path_(path) {
    std::filesystem::create_directory(path);
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    mounted_ = ::mount("none", path.c_str(), "tmpfs", 0, (std::string("mode=0700,size=") + size).c_str()) == 0;
  }
  ~SmallFileSystem() {
    if (mounted_) ::umount2(path_.c_str(), MNT_DETACH);
  }
  SmallFileSystem(const SmallFileSystem&) = delete;
  SmallFileSystem& operator=(const SmallFileSystem&) = delete;
  bool mounted() const { return mounted_; }

 private:
  std::string path_;
  bool mounted_ = false;
};

}  // namespace

TEST_CASE("what there was no room for in the journal of a killed daemon is put right all the same, and told before") {
  TempDir directory;
  const std::string socket = directory.path() + "/s", state = directory.path() + "/state";
  const SmallFileSystem small(state, "64k");
  if (!small.mounted()) SKIP_TEST("needs to mount a tmpfs");
  for (const bool optimize : {true, false}) {
    CAPTURE(optimize);
    Target target("soaked", {"2"});
    const TargetState before = state_of(target.pid());
    target.go();
    Process daemon(
        {required_environment("PROBED_BIN"), "--socket", socket, "--state-dir", state, "--log-level", "warn"});
    REQUIRE(eventually([&] { return ::access(socket.c_str(), F_OK) == 0 && guard_of(state) != 0; }));
    RpcClient client(socket);
    client.call("daemon.optimize", {{"enabled", optimize}});
    add(client, target.pid(), {"libc:*", "work"}, {{"maxRate", 0}});
    kill_daemon(daemon.pid(), Killed::with_tracer);
    REQUIRE(daemon.wait());
    CHECK_MESSAGE(daemon.errors().find("can't grow: No space left") != std::string::npos, daemon.errors());
    REQUIRE(eventually([&] { return guard_of(state) == 0; }));
    CHECK_FALSE(has_journals(state));
    check_restored(target, before);
    check_computes(target);
    target.send("quit\n");
    CHECK(target.finish().ok());
  }
}

// One that sleeps uninterruptibly can't be: the SIGTRAP action of the daemon that was killed stays, which is told, and
// what says so, too. Without that the next daemon finds the action by itself.
TEST_CASE("a target that could not be recovered whole survives the death of the next daemon, too") {
  TempDir directory;
  const std::string socket = directory.path() + "/s";
  Target target("soaked", {"2"});
  const TargetState before = state_of(target.pid());
  target.go();
  REQUIRE(eventually([&] { return thread_states(target.pid()).size() == 3; }));
  target.send("fork\n");
  REQUIRE(target.next_line());
  REQUIRE(eventually([&] {
    const auto states = thread_states(target.pid());
    return std::ranges::any_of(states, [](const auto& thread) { return thread.second == 'D'; });
  }));
  arm_and_kill(socket, target.pid(), "work");
  const CommandResult recovered = run_command({required_environment("PROBED_BIN"), "--recover", "--socket", socket});
  CHECK(recovered.exit == Exit{1, 0});
  CHECK_MESSAGE(recovered.err.find("can't be stopped now") != std::string::npos, recovered.err);
  CHECK(has_journals(socket + ".state"));
  remove_journals(socket + ".state");
  CHECK_MESSAGE(state_of(target.pid()).signals != before.signals, "it was recovered whole: this shows nothing");
  target.send("join\n");
  REQUIRE(target.next_line());
  check_computes(target);
  for (const char* definition : {"leaf", "nest", "work"}) {
    arm_and_kill(socket, target.pid(), definition);
    check_computes(target);
    recover(socket);
    const auto differences = text_differences(target.pid());
    CHECK_MESSAGE(differences.empty(), joined(differences));
    CHECK(state_of(target.pid()).signals == before.signals);
  }
  target.send("quit\n");
  CHECK(target.finish().ok());
}

// ---- a daemon that was killed together with its guard, and the next one
// ----------------------------------------------

namespace {

// `probectl trace` with a private daemon, which looks for others' in `runtime` only.
class PrivateTrace {
 public:
  PrivateTrace(const std::string& runtime, pid_t target, const std::vector<std::string>& arguments) : target_(target) {
    std::vector<std::string> argv{
        required_environment("PROBECTL_BIN"), "--socket", runtime + "/none", "trace", "-p", std::to_string(target)};
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    SpawnOptions options;
    options.environment = {"XDG_RUNTIME_DIR=" + runtime};
    process_ = std::make_unique<Process>(argv, options);
  }
  bool armed() {
    while (const auto line = process_->next_error_line(Millis{20'000}))
      if (line->starts_with("armed ")) return true;
    return false;
  }
  // As the kernel ends a group that has too little memory, or a session.
  void kill_all(const std::string& runtime) {
    const pid_t daemon = tracer_of(target_), guard = guard_of(runtime);
    REQUIRE(daemon > 0);
    REQUIRE(guard > 0);
    kill_daemon(daemon, Killed::with_guard, guard);
    process_->signal(SIGKILL);
    REQUIRE(process_->wait());
    REQUIRE(eventually([&] { return tracer_of(target_) == 0 && guard_of(runtime) == 0; }));
  }
  Process& process() { return *process_; }

 private:
  pid_t target_;
  std::unique_ptr<Process> process_;
};

struct Tier {
  const char* name;
  std::vector<std::string> arguments;
};
const Tier tiers[] = {{"boosted", {"-e", "work", "--no-optimize"}},
                      {"jump", {"-e", "work a=$arg1:s32"}},
                      {"many", {"-e", "libc:str*", "-e", "work", "-e", "leaf", "-e", "nest"}},
                      {"returns", {"-e", "r:work work $retval", "-e", "r:nest nest $retval"}}};

std::vector<std::string> plus(std::vector<std::string> left, const std::vector<std::string>& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

}  // namespace

// By its journal, or, when that has gone, by what its landing tells.
TEST_CASE("a private daemon that was killed with its guard: the next one puts right what it has left, and traces") {
  bool journal = true;
  SUBCASE("by its journal") {}
  SUBCASE("without one") { journal = false; }
  std::mt19937 random(seed());
  TempDir directory;
  Target target("soaked", {"3"});
  const TargetState before = state_of(target.pid());
  target.go();
  REQUIRE(eventually([&] { return thread_states(target.pid()).size() == 4; }));
  const unsigned times = std::max(8u, kills(30) / 5);
  for (unsigned i = 0; i < times; ++i) {
    const Tier &first = tiers[i % 4], &second = tiers[i / 4 % 4];
    CAPTURE(i);
    CAPTURE(first.name);
    CAPTURE(second.name);
    PrivateTrace killed(directory.path(), target.pid(), first.arguments);
    REQUIRE_MESSAGE(killed.armed(), killed.process().errors());
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 50'000));  // a random moment is the point
    killed.kill_all(directory.path());
    check_computes(target);
    if (!journal) std::filesystem::remove_all(directory.path() + "/probectl");
    PrivateTrace next(directory.path(), target.pid(), plus(second.arguments, {"--duration", "0.05"}));
    const auto exit = next.process().wait(Millis{30'000});
    CHECK_MESSAGE((exit == Exit{0, 0}), next.process().errors());
    REQUIRE_MESSAGE(target.running(), next.process().errors());
    check_computes(target);
    check_restored(target, before);
    CHECK(std::filesystem::is_empty(directory.path()));
  }
  MESSAGE(times << " daemons killed with their guards, and followed by others: no target lost");
  target.send("quit\n");
  CHECK(target.finish().ok());
}

TEST_CASE("daemons killed with their guards, one after the other, and the system's daemon puts all of it right") {
  TempDir directory;
  Target target("soaked", {"2"});
  const TargetState before = state_of(target.pid());
  target.go();
  REQUIRE(eventually([&] { return thread_states(target.pid()).size() == 3; }));
  for (const Tier& tier : tiers) {
    PrivateTrace killed(directory.path(), target.pid(), tier.arguments);
    REQUIRE_MESSAGE(killed.armed(), killed.process().errors());
    killed.kill_all(directory.path());
    check_computes(target);
  }
  // It doesn't know of that place: what the process's own memory tells has to do.
  Daemon daemon;
  RpcClient client(daemon.socket());
  const std::vector<Json> probes = add(client, target.pid(), {"work"}, Json::object());
  CHECK(eventually([&] { return counts_of(client, probes[0]).hits > 0; }));
  remove_all(client, probes);
  client.request("target.detach", {{"pid", target.pid()}});
  CHECK(eventually([&] { return tracer_of(target.pid()) == 0; }));
  check_restored(target, before);
  check_computes(target);
  target.send("quit\n");
  CHECK(target.finish().ok());
}

// Of generated code no file tells what belongs where a breakpoint is.
TEST_CASE("what can't be put right leads on as long as the process lives, whoever traces it and is killed") {
  TempDir directory;
  Target target("mapper");
  const auto ask = [&](const std::string& command) {
    target.send(command + "\n");
    return target.next_line().value_or("");
  };
  const std::string mapped = ask("map jit");
  unsigned long first = 0, second = 0;
  REQUIRE_MESSAGE(std::sscanf(mapped.c_str(), "mapped %lx %lx", &first, &second) == 2, mapped);
  REQUIRE(ask("hammer 2") == "done hammer 2");
  const auto computes = [&] { return ask("call 100") == "done call 100"; };
  {
    PrivateTrace killed(directory.path(), target.pid(), {"-e", hex(first), "-e", hex(second), "--no-optimize"});
    REQUIRE_MESSAGE(killed.armed(), killed.process().errors());
    killed.kill_all(directory.path());
  }
  std::filesystem::remove_all(directory.path() + "/probectl");
  for (unsigned i = 0; i < std::max(3u, kills(30) / 20); ++i) {
    CAPTURE(i);
    CHECK(computes());
    PrivateTrace refused(directory.path(), target.pid(), {"-e", hex(first), "--no-optimize"});
    CHECK(refused.process().wait(Millis{30'000}) == Exit{1, 0});
    const std::string words = refused.process().errors();
    CHECK_MESSAGE(words.find("already holds a breakpoint") != words.npos, words);
    CHECK_MESSAGE(words.find("gdb") == words.npos, words);
    REQUIRE_MESSAGE(target.running(), words);
    PrivateTrace other(directory.path(), target.pid(), {"-e", "libc:write", "--no-optimize"});
    REQUIRE_MESSAGE(other.armed(), other.process().errors());
    CHECK(computes());
    if (i % 2 == 0) {
      other.process().signal(SIGINT);
      CHECK(other.process().wait() == Exit{0, 0});
    } else {
      other.kill_all(directory.path());
    }
    REQUIRE_MESSAGE(target.running(), other.process().errors());
    CHECK(computes());
  }
  CHECK(ask("rest") == "done rest");
  target.send("quit\n");
  CHECK(target.finish().exit == Exit{0, 0});
}

TEST_CASE(
    "what a living daemon has in its target is left to it, and what a dead one left of a process that has ended goes") {
  TempDir directory;
  Target lives("soaked", {"1"});
  lives.go();
  PrivateTrace living(directory.path(), lives.pid(), {"-e", "work"});
  REQUIRE_MESSAGE(living.armed(), living.process().errors());
  {
    TempDir apart;
    Target ends("soaked", {"1"});
    ends.go();
    PrivateTrace killed(apart.path(), ends.pid(), {"-e", "work"});
    REQUIRE(killed.armed());
    killed.kill_all(apart.path());
    for (const auto& entry : std::filesystem::directory_iterator(apart.path() + "/probectl"))
      std::filesystem::rename(entry.path(), directory.path() + "/probectl/dead");
  }
  const std::string left = directory.path() + "/probectl/dead";
  REQUIRE(has_journals(left + "/probed.sock.state"));
  Target other("soaked", {"1"});
  other.go();
  PrivateTrace next(directory.path(), other.pid(), {"-e", "work", "--duration", "0.05"});
  CHECK(next.process().wait(Millis{30'000}) == Exit{0, 0});
  CHECK_FALSE(std::filesystem::exists(left));
  CHECK(tracer_of(lives.pid()) > 0);
  living.process().signal(SIGINT);
  CHECK(living.process().wait() == Exit{0, 0});
  CHECK(living.process().errors().find("hits=") != std::string::npos);
  for (Target* target : {&lives, &other}) {
    check_computes(*target);
    target->send("quit\n");
    CHECK(target->finish().ok());
  }
}

// The kernel takes SIGTRAP's handler away when a thread that blocks the signal runs into a breakpoint. It has to be
// back when the daemon dies, even if nobody has run into a breakpoint since.
TEST_CASE(
    "a daemon that is killed after threads with all signals blocked have hit its breakpoints leaves the others alive") {
  TempDir directory;
  const std::string socket = directory.path() + "/s";
  Watched soaked("soaked", {"2"});
  Target& target = soaked.target;
  target.go();
  CHECK(soaked.ask("pause").starts_with("paused"));
  const auto daemon = start_daemon(socket);
  RpcClient client(socket);
  client.call("daemon.optimize", {{"enabled", false}});
  const std::vector<Json> probes = add(client, target.pid(), {"work"}, Json::object());
  CHECK(handles_trap(target.pid()));
  for (int i = 0; i < 3; ++i) {
    CHECK(soaked.ask("burst 5") == "burst 0");
    CHECK(eventually([&] { return handles_trap(target.pid()); }));
  }
  CHECK(soaked.ask("burst 500") == "burst 0");
  CHECK(eventually([&] { return handles_trap(target.pid()); }));
  kill_daemon(daemon->pid(), Killed::with_guard, guard_of(socket + ".state"));
  REQUIRE(daemon->wait());
  CHECK(soaked.ask("resume") == "running");
  check_computes(target);
  recover(socket);
  target.send("quit\n");
  const TargetReport report = target.finish();
  CHECK_MESSAGE(report.ok(), report.exit);
}

// And that costs nobody else's waits their end.
TEST_CASE("threads with all signals blocked that run into breakpoints don't make others wait longer") {
  Target target("soaked", {"1", "blocking"});
  target.go();
  Daemon daemon;
  RpcClient client(daemon.socket());
  client.call("daemon.optimize", {{"enabled", false}});
  const std::vector<Json> probes = add(client, target.pid(), {"work"}, Json::object());
  CHECK(eventually([&] { return counts_of(client, probes[0]).hits > 1000; }));
  target.send("wait 5\n");
  long longest = 0;
  const auto line = target.next_line();
  REQUIRE(line);
  CHECK(std::sscanf(line->c_str(), "waited %ld", &longest) == 1);
  CHECK_MESSAGE(longest < 1200, longest);  // one that is made anew once takes 800 at most
  remove_all(client, probes);
  target.send("quit\n");
  CHECK(target.finish().ok());
}

// Whoever cleans up behind a daemon puts no breakpoint where a jump was.
TEST_CASE("a daemon that is killed while threads with all signals blocked run through its jumps leaves them alive") {
  NEEDS_JUMPS();
  TempDir directory;
  const std::string socket = directory.path() + "/s";
  Target target("soaked", {"2", "blocking"});
  target.go();
  for (unsigned i = 0; i < 10; ++i) {
    CAPTURE(i);
    const auto daemon = start_daemon(socket);
    RpcClient client(socket);
    const std::vector<Json> probes = add(client, target.pid(), {"work", "leaf", "nest"}, Json::object());
    const auto is_jump = [](const Json& probe) { return probe.at("tier") == "optimized"; };
    REQUIRE(eventually([&] { return std::ranges::all_of(list_probes(client), is_jump); }));
    check_computes(target);  // nobody is on the way out of a breakpoint any more
    kill_daemon(daemon->pid(), i % 2 == 0 ? Killed::daemon : Killed::with_tracer);
    REQUIRE(daemon->wait());
    REQUIRE(eventually([&] { return !has_journals(socket + ".state") && guard_of(socket + ".state") == 0; }));
    const auto differences = text_differences(target.pid());
    CHECK_MESSAGE(differences.empty(), joined(differences));
    check_computes(target);
    REQUIRE(target.running());
  }
  target.send("quit\n");
  CHECK(target.finish().ok());
}

// A thread that executes another program waits for the end of those that have been seized, and whoever seizes another
// one waits for it.
TEST_CASE("a daemon that is killed while threads of its target execute another program leaves nobody waiting") {
  std::mt19937 random(seed());
  TempDir directory;
  const std::string socket = directory.path() + "/s";
  for (int i = 0; i < 12; ++i) {
    CAPTURE(i);
    Target target("lifecycle", {"crowd", "100"});
    const auto daemon = start_daemon(socket);
    target.go();
    {
      RpcClient client(socket);
      for (auto n = 1 + random() % 20; n > 0 && target.running(); --n)
        client.request("probe.add", {{"pid", target.pid()}, {"probes", {{{"definition", "work"}}}}});
      kill_daemon(daemon->pid(), i % 2 == 0 ? Killed::daemon : Killed::with_tracer);
    }
    REQUIRE(daemon->wait());
    REQUIRE(eventually([&] { return !has_journals(socket + ".state") && guard_of(socket + ".state") == 0; }));
    const TargetReport report = target.finish(Millis{60'000});
    CHECK_MESSAGE(report.ok(), report.out, report.exit);
  }
}

// Signals are held while a thread runs the one instruction that stands in our code. What the daemon doesn't live to
// give back is given back by whoever cleans up. There are moments, of a microsecond or two for each signal, in which
// one is lost, or queued behind others; none comes twice.
TEST_CASE(
    "a daemon that is killed while it holds a thread's signals: they are the thread's again, and so is its mask") {
  std::mt19937 random(seed());
  TempDir directory;
  Target target("receiver");
  target.go();
  Sender sender(target.pid());
  const unsigned times = kills(30);
  const Mode boosted{"boosted", false, {"work a=$arg1:s32", "work+0"}, Json::object()};
  const Mode jumps{"jumps", true, {"work a=$arg1:s32", "work s=+0($arg3):string"}, Json::object()};
  for (unsigned i = 0; i < times; ++i) {
    CAPTURE(i);
    const bool alive = one_kill(target, directory.path(), i % 2 == 0 ? boosted : jumps, random, in_turn(i));
    REQUIRE_MESSAGE(alive, target.wait(Millis{0}), target.errors(), static_cast<int>(in_turn(i)));
    const bool let_go = eventually([&] { return blocked_but(target.pid(), Sender::signal()) == 0; });
    CHECK_MESSAGE(let_go, std::hex << blocked_but(target.pid(), Sender::signal()));
  }
  const auto sent = static_cast<std::uint64_t>(sender.sent());
  std::uint64_t received = 0, missing = 0;
  CHECK(eventually([&] {
    target.send("count\n");
    const auto line = target.next_line();
    if (line) std::sscanf(line->c_str(), "received %lu missing %lu", &received, &missing);
    return received + missing == sent;
  }));
  target.send("stop\n");
  const TargetReport report = target.finish();
  CHECK_MESSAGE(report.ok(), report.out << report.exit);
  const auto late = static_cast<std::uint64_t>(report.value("late"));
  MESSAGE(times << " kills, " << sent << " signals, " << missing << " lost, " << late << " late");
  CHECK(missing + late <= times / 10);
}

}  // namespace probed::live
