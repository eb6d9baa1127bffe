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

}  // namespace

Output::Output() { find_kind(); }

Output::Output(UniqueFd file) : file_(std::move(file)), fd_(file_.get()) { find_kind(); }

Result<Output> Output::to_file(const std::string& path) {
  UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (file) return Output(std::move(file));
  const auto reason = errno == EACCES ? Reason::permission_denied : Reason::internal;
  return Error{reason, fmt::format("cannot write to {}: {}", path, text_of_errno(errno)), "", {}};
}

void Output::find_kind() {
  struct stat status {};
  ::fstat(fd_, &status);
  if (S_ISFIFO(status.st_mode)) kind_ = Kind::pipe;
  if (S_ISSOCK(status.st_mode)) kind_ = Kind::socket;
  if (::isatty(fd_)) kind_ = Kind::chunked;
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
  error_ = {Reason::internal, fmt::format("writing the events failed: {}", text_of_errno(error)), "", {}};
  buffer_.clear();
  written_ = 0;
}

void Output::maybe_flush(const WaitLimit& limit) {
  if (buffer_.size() >= kFull || Clock::now() - last_flush_ >= kLongest) flush(limit);
}

void Output::flush(const WaitLimit& limit) {
  if (state_ != State::open) buffer_.clear();
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

}  // namespace probed::client
