// See output.hpp.
#include "client/probectl/output.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <limits.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>

namespace probed::client {
namespace {

constexpr std::size_t kFull = std::size_t{64} << 10;  // a pipe's default capacity
constexpr auto kLongest = std::chrono::milliseconds(100);

// O_APPEND: whoever else writes to it, or truncates it (logrotate's copytruncate), nothing is written over and no hole
// is left.
UniqueFd open_file(const std::string& path, int more) {
  return UniqueFd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | more, 0644));
}

Error cannot_write(const std::string& path, int error) {
  const auto reason = error == EACCES ? Reason::permission_denied : Reason::internal;
  return Error{reason, fmt::format("cannot write to {}: {}", path, text_of_errno(error)), "", {}};
}

bool has_terminal() { return static_cast<bool>(UniqueFd(::open("/dev/tty", O_RDONLY | O_NOCTTY | O_CLOEXEC))); }

}  // namespace

Output::Output() { find_kind(); }

Output::Output(UniqueFd file, std::string path)
    : file_(std::move(file)), path_(std::move(path)), has_terminal_(has_terminal()), fd_(file_.get()) {
  find_kind();
}

Result<Output> Output::to_file(const std::string& path, Existing existing) {
  UniqueFd file = open_file(path, existing == Existing::overwrite ? O_TRUNC : 0);
  if (!file) return cannot_write(path, errno);
  struct stat status {};
  ::fstat(file.get(), &status);
  if (existing == Existing::refuse && S_ISREG(status.st_mode) && status.st_size > 0)
    return Error{Reason::unsupported,
                 fmt::format("{} is there already, with {} bytes in it", path, status.st_size),
                 "choose another -o FILE; --append goes on behind what is there, --overwrite throws it away",
                 {}};
  return Output(std::move(file), path);
}

Result<void> Output::reopen(const WaitLimit& limit) {
  flush(limit);
  UniqueFd file = open_file(path_, 0);
  if (!file) return cannot_write(path_, errno);
  file_ = std::move(file);
  fd_ = file_.get();
  kind_ = Kind::plain;
  find_kind();
  return {};
}

bool Output::lost_its_terminal() const { return has_terminal_ && !has_terminal(); }

void Output::find_kind() {
  struct stat status {};
  ::fstat(fd_, &status);
  if (S_ISFIFO(status.st_mode)) kind_ = Kind::pipe;
  if (S_ISSOCK(status.st_mode)) kind_ = Kind::socket;
  is_terminal_ = ::isatty(fd_) == 1;
  if (is_terminal_) kind_ = Kind::chunked;
}

// O_NONBLOCK is no way out: it belongs to the open file, which other processes share.
ssize_t Output::write_some(const char* from, std::size_t size) {
  if (kind_ == Kind::socket) return ::send(fd_, from, size, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (kind_ == Kind::pipe) {
    const iovec piece{const_cast<char*>(from), size};
    const auto written = ::pwritev2(fd_, &piece, 1, -1, RWF_NOWAIT);
    if (written >= 0 || (errno != EOPNOTSUPP && errno != EINVAL && errno != ENOSYS)) return written;
    kind_ = Kind::chunked;
  }
  if (kind_ == Kind::plain) return ::write(fd_, from, size);
  // POLLOUT on a pipe promises room for PIPE_BUF bytes (pipe(7)).
  pollfd ready{fd_, POLLOUT, 0};
  if (::poll(&ready, 1, 0) == 1) return ::write(fd_, from, std::min<std::size_t>(size, PIPE_BUF));
  errno = EAGAIN;
  return -1;
}

void Output::give_up(int error) {
  state_ = error == EPIPE || error == ECONNRESET ? State::closed : State::failed;
  failure_ = error;
  drop();
}

void Output::drop() {
  const auto lost = std::count(buffer_.begin() + static_cast<std::ptrdiff_t>(written_), buffer_.end(), '\n');
  lost_ += static_cast<std::size_t>(lost);
  buffer_.clear();
  written_ = 0;
}

Error Output::error() const {
  return {Reason::internal,
          fmt::format("writing the events{} failed: {}; the last {} that came are not in it",
                      path_.empty() ? "" : " to " + path_, text_of_errno(failure_), lost_),
          failure_ == ENOSPC || failure_ == EDQUOT ? "make room, or name a file on another file system" : "",
          {}};
}

void Output::maybe_flush(const WaitLimit& limit) {
  if (buffer_.size() >= kFull || Clock::now() - last_flush_ >= kLongest) flush(limit);
}

void Output::flush(const WaitLimit& limit) {
  if (state_ != State::open) drop();
  while (state_ == State::open && written_ < buffer_.size()) {
    const auto wrote = write_some(buffer_.data() + written_, buffer_.size() - written_);
    if (wrote >= 0) {
      written_ += static_cast<std::size_t>(wrote);
    } else if (errno == EAGAIN) {
      const auto woken = poll_fd(fd_, POLLOUT, limit);
      if (!woken || *woken != Wake::message) break;
    } else if (errno != EINTR) {
      give_up(errno);
    }
  }
  buffer_.erase(0, written_);
  written_ = 0;
  last_flush_ = Clock::now();
}

Result<Output> open_output(const Options& options) {
  if (options.out_file.empty()) return Output();
  const auto existing = options.append      ? Output::Existing::append
                        : options.overwrite ? Output::Existing::overwrite
                                            : Output::Existing::refuse;
  return Output::to_file(options.out_file, existing);
}

}  // namespace probed::client
