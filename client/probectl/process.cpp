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
  std::error_code error;
  for (std::filesystem::directory_iterator entry("/proc", error), end; !error && entry != end; entry.increment(error)) {
    const auto name = entry->path().filename().string();
    pid_t pid = 0;
    const auto [rest, bad] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (bad == std::errc() && rest == name.data() + name.size() && pid != ::getpid())
      processes.push_back(read_name(pid));
  }
  return processes;
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
