// What /proc says about a process's credentials, through a configurable root so that tests can use fixtures.
//
// Thread: any. Everything read here may be stale a moment later; whoever acts on it checks again once the process is
// stopped (ptrace's own check has the same limit: it holds for the moment of the attach).
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "proto/base/result.hpp"

namespace probed::api {

// One thread, from /proc/PID/task/TID/status. Credentials are per thread in Linux: libc keeps them equal, programs that
// make the system calls themselves (file servers do) have threads that differ.
struct ThreadCredentials {
  std::array<uid_t, 3> uids{};  // real, effective, saved
  std::array<gid_t, 3> gids{};
  std::uint64_t permitted = 0;  // capabilities, in the thread's own user namespace
};

struct ProcessCredentials {
  std::vector<ThreadCredentials> threads;  // never empty
  // Of /proc/PID/status. The kernel gives a process's files to root while the process is not dumpable, and to its
  // effective user otherwise (fs/proc/base.c, task_dump_owner; the directory itself is exempt, so it tells nothing).
  uid_t file_owner = 0;
  std::string user_namespace;  // "user:[4026531837]"; empty: not readable
};

// Yama's /proc/sys/kernel/yama/ptrace_scope (Documentation/admin-guide/LSM/Yama.rst).
enum class PtraceScope : std::uint8_t { classic = 0, descendants = 1, admin_only = 2, nobody = 3 };

// How much this /proc lets users see of others' processes (mount option hidepid).
enum class Visibility : std::uint8_t { everything, existence, own_only };

class Procfs {
 public:
  explicit Procfs(std::string root = "/proc") : root_(std::move(root)) {}

  // nullopt: no such process, or one that has exited and waits to be reaped.
  std::optional<ProcessCredentials> credentials(pid_t pid) const;
  // Empty when the process is gone or its namespaces may not be read.
  std::string user_namespace(pid_t pid) const;
  std::string own_user_namespace() const;
  // The process and its ancestors up to process 1, nearest first; empty when it is gone.
  std::vector<pid_t> ancestry(pid_t pid) const;
  PtraceScope ptrace_scope() const;  // classic when the kernel has no Yama
  Visibility visibility() const;
  // The id the kernel shows for users that this user namespace has no number for; nullopt when every id has one, as
  // in the initial namespace.
  std::optional<uid_t> overflow_uid() const;
  std::optional<gid_t> overflow_gid() const;

 private:
  std::optional<std::string> read(const std::string& path) const;
  std::string link(const std::string& path) const;
  std::optional<std::uint32_t> overflow_id(const char* map, const char* file) const;
  std::optional<pid_t> parent(pid_t pid) const;
  std::string root_;
};

// ---- pure parts ----

struct StatusFile {
  ThreadCredentials credentials;
  pid_t parent = 0;
  char state = '?';  // R, S, D, T, t, Z, X
};
// nullopt: a line that every kernel writes is missing or malformed.
std::optional<StatusFile> parse_status(std::string_view text);
Visibility parse_visibility(std::string_view mountinfo);
// Whether a uid_map or gid_map gives every id its own number.
bool maps_everything(std::string_view map);

}  // namespace probed::api
