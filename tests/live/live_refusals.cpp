// What is refused on real processes: with its reason, with a hint, and with nothing changed.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <pwd.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <sstream>
#include <thread>

#include "tests/live/probing.hpp"
#include "tests/live/users.hpp"

namespace probed::live {
namespace {

namespace fs = std::filesystem;

// Functions of the target that can't be probed; the first one is a breakpoint.
const std::string kRefused[] = {
#define REFUSED(name, instruction, reason) name,
#include "refused.def"
#undef REFUSED
};

std::string message_of(const Json& error) { return error.is_object() ? error.value("message", "") : ""; }

// What every refusal owes: its reason, what it is about, what to do.
void check_refusal(const Json& error, const std::string& reason, const std::string& about) {
  CAPTURE(error.dump());
  CHECK(reason_of(error) == reason);
  CHECK(message_of(error).find(about) != std::string::npos);
  CHECK(!hint_of(error).empty());
}

std::string proc_stat(pid_t pid) { return read_file("/proc/" + std::to_string(pid) + "/stat"); }

// Field `number` (1-based, 3 or more) of /proc/PID/stat.
std::string stat_field(pid_t pid, int number) {
  const std::string stat = proc_stat(pid);
  std::istringstream fields(stat.substr(std::min(stat.size(), stat.rfind(')') + 1)));
  std::string field;
  for (int at = 3; at <= number; ++at) fields >> field;
  return field;
}

// ---- processes ------------------------------------------------------------------------------------------------------

TEST_CASE("refused: a process that isn't there") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  pid_t pid = 4'194'304;
  while (fs::exists("/proc/" + std::to_string(pid))) --pid;
  check_refusal(add_error(client, pid, {"work"}), "no-such-process", std::to_string(pid));
  check_refusal(client.request("target.attach", {{"pid", pid}}).at("error"), "no-such-process", std::to_string(pid));
  CHECK(client.call("target.list").at("targets").empty());
}

TEST_CASE("refused: a process that has just ended and been reaped") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Process process({"/bin/true"});
  REQUIRE(process.wait() == Exit{0, 0});
  CHECK(reason_of(add_error(client, process.pid(), {"main"})) == "no-such-process");
}

// As valgrind's programs are told from others.
TEST_CASE(
    "refused: code that a translator of programs executes a translation of; its own code is probed, and it says so") {
  TempDir dir;
  const std::string program = dir / "valgrind/none-amd64-linux";
  fs::create_directory(dir / "valgrind");
  fs::copy_file(target_path("counter"), program);
  Daemon daemon;
  RpcClient client(daemon.socket());
  Process process({program});
  REQUIRE(process.next_line());
  for (const std::string what : {"libc:read", "libc:mem*"}) {
    const Json error = add_error(client, process.pid(), {what});
    check_refusal(error, "unsupported-target", "valgrind");
    CHECK(hint_of(error).find("without valgrind") != std::string::npos);
  }
  const Json added = add(client, process.pid(), {"main"}).at(0);
  CHECK_MESSAGE(added.dump().find("valgrind's own code") != std::string::npos, added.dump());
}

TEST_CASE("refused: a zombie") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Process process({"/bin/true"});
  REQUIRE(eventually([&] { return stat_field(process.pid(), 3) == "Z"; }));
  check_refusal(add_error(client, process.pid(), {"main"}), "unsupported-target", "zombie");
  CHECK(process.wait() == Exit{0, 0});
}

TEST_CASE("refused: a kernel thread") {
  constexpr unsigned long kKernelThread = 0x00200000;  // PF_KTHREAD, linux/sched.h
  pid_t found = 0;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const pid_t pid = std::atoi(entry.path().filename().c_str());
    const std::string flags = pid > 1 ? stat_field(pid, 9) : "";
    if (!flags.empty() && (std::stoul(flags) & kKernelThread) != 0) found = pid;
  }
  if (found == 0) SKIP_TEST("no kernel thread can be seen from here");
  Daemon daemon;
  RpcClient client(daemon.socket());
  check_refusal(add_error(client, found, {"schedule"}), "unsupported-target", "kernel thread");
  CHECK(client.call("target.list").at("targets").empty());
}

TEST_CASE("refused: a 32-bit process, which goes on to its end") {
  if (!target_runs("counter32")) SKIP_TEST("counter32 was not built, or this kernel executes no 32-bit programs");
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched counter("counter32");
  check_refusal(add_error(client, counter.pid(), {"work"}), "unsupported-target", "32-bit");
  CHECK(counter.unharmed());
  CHECK(list_probes(client).empty());
  counter.target.go();
  CHECK(counter.target.finish().ok());
}

TEST_CASE("refused: a thread's id, with the process it belongs to") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched counter("counter", {"2", "0"});
  counter.target.go();
  REQUIRE(counter.runs_threads(3));
  pid_t thread = 0;
  for (const auto& task : fs::directory_iterator("/proc/" + std::to_string(counter.pid()) + "/task"))
    if (const pid_t tid = std::atoi(task.path().filename().c_str()); tid != counter.pid()) thread = tid;
  const Json error = add_error(client, thread, {"work"});
  check_refusal(error, "unsupported-target", std::to_string(thread));
  CHECK(hint_of(error).find(std::to_string(counter.pid())) != std::string::npos);
  CHECK(counter.unharmed());
  counter.target.go();
  CHECK(counter.target.finish().ok());
}

TEST_CASE("refused: the daemon itself, and process 1") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  check_refusal(add_error(client, daemon.pid(), {"main"}), "unsupported-target", "the daemon itself");
  check_refusal(client.request("target.attach", {{"pid", daemon.pid()}}).at("error"), "unsupported-target", "itself");
  check_refusal(add_error(client, 1, {"main"}), "bad-params", "pid");
  CHECK(client.call("daemon.status").at("targets") == 0);
}

TEST_CASE("refused: a process that somebody traces already, and the tracer is named") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched counter("counter");
  REQUIRE(::ptrace(PTRACE_SEIZE, counter.pid(), nullptr, nullptr) == 0);
  const Json error = add_error(client, counter.pid(), {"work"});
  check_refusal(error, "already-traced", std::to_string(::getpid()));
  std::string own_name = read_file("/proc/self/comm");
  own_name.pop_back();
  CHECK(message_of(error).find(own_name) != std::string::npos);
  CHECK(tracer_of(counter.pid()) == ::getpid());
  CHECK(text_restored(counter.pid()));

  REQUIRE(::ptrace(PTRACE_INTERRUPT, counter.pid(), nullptr, nullptr) == 0);
  REQUIRE(::waitpid(counter.pid(), nullptr, 0) == counter.pid());
  REQUIRE(::ptrace(PTRACE_DETACH, counter.pid(), nullptr, nullptr) == 0);
  const std::vector<Json> probes = add(client, counter.pid(), {"work"});  // now it is free
  remove_all(client, probes);
  CHECK(counter.unharmed());
  counter.target.go();
  CHECK(counter.target.finish().ok());
}

TEST_CASE("refused: a process that another probed traces already") {
  Daemon first, second;
  RpcClient here(first.socket()), there(second.socket());
  Watched counter("counter");
  const std::vector<Json> probes = add(here, counter.pid(), {"work"});
  const Json error = add_error(there, counter.pid(), {"work"});
  check_refusal(error, "already-traced", std::to_string(first.pid()));
  CHECK(hint_of(error).find("probectl --socket " + first.socket()) != std::string::npos);  // not: kill it
  CHECK(hint_of(error).find("kill") == std::string::npos);
  counter.target.go();
  CHECK(counter.target.finish().ok());
  CHECK(counts_of(here, probes[0]).hits == 1000);
}

// ---- users ----------------------------------------------------------------------------------------------------------

TEST_CASE("refused: another user's process, whatever is asked about it") {
  Nobody nobody;
  if (!nobody.usable()) SKIP_TEST("needs root and a user nobody");
  RpcClient& client = *nobody.client;
  CHECK(client.call("initialize").at("peer").at("uid") == nobody.user->pw_uid);
  Watched counter("counter");
  const std::string pid = std::to_string(counter.pid());
  check_refusal(add_error(client, counter.pid(), {"work"}), "permission-denied", pid);
  for (const char* method : {"target.attach", "probe.list", "events.subscribe", "symbols.functions", "probe.profile"}) {
    CAPTURE(std::string(method));
    check_refusal(client.request(method, {{"pid", counter.pid()}}).at("error"), "permission-denied", pid);
  }
  CHECK(counter.unharmed());
  counter.target.go();
  CHECK(counter.target.finish().ok());
}

TEST_CASE("refused: seeing, changing or hearing another user's probes") {
  Nobody nobody;
  if (!nobody.usable()) SKIP_TEST("needs root and a user nobody");
  RpcClient& client = *nobody.client;
  RpcClient root(nobody.daemon.socket());
  Watched target("family");
  const Json probe = add(root, target.pid(), {"p:secret work"}, {{"persist", true}}).at(0);
  CHECK(list_probes(client).empty());
  CHECK(client.call("target.list").at("targets").empty());
  CHECK(client.call("daemon.status").at("probes") == 0);
  CHECK(client.refusal("probe.format", {{"name", "secret"}}) == "no-such-probe");
  for (const char* method : {"probe.remove", "probe.disable", "probe.enable"})
    for (const Json& which : {Json{{"names", {"secret"}}}, ids_of({probe}), Json{{"all", true}}})
      CHECK(client.call(method, which).at("probes").empty());
  for (const char* method : {"daemon.arm", "daemon.disarm"}) CHECK(client.refusal(method) == "permission-denied");
  CHECK(client.refusal("daemon.optimize", {{"enabled", false}}) == "permission-denied");
  Events events(client);
  CHECK(target.ask("call 5") == "called 5");
  events.end();
  CHECK(events.all().empty());
  CHECK(counts_of(root, probe).hits == 5);
  remove_all(root, {probe});
  CHECK(target.unharmed());
}

TEST_CASE("allowed: a user's own process") {
  Nobody nobody;
  if (!nobody.usable()) SKIP_TEST("needs root and a user nobody");
  SpawnOptions as_nobody;
  as_nobody.user = "nobody";
  as_nobody.directory = "/";
  TempDir directory;
  fs::permissions(directory.path(), fs::perms::owner_all | fs::perms::group_exec | fs::perms::others_exec);
  fs::copy_file(target_path("soaked"), directory / "soaked");
  Process sleeper({directory / "soaked", "1"}, as_nobody);
  REQUIRE(sleeper.next_line().value_or("").starts_with("ready"));
  REQUIRE(eventually([&] { return stat_field(sleeper.pid(), 3) == "S"; }));  // past its own start-up
  const TargetState before = state_of(sleeper.pid());
  const std::vector<Json> probes = add(*nobody.client, sleeper.pid(), {"work"});
  const auto listed = list_probes(*nobody.client);
  REQUIRE(listed.size() == 1);  // its tier may have changed meanwhile
  CHECK(listed[0].at("id") == probes.at(0).at("id"));
  remove_all(*nobody.client, probes);
  CHECK(left_unharmed(sleeper.pid(), before, PageCopies::may_stay));
}

// ---- places ---------------------------------------------------------------------------------------------------------

// The unprobeable target with the addresses it told.
struct Unprobeable {
  Daemon daemon;
  RpcClient client{daemon.socket()};
  Watched target{"unprobeable"};
  std::map<std::string, std::string> addresses;

  Unprobeable() {
    for (std::string line = next(); line != "end"; line = next())
      addresses[line.substr(0, line.find(' '))] = line.substr(line.find(' ') + 1);
    target.before = state_of(target.pid());
  }
  std::string next() { return target.target.next_line().value_or("end"); }

  // Once alone, once behind a good probe: nothing may come of either.
  void check_refused(const std::string& definition, const std::string& reason, const std::string& about) {
    CAPTURE(definition);
    for (const std::vector<std::string>& batch : {std::vector<std::string>{definition}, {"work", definition}}) {
      check_refusal(add_error(client, target.pid(), batch), reason, about);
      CHECK(list_probes(client).empty());
      CHECK(target.unharmed());
    }
  }
  ~Unprobeable() {
    target.target.go();
    CHECK(target.target.finish().ok());
  }
};

TEST_CASE("refused: addresses that are not mapped, not code, shared with others, or the kernel's own") {
  Unprobeable u;
  REQUIRE(u.addresses.size() == 6);
  u.check_refused(u.addresses["unmapped"], "unmapped-address", u.addresses["unmapped"]);
  u.check_refused("0x10", "unmapped-address", "0x10");
  u.check_refused(u.addresses["data"], "not-executable", u.addresses["data"]);
  u.check_refused(u.addresses["shared"], "unsupported-target", u.addresses["shared"]);
  u.check_refused(u.addresses["restorer"], "blacklisted", u.addresses["restorer"]);
  const std::string vsyscall = "0xffffffffff600000";
  u.check_refused(vsyscall, kHasVsyscall ? "blacklisted" : "unmapped-address", kHasVsyscall ? "vsyscall" : vsyscall);
  u.check_refused("0xffff800000000000", "unmapped-address", "0xffff800000000000");
}

TEST_CASE("allowed: code in private anonymous memory, which no file backs") {
  Unprobeable u;
  const Json probe = add(u.client, u.target.pid(), {u.addresses["private"] + " x=$arg1:s32"}).at(0);
  Events events(u.client);
  u.target.target.go();
  CHECK(u.target.target.finish().ok());
  events.end();
  REQUIRE(events.all().size() == 1);
  CHECK(events.all()[0].at("args").at("x") == 5);
}

TEST_CASE("refused: symbols that are not there, with near ones in the hint") {
  Unprobeable u;
  u.check_refused("wrok", "no-such-symbol", "wrok");
  CHECK(hint_of(add_error(u.client, u.target.pid(), {"wrok"})).find("work") != std::string::npos);
  u.check_refused("unprobeable:bad_htl", "no-such-symbol", "bad_htl");
  CHECK(hint_of(add_error(u.client, u.target.pid(), {"bad_htl"})).find("bad_hlt") != std::string::npos);
  u.check_refused("no_such_prefix_*", "no-such-symbol", "no_such_prefix_*");
  u.check_refused("libnowhere:work", "no-such-module", "libnowhere");
  u.check_refused("work x=@no_such_variable", "no-such-symbol", "no_such_variable");
}

TEST_CASE("refused: a name that means several functions, with the places to choose from") {
  Unprobeable u;
  u.check_refused("twin", "ambiguous-symbol", "twin");
  const std::string hint = hint_of(add_error(u.client, u.target.pid(), {"twin"}));
  for (const char* name : {"unprobeable.c:twin", "unprobeable_twin.c:twin"}) {
    CAPTURE(name);
    CHECK(hint.find(name) != std::string::npos);
  }
}

TEST_CASE("refused: the middle of an instruction, and a place that holds a breakpoint") {
  Unprobeable u;
  const Json probe = add(u.client, u.target.pid(), {"work"}).at(0);
  const std::string inside = hex(address_of(probe) + 1);
  remove_all(u.client, {probe});
  u.check_refused("work+0x1", "not-instruction-boundary", "work+0x1");
  u.check_refused(inside, "not-instruction-boundary", inside);
  u.check_refused(kRefused[0], "existing-breakpoint", kRefused[0]);
  CHECK(hint_of(add_error(u.client, u.target.pid(), {kRefused[0]})).find("the program's own") != std::string::npos);
}

TEST_CASE("allowed: a place where a killed daemon has left its breakpoint; one of the program's own is told from it") {
  Watched target("family");
  std::uint64_t place = 0;
  {
    Daemon killed;
    RpcClient client(killed.socket());
    place = address_of(add(client, target.pid(), {"work"}).at(0));
    const pid_t guard = guard_of(killed.socket() + ".state");
    REQUIRE(guard > 0);
    kill_daemon(killed.pid(), Killed::with_guard, guard);  // any of them would put the text right
    REQUIRE(killed.process().wait());
    REQUIRE(eventually([&] { return tracer_of(target.pid()) == 0; }));
  }
  REQUIRE(has_breakpoint(target.pid(), place));
  Daemon daemon;
  RpcClient client(daemon.socket());
  // What the killed one has left is put right before anything new is in it.
  const Json probe = add(client, target.pid(), {"work"}).at(0);
  CHECK(target.ask("call 3") == "called 3");
  CHECK(eventually([&] { return counts_of(client, probe).hits == 3; }));
  remove_all(client, {probe});
  CHECK(eventually([&] { return text_differences(target.pid()).empty(); }));
}

TEST_CASE("a glob takes what can be probed and tells what can't; what is named exactly stays all or none") {
  Unprobeable u;
  const Json result = u.client.call("probe.add", add_params(u.target.pid(), {"p unprobeable:*"}));
  CHECK(result.at("probes").size() > 3);
  const Json& skipped = result.at("skipped");
  CHECK(skipped.size() >= std::size(kRefused));
  bool named = false;
  for (const Json& one : skipped) {
    CHECK(!one.at("message").get<std::string>().empty());
    CHECK(one.at("address").get<std::string>().starts_with("0x"));
    named = named || (one.at("symbol") == "bad_hlt" && one.at("reason") == "unsupported-instruction");
  }
  CHECK(named);
  for (const Json& probe : result.at("probes")) CHECK(!probe.at("symbol").get<std::string>().starts_with("bad_"));
  remove_all(u.client, result.at("probes").get<std::vector<Json>>());

  const Json nothing_left = add_error(u.client, u.target.pid(), {"bad_*"});
  check_refusal(nothing_left, "unsupported-instruction", "that match bad_* can be probed");  // what most of them are
  check_refusal(add_error(u.client, u.target.pid(), {"unprobeable:*", "bad_hlt"}), "unsupported-instruction",
                "bad_hlt");
  CHECK(list_probes(u.client).empty());
  CHECK(add(u.client, u.target.pid(), {"work"}).size() == 1);
  remove_all(u.client, list_probes(u.client));
}

// ---- definitions ----------------------------------------------------------------------------------------------------

struct BadDefinition {
  std::string definition, reason;
  int column;  // of the fault, in the definition; -1: none is owed
};
const BadDefinition kBadDefinitions[] = {
    {"p:x work a=%nosuch", "bad-definition", 11},
    {"p:x work a=$nosuch", "bad-definition", 11},
    {"p:x work a=" ARG1 ":nosuchtype", "bad-definition", 15},
    {"p:x work a=+0(" ARG1, "bad-definition", -1},
    {"p:bad-name work", "bad-definition", -1},
    {"p:x", "bad-definition", -1},
    {"q:x work", "no-such-module", 0},
    {"p:x work a=" ARG1 " a=" ARG2, "bad-definition", -1},
    {"p:x work a=$retval", "bad-definition", -1},
    {"p:x wrok", "no-such-symbol", 4},
    {"r:x work+4", "bad-definition", 4},
    {"work+4%return", "bad-definition", 0},
};

TEST_CASE("refused: definitions that are wrong, with the column of the fault") {
  Unprobeable u;
  for (const BadDefinition& row : kBadDefinitions) {
    CAPTURE(row.definition);
    const Json error = add_error(u.client, u.target.pid(), {row.definition});
    CAPTURE(error.dump());
    CHECK(reason_of(error) == row.reason);
    if (row.column >= 0) CHECK(error.at("data").value("column", -1) == row.column);
    CHECK(u.target.unharmed());
  }
  CHECK(list_probes(u.client).empty());
}

TEST_CASE("refused: a filter that is wrong") {
  Unprobeable u;
  for (const char* filter : {"a ==", "nosuch == 1", "(a == 1", "a ~ 1", "a == 1 &&"}) {
    CAPTURE(std::string(filter));
    Json params = add_params(u.target.pid(), {"work a=" ARG1 ":s32"});
    params["probes"][0]["filter"] = filter;
    CHECK(u.client.refusal("probe.add", params) == "bad-filter");
    CHECK(u.target.unharmed());
  }
}

TEST_CASE("refused: one hundred and twenty-nine arguments; one hundred and twenty-eight are taken") {
  Unprobeable u;
  std::string definition = "p:wide work";
  for (int i = 1; i <= 128; ++i) definition += " a" + std::to_string(i) + "=\\" + std::to_string(i);
  const std::string too_wide = definition + " a129=\\129";
  const Json error = add_error(u.client, u.target.pid(), {too_wide});
  CHECK(reason_of(error) == "bad-definition");
  CHECK(error.at("data").value("column", -1) == 12);  // where the kernel has its caret: the first argument
  CHECK(u.target.unharmed());
  const Json probe = add(u.client, u.target.pid(), {definition}).at(0);
  CHECK(probe.at("args").size() == 128);
  Events events(u.client);
  u.target.target.go();
  CHECK(u.target.target.finish().ok());
  events.end();
  REQUIRE(events.all().size() == 1);
  CHECK(events.all()[0].at("args").at("a1") == "0x1");
  CHECK(events.all()[0].at("args").at("a128") == "0x80");
}

TEST_CASE("no child is left when everything was torn down") { CHECK(joined(children_left()) == ""); }

}  // namespace
}  // namespace probed::live
