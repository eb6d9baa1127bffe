// See acting_as.hpp.
#include "daemon/base/acting_as.hpp"

#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <charconv>
#include <string_view>

#include "daemon/base/file.hpp"
#include "daemon/base/process.hpp"
#include "proto/base/check.hpp"

namespace probed {
namespace {

constexpr std::size_t kMostStatus = 1 << 20;  // 65,536 groups of ten digits fit

// This thread's alone; libc's setgroups(3) changes those of all.
bool set_groups(const std::vector<gid_t>& groups) {
  return ::syscall(SYS_setgroups, groups.size(), groups.data()) == 0;
}

// setfsuid(2) and setfsgid(2) don't say whether they have failed; an id that there is none of changes nothing, and
// tells the present one.
bool set_user(uid_t user) {
  ::syscall(SYS_setfsuid, user);
  return static_cast<uid_t>(::syscall(SYS_setfsuid, static_cast<uid_t>(-1))) == user;
}
bool set_group(gid_t group) {
  ::syscall(SYS_setfsgid, group);
  return static_cast<gid_t>(::syscall(SYS_setfsgid, static_cast<gid_t>(-1))) == group;
}

bool own_groups(std::vector<gid_t>& groups) {
  const int count = ::getgroups(0, nullptr);
  if (count < 0) return false;
  groups.resize(static_cast<std::size_t>(count));
  return count == 0 || ::getgroups(count, groups.data()) == count;
}

std::vector<gid_t> numbers_in(std::string_view line) {
  std::vector<gid_t> numbers;
  for (const char *at = line.data(), *end = at + line.size(); at < end;) {
    gid_t number = 0;
    const auto [rest, error] = std::from_chars(at, end, number);
    if (error == std::errc()) numbers.push_back(number);
    at = rest == at ? at + 1 : rest;
  }
  return numbers;
}

}  // namespace

Result<FileCredentials> file_credentials(pid_t pid) {
  auto ids = process::credentials(pid);
  if (!ids) return std::move(ids).error();
  std::string status;
  if (read_file("/proc/" + std::to_string(pid) + "/status", status, kMostStatus) != 0)
    return Error{Reason::no_such_process, "no process " + std::to_string(pid), "it has just ended", {}};
  constexpr std::string_view kKey = "\nGroups:";
  FileCredentials who{ids->euid, ids->egid, {}};
  if (const auto at = status.find(kKey); at != status.npos) {
    const std::string_view line = std::string_view(status).substr(at + kKey.size());
    who.groups = numbers_in(line.substr(0, line.find('\n')));
  }
  return who;
}

std::string to_string(const FileCredentials& who) {
  std::string text = std::to_string(who.user) + ":" + std::to_string(who.group);
  for (const gid_t group : who.groups) text += "," + std::to_string(group);
  return text;
}

// From 0 to another id the kernel takes CAP_DAC_OVERRIDE and its like out of effect, and the other way round it puts
// them back (security/commoncap.c, cap_task_fix_setuid). The groups go first and come back last, while it may.
ActingAs::ActingAs(const FileCredentials& who) {
  if (::geteuid() != 0 || who.user == 0) return;
  const bool dumpable = ::prctl(PR_GET_DUMPABLE) == 1;
  able_ = own_groups(own_groups_) && set_groups(who.groups);
  changed_ = able_;
  able_ = able_ && set_group(who.group) && set_user(who.user);
  // The kernel takes a process that changes ids for one that keeps secrets (kernel/cred.c, commit_creds): no core
  // dumps. Its ids for ptrace(2) and kill(2) are root's as before.
  if (dumpable) ::prctl(PR_SET_DUMPABLE, 1);
}

ActingAs::~ActingAs() {
  if (!changed_) return;
  const bool dumpable = ::prctl(PR_GET_DUMPABLE) == 1;
  const bool back = set_user(::geteuid()) && set_group(::getegid()) && set_groups(own_groups_);
  PROBED_CHECK(back, "a thread can't get its own ids back");
  if (dumpable) ::prctl(PR_SET_DUMPABLE, 1);
}

}  // namespace probed
