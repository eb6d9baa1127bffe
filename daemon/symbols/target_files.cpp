// See target_files.hpp.
#include "daemon/symbols/target_files.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "daemon/base/out_of_descriptors.hpp"
#include "daemon/base/visits.hpp"

namespace probed::symbols {
namespace {

std::string proc(pid_t pid, const std::string& name) { return "/proc/" + std::to_string(pid) + "/" + name; }

std::string map_files_name(const Mapping& m) {
  char name[64];
  std::snprintf(name, sizeof name, "map_files/%" PRIx64 "-%" PRIx64, m.start.value, m.end.value);
  return name;
}

bool is_mapped_file(int fd, const Mapping& m) {
  struct stat st {};
  return ::fstat(fd, &st) == 0 && st.st_ino == m.inode && st.st_dev == makedev(m.dev_major, m.dev_minor);
}

UniqueFd root_of(pid_t pid) { return UniqueFd(::open(proc(pid, "root").c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC)); }

Error not_readable(pid_t pid, const Mapping& mapping, const std::string& why) {
  return {Reason::unsupported_target,
          mapping.path + ", which process " + std::to_string(pid) + " has mapped, isn't read: " + why,
          "install it on a disk's file system and restart the process",
          {}};
}

}  // namespace

Result<TargetFiles> TargetFiles::of(pid_t pid) {
  auto who = file_credentials(pid);
  if (!who) return std::move(who).error();
  return TargetFiles(pid, std::move(who).value());
}

Opened TargetFiles::open_as_user(const UniqueFd& root, const std::string& path, Mounts& mounts) const {
  if (!root) return Opened::failed(errno);
  const std::string user = "user " + std::to_string(who_.user);
  const ActingAs acting(who_);
  if (!acting)
    return Opened::refused("this daemon can't open it with the permissions of " + user +
                           ", for it lacks CAP_SETUID or CAP_SETGID");
  Opened none;
  const UniqueFd found = find_below(root.get(), path, mounts, none);
  Opened opened = found ? reopen(found, mounts) : std::move(none);
  return opened.error == EACCES ? Opened::refused(user + ", whose process it is, may not read it") : std::move(opened);
}

Opened TargetFiles::open(const std::string& path) const {
  const std::lock_guard lock(seen_->mutex);
  return open_as_user(root_of(pid_), path, seen_->theirs);
}

Opened TargetFiles::open_here(const std::string& path, const std::vector<std::string>& directories) const {
  const bool inside = path.find("/../") == path.npos &&
                      std::ranges::any_of(directories, [&](const std::string& d) { return path.starts_with(d + "/"); });
  if (!inside) return Opened::failed(ENOENT);
  const std::lock_guard lock(seen_->mutex);
  return open_as_user(root_of(::getpid()), path, seen_->ours);
}

Result<UniqueFd> TargetFiles::open_mapped(const Mapping& mapping, const SameBuild& same_build) const {
  Opened mapped, program;
  {
    const std::lock_guard lock(seen_->mutex);
    const Visit visit(pid_);
    mapped = open_link(proc(pid_, map_files_name(mapping)), seen_->theirs);
    if (!mapped) program = open_link(proc(pid_, "exe"), seen_->theirs);
  }
  if (mapped) return std::move(mapped.fd);
  if (mapped.error == 0) return not_readable(pid_, mapping, mapped.why);
  if (program && is_mapped_file(program.fd.get(), mapping)) return std::move(program.fd);
  Opened named = mapping.deleted ? Opened::failed(ENOENT) : open(mapping.path);
  if (named && (is_mapped_file(named.fd.get(), mapping) || same_build(named.fd.get()))) return std::move(named.fd);
  if (out_of_descriptors()) return no_descriptors(pid_);
  if (mapped.error == EACCES || mapped.error == EPERM)
    return Error{Reason::permission_denied,
                 "cannot open " + mapping.path + " as process " + std::to_string(pid_) +
                     " has it mapped: " + std::strerror(mapped.error),
                 "run probed as root",
                 {}};
  return Error{Reason::unsupported_target,
               mapping.path + " is not the file that process " + std::to_string(pid_) + " has mapped",
               "it was deleted or replaced; restart the process",
               {}};
}

std::string TargetFiles::identity(int fd, const std::string& path) const {
  struct stat file {
  }, root{}, mounts{};
  // The change time can't be set by a file's owner, unlike the modification time.
  if (::fstat(fd, &file) != 0 || ::stat(proc(pid_, "root").c_str(), &root) != 0) return {};
  if (::stat(proc(pid_, "ns/mnt").c_str(), &mounts) != 0) return {};
  char text[256];
  std::snprintf(text, sizeof text, "%llx:%llx %llx %lld.%ld %lld.%ld root %llx:%llx mnt %llx as ",
                static_cast<unsigned long long>(file.st_dev), static_cast<unsigned long long>(file.st_ino),
                static_cast<unsigned long long>(file.st_size), static_cast<long long>(file.st_mtim.tv_sec),
                file.st_mtim.tv_nsec, static_cast<long long>(file.st_ctim.tv_sec), file.st_ctim.tv_nsec,
                static_cast<unsigned long long>(root.st_dev), static_cast<unsigned long long>(root.st_ino),
                static_cast<unsigned long long>(mounts.st_ino));
  return text + to_string(who_) + " " + path;
}

Result<UniqueFd> open_mapped(pid_t pid, const Mapping& mapping, const SameBuild& same_build) {
  auto files = TargetFiles::of(pid);
  if (!files) return std::move(files).error();
  return files->open_mapped(mapping, same_build);
}

}  // namespace probed::symbols
