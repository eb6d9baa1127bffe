#include "daemon/base/own_files.hpp"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace probed {
namespace {

constexpr mode_t kOthersWrite = 022, kOthersAny = 077;

// A symbolic link with one of these behind it would be followed whatever is asked for.
std::string without_ending(std::string path) {
  for (;;) {
    if (path.size() > 1 && path.ends_with('/'))
      path.pop_back();
    else if (path.size() > 2 && path.ends_with("/."))
      path.resize(path.size() - 1);
    else
      return path;
  }
}

std::string directory_of(const std::string& path) {
  const auto slash = path.rfind('/');
  if (slash == path.npos) return ".";
  return path.substr(0, slash == 0 ? 1 : slash);
}
const char* name_in(const std::string& path) {
  const auto slash = path.rfind('/');
  return path.c_str() + (slash == path.npos ? 0 : slash + 1);
}

Own failed(int code) {
  Own own;
  own.error = code;
  return own;
}
Own refused(Own own, std::string why) {
  own.fd.reset();
  own.wrong = std::move(why);
  return own;
}

// Whether the file that was locked is the one of that name still: who removes the directory removes it first.
bool still_named(const struct stat& held, const std::string& path) {
  struct stat named {};
  return ::lstat(path.c_str(), &named) == 0 && held.st_dev == named.st_dev && held.st_ino == named.st_ino;
}

std::string wrong_owner(const struct stat& file) { return "it belongs to user " + std::to_string(file.st_uid); }

}  // namespace

std::string Own::why() const { return error ? std::strerror(error) : wrong; }

Own open_own_directory(const std::string& given) {
  const std::string path = without_ending(given);
  Own own;
  own.fd.reset(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!own.fd) {
    const int code = errno;
    if (code != ENOTDIR && code != ELOOP) return failed(code);
    const bool link = ::lstat(path.c_str(), &own.file) == 0 && S_ISLNK(own.file.st_mode);
    return link ? refused(std::move(own), "it is a symbolic link") : failed(ENOTDIR);
  }
  if (::fstat(own.fd.get(), &own.file) != 0) return failed(errno);
  if (own.file.st_uid != ::geteuid()) {
    std::string why = wrong_owner(own.file);
    return refused(std::move(own), std::move(why));
  }
  if ((own.file.st_mode & kOthersWrite) != 0) {
    char why[64];
    std::snprintf(why, sizeof why, "others can write to it (mode %04o)", own.file.st_mode & 07777u);
    return refused(std::move(own), why);
  }
  return own;
}

Own open_own_file(const std::string& path, int flags) {
  Own directory = open_own_directory(directory_of(path));
  if (!directory) return directory.error ? std::move(directory) : refused({}, "of its directory: " + directory.wrong);
  Own own;
  own.fd.reset(::openat(directory.fd.get(), name_in(path), flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
  if (!own.fd && errno == ELOOP) return refused(std::move(own), "it is a symbolic link");
  if (!own.fd || ::fstat(own.fd.get(), &own.file) != 0) return failed(errno);
  std::string why;
  if (!S_ISREG(own.file.st_mode) || own.file.st_nlink != 1)
    why = "it is no regular file with one name";
  else if (own.file.st_uid != ::geteuid())
    why = wrong_owner(own.file);
  else if ((own.file.st_mode & kOthersAny) != 0)
    why = "others have access to it";
  return why.empty() ? std::move(own) : refused(std::move(own), std::move(why));
}

Own read_own_file(const std::string& path, std::size_t limit, std::string& content) {
  Own own = open_own_file(path, O_RDONLY);
  if (!own) return own;
  const auto size = static_cast<std::size_t>(own.file.st_size);
  if (size > limit) return refused(std::move(own), "it is too long");
  content.assign(size, '\0');
  std::size_t read = 0;
  while (read < size) {
    const ssize_t got = ::read(own.fd.get(), content.data() + read, size - read);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      own.error = errno;
      own.fd.reset();
      return own;
    }
    if (got == 0) break;
    read += static_cast<std::size_t>(got);
  }
  content.resize(read);
  return own;
}

Own lock_own_directory(const std::string& directory, int flags) {
  const std::string path = directory + "/lock";
  Own lock = open_own_file(path, flags);
  if (!lock) return lock;
  if (::flock(lock.fd.get(), LOCK_EX | LOCK_NB) != 0)
    lock.error = errno;
  else if (!still_named(lock.file, path))
    lock.error = EWOULDBLOCK;
  if (lock.error != 0) lock.fd.reset();
  return lock;
}

void remove_own_file(const std::string& path) {
  const Own directory = open_own_directory(directory_of(path));
  struct stat file {};
  if (!directory || ::fstatat(directory.fd.get(), name_in(path), &file, AT_SYMLINK_NOFOLLOW) != 0) return;
  if (S_ISREG(file.st_mode) && file.st_uid == ::geteuid()) ::unlinkat(directory.fd.get(), name_in(path), 0);
}

}  // namespace probed
