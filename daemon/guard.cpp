#include "daemon/guard.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <thread>

#include "daemon/base/fault_in.hpp"
#include "daemon/base/own_files.hpp"
#include "daemon/base/own_processes.hpp"
#include "daemon/base/process.hpp"
#include "daemon/base/realtime.hpp"
#include "daemon/tracer/kernel/wait.hpp"
#include "daemon/tracer/recovery/left_behind.hpp"
#include "daemon/tracer/recovery/recover.hpp"

namespace probed {
namespace {

using namespace std::chrono_literals;
constexpr auto kLockUsual = 1s;         // a guard's work, as it mostly is
constexpr auto kLockPatience = 15s;     // a guard's work, at most
constexpr auto kRecoverPatience = 10s;  // for a target that another tracer holds
constexpr auto kLockAgain = 5ms;
constexpr auto kTracerUsual = 1s;  // that a tracer takes to let its targets go when its daemon has died
constexpr const char* kHint = "name a directory that is there, or whose parent is, or leave out --state-dir";

std::string lock_name(const std::string& directory) { return directory + "/lock"; }

Own try_lock(const std::string& directory) { return lock_own_directory(directory, O_RDWR | O_CREAT); }

Error refused(const std::string& path, const std::string& why) {
  return {StateDirectory::kRefused,
          "the state directory " + path + " is refused: " + why,
          "it has to be this user's, probed's alone, and one that nobody else can write to: look at what is in it, "
          "then remove it or "
          "set it right, or name another one with --state-dir",
          {}};
}

// A file that no probed has made, in a directory in which none seems to have worked; empty: there is none.
std::string strange_file(const std::string& directory) {
  constexpr std::array kOurs{".probes", ".new", ".refused"};  // control/kept.cpp
  std::error_code error;
  std::string strange;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename();
    if (name == "lock" || name.ends_with(".journal")) return {};
    const auto has = [&name](const char* ending) { return name.ends_with(ending); };
    if (!entry.is_socket(error) && name != "lost+found" && std::ranges::none_of(kOurs, has)) strange = name;
  }
  return strange;
}

Result<void> make_directory(const std::string& path, bool& made) {
  made = ::mkdir(path.c_str(), 0700) == 0;
  if (!made && errno != EEXIST) return cannot("make --state-dir", path, errno, kHint);
  const Own own = open_own_directory(path);
  if (!own && own.error == 0) return refused(path, own.why());
  if (!own) {
    Error error = cannot("use --state-dir", path, own.error, kHint);
    if (own.error == ENOTDIR) error.reason = StateDirectory::kRefused;
    return error;
  }
  if (const std::string strange = made ? "" : strange_file(path); !strange.empty())
    return refused(path, "it holds what is not probed's (" + strange + ")");
  if (::faccessat(own.fd.get(), ".", W_OK | X_OK, 0) != 0) return cannot("write to --state-dir", path, errno, kHint);
  return {};
}

// A tracer without its daemon that somebody has stopped (SIGSTOP): its targets stand still as long. It is known by the
// lock, which is open in it.
void wake_stopped_tracer(const std::string& directory) {
  struct stat lock {};
  if (::stat(lock_name(directory).c_str(), &lock) != 0) return;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const pid_t pid = std::atoi(entry.path().filename().c_str());
    if (pid <= 0 || process::comm(pid) != kTracerName) continue;
    for (const auto& descriptor : std::filesystem::directory_iterator(entry.path() / "fd", error)) {
      struct stat open {};
      if (::stat(descriptor.path().c_str(), &open) != 0 || open.st_dev != lock.st_dev || open.st_ino != lock.st_ino)
        continue;
      ::kill(pid, SIGCONT);
      break;
    }
  }
}

// Until the daemon has ended, and its tracer, which holds the other end of the pipe as well.
void wait_for_end(int lifetime, int daemon, const std::string& directory) {
  for (bool died = false;;) {
    pollfd both[] = {{lifetime, POLLIN, 0}, {died ? -1 : daemon, POLLIN, 0}};
    const int count = ::poll(both, 2, died ? static_cast<int>(kTracerUsual / 1ms) : -1);
    if (both[0].revents != 0) return;
    if (count == 0) wake_stopped_tracer(directory);
    if (count > 0) died = true;
  }
}

void recover(const std::string& directory) {
  PresentPages::want_fetchers();
  tracer::recover_all(directory, kRecoverPatience);
}

}  // namespace

Error cannot(const char* what, const std::string& path, int code, std::string hint) {
  const auto reason = code == EACCES || code == EPERM ? Reason::permission_denied : Reason::internal;
  return {reason, std::string("cannot ") + what + " " + path + ": " + std::strerror(code), std::move(hint), {}};
}

std::string state_directory(const Options& options) {
  return options.state_dir.empty() ? options.socket + ".state" : options.state_dir;
}

Result<StateDirectory> StateDirectory::open(std::string path) {
  StateDirectory state;
  state.path_ = std::move(path);
  if (auto made = make_directory(state.path_, state.made_); !made) return std::move(made).error();
  return state;
}

Result<void> StateDirectory::lock() {
  const auto began = std::chrono::steady_clock::now();
  const auto until = began + kLockPatience;
  for (bool told = false;;) {
    Own lock = try_lock(path_);
    if (lock) return lock_ = std::move(lock.fd), Result<void>();
    if (lock.error == 0) return refused(path_, "its file named lock: " + lock.why());
    if (lock.error != EWOULDBLOCK && lock.error != ENOENT) return cannot("lock", lock_name(path_), lock.error, kHint);
    if (std::chrono::steady_clock::now() > until)
      return Error{Reason::internal,
                   "the state directory " + path_ + " is in use by another probed",
                   "give each daemon its own --state-dir; nothing is left to recover where one works",
                   {}};
    if (!told && std::chrono::steady_clock::now() > began + kLockUsual) {
      told = true;
      spdlog::info(
          "the state directory {} is in use by another probed, or the guard of one that was killed: waiting {} s",
          path_, kLockPatience.count());
    }
    std::this_thread::sleep_for(kLockAgain);
    // Another daemon's end takes it away.
    if (auto made = make_directory(path_, made_); !made) return made;
  }
}

void StateDirectory::unmake() {
  if (made_) ::rmdir(path_.c_str());
}

void StateDirectory::remove() {
  std::error_code error;
  const auto mine = [this](const auto& entry) { return entry.path() == lock_name(path_); };
  if (!std::ranges::all_of(std::filesystem::directory_iterator(path_, error), mine)) return;
  remove_own_file(lock_name(path_));
  ::rmdir(path_.c_str());
}

// ---- the guard ------------------------------------------------------------------------------------------------------

// Forked twice: it is nobody's child that would be waited for. Until it has become a program of its own it holds
// copies of our descriptors, the socket that we listen on among them: should we be killed then, somebody would still
// seem to listen. So this waits until then: `executed` ends with it.
UniqueFd start_guard(const std::string& state_directory, const std::string& log_level) {
  const auto none = [] {
    spdlog::warn("no guard can be started: {}; should this daemon be killed, start another one to clean up",
                 std::strerror(errno));
    return UniqueFd();
  };
  int ends[2], execution[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return none();
  UniqueFd theirs(ends[0]), ours(ends[1]);
  if (::pipe2(execution, O_CLOEXEC) != 0) return none();
  UniqueFd executed(execution[0]), executing(execution[1]);
  const std::string number = std::to_string(theirs.get());
  // -1, before Linux 5.3: then nobody looks whether the tracer has been stopped.
  const UniqueFd self(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
  const std::string own = std::to_string(self.get());
  const char* arguments[] = {"probed",          "--guard",     number.c_str(),          "--guard-of",
                             own.c_str(),       "--state-dir", state_directory.c_str(), "--log-level",
                             log_level.c_str(), nullptr};
  const pid_t child = ::fork();
  if (child == 0) {
    ::setsid();
    if (::fork() != 0) ::_exit(0);
    ::fcntl(theirs.get(), F_SETFD, 0);
    if (self) ::fcntl(self.get(), F_SETFD, 0);
    ::execv("/proc/self/exe", const_cast<char* const*>(arguments));
    ::_exit(127);
  }
  if (child < 0) return none();
  ::waitpid(child, nullptr, 0);
  executing.reset();
  char byte = 0;
  while (::read(executed.get(), &byte, 1) < 0 && errno == EINTR) {
  }
  return ours;
}

// On a full machine, too, what the daemon has left is to be put back before much runs into it. Some milliseconds of
// work; whoever may not ask for that (sched_setscheduler(2): CAP_SYS_NICE) works as others do.
void go_first() { take_realtime_priority(); }

// Whatever ends the daemon and its group is not to end the guard before its work is done. It holds none of the daemon's
// descriptors but its log.
int run_guard(int lifetime, int daemon, const std::string& state_directory) {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGPIPE}) ::signal(signal, SIG_IGN);
  ::prctl(PR_SET_NAME, "probed-guard");
  tracer::Waiter::block_signals();
  go_first();
  wait_for_end(lifetime, daemon, state_directory);
  const auto until = std::chrono::steady_clock::now() + kLockPatience;
  while (::access(state_directory.c_str(), F_OK) == 0 && std::chrono::steady_clock::now() < until) {
    // The daemon's own lock goes with it, a moment after its end of the pipe; the next daemon does the work itself.
    const Own lock = try_lock(state_directory);
    if (lock) return recover(state_directory), 0;
    if (lock.error == 0) return spdlog::error("{}", refused(state_directory, lock.why()).message), 1;
    std::this_thread::sleep_for(kLockAgain);
  }
  return 0;
}

int recover_by_hand(const std::string& path) {
  PresentPages::want_fetchers();
  tracer::Waiter::block_signals();
  const bool there = ::access(path.c_str(), F_OK) == 0 || errno != ENOENT;
  std::vector<tracer::Recovered> all;
  std::optional<StateDirectory> state;  // locked, so that what can't be put back is told once
  bool refused = false;
  if (there) {
    auto opened = StateDirectory::open(path);
    const auto locked = opened ? opened->lock() : Result<void>(opened.error());
    refused = !locked;
    if (locked) {
      state = std::move(opened).value();
      all = tracer::recover_all(path, kRecoverPatience);
    } else {
      spdlog::error("{} ({})", locked.error().message, locked.error().hint);
    }
  }
  const bool nothing_here = all.empty() && !refused;
  const auto is_done = [](const auto& one) { return one.problem.empty(); };
  // A private daemon's is tidied up with the others.
  if (std::ranges::all_of(all, is_done)) state.reset();
  const std::vector<tracer::Recovered> elsewhere = tracer::recover_left_behind();
  const char* const other = elsewhere.empty() ? "" : "else ";
  if (!there)
    spdlog::warn(
        "there is no state directory {}: nothing {}to recover (who ends well, or has recovered all, takes it away)",
        path, other);
  else if (nothing_here)
    spdlog::info("nothing {}to recover in {}", other, path);
  all.insert(all.end(), elsewhere.begin(), elsewhere.end());
  return !refused && std::ranges::all_of(all, is_done) ? 0 : 1;
}

}  // namespace probed
