// See target_files.hpp.
#include "daemon/symbols/target_files.hpp"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>

namespace probed::symbols {
namespace {

std::string proc(pid_t pid, const std::string& name) { return "/proc/" + std::to_string(pid) + "/" + name; }

bool is_regular(int fd) {
  struct stat st {};
  return ::fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
}

// For reading, given an O_PATH descriptor whose kind has been looked at.
UniqueFd reopen(const UniqueFd& path) {
  if (!path || !is_regular(path.get())) return {};
  return UniqueFd(::open(("/proc/self/fd/" + std::to_string(path.get())).c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY));
}

UniqueFd open_link(const std::string& link) { return reopen(UniqueFd(::open(link.c_str(), O_PATH | O_CLOEXEC))); }

std::string map_files_name(const Mapping& m) {
  char name[64];
  std::snprintf(name, sizeof name, "map_files/%" PRIx64 "-%" PRIx64, m.start.value, m.end.value);
  return name;
}

bool is_mapped_file(int fd, const Mapping& m) {
  struct stat st {};
  return ::fstat(fd, &st) == 0 && st.st_ino == m.inode && st.st_dev == makedev(m.dev_major, m.dev_minor);
}

}  // namespace

UniqueFd open_in_root(pid_t pid, const std::string& path) {
  const UniqueFd root(::open(proc(pid, "root").c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!root) return {};
  open_how how{};
  how.flags = O_PATH | O_CLOEXEC;
  how.resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS;
  return reopen(UniqueFd(static_cast<int>(::syscall(SYS_openat2, root.get(), path.c_str(), &how, sizeof how))));
}

Result<UniqueFd> open_mapped(pid_t pid, const Mapping& mapping, const SameBuild& same_build) {
  if (UniqueFd fd = open_link(proc(pid, map_files_name(mapping)))) return fd;
  const int why = errno;
  if (UniqueFd fd = open_link(proc(pid, "exe")); fd && is_mapped_file(fd.get(), mapping)) return fd;
  UniqueFd fd = mapping.deleted ? UniqueFd() : open_in_root(pid, mapping.path);
  if (fd && (is_mapped_file(fd.get(), mapping) || same_build(fd.get()))) return fd;
  if (why == EACCES || why == EPERM)
    return Error{
        Reason::permission_denied,
        "cannot open " + mapping.path + " as process " + std::to_string(pid) + " has it mapped: " + std::strerror(why),
        "run probed as root",
        {}};
  return Error{Reason::unsupported_target,
               mapping.path + " is not the file that process " + std::to_string(pid) + " has mapped",
               "it was deleted or replaced; restart the process",
               {}};
}

std::string file_identity(pid_t pid, int fd, const std::string& path) {
  struct stat file {
  }, root{}, mounts{};
  // The change time can't be set by a file's owner, unlike the modification time.
  if (::fstat(fd, &file) != 0 || ::stat(proc(pid, "root").c_str(), &root) != 0) return {};
  if (::stat(proc(pid, "ns/mnt").c_str(), &mounts) != 0) return {};
  char text[256];
  std::snprintf(text, sizeof text, "%llx:%llx %llx %lld.%ld %lld.%ld root %llx:%llx mnt %llx ",
                static_cast<unsigned long long>(file.st_dev), static_cast<unsigned long long>(file.st_ino),
                static_cast<unsigned long long>(file.st_size), static_cast<long long>(file.st_mtim.tv_sec),
                file.st_mtim.tv_nsec, static_cast<long long>(file.st_ctim.tv_sec), file.st_ctim.tv_nsec,
                static_cast<unsigned long long>(root.st_dev), static_cast<unsigned long long>(root.st_ino),
                static_cast<unsigned long long>(mounts.st_ino));
  return text + path;
}

}  // namespace probed::symbols
