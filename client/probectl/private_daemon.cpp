// See private_daemon.hpp.
#include "client/probectl/private_daemon.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <thread>

#include "client/probectl/process.hpp"
#include "client/probectl/report.hpp"
#include "proto/base/private_places.hpp"

namespace probed::client {
namespace {

constexpr auto kStartLimit = std::chrono::seconds(10);
constexpr int kEndLimit = 1'000;  // ms; for a daemon that has just let go of its connection
constexpr auto kGuardLimit = std::chrono::seconds(10);
constexpr int kStopLimit = 15'000;  // ms; the daemon gives itself 10 s to detach

Error cannot_start(std::string why, std::string hint = {}) {
  return {Reason::internal, "cannot start a private daemon: " + std::move(why), std::move(hint), {}};
}

// A fresh directory where other daemons of this user look for what this one may leave. The place goes with its last
// one: it may have gone before it is used. Empty: there it can't be (errno).
std::string directory_in(const std::string& place) {
  for (int attempt = 0; attempt < 16; ++attempt) {
    if (::mkdir(place.c_str(), 0700) != 0 && errno != EEXIST) return {};
    if (!is_own_directory(place)) return errno = EACCES, std::string();
    auto name = place + "/XXXXXX";
    if (::mkdtemp(name.data())) return name;  // mode 0700
    if (errno != ENOENT) return {};
  }
  return {};
}

Result<std::array<UniqueFd, 2>> make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return cannot_start(text_of_errno(errno));
  return std::array{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

void keep_across_exec(const UniqueFd& fd) { ::fcntl(fd.get(), F_SETFD, 0); }

// What a daemon that was killed has left in its targets is put back by its guard, which reads of it there. nullopt:
// there is no such directory.
std::optional<bool> has_journals(const std::string& state) {
  std::error_code error;
  const std::filesystem::directory_iterator entries(state, error);
  if (error) return std::nullopt;
  const auto is_journal = [](const auto& entry) { return entry.path().extension() == ".journal"; };
  return std::ranges::any_of(entries, is_journal);
}

std::optional<bool> wait_for_guard(const std::string& state) {
  const auto until = Clock::now() + kGuardLimit;
  while (has_journals(state) == true && Clock::now() < until) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return has_journals(state);
}

}  // namespace

Result<std::string> find_daemon() {
  if (const char* given = std::getenv("PROBED_DAEMON"); given && *given) return std::string(given);
  std::error_code error;
  const auto own = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  for (const char* beside : {"../daemon/probed", "../sbin/probed", "probed"}) {
    const auto candidate = (own / beside).lexically_normal();
    if (::access(candidate.c_str(), X_OK) == 0) return candidate.string();
  }
  return cannot_start(fmt::format("there is no probed at {0}/../daemon, {0}/../sbin or {0}", own.string()),
                      "name the program in $PROBED_DAEMON");
}

PrivateDaemon::PrivateDaemon(PrivateDaemon&& other) noexcept
    : directory_(std::exchange(other.directory_, {})),
      socket_(std::move(other.socket_)),
      lifetime_(std::move(other.lifetime_)),
      ready_(std::move(other.ready_)),
      pidfd_(std::move(other.pidfd_)),
      log_(std::move(other.log_)),
      pid_(std::exchange(other.pid_, -1)),
      left_nothing_(other.left_nothing_) {}

Result<void> PrivateDaemon::make_directory() {
  std::string why;
  for (const std::string& place : private_places()) {
    directory_ = directory_in(place);
    if (!directory_.empty()) break;
    why += fmt::format("{}{}: {}", why.empty() ? "" : "; ", place, text_of_errno(errno));
  }
  // Somebody else may have taken the names: then nobody looks there for what is left, but in the target itself.
  if (directory_.empty()) {
    directory_ = "/tmp/probectl-XXXXXX";
    if (!::mkdtemp(directory_.data())) {
      directory_.clear();
      return cannot_start(why, "such a directory has to be yours, and one that nobody else can write to");
    }
  }
  socket_ = directory_ + "/" + kPrivateSocket;
  return {};
}

// Its own session, so that a ^C at the terminal reaches us and not it. Its log goes to memory and not to the
// terminal, nor to a pipe that would stop it when full.
Result<void> PrivateDaemon::spawn(const std::string& program, const Signals& signals) {
  auto lifetime = make_pipe();
  if (!lifetime) return std::move(lifetime).error();
  auto ready = make_pipe();
  if (!ready) return std::move(ready).error();
  log_.reset(::memfd_create("probed-log", MFD_CLOEXEC));
  UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  const auto lifetime_number = std::to_string((*lifetime)[0].get()), ready_number = std::to_string((*ready)[1].get());
  const char* arguments[] = {
      program.c_str(), "--socket",           socket_.c_str(),      "--lifetime-fd", lifetime_number.c_str(),
      "--ready-fd",    ready_number.c_str(), "--remove-directory", nullptr};
  pid_ = ::fork();
  if (pid_ < 0) return cannot_start(text_of_errno(errno));
  if (pid_ == 0) {
    ::setsid();
    signals.restore();
    ::dup2(null.get(), 0), ::dup2(null.get(), 1), ::dup2(log_.get(), 2);
    keep_across_exec((*lifetime)[0]), keep_across_exec((*ready)[1]);
    ::execv(program.c_str(), const_cast<char* const*>(arguments));
    ::dprintf(2, "%s: %s\n", program.c_str(), text_of_errno(errno));
    ::_exit(127);
  }
  lifetime_ = std::move((*lifetime)[1]);
  ready_ = std::move((*ready)[0]);
  pidfd_ = open_pidfd(pid_);
  return {};
}

Result<void> PrivateDaemon::wait_until_ready(const Signals& signals) {
  const auto woken = poll_fd(ready_.get(), POLLIN, {Clock::now() + kStartLimit, signals.fd(), {}});
  if (!woken) return woken.error();
  if (*woken == Wake::interrupt) return cannot_start("interrupted");
  if (*woken == Wake::timeout) return cannot_start("it was not ready in time: " + last_words());
  char byte = 0;
  if (::read(ready_.get(), &byte, 1) == 1) return {};
  const auto how = sudden_end(), words = last_words();
  if (!words.empty()) return cannot_start(words);
  return cannot_start(how.empty() ? "it ended at once" : "it " + how + " before it was ready");
}

Result<PrivateDaemon> PrivateDaemon::start(const std::string& program, const Signals& signals) {
  PrivateDaemon daemon;
  if (auto made = daemon.make_directory(); !made) return std::move(made).error();
  if (auto spawned = daemon.spawn(program, signals); !spawned) return std::move(spawned).error();
  if (auto ready = daemon.wait_until_ready(signals); !ready) return std::move(ready).error();
  return daemon;
}

std::string PrivateDaemon::last_words() const {
  constexpr off_t kTail = 4096;
  const off_t size = ::lseek(log_.get(), 0, SEEK_CUR);  // shared with the daemon: where it writes next
  std::string tail(static_cast<std::size_t>(std::clamp<off_t>(size, 0, kTail)), '\0');
  const auto got = ::pread(log_.get(), tail.data(), tail.size(), std::max<off_t>(size - kTail, 0));
  tail.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  std::istringstream lines(tail);
  std::string last;
  for (std::string line; std::getline(lines, line);)
    if (!line.empty() && !line.starts_with("probed: info: ")) last = line;
  return last;
}

std::optional<siginfo_t> PrivateDaemon::end() const {
  siginfo_t info{};
  if (pid_ <= 0 || ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0) return {};
  return info.si_pid == 0 ? std::nullopt : std::optional(info);
}

std::string PrivateDaemon::sudden_end() {
  // Its connections close a little before it is a zombie.
  if (pidfd_) wait_for_exit(pidfd_, kEndLimit);
  const auto how = end();
  if (!how || !lifetime_) return "";
  return how->si_code == CLD_EXITED ? fmt::format("ended with status {}", how->si_status)
                                    : fmt::format("was killed by signal {}", how->si_status);
}

bool PrivateDaemon::ended_in_order() const {
  const auto how = end();
  return how && how->si_code == CLD_EXITED && how->si_status == 0;
}

// One that ends in order removes the directory when nothing is left; one that never had it, and was killed, has nobody
// who cleans up.
bool PrivateDaemon::left_nothing() {
  if (!left_nothing_) left_nothing_ = !wait_for_guard(state_directory()).value_or(!ended_in_order());
  return *left_nothing_;
}

void PrivateDaemon::stop() {
  if (directory_.empty()) return;
  lifetime_.reset();
  if (pid_ > 0) {
    ::kill(pid_, SIGTERM);  // our child, not yet reaped: the pid cannot be another's
    if (pidfd_ && !wait_for_exit(pidfd_, kStopLimit))
      return note(fmt::format("the private daemon (PID {}) is still busy; it will end by itself", pid_)),
             directory_.clear();
    left_nothing();
    ::waitpid(pid_, nullptr, 0);
  }
  if (left_nothing_ == false && has_journals(state_directory()))
    return note(fmt::format("what the private daemon has left in its targets is still there; put it back with "
                            "probed --recover --state-dir {}",
                            state_directory())),
           directory_.clear();
  std::error_code error;
  std::filesystem::remove_all(directory_, error);
  ::rmdir(std::filesystem::path(directory_).parent_path().c_str());  // others may be there
  directory_.clear();
}

}  // namespace probed::client
