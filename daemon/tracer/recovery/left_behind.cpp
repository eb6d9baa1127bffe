#include "daemon/tracer/recovery/left_behind.hpp"

#include <fcntl.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <iterator>
#include <mutex>

#include "daemon/base/own_files.hpp"
#include "daemon/base/process.hpp"
#include "daemon/tracer/signals/trap_action.hpp"
#include "proto/base/private_places.hpp"

namespace probed::tracer {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

constexpr auto kBegunWithin = 60s;  // a private daemon, after its directory was made
constexpr auto kPatience = 500ms;   // for a process that another tracer is just letting go
constexpr const char* kSystemState = "/run/probed/probed.sock.state";

bool nobody_listens(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return false;
  std::copy(path.begin(), path.end(), address.sun_path);
  const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int result = ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
  return socket && result != 0 && (errno == ECONNREFUSED || errno == ENOENT);
}

bool has_journals(const std::string& state) {
  std::error_code error;
  const auto is_journal = [](const auto& entry) { return entry.path().extension() == ".journal"; };
  return std::ranges::any_of(fs::directory_iterator(state, error), is_journal);
}

// True: nobody works there, and nothing is left to be done.
bool recover_state(const std::string& state, std::vector<Recovered>& all) {
  const Own lock = lock_own_directory(state, O_RDWR);
  if (!lock) return false;
  if (has_journals(state)) {
    spdlog::info("a probed that worked in {} was killed, and its guard, too: what they left is put back", state);
    std::ranges::move(recover_all(state, kPatience), std::back_inserter(all));
  }
  return !has_journals(state);
}

// Of one whose daemon was killed before it had anything to keep there; a younger one's may be about to begin.
bool never_had_state(const std::string& directory, const std::string& state) {
  struct stat status {};
  const bool has_none = ::lstat(state.c_str(), &status) != 0 && errno == ENOENT;
  return has_none && ::lstat(directory.c_str(), &status) == 0 && ::time(nullptr) - status.st_mtime > kBegunWithin / 1s;
}

// The directory of a private daemon that was killed. One that has just begun listens before it locks.
void tidy(const std::string& directory, std::vector<Recovered>& all) {
  const std::string socket = directory + "/" + kPrivateSocket, state = socket + kStateEnding;
  if (!never_had_state(directory, state) && !recover_state(state, all)) return;
  if (!nobody_listens(socket)) return;
  remove_own_file(state + "/lock");
  ::rmdir(state.c_str());
  ::unlink(socket.c_str());
  ::rmdir(directory.c_str());
}

}  // namespace

std::vector<Recovered> recover_left_behind() {
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  std::vector<Recovered> all;
  for (const std::string& place : private_places()) {
    if (!open_own_directory(place)) continue;
    std::error_code error;
    std::vector<std::string> directories;
    for (const auto& entry : fs::directory_iterator(place, error)) directories.push_back(entry.path());
    for (const std::string& directory : directories)
      if (is_own_directory(directory)) tidy(directory, all);
  }
  if (::geteuid() == 0 && is_own_directory(kSystemState)) recover_state(kSystemState, all);
  return all;
}

// A landing that is there handles SIGTRAP.
bool may_hold_left(pid_t pid) {
  const auto tracer = process::tracer_pid(pid);
  const auto now = dispositions_of(pid);
  return tracer && *tracer == 0 && now && (*now)[forced_index(SIGTRAP)] != Disposition::standard;
}

void recover_left_in(pid_t pid) {
  recover_left_behind();
  recover_process(pid);
}

}  // namespace probed::tracer
