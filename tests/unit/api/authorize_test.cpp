// Who may trace what: the rules as tables, /proc as fixtures, and real processes against the kernel's own verdict.
#include "daemon/api/authorize.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <fstream>
#include <set>

#include "tests/unit/api/harness.hpp"

using namespace probed;
using namespace probed::test;
using api::Authorizer;
using api::Denial;
using api::Peer;
using api::Procfs;
using api::PtraceScope;
using api::ThreadCredentials;
using api::Visibility;

namespace {

constexpr uid_t kUser = 54321, kOtherUser = 54322;
constexpr gid_t kGroup = 54331, kOtherGroup = 54332;
const std::string kHome = "user:[1]", kContainer = "user:[2]";

UniqueFd own_pidfd() { return UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0))); }

Peer user_peer(pid_t pid = getpid()) { return {kUser, kGroup, pid, own_pidfd(), kHome}; }

api::ProcessCredentials user_process() {
  return {{ThreadCredentials{{kUser, kUser, kUser}, {kGroup, kGroup, kGroup}, 0}}, kUser, kHome};
}

}  // namespace

TEST_CASE("status files are read") {
  const auto status = api::parse_status(
      "Name:\ta\nState:\tS "
      "(sleeping)\nTgid:\t5\nPPid:\t7\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nCapPrm:\t000001ffffffffff\n");
  REQUIRE(status.has_value());
  CHECK(status->credentials.uids == std::array<uid_t, 3>{1, 2, 3});
  CHECK(status->credentials.gids == std::array<gid_t, 3>{5, 6, 7});
  CHECK(status->credentials.permitted == 0x1ffffffffff);
  CHECK(status->parent == 7);
  CHECK(status->state == 'S');
  for (const char* bad : {"", "Uid:\t1\t2\nGid:\t1\t2\t3\nCapPrm:\t0\nPPid:\t1\nState:\tS\n",
                          "Uid:\t1\t2\t3\nGid:\t1\t2\tx\nCapPrm:\t0\nPPid:\t1\nState:\tS\n",
                          "Uid:\t1\t2\t3\nGid:\t1\t2\t3\nPPid:\t1\nState:\tS\n"})
    CHECK_FALSE(api::parse_status(bad).has_value());
}

TEST_CASE("a process's name cannot forge lines of its status file") {
  // The kernel escapes newlines in Name; a name that looks like a key stands behind "Name:" all the same.
  const auto status =
      api::parse_status("Name:\tUid:\t0\t0\t0\nState:\tR\nPPid:\t1\nUid:\t9\t9\t9\t9\nGid:\t9\t9\t9\t9\nCapPrm:\t0\n");
  REQUIRE(status.has_value());
  CHECK(status->credentials.uids[0] == 9);
}

TEST_CASE("hidepid is found in mountinfo, the last mount of /proc counts") {
  const std::string head = "22 27 0:20 / /proc rw,nosuid shared:12 - proc proc rw";
  struct Row {
    std::string text;
    Visibility expected;
  };
  const Row rows[] = {
      {"", Visibility::everything},
      {head + "\n", Visibility::everything},
      {head + ",hidepid=0\n", Visibility::everything},
      {head + ",gid=4,hidepid=1\n", Visibility::existence},
      {head + ",hidepid=noaccess,gid=4\n", Visibility::existence},
      {head + ",hidepid=2\n", Visibility::own_only},
      {head + ",hidepid=invisible", Visibility::own_only},
      {head + ",hidepid=ptraceable", Visibility::own_only},
      {head + ",hidepid=2\n" + head + "\n", Visibility::everything},
      {"22 27 0:20 / /other rw - proc proc rw,hidepid=2\n", Visibility::everything},
      {"22 27 0:20 / /proc rw - tmpfs proc rw,hidepid=2\n", Visibility::everything},
  };
  for (const Row& row : rows) {
    CAPTURE(row.text);
    CHECK(api::parse_visibility(row.text) == row.expected);
  }
}

TEST_CASE("only the initial namespace's map gives everybody a number") {
  CHECK(api::maps_everything("         0          0 4294967295\n"));
  CHECK_FALSE(api::maps_everything("         0     100000      65536\n"));
  CHECK_FALSE(api::maps_everything("         0          0      65536\n"));
  CHECK_FALSE(api::maps_everything(""));
}

TEST_CASE("the rules, one by one") {
  struct Row {
    const char* what;
    std::function<void(Peer&, api::ProcessCredentials&, api::Surroundings&)> change;
    Denial expected;
  };
  const Row rows[] = {
      {"his own", [](auto&, auto&, auto&) {}, Denial::none},
      {"real uid", [](auto&, auto& t, auto&) { t.threads[0].uids[0] = 0; }, Denial::other_user},
      {"effective uid", [](auto&, auto& t, auto&) { t.threads[0].uids[1] = 0; }, Denial::other_user},
      {"saved uid", [](auto&, auto& t, auto&) { t.threads[0].uids[2] = 0; }, Denial::other_user},
      {"real gid", [](auto&, auto& t, auto&) { t.threads[0].gids[0] = 0; }, Denial::other_group},
      {"effective gid", [](auto&, auto& t, auto&) { t.threads[0].gids[1] = 0; }, Denial::other_group},
      {"saved gid", [](auto&, auto& t, auto&) { t.threads[0].gids[2] = 0; }, Denial::other_group},
      {"another thread",
       [](auto&, auto& t, auto&) {
         t.threads.push_back(t.threads[0]);
         t.threads[1].uids[1] = 0;
       },
       Denial::other_user},
      {"not dumpable", [](auto&, auto& t, auto&) { t.file_owner = 0; }, Denial::not_dumpable},
      {"capabilities", [](auto&, auto& t, auto&) { t.threads[0].permitted = 1; }, Denial::capabilities},
      {"capabilities of a thread",
       [](auto&, auto& t, auto&) {
         t.threads.push_back(t.threads[0]);
         t.threads[1].permitted = 1u << 10;
       },
       Denial::capabilities},
      {"target in a container", [](auto&, auto& t, auto&) { t.user_namespace = kContainer; }, Denial::user_namespace},
      {"peer in a container", [](auto& p, auto&, auto&) { p.user_namespace = kContainer; }, Denial::user_namespace},
      {"both in a container", [](auto& p, auto& t, auto&) { p.user_namespace = t.user_namespace = kContainer; },
       Denial::user_namespace},
      {"namespaces unknown",
       [](auto& p, auto& t, auto& s) { p.user_namespace = t.user_namespace = s.user_namespace = ""; },
       Denial::user_namespace},
      {"peer's namespace unknown", [](auto& p, auto&, auto&) { p.user_namespace = ""; }, Denial::user_namespace},
      {"yama 1", [](auto&, auto&, auto& s) { s.scope = PtraceScope::descendants; }, Denial::yama_descendants},
      {"yama 1, descendant",
       [](auto&, auto&, auto& s) {
         s.scope = PtraceScope::descendants;
         s.descendant = true;
       },
       Denial::none},
      {"yama 2",
       [](auto&, auto&, auto& s) {
         s.scope = PtraceScope::admin_only;
         s.descendant = true;
       },
       Denial::yama_admin},
      {"yama 3", [](auto&, auto&, auto& s) { s.scope = PtraceScope::nobody; }, Denial::yama_admin},
      {"ids without numbers", [](auto&, auto&, auto& s) { s.overflow_uid = kUser; }, Denial::unmapped_identity},
      {"groups without numbers", [](auto&, auto&, auto& s) { s.overflow_gid = kGroup; }, Denial::unmapped_identity},
      {"others without numbers", [](auto&, auto&, auto& s) { s.overflow_uid = kOtherUser; }, Denial::none},
  };
  for (const Row& row : rows) {
    CAPTURE(row.what);
    Peer peer = user_peer();
    auto target = user_process();
    api::Surroundings around;
    around.user_namespace = kHome;
    row.change(peer, target, around);
    CHECK(api::judge(peer, target, around) == row.expected);
  }
}

// ---- a /proc of our own ----

namespace {

class FakeProc {
 public:
  FakeProc() {
    write("self/uid_map", "0 0 4294967295\n");
    write("self/gid_map", "0 0 4294967295\n");
    write("self/mountinfo", "22 27 0:20 / /proc rw - proc proc rw\n");
    link("self/ns/user", kHome);
  }
  void write(const std::string& name, const std::string& text) {
    const std::filesystem::path path = dir_ / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  void link(const std::string& name, const std::string& target) {
    const std::filesystem::path path = dir_ / name;
    std::filesystem::create_directories(path.parent_path());
    std::filesystem::create_symlink(target, path);
  }
  void process(pid_t pid, uid_t uid, pid_t parent = 1, char state = 'S') {
    const std::string id = std::to_string(pid), u = std::to_string(uid), g = std::to_string(kGroup);
    const std::string text = "Name:\tx\nState:\t" + std::string(1, state) + "\nPPid:\t" + std::to_string(parent) +
                             "\nUid:\t" + u + "\t" + u + "\t" + u + "\nGid:\t" + g + "\t" + g + "\t" + g +
                             "\nCapPrm:\t0000000000000000\n";
    write(id + "/status", text);
    write(id + "/task/" + id + "/status", text);
    link(id + "/ns/user", kHome);
    REQUIRE(chown((dir_ / (id + "/status")).c_str(), uid, kGroup) == 0);
  }
  Authorizer authorizer() const { return Authorizer(Procfs(dir_.path())); }

 private:
  TempDir dir_;
};

Reason denial(const Result<void>& result) { return result.ok() ? Reason::internal : result.error().reason; }

}  // namespace

TEST_CASE("denials have the remedy, and root is asked nothing") {
  if (!as_root()) return;
  FakeProc proc;
  proc.process(10, kUser);
  proc.process(11, 0);
  proc.process(12, kUser, 1, 'Z');
  const auto authorizer = proc.authorizer();
  CHECK(authorizer.may_trace(user_peer(), 10).ok());
  const auto denied = authorizer.may_trace(user_peer(), 11);
  CHECK(denial(denied) == Reason::permission_denied);
  CHECK(denied.error().message.find("process 11") != std::string::npos);
  CHECK(denied.error().hint.find("root") != std::string::npos);
  CHECK(denial(authorizer.may_trace(user_peer(), 12)) == Reason::no_such_process);
  CHECK(denial(authorizer.may_trace(user_peer(), 99)) == Reason::no_such_process);
  Peer root{0, 0, getpid(), own_pidfd(), ""};
  CHECK(authorizer.may_trace(root, 11).ok());
  CHECK(authorizer.may_administer(root, "daemon.arm").ok());
  CHECK(denial(authorizer.may_administer(user_peer(), "daemon.arm")) == Reason::permission_denied);
}

TEST_CASE("where /proc hides processes, a foreign one and none at all are refused in the same words") {
  if (!as_root()) return;
  FakeProc proc;
  proc.write("self/mountinfo", "22 27 0:20 / /proc rw - proc proc rw,hidepid=2\n");
  proc.process(11, kOtherUser);
  const auto authorizer = proc.authorizer();
  auto foreign = authorizer.may_trace(user_peer(), 11).error();
  auto none = authorizer.may_trace(user_peer(), 12).error();
  CHECK(foreign.reason == none.reason);
  CHECK(foreign.hint == none.hint);
  foreign.message.replace(foreign.message.find("11"), 2, "12");
  CHECK(foreign.message == none.message);
}

TEST_CASE("yama's scope is read, and descent is from the process that connected while it lives") {
  if (!as_root()) return;
  FakeProc proc;
  proc.process(100, kUser, 1);
  proc.process(101, kUser, 100);
  proc.process(102, kUser, 101);
  proc.process(200, kUser, 1);
  proc.process(1, 0, 0);
  const auto authorizer = proc.authorizer();
  struct Row {
    const char* scope;
    pid_t pid;
    bool may;
  };
  const Row rows[] = {{"0\n", 102, true},  {"0\n", 200, true},  {"1\n", 101, true},  {"1\n", 102, true},
                      {"1\n", 200, false}, {"2\n", 102, false}, {"3\n", 102, false}, {"junk\n", 102, false}};
  for (const Row& row : rows) {
    CAPTURE(row.scope);
    CAPTURE(row.pid);
    proc.write("sys/kernel/yama/ptrace_scope", row.scope);
    CHECK(authorizer.may_trace(user_peer(100), row.pid).ok() == row.may);
  }
  proc.write("sys/kernel/yama/ptrace_scope", "1\n");
  CHECK(authorizer.may_trace(user_peer(100), 200).error().hint.find("ptrace_scope") != std::string::npos);
  Peer ended = user_peer(100);
  ended.pidfd.reset();
  CHECK_FALSE(authorizer.may_trace(ended, 102).ok());
  proc.process(300, kUser, 301);
  proc.process(301, kUser, 300);  // a circle, as pid reuse could show for a moment
  CHECK_FALSE(authorizer.may_trace(user_peer(100), 300).ok());
}

TEST_CASE("ids of a container's unmapped users are nobody's") {
  if (!as_root()) return;
  FakeProc proc;
  proc.write("self/uid_map", "0 100000 65536\n");
  proc.write("sys/kernel/overflowuid", std::to_string(kUser) + "\n");
  proc.process(10, kUser);
  CHECK(denial(proc.authorizer().may_trace(user_peer(), 10)) == Reason::permission_denied);
}

// ---- real processes; the kernel is the judge ----

namespace {

// A child that has run `become`, and waits.
class Child {
 public:
  explicit Child(const std::function<void()>& become) {
    int ready[2];
    REQUIRE(pipe2(ready, O_CLOEXEC) == 0);
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      become();
      prctl(PR_SET_PDEATHSIG, SIGKILL);  // cleared by a change of ids
      std::ignore = write(ready[1], "x", 1);
      while (true) pause();
    }
    close(ready[1]);
    char byte = 0;
    REQUIRE(read(ready[0], &byte, 1) == 1);
    close(ready[0]);
  }
  ~Child() { end(); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  void kill_only() { kill(pid_, SIGKILL); }
  void end() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = 0;
};

void become(uid_t uid, gid_t gid) {
  syscall(SYS_setgroups, 0, nullptr);
  if (syscall(SYS_setresgid, gid, gid, gid) != 0 || syscall(SYS_setresuid, uid, uid, uid) != 0) _exit(9);
}
void dumpable() { prctl(PR_SET_DUMPABLE, 1); }

std::vector<pid_t> threads_of(pid_t pid) {
  std::vector<pid_t> tids;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task"))
    tids.push_back(static_cast<pid_t>(std::stol(entry.path().filename())));
  return tids;
}

// Whether the kernel lets a process of kUser seize every thread of the target.
bool kernel_lets(pid_t target) {
  const auto tids = threads_of(target);
  const pid_t tracer = fork();
  if (tracer == 0) {
    become(kUser, kGroup);
    for (const pid_t tid : tids)
      if (ptrace(PTRACE_SEIZE, tid, nullptr, nullptr) != 0) _exit(1);
    _exit(0);  // the tracees go free
  }
  int status = 0;
  waitpid(tracer, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

bool run_in_child(const std::function<bool()>& test) {
  const pid_t child = fork();
  if (child == 0) _exit(test() ? 0 : 1);
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// A connection made by a thread that is another user for its life time: credentials are per thread.
UniqueFd connect_as(const std::string& path, uid_t uid, gid_t gid) {
  UniqueFd fd;
  std::thread([&] {
    syscall(SYS_setresgid, gid, gid, gid);
    syscall(SYS_setresuid, uid, uid, uid);
    fd = connect_to(path);
  }).join();
  return fd;
}

}  // namespace

TEST_CASE("real processes: what we allow the kernel allows, and the other way round but for user namespaces") {
  if (!as_root()) return;
  const Authorizer authorizer;
  Peer peer = user_peer();
  peer.user_namespace = authorizer.procfs().own_user_namespace();
  struct Row {
    const char* what;
    std::function<void()> become;
    bool may;
    bool stricter = false;  // than the kernel
  };
  const Row rows[] = {
      {"his own", [] { become(kUser, kGroup), dumpable(); }, true},
      {"not dumpable", [] { become(kUser, kGroup); }, false},
      {"another user's", [] { become(kOtherUser, kGroup), dumpable(); }, false},
      {"root's", [] { dumpable(); }, false},
      {"effective uid differs",
       [] {
         syscall(SYS_setresgid, kGroup, kGroup, kGroup);
         syscall(SYS_setresuid, kUser, kOtherUser, kUser);
         dumpable();
       },
       false},
      {"saved uid is root",
       [] {
         syscall(SYS_setresgid, kGroup, kGroup, kGroup);
         syscall(SYS_setresuid, kUser, kUser, 0);
         dumpable();
       },
       false},
      {"effective gid differs",
       [] {
         syscall(SYS_setresgid, kGroup, kOtherGroup, kGroup);
         syscall(SYS_setresuid, kUser, kUser, kUser);
         dumpable();
       },
       false},
      {"holds capabilities",
       [] {
         prctl(PR_SET_KEEPCAPS, 1);
         become(kUser, kGroup);
         dumpable();
       },
       false},
      {"one thread is root",
       [] {
         std::thread([] {
           while (true) pause();
         }).detach();
         become(kUser, kGroup);  // this thread only
         dumpable();
       },
       false},
      {"in a user namespace of its own",
       [] {
         become(kUser, kGroup);
         dumpable();
         if (unshare(CLONE_NEWUSER) != 0) _exit(8);
         dumpable();
       },
       false, true},
  };
  // EPERM in a chroot, or where the system forbids it (user_namespaces(7), kernel.unprivileged_userns_clone).
  const bool namespaces = run_in_child([] {
    become(kUser, kGroup);
    return unshare(CLONE_NEWUSER) == 0;
  });
  if (!namespaces) MESSAGE("NOT RUN: the row about user namespaces, which cannot be made here");
  for (const Row& row : rows) {
    CAPTURE(row.what);
    if (row.stricter && !namespaces) continue;
    const Child target(row.become);
    CHECK(authorizer.may_trace(peer, target.pid()).ok() == row.may);
    if (!row.stricter) CHECK(kernel_lets(target.pid()) == row.may);
  }
}

TEST_CASE("a process that has ended is none, reaped or not") {
  if (!as_root()) return;
  Child child([] { become(kUser, kGroup), dumpable(); });
  const pid_t pid = child.pid();
  child.kill_only();
  CHECK(eventually([&] { return denial(Authorizer().may_trace(user_peer(), pid)) == Reason::no_such_process; }));
  child.end();
  CHECK(denial(Authorizer().may_trace(user_peer(), pid)) == Reason::no_such_process);
}

TEST_CASE("the kernel says who connected, and whether he still lives") {
  int pair[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
  const UniqueFd a(pair[0]), b(pair[1]);
  const auto peer = api::peer_of(a.get(), Procfs());
  REQUIRE(peer.ok());
  CHECK(peer->uid == geteuid());
  CHECK(peer->pid == getpid());
  CHECK(peer->alive());
  CHECK(peer->user_namespace == Procfs().own_user_namespace());
  CHECK_FALSE(api::peer_of(0x7ffffff, Procfs()).ok());
}

TEST_CASE("of a peer that has ended nothing is taken from /proc, where its pid may be another's") {
  TempDir dir;
  auto listener = api::Listener::at({dir / "sock", 0600, std::nullopt});
  REQUIRE(listener.ok());
  const pid_t child = fork();
  if (child == 0) {
    connect_to(dir / "sock").release();
    _exit(0);
  }
  siginfo_t info{};
  REQUIRE(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT) == 0);  // a zombie keeps its /proc entry
  const UniqueFd fd(accept4(listener->fd(), nullptr, nullptr, SOCK_CLOEXEC));
  const auto peer = api::peer_of(fd.get(), Procfs());
  REQUIRE(peer.ok());
  CHECK(peer->pid == child);
  CHECK_FALSE(peer->alive());
  CHECK(peer->user_namespace.empty());
  waitpid(child, nullptr, 0);
}

TEST_CASE("a connected user sees and touches only what he may trace") {
  if (!as_root()) return;
  const Child own([] { become(kUser, kGroup), dumpable(); }), foreign([] { dumpable(); });
  LiveServer server({}, 0666);
  chmod(server.dir().path().c_str(), 0755);
  server.loop([&] {
    server.controller().add_target(own.pid(), "own");
    server.controller().add_target(foreign.pid(), "foreign");
    server.controller().add_probe(1, own.pid(), "probes/own");
    server.controller().add_probe(2, foreign.pid(), "probes/foreign");
    server.controller().probe_views[0].hits = 5;
  });
  TestClient client(connect_as(server.path(), kUser, kGroup));
  const Json hello = client.result("initialize");
  CHECK(hello["peer"] == Json{{"uid", kUser}, {"gid", kGroup}, {"admin", false}});

  const Json spec = {{{"definition", "p f"}}};
  for (const char* method : {"target.attach", "target.detach", "target.resume", "probe.list", "probe.profile",
                             "events.subscribe", "symbols.functions"}) {
    CAPTURE(method);
    const Json error = client.error(method, {{"pid", foreign.pid()}});
    CHECK(error["code"] == -32002);
    CHECK(error["data"]["reason"] == "permission-denied");
    CHECK(error["data"]["hint"].get<std::string>().find("root") != std::string::npos);
    CHECK(client.error(method, {{"pid", 4194304}})["data"]["reason"] == "no-such-process");
  }
  CHECK(client.error("probe.add", {{"pid", foreign.pid()}, {"probes", spec}})["code"] == -32002);
  for (const char* method : {"daemon.arm", "daemon.disarm"}) CHECK(client.error(method)["code"] == -32002);
  CHECK(client.error("daemon.optimize", {{"enabled", true}})["code"] == -32002);
  CHECK(server.calls().empty());

  CHECK(client.result("target.list")["targets"].size() == 1);
  CHECK(client.result("target.list")["targets"][0]["comm"] == "own");
  CHECK(client.result("probe.list")["probes"].size() == 1);
  CHECK(client.result("probe.profile")["probes"][0]["name"] == "probes/own");
  CHECK(client.error("probe.format", {{"id", 2}})["data"]["reason"] == "no-such-probe");
  const Json status = client.result("daemon.status");
  CHECK(status["targets"] == 1);
  CHECK(status["probes"] == 1);
  CHECK(status["hits"] == 5);
  CHECK(client.result("target.attach", {{"pid", own.pid()}})["pid"] == own.pid());
  CHECK(client.result("probe.add", {{"pid", own.pid()}, {"probes", spec}})["probes"].size() == 1);
  CHECK(client.result("probe.remove", {{"ids", {2}}})["probes"].empty());
  CHECK(client.result("probe.remove", {{"all", true}})["probes"].size() == 2);
  server.loop([&] { CHECK(server.controller().probe_views.size() == 1); });

  TestClient root(server.path());
  CHECK(root.result("probe.list")["probes"].size() == 1);
  CHECK(root.result("initialize")["peer"]["admin"] == true);
}

TEST_CASE("what a process that stops being the user's was given meanwhile is taken back") {
  if (!as_root()) return;
  struct Row {
    const char* method;
    Json probes;  // null: none
    std::string undone;
  };
  const Row rows[] = {{"target.attach", nullptr, "detach"},
                      {"probe.add", {{{"definition", "p f"}}, {{"definition", "p g"}}}, "remove 2"}};
  for (const Row& row : rows) {
    CAPTURE(row.method);
    Child own([] { become(kUser, kGroup), dumpable(); });
    LiveServer server({}, 0666);
    chmod(server.dir().path().c_str(), 0755);
    Json params{{"pid", own.pid()}};
    if (!row.probes.is_null()) params["probes"] = row.probes;
    server.loop([&] { server.controller().on_attach = [&](pid_t) { own.end(); }; });
    TestClient client(connect_as(server.path(), kUser, kGroup));
    CHECK(client.error(row.method, params)["data"]["reason"] == "no-such-process");
    const auto calls = server.calls();
    REQUIRE(calls.size() == 2);
    CHECK(calls[1].starts_with(row.undone));
    server.loop([&] { CHECK(server.controller().probe_views.empty()); });
  }
}
