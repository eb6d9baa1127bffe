// See listener.hpp.
#include "daemon/api/listener.hpp"

#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <vector>

#include <systemd/sd-daemon.h>

namespace probed::api {
namespace {

constexpr int kBacklog = 128;
constexpr int kDying = 1'000;  // ms: a daemon that was killed takes connections until it is gone

Error failed(std::string what, const std::string& path, int code, std::string hint = {}) {
  const Reason reason = code == EACCES || code == EPERM ? Reason::permission_denied : Reason::internal;
  if (hint.empty() && reason == Reason::permission_denied) hint = "run probed as root, or choose another --socket";
  if (hint.empty() && code == ENOENT) hint = "make the directory first, or choose another --socket";
  return {reason, "cannot " + std::move(what) + " " + path + ": " + std::strerror(code), std::move(hint)};
}

Result<sockaddr_un> address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path)
    return Error{Reason::limit_exceeded,
                 "the socket's path has " + std::to_string(path.size()) + " bytes; 1 to " +
                     std::to_string(sizeof address.sun_path - 1) + " are possible: " + path,
                 "choose a shorter --socket"};
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

const sockaddr* generic(const sockaddr_un& address) { return reinterpret_cast<const sockaddr*>(&address); }

UniqueFd stream_socket() { return UniqueFd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)); }

std::string directory_of(const std::string& path) {
  const auto slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// Held while looking for another daemon and taking its place, so that two can't both find the place free. On the
// directory, because a lock file would stay behind or be removed under somebody's hands.
Result<UniqueFd> lock_directory(const std::string& path) {
  const std::string directory = directory_of(path);
  UniqueFd fd(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return failed("open the socket's directory", directory, errno);
  constexpr int kTries = 250;  // several of kDying
  for (int i = 0; flock(fd.get(), LOCK_EX | LOCK_NB) != 0; ++i) {
    if (i == kTries || (errno != EWOULDBLOCK && errno != EINTR))
      return failed("lock the socket's directory", directory, errno,
                    "another probed is starting there, or a process keeps a lock on it");
    usleep(20'000);
  }
  return fd;
}

Error answered(const std::string& path) {
  return {Reason::unsupported, "another daemon answers at " + path, "stop it first, or give this one another --socket"};
}

// Whether somebody listens there, and goes on doing so: who is about to be gone takes connections, and drops them.
Result<bool> somebody_answers(const std::string& path, const sockaddr_un& address) {
  for (int waited = 0;;) {
    const UniqueFd probe = stream_socket();
    // EAGAIN: somebody listens, but his queue is full. ENOENT: who was stopped has taken his socket away.
    if (connect(probe.get(), generic(address), sizeof address) != 0) {
      if (errno == EAGAIN) return true;
      if (errno == ECONNREFUSED || errno == ENOENT) return false;
      return failed("find out who answers at", path, errno);
    }
    constexpr int kLook = 50;
    pollfd hung_up{probe.get(), POLLRDHUP, 0};
    while (waited < kDying && poll(&hung_up, 1, kLook) == 0) waited += kLook;
    if (waited >= kDying) return true;
    ++waited;
    usleep(1'000);
  }
}

// Whether the file at path may be replaced: ok when there is none, or it is a socket nobody listens on.
Result<void> clear_stale(const std::string& path, const sockaddr_un& address) {
  struct stat file {};
  if (lstat(path.c_str(), &file) != 0) return errno == ENOENT ? Result<void>() : failed("look at", path, errno);
  if (!S_ISSOCK(file.st_mode))
    return Error{Reason::unsupported, path + " exists and is not a socket", "remove it, or choose another --socket"};
  const auto answers = somebody_answers(path, address);
  if (!answers) return answers.error();
  if (*answers) return answered(path);
  if (unlink(path.c_str()) != 0 && errno != ENOENT) return failed("remove the stale socket", path, errno);
  return {};
}

// Makes a bound socket what the options ask for, and ready. Returns its file's identity.
Result<struct stat> publish(int fd, const ListenOptions& options) {
  const char* path = options.path.c_str();
  struct stat file {};
  if (listen(fd, kBacklog) != 0) return failed("listen at", options.path, errno);
  if (options.group && lchown(path, static_cast<uid_t>(-1), *options.group) != 0)
    return failed("give the socket's group", options.path, errno);
  if (chmod(path, options.mode) != 0) return failed("set the mode of", options.path, errno);
  if (lstat(path, &file) != 0) return failed("look at", options.path, errno);
  return file;
}

}  // namespace

Result<Listener> Listener::at(const ListenOptions& options) {
  auto address = address_of(options.path);
  if (!address) return std::move(address).error();
  auto lock = lock_directory(options.path);
  if (!lock) return std::move(lock).error();
  if (auto clear = clear_stale(options.path, *address); !clear) return std::move(clear).error();
  UniqueFd fd = stream_socket();
  if (!fd) return failed("make a socket for", options.path, errno);
  // The file gets the socket's own mode (net/unix/af_unix.c, unix_bind): closed to everybody until it is complete.
  fchmod(fd.get(), 0);
  if (bind(fd.get(), generic(*address), sizeof *address) != 0) return failed("bind", options.path, errno);
  auto file = publish(fd.get(), options);
  if (!file) {
    unlink(options.path.c_str());
    return std::move(file).error();
  }
  return Listener(std::move(fd), options.path, file->st_dev, file->st_ino);
}

Result<std::optional<Listener>> Listener::from_systemd() {
  const int count = sd_listen_fds(1);
  if (count == 0) return std::optional<Listener>();
  if (count < 0) return failed("take the socket from", "systemd", -count);
  UniqueFd fd(SD_LISTEN_FDS_START);
  if (count > 1 || sd_is_socket_unix(fd.get(), SOCK_STREAM, 1, nullptr, 0) <= 0)
    return Error{Reason::unsupported, "systemd passes " + std::to_string(count) + " sockets, or one that does not fit",
                 "probed.socket needs exactly one ListenStream= with a path"};
  fcntl(fd.get(), F_SETFL, fcntl(fd.get(), F_GETFL) | O_NONBLOCK);
  return std::optional(Listener(std::move(fd), {}, 0, 0));
}

void Listener::remove() {
  if (path_.empty()) return;
  struct stat file {};
  const bool ours = lstat(path_.c_str(), &file) == 0 && file.st_dev == device_ && file.st_ino == inode_;
  if (ours) unlink(path_.c_str());
  path_.clear();
}

Result<gid_t> find_group(std::string_view name) {
  gid_t number = 0;
  const auto [end, ec] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (ec == std::errc() && end == name.data() + name.size() && !name.empty()) return number;
  group entry{}, *found = nullptr;
  std::vector<char> buffer(64 * 1024);
  getgrnam_r(std::string(name).c_str(), &entry, buffer.data(), buffer.size(), &found);
  if (found) return found->gr_gid;
  return Error{Reason::bad_params, "there is no group \"" + std::string(name) + "\"", "groups there are: getent group"};
}

}  // namespace probed::api
