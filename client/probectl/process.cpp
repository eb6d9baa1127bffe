// See process.hpp.
#include "client/probectl/process.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <fstream>

namespace probed::client {
namespace {

std::string_view base_name(std::string_view path) {
  constexpr std::string_view kDeleted = " (deleted)";  // proc(5): the file was unlinked since
  if (path.ends_with(kDeleted)) path.remove_suffix(kDeleted.size());
  return path.substr(path.rfind('/') + 1);
}

ProcessName read_name(pid_t pid) {
  ProcessName process{pid, {}, {}};
  const auto folder = fmt::format("/proc/{}", pid);
  std::ifstream comm(folder + "/comm");
  std::getline(comm, process.comm, '\0');
  if (process.comm.ends_with('\n')) process.comm.pop_back();
  std::error_code error;
  process.exe = std::filesystem::read_symlink(folder + "/exe", error).string();
  return process;
}

// What follows the name in /proc/PID/stat, which may have blanks and parentheses in it.
std::string stat_of(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string line;
  std::getline(file, line, '\0');
  const auto name_end = line.rfind(") ");
  return name_end == line.npos ? "" : line.substr(name_end + 2);
}

template <class F>
void each_process(F take) {
  std::error_code error;
  for (std::filesystem::directory_iterator entry("/proc", error), end; !error && entry != end; entry.increment(error)) {
    const auto name = entry->path().filename().string();
    pid_t pid = 0;
    const auto [rest, bad] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (bad == std::errc() && rest == name.data() + name.size()) take(pid);
  }
}

}  // namespace

bool has_name(const ProcessName& process, std::string_view name) {
  return process.comm == name || (!process.exe.empty() && base_name(process.exe) == name);
}

Result<pid_t> choose_by_name(std::span<const ProcessName> processes, std::string_view name) {
  std::vector<pid_t> found;
  for (const auto& process : processes)
    if (has_name(process, name)) found.push_back(process.pid);
  if (found.size() == 1) return found.front();
  if (found.empty())
    return Error{
        Reason::no_such_process, fmt::format("no process is named '{}'", name), "see ps -e, or give -p PID", {}};
  std::sort(found.begin(), found.end());
  std::string pids;
  for (const auto pid : found) pids += fmt::format("{}{}", pids.empty() ? "" : ", ", pid);
  return Error{Reason::bad_params,
               fmt::format("{} processes are named '{}': {}", found.size(), name, pids),
               "choose one with -p PID",
               {}};
}

std::vector<ProcessName> all_processes() {
  std::vector<ProcessName> processes;
  each_process([&](pid_t pid) {
    if (pid != ::getpid()) processes.push_back(read_name(pid));
  });
  return processes;
}

char state_of(pid_t pid) {
  const auto stat = stat_of(pid);
  return stat.empty() ? '?' : stat[0];
}

std::vector<pid_t> children_of(pid_t pid) {
  const auto parent = fmt::format(" {} ", pid);
  std::vector<pid_t> found;
  each_process([&](pid_t other) {
    if (other == ::getpid()) return;
    if (const auto stat = stat_of(other); stat.size() > 1 && std::string_view(stat).substr(1).starts_with(parent))
      found.push_back(other);
  });
  std::ranges::sort(found);
  return found;
}

UniqueFd open_pidfd(pid_t pid) { return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))); }

bool wait_for_exit(const UniqueFd& pidfd, int milliseconds) {
  pollfd watched{pidfd.get(), POLLIN, 0};
  int ready = 0;
  do ready = ::poll(&watched, 1, milliseconds);
  while (ready < 0 && errno == EINTR);
  return ready == 1;
}

}  // namespace probed::client
