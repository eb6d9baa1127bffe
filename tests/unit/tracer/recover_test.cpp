// What recovery finds of a daemon that was killed in the middle of something, staged on a real process.
#include "daemon/tracer/recovery/recover.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "daemon/base/process.hpp"
#include "daemon/tracer/kernel/call_pads.hpp"
#include "daemon/tracer/kernel/ptrace.hpp"
#include "daemon/tracer/kernel/wait.hpp"
#include "daemon/tracer/recovery/journal_owner.hpp"
#include "daemon/tracer/signals/trap_action.hpp"
#include "daemon/tracer/text/journal.hpp"

using namespace probed;
using namespace probed::tracer;
using namespace std::chrono_literals;
namespace native = arch::native;

namespace {

constexpr auto kPatience = 20s;

template <class F>
bool eventually(F condition) {
  const auto until = std::chrono::steady_clock::now() + kPatience;
  while (!condition())
    if (std::chrono::steady_clock::now() > until) return false;
  return true;
}

// A child that counts.
class Counting {
 public:
  Counting()
      : count_(static_cast<std::atomic<std::uint64_t>*>(
            ::mmap(nullptr, sizeof(*count_), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {
    pid_ = ::fork();
    if (pid_ == 0)
      for (;;) count_->fetch_add(1);
    REQUIRE(runs());
  }
  ~Counting() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    ::munmap(count_, sizeof(*count_));
  }
  pid_t pid() const { return pid_; }
  bool runs() const {
    return eventually([&, before = count_->load()] { return count_->load() > before; });
  }

 private:
  std::atomic<std::uint64_t>* count_;
  pid_t pid_ = 0;
};

// What a daemon's threads block, as long as this lives.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    ::pthread_sigmask(SIG_SETMASK, nullptr, &before_);
    Waiter::block_signals();
  }
  ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_{};
};

class StateDirectory {
 public:
  StateDirectory() { REQUIRE(::mkdtemp(path_.data()) != nullptr); }
  ~StateDirectory() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_ = "/tmp/probed-test-XXXXXX";
};

const Action theirs;
const Action ours{.handler = 0x10000, .flags = SA_SIGINFO, .restorer = 0x10100, .mask = 0};  // never run

// As a daemon does that is about to make our handler SIGTRAP's action, and ends. The process stops in front of the
// call.
void send_to_call_and_die(pid_t pid) {
  std::thread([pid] {
    int status = 0;
    REQUIRE(ptrace::seize(pid) == ptrace::Outcome::ok);
    REQUIRE(ptrace::interrupt(pid) == ptrace::Outcome::ok);
    REQUIRE(::waitpid(pid, &status, __WALL) == pid);
    ptrace::Registers regs;
    std::uint64_t mask = 0;
    REQUIRE(ptrace::get_registers(pid, regs) == ptrace::Outcome::ok);
    REQUIRE(ptrace::get_sigmask(pid, mask) == ptrace::Outcome::ok);
    TargetMemory memory = TargetMemory::open(pid);
    const CallPad pad = find_call_pad(memory, pid);
    REQUIRE(pad.at.value != 0);
    std::vector<std::byte> vectors;
    REQUIRE(ptrace::get_vector_registers(pid, vectors) == ptrace::Outcome::ok);
    REQUIRE(pad.begin(regs, mask, vectors));
    native::prepare_syscall(regs, pad.at.value, SYS_rt_sigaction,
                            {SIGTRAP, reinterpret_cast<std::uint64_t>(&ours), 0, 8, 0, 0});
    REQUIRE(ptrace::set_registers(pid, regs) == ptrace::Outcome::ok);
    REQUIRE(ptrace::set_sigmask(pid, ~0ULL) == ptrace::Outcome::ok);
    REQUIRE(::kill(pid, SIGSTOP) == 0);
    REQUIRE(ptrace::detach(pid, 0) == ptrace::Outcome::ok);
  }).join();
  REQUIRE(eventually([&] { return process::state(pid) == 'T'; }));
}

}  // namespace

TEST_CASE("a journal is believed only when nobody else can have written it, and what is not is left where it is") {
  const StateDirectory state;
  const auto id = process::target_id(::getpid());
  REQUIRE(id);
  Journal::create(state.path(), *id)->note_landing(ours, theirs);
  REQUIRE(find_journals(state.path()).size() == 1);
  const std::string path = find_journals(state.path())[0].path, elsewhere = state.path() + "/elsewhere";

  SUBCASE("open to others") { REQUIRE(::chmod(path.c_str(), 0604) == 0); }
  SUBCASE("two names") { REQUIRE(::link(path.c_str(), elsewhere.c_str()) == 0); }
  SUBCASE("a symbolic link") {
    std::filesystem::rename(path, elsewhere);
    std::filesystem::create_symlink(elsewhere, path);
  }
  SUBCASE("a FIFO") {
    std::filesystem::remove(path);
    REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  }
  SUBCASE("a directory") {
    std::filesystem::remove(path);
    std::filesystem::create_directory(path);
  }
  SUBCASE("somebody else's") {
    if (::chown(path.c_str(), 65534, 65534) != 0) return;  // only root can
  }
  SUBCASE("a directory open to others") { REQUIRE(::chmod(state.path().c_str(), 0707) == 0); }
  SUBCASE("a directory of somebody else's") {
    if (::chown(state.path().c_str(), 65534, 65534) != 0) return;
  }
  CHECK(find_journals(state.path()).empty());
  const auto recovered = recover_all(state.path(), 0ms);
  REQUIRE(recovered.size() == 1);
  CHECK(recovered[0].problem != "");
  struct stat file {};
  CHECK(::lstat(path.c_str(), &file) == 0);
}

TEST_CASE("through a symbolic link, and under other names than journals have, nothing is removed") {
  const StateDirectory state, other;
  const std::string link = state.path() + "/link", named = "/1-2-3.journal", foreign = "/system.journal";
  std::filesystem::create_symlink(other.path(), link);
  for (const std::string& name : {named, foreign}) std::ofstream(other.path() + name) << std::string(100, '\0');
  for (const std::string& name : {named, foreign}) ::chmod((other.path() + name).c_str(), 0600);
  for (const char* ending : {"", "/", "/.", "//./"}) CHECK(find_journals(link + ending).empty());
  CHECK(std::filesystem::exists(other.path() + named));
  CHECK(find_journals(other.path()).empty());
  CHECK(!std::filesystem::exists(other.path() + named));  // begun, and not finished
  CHECK(std::filesystem::exists(other.path() + foreign));
}

// What tells whose it is stands in front of what tells what it is: a daemon that was killed between them left one that
// was refused for good.
TEST_CASE("a journal whose daemon was killed while it was made is taken away, however far that had come") {
  const StateDirectory state;
  const auto id = process::target_id(::getpid());
  REQUIRE(id);
  Journal::create(state.path(), *id);
  const std::string path = find_journals(state.path()).at(0).path;
  std::string whole(std::istreambuf_iterator<char>(std::ifstream(path, std::ios::binary).rdbuf()), {});
  whole.replace(0, JournalHeader::kMagic.size(), JournalHeader::kMagic.size(), '\0');
  std::size_t size = 0;
  SUBCASE("empty") {}
  SUBCASE("without room for what it is known by") { size = 5; }
  SUBCASE("all but what it is known by") { size = whole.size(); }
  REQUIRE(::truncate(path.c_str(), 0) == 0);
  std::ofstream(path, std::ios::binary) << whole.substr(0, size);
  CHECK(recover_all(state.path(), 0ms).empty());
  CHECK_FALSE(std::filesystem::exists(path));
}

TEST_CASE("a journal that can't be read, or is another version's, stays where it is and is told of") {
  const StateDirectory state;
  const std::string path = state.path() + "/1-2-3.journal";
  std::string text(100'000, '\0');
  SUBCASE("damaged") { text.replace(0, 8, "probedj3").replace(48, 4, 4, '\xff'); }
  SUBCASE("cut short") { text = "probedj3"; }
  SUBCASE("an older one") { text.replace(0, 8, "probedj1"); }
  SUBCASE("a newer one") { text.replace(0, 8, "probedj9"); }
  SUBCASE("another file") { text = "x"; }
  std::ofstream(path) << text;
  ::chmod(path.c_str(), 0600);
  const auto recovered = recover_all(state.path(), 0ms);
  REQUIRE(recovered.size() == 1);
  CHECK(recovered[0].problem.find(path) != std::string::npos);
  CHECK(std::filesystem::exists(path));
}

TEST_CASE("a journal's process: only who is known to be gone is taken for gone") {
  const Sighting here{true, true, true, true, true, false, 7};
  const auto fate = [](Sighting seen, auto change) {
    change(seen);
    return judge(seen, 7).fate;
  };
  CHECK(fate(here, [](Sighting&) {}) == Fate::lives);
  CHECK(fate(here, [](Sighting& s) { s.ended = true; }) == Fate::gone);
  CHECK(fate(here, [](Sighting& s) { s.same_boot = false; }) == Fate::may_live);
  CHECK(fate(here, [](Sighting& s) { s.same_pids = false; }) == Fate::may_live);
  CHECK(fate(here, [](Sighting& s) { s.own_proc = false; }) == Fate::unknown);  // whom /proc shows is another one here
  CHECK(fate(here, [](Sighting& s) { s.start_time = 8; }) == Fate::gone);
  CHECK(fate(here, [](Sighting& s) { s.start_time = 8, s.same_clock = false; }) == Fate::unknown);
  CHECK(fate(here, [](Sighting& s) { s.start_time.reset(); }) == Fate::unknown);  // hidden
  Sighting nobody = here;
  nobody.start_time.reset();
  nobody.pid_exists = false;
  CHECK(fate(nobody, [](Sighting&) {}) == Fate::gone);
  CHECK(fate(nobody, [](Sighting& s) { s.same_boot = false; }) == Fate::gone);
  CHECK(fate(nobody, [](Sighting& s) { s.same_pids = false; }) == Fate::unknown);
  CHECK(fate(nobody, [](Sighting& s) { s.own_proc = false; }) == Fate::unknown);
  for (const Sighting& doubtful : {Sighting{false, true, true, true, true, false, 7}, Sighting{}})
    CHECK(judge(doubtful, 7).doubt != "");
}

TEST_CASE("a journal whose pid and start time live is not deleted, whatever the boot id says") {
  const SignalsBlocked blocked;
  const Counting child;
  const StateDirectory state;
  const auto id = process::target_id(child.pid());
  REQUIRE(id);
  Journal::create(state.path(), *id)->note_landing(ours, theirs);
  FoundJournal found = find_journals(state.path()).at(0);
  found.header.boot[0] ^= 1;
  {
    std::fstream file(found.path, std::ios::in | std::ios::out | std::ios::binary);
    file.write(reinterpret_cast<const char*>(&found.header), sizeof found.header);
  }
  auto recovered = recover_all(state.path(), 0ms);
  REQUIRE(recovered.size() == 1);
  CHECK(recovered[0].problem.find("boot id") != std::string::npos);  // nothing of ours in its text proves anything
  CHECK(std::filesystem::exists(found.path));
  CHECK(child.runs());
}

TEST_CASE("a journal whose process can't be stopped now is kept for what could not be put back") {
  const SignalsBlocked blocked;
  int wake[2];
  REQUIRE(::pipe2(wake, O_CLOEXEC) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    char byte = 0;
    if (::vfork() == 0) ::_exit(::read(wake[0], &byte, 1) == 1 ? 0 : 1);  // it waits, and can't be interrupted
    for (;;) ::pause();
  }
  REQUIRE(eventually([&] { return process::state(child) == 'D'; }));
  const StateDirectory state;
  const auto id = process::target_id(child);
  REQUIRE(id);
  Journal::create(state.path(), *id)->note_landing(ours, theirs);
  auto recovered = recover_all(state.path(), 0ms);
  REQUIRE(recovered.size() == 1);
  CHECK(recovered[0].problem.find("uninterruptible") != std::string::npos);
  CHECK_FALSE(recovered[0].in_doubt);
  CHECK(find_journals(state.path()).size() == 1);

  REQUIRE(::write(wake[1], "x", 1) == 1);
  REQUIRE(eventually([&] { return process::state(child) == 'S'; }));
  recovered = recover_all(state.path(), 0ms);
  REQUIRE(recovered.size() == 1);
  CHECK(recovered[0].problem == "");
  CHECK(find_journals(state.path()).empty());
  ::kill(child, SIGKILL);
  CHECK(::waitpid(child, nullptr, 0) == child);
  ::close(wake[0]);
  ::close(wake[1]);
}

TEST_CASE("a call that a killed daemon had sent a thread to is not made behind the back of recovery") {
  if constexpr (!native::kPadsInFiles) {
    MESSAGE("skipped: this architecture has call pads beside a landing only");
    return;
  }
  const SignalsBlocked blocked;
  const Counting child;
  const std::uint64_t mask = blocked_by(child.pid());
  const StateDirectory state;
  const auto id = process::target_id(child.pid());
  REQUIRE(id);
  Journal::create(state.path(), *id)->note_landing(ours, theirs);
  send_to_call_and_die(child.pid());

  const auto recovered = recover_all(state.path(), 1s);
  REQUIRE(recovered.size() == 1);
  CHECK(recovered[0].problem == "");
  ::kill(child.pid(), SIGCONT);
  REQUIRE(child.runs());
  CHECK((*dispositions_of(child.pid()))[forced_index(SIGTRAP)] == Disposition::standard);
  CHECK(blocked_by(child.pid()) == mask);
  TargetMemory memory = TargetMemory::open(child.pid());
  CHECK(calls_to_come(memory, child.pid()).size() <= 1);  // a thread is on its way back from there
}
