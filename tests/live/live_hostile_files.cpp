// A user who may connect to a root daemon gives it a program of his own whose debug information is elsewhere: where
// reads never end, or where only root may read. Whatever it is, everybody else is answered, the daemon ends when it is
// told to, and the user learns nothing that he couldn't have read himself.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pwd.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/live/probing.hpp"
#include "tests/live/users.hpp"

namespace probed::live {
namespace {

namespace fs = std::filesystem;

// tests/targets/variables.c, its debug information in one file beside it, which can be moved away.
class Program {
 public:
  explicit Program(const std::string& kind) {
    const std::string source = required_environment("SOURCE_DIR") + "/tests/targets/variables.c";
    const std::string cc = "cc -w -O2 -D_GNU_SOURCE -Wl,--build-id=" + std::string(kind == "link" ? "none " : "sha1 ");
    std::string script = "cd " + dir_.path() + " && ";
    if (kind == "dwo") {
      named_ = "prog.dwo";
      script += cc + "-g -gsplit-dwarf -c -o prog.o " + source + " && cc -o prog prog.o";
    } else if (kind == "dwz") {
      named_ = "prog.shared";
      script += cc + "-gdwarf-4 -o prog " + source + " && " + cc + "-gdwarf-4 -DSECOND -o second " + source +
                " && dwz -m prog.shared -M prog.shared prog second";
    } else {
      named_ = "prog.debug";
      script += cc + "-g -o prog " + source +
                " && objcopy --only-keep-debug prog prog.debug && objcopy -g --add-gnu-debuglink=prog.debug prog";
    }
    built_ = run_command({"sh", "-c", script}).ok() && fs::exists(named());
    ::chmod(dir_.path().c_str(), 0755);
    ::chmod(path().c_str(), 0755);
  }
  bool built() const { return built_; }
  std::string path() const { return dir_ / "prog"; }
  // What the program says that its debug information is in.
  std::string named() const { return dir_ / named_; }
  std::string operator/(const std::string& name) const { return dir_ / name; }
  void lead_to(const std::string& file) {
    fs::remove(named());
    fs::create_symlink(file, named());
  }
  // Into a place that nobody but root may enter, a link to it where it was.
  void keep_for_root() {
    fs::create_directory(dir_ / "root");
    fs::permissions(dir_ / "root", fs::perms::owner_all);
    fs::rename(named(), dir_ / "root/kept");
    ::chmod((dir_ / "root/kept").c_str(), 0600);
    lead_to(dir_ / "root/kept");
  }

 private:
  TempDir dir_;
  std::string named_;
  bool built_ = false;
};

Process run(const Program& program, const char* user) {
  SpawnOptions options;
  options.user = user;
  options.directory = "/";
  return Process({program.path()}, options);
}

void end_well(Process& program) {
  program.send("quit\n");
  CHECK(program.next_line().value_or("") == "result ok");
  CHECK(program.wait() == Exit{0, 0});
}

constexpr Millis kSoon{5'000};

// Eight looks of a user at a program whose debug information leads to `file`; root is served meanwhile and after.
void check_nobody_waits(Program& program, const std::string& file) {
  CAPTURE(file);
  program.lead_to(file);
  Nobody both;
  REQUIRE(both.usable());
  Process hostile = run(program, "nobody");
  REQUIRE(hostile.next_line().value_or("").starts_with("ready "));
  std::vector<std::unique_ptr<RpcClient>> clients;
  for (int i = 0; i < 8; ++i) {
    clients.push_back(both.another());
    clients.back()->send_raw(request_text("symbols.lines", {{"pid", hostile.pid()}, {"file", "variables.c"}}));
  }
  Target own("counter");
  RpcClient root(both.daemon.socket());
  const Json added = root.request("probe.add", {{"pid", own.pid()}, {"probes", {{{"definition", "p:w work"}}}}}, kSoon);
  CHECK_MESSAGE(added.contains("result"), added.dump());
  for (auto& client : clients) {
    const auto line = client->receive_line(kSoon);
    CHECK(line.has_value());
    if (line) CHECK_MESSAGE(parse_json(*line).contains("error"), line->substr(0, 200));
  }
  both.daemon.process().signal(SIGTERM);
  CHECK(both.daemon.process().wait() == Exit{0, 0});
  own.go();
  CHECK(own.finish().ok());
  end_well(hostile);
}

#define NEEDS_USERS() \
  if (::geteuid() != 0 || !::getpwnam("nobody")) SKIP_TEST("needs root and a user nobody")
#define NEEDS_PROGRAM(program) \
  if (!(program).built()) SKIP_TEST("needs cc, objcopy and dwz")

}  // namespace

TEST_CASE("debug links that lead to files whose reading never ends keep nobody waiting, nor the daemon from ending") {
  NEEDS_USERS();
  Program program("link");
  NEEDS_PROGRAM(program);
  REQUIRE(::mkfifo((program / "fifo").c_str(), 0666) == 0);
  for (const std::string& file :
       {std::string("/proc/kmsg"), std::string("/proc/self/mem"), program / "fifo", std::string("/dev/zero"),
        std::string("/sys/kernel/debug/tracing/trace_pipe"), std::string("/sys/kernel/tracing/trace_pipe")})
    check_nobody_waits(program, file);
}

TEST_CASE("a debug link to a sparse file of a terabyte, or to one that only begins like an ELF file, isn't read") {
  NEEDS_USERS();
  Program program("link");
  NEEDS_PROGRAM(program);
  REQUIRE(fs::copy_file(program.named(), program / "whole"));
  const std::string sparse = program / "sparse";
  for (const bool elf : {false, true}) {
    CAPTURE(elf);
    if (elf) fs::copy_file(program / "whole", sparse, fs::copy_options::overwrite_existing);
    const UniqueFd fd(::open(sparse.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
    // As long as a file system takes it, up to a terabyte.
    off_t size = off_t{1} << 40;
    while (size > (off_t{1} << 32) && ::ftruncate(fd.get(), size) != 0) size >>= 1;
    check_nobody_waits(program, sparse);
  }
}

TEST_CASE("a debug link into a file system that a user serves, and that never answers, asks it nothing") {
  NEEDS_USERS();
  Program program("link");
  NEEDS_PROGRAM(program);
  const UniqueFd fuse(::open("/dev/fuse", O_RDWR | O_CLOEXEC));
  const std::string at = program / "served";
  fs::create_directory(at);
  const std::string options =
      "fd=" + std::to_string(fuse.get()) + ",rootmode=40000,user_id=65534,group_id=65534,allow_other";
  if (!fuse || ::mount("fuse", at.c_str(), "fuse", MS_NOSUID | MS_NODEV, options.c_str()) != 0) SKIP_TEST("needs FUSE");
  const std::unique_ptr<const std::string, void (*)(const std::string*)> away(
      &at, [](const std::string* mounted) { ::umount2(mounted->c_str(), MNT_DETACH); });
  check_nobody_waits(program, at + "/there");
}

// Whether the daemon's tracer is stuck in the kernel, where not even SIGKILL gets at it.
bool waits_in_kernel(const Daemon& daemon) {
  const pid_t tracer = tracer_process_of(daemon.pid());
  return thread_states(tracer)[tracer] == 'D';
}

// A breakpoint there.
Json add_work(RpcClient& client, const Watched& served, const std::string& fields, bool step) {
  return client.call("probe.add", {{"pid", served.pid()},
                                   {"x-step", step},
                                   {"probes", {{{"definition", "work i=$arg1:s64 " + fields}, {"optimize", false}}}}});
}

// What the file system gives away later is read.
void check_read_when_given(Watched& served, Events& events) {
  CHECK(served.ask("answer") == "answers");
  const auto is_read = [&] {
    served.ask("call 1");
    const std::size_t before = events.all().size();
    events.reach(before + 1);
    return events.all().back().at("args").at("a") == "0x41";
  };
  CHECK(eventually(is_read, Millis{20'000}));
}

void check_unread(Watched& served, const Daemon& daemon, Events& events) {
  CHECK(served.ask("call 20") == "called 20");
  CHECK(!waits_in_kernel(daemon));
  REQUIRE(events.reach(20));
  for (const Json& event : events.all()) CHECK_MESSAGE(event.at("args").at("a").is_null(), event.dump());
}

void check_both_end(Daemon& daemon, Watched& served) {
  daemon.process().signal(SIGTERM);
  CHECK(daemon.process().wait() == Exit{0, 0});
  CHECK(served.unharmed());
  served.target.send("quit\n");
  CHECK(served.target.finish().ok());
}

TEST_CASE("memory that is a file of a file system that doesn't answer is unreadable, and keeps nobody from anything") {
  const std::pair<bool, std::string> kinds[] = {{false, ""}, {true, ""}, {false, "numberless"}, {false, "protected"}};
  for (const auto& [step, how] : kinds) {
    CAPTURE(step);
    CAPTURE(how);
    Daemon daemon;
    RpcClient client(daemon.socket());
    Watched served("served", {"0", how}), other("family");
    if (served.ask("map") != "mapped") SKIP_TEST("needs root and FUSE, or userfaultfd's write protection");
    add_work(client, served, "a=+0($arg2):x8 s=+0($arg2):string", step);
    Events events(client);
    check_unread(served, daemon, events);
    // Everybody else is served meanwhile, by the tracer too.
    CHECK(client.request("probe.add", add_params(other.pid(), {"work"}), kSoon).contains("result"));
    check_read_when_given(served, events);
    check_both_end(daemon, served);
    CHECK(other.unharmed());
  }
}

// Its fetchers and their parent are nobody's children: they are known by the environment that it has passed on.
class MarkedDaemon {
 public:
  MarkedDaemon() { ::unsetenv(kVariable); }
  Daemon& daemon() { return daemon_; }
  std::vector<pid_t> fetchers(bool and_parent = true) const {
    std::vector<pid_t> found;
    for (const auto& entry : fs::directory_iterator("/proc")) {
      const std::string number = entry.path().filename();
      if (number.find_first_not_of("0123456789") != number.npos) continue;
      const std::string name = read_file(entry.path() / "comm");
      if (name != "probed-fetcher\n" && (!and_parent || name != "probed-fetchers\n")) continue;
      if (read_file(entry.path() / "environ").find(kVariable + ("=" + mark_) + '\0') != std::string::npos)
        found.push_back(std::stoi(number));
    }
    return found;
  }

 private:
  static constexpr const char* kVariable = "PROBED_TEST_FETCHERS";
  static std::string set_mark() {
    static int daemons = 0;
    std::string mark = std::to_string(::getpid()) + "." + std::to_string(++daemons);
    ::setenv(kVariable, mark.c_str(), 1);
    return mark;
  }

  std::string mark_ = set_mark();
  Daemon daemon_;
};

TEST_CASE("a daemon whose fetchers have been killed gets others, and waits for no file system meanwhile") {
  MarkedDaemon marked;
  Daemon& daemon = marked.daemon();
  RpcClient client(daemon.socket());
  Watched served("served");
  if (served.ask("map") != "mapped") SKIP_TEST("needs root and FUSE");
  add_work(client, served, "a=+0($arg2):x8", false);
  Events events(client);
  const auto kill_them = [&] {
    const std::vector<pid_t> ours = marked.fetchers();
    for (const pid_t fetcher : ours) ::kill(fetcher, SIGKILL);
    return !ours.empty();
  };
  CHECK(eventually(kill_them));
  check_unread(served, daemon, events);
  check_read_when_given(served, events);
  check_both_end(daemon, served);
}

// What is done on a kernel that can't be asked about one mapping (before Linux 6.11): PROCMAP_QUERY fails. In a thread,
// as a filter is a thread's own, and its children's. False: this kernel has no filters.
bool on_older_kernel(const std::function<void()>& act) {
  constexpr std::uint32_t kQueryMapping = _IOC(_IOC_READ | _IOC_WRITE, 'f', 17, 104);
  sock_filter filter[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                          BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 0, 3),
                          BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[1])),
                          BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kQueryMapping, 0, 1),
                          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOTTY),
                          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program{std::size(filter), filter};
  bool filtered = false;
  std::exception_ptr thrown;
  std::thread([&] {
    filtered =
        ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
    try {
      if (filtered) act();
    } catch (...) {
      thrown = std::current_exception();
    }
  }).join();
  if (thrown) std::rethrow_exception(thrown);
  return filtered;
}

// On a machine without processor time to spare they may well come too late; what was mapped a moment ago is no file's.
void check_armed_without_fetchers(Watched& first, Watched& second) {
  MarkedDaemon marked;
  Daemon& daemon = marked.daemon();
  RpcClient client(daemon.socket());
  add(client, first.pid(), {"work"});
  std::vector<pid_t> fetchers;  // and their parent
  CHECK(eventually([&] { return !(fetchers = marked.fetchers()).empty(); }));
  for (const pid_t fetcher : fetchers) ::kill(fetcher, SIGSTOP);
  const Json added = client.request("probe.add", add_params(second.pid(), {"work"}), 2 * kSoon);
  for (const pid_t fetcher : fetchers) ::kill(fetcher, SIGCONT);
  CHECK_MESSAGE(added.contains("result"), added.dump());
  for (Watched* const target : {&first, &second}) {
    target->target.go();
    CHECK(target->target.finish().ok());
  }
  for (const Json& probe : list_probes(client)) CHECK(counts_of(client, probe) == Counts{200, 0, 0});
}

TEST_CASE("a probe is armed though nobody comes to fetch memory, on any kernel") {
  const auto two = [] { return std::array{Watched("counter", {"2", "100"}), Watched("counter", {"2", "100"})}; };
  auto here = two(), there = two();
  check_armed_without_fetchers(here[0], here[1]);
  // A program under the filter could make no calls for the daemon, hence made outside.
  if (!on_older_kernel([&] { check_armed_without_fetchers(there[0], there[1]); })) SKIP_TEST("needs seccomp filters");
}

// As on a machine without processor time to spare, where half of a program's functions were refused for one page that
// came late.
TEST_CASE("a glob takes in what it would take in though somebody who fetches memory doesn't answer once") {
  MarkedDaemon marked;
  RpcClient client(marked.daemon().socket());
  Watched first("counter", {"2", "100"}), second("counter", {"2", "100"});
  const auto add_all = [&](Watched& target) {
    const Json added = client.call("probe.add", add_params(target.pid(), {"libc:*str*"}));
    return std::pair(added.at("probes").size(), added.at("skipped").size());
  };
  const auto all = add_all(first);
  const std::vector<pid_t> idle = marked.fetchers(false);
  REQUIRE(!idle.empty());
  for (const pid_t fetcher : idle) ::kill(fetcher, SIGSTOP);
  const auto [added, skipped] = add_all(second);
  CHECK(added == all.first);
  CHECK(skipped == all.second);
  const auto given_up = [&] { return marked.daemon().process().errors().find("doesn't answer") != std::string::npos; };
  CHECK(eventually(given_up));
  for (Watched* const target : {&first, &second}) {
    target->target.go();
    CHECK(target->target.finish().ok());
  }
}

// Whoever reads of it then waits in the kernel, the tracer too, and every target of it; nothing helps but the end of
// that file system.
TEST_CASE("a process that has its own memory locked, by a file system of a user's, holds nobody up for long") {
  for (const bool step : {false, true}) {
    CAPTURE(step);
    Daemon daemon;
    RpcClient client(daemon.socket());
    Watched served("served", {"65534"}), stranger("served", {"1"}), other("family");
    if (served.ask("map") != "mapped") SKIP_TEST("needs root and FUSE");
    add_work(client, served, "a=+0(%sp):x64", step);
    // Another user's file system owes answers, too; nobody waits for that.
    const auto lock = [](Watched& program) {
      CHECK(program.ask("lock") == "locks");
      const auto waits = [](const auto& thread) { return thread.second == 'D'; };
      return [&program, waits] { return std::ranges::any_of(thread_states(program.pid()), waits); };
    };
    const auto is_locked = lock(served), stranger_is_locked = lock(stranger);
    CHECK(eventually(is_locked));
    CHECK(eventually(stranger_is_locked));
    served.target.send("call 20\n");
    CHECK(eventually([&] { return waits_in_kernel(daemon); }));
    CHECK(client.request("probe.add", add_params(other.pid(), {"work"}), kSoon).contains("result"));
    CHECK(served.target.next_line().value_or("") == "called 20");
    CHECK(eventually([&] { return !waits_in_kernel(daemon); }));
    const auto said = [&] { return daemon.process().errors().find("connection was ended") != std::string::npos; };
    CHECK_MESSAGE(eventually(said), daemon.process().errors());
    CHECK(stranger_is_locked());
    daemon.process().signal(SIGTERM);
    CHECK(daemon.process().wait() == Exit{0, 0});
    CHECK(tracer_of(served.pid()) == 0);
    for (Watched* const program : {&served, &stranger}) {
      program->target.send("quit\n");
      CHECK(program->target.finish().ok());
    }
    CHECK(other.unharmed());
  }
}

TEST_CASE("a daemon ends, and lets a program go, whose file system doesn't answer") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched served("served");
  if (served.ask("map") != "mapped") SKIP_TEST("needs root and FUSE");
  add(client, served.pid(), {"work s=+0($arg2):string"});
  for (int i = 0; i < 5; ++i) CHECK(served.ask("call 1000") == "called 1000");
  daemon.process().signal(SIGTERM);
  CHECK(daemon.process().wait() == Exit{0, 0});
  CHECK(served.unharmed());
  CHECK(served.ask("call 10") == "called 10");
  served.target.send("quit\n");
  CHECK(served.target.finish().ok());
}

TEST_CASE("what only root may read isn't read for a user, whoever has asked before, and root still gets it") {
  NEEDS_USERS();
  for (const char* kind : {"debug", "link", "dwo", "dwz"}) {
    CAPTURE(std::string(kind));
    Program program(kind);
    NEEDS_PROGRAM(program);
    program.keep_for_root();
    for (const bool root_first : {false, true}) {
      CAPTURE(root_first);
      Nobody both;
      REQUIRE(both.usable());
      RpcClient root(both.daemon.socket());
      Process theirs = run(program, "nobody"), own = run(program, "root");
      REQUIRE(theirs.next_line().value_or("").starts_with("ready "));
      REQUIRE(own.next_line().value_or("").starts_with("ready "));
      const auto knows = [](RpcClient& client, pid_t pid) {
        const Json answer = client.request("symbols.variables", {{"pid", pid}, {"location", "take"}});
        return answer.dump().find("\"eighth\"") != std::string::npos;
      };
      if (root_first) CHECK(knows(root, own.pid()));
      CHECK(!knows(*both.client, theirs.pid()));
      CHECK(!knows(root, theirs.pid()));  // what root's probes show of it, its user may see
      CHECK(knows(root, own.pid()));
      CHECK(!knows(*both.client, theirs.pid()));
      const std::string said = add_error(*both.client, theirs.pid(), {"p:t variables.c:90"}).dump();
      if (kind == std::string("debug")) CHECK_MESSAGE(said.find("may not read it") != std::string::npos, said);
      end_well(theirs);
      end_well(own);
    }
  }
}

TEST_CASE("what a user may read himself is read for him, also through links and below folders of his own") {
  NEEDS_USERS();
  for (const char* kind : {"debug", "link", "dwo", "dwz"}) {
    CAPTURE(std::string(kind));
    Program program(kind);
    NEEDS_PROGRAM(program);
    const passwd* user = ::getpwnam("nobody");
    fs::create_directory(program / "his");
    fs::rename(program.named(), program / "his/kept");
    for (const char* name : {"his", "his/kept"}) {
      REQUIRE(::chown((program / name).c_str(), user->pw_uid, user->pw_gid) == 0);
      ::chmod((program / name).c_str(), 0700);
    }
    fs::create_symlink("his/../his/./kept", program / "between");
    program.lead_to("between");
    Nobody both;
    REQUIRE(both.usable());
    Process theirs = run(program, "nobody");
    REQUIRE(theirs.next_line().value_or("").starts_with("ready "));
    const Json answer = both.client->request("symbols.variables", {{"pid", theirs.pid()}, {"location", "take"}});
    CHECK_MESSAGE(answer.dump().find("\"eighth\"") != std::string::npos, answer.dump());
    end_well(theirs);
  }
}

}  // namespace probed::live
