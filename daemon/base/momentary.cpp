#include "daemon/base/momentary.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <mutex>
#include <utility>
#include <vector>

#include "daemon/base/alone.hpp"

namespace probed {
namespace {

constexpr std::size_t kKept = 8;  // more than are open for a moment at the same time
std::mutex mutex;
std::vector<int> kept;

bool none_left(int error) { return error == EMFILE || error == ENFILE; }

// False: none is kept at the moment.
bool lend() {
  const auto lock = lock_unless_alone(mutex);
  if (kept.empty()) return false;
  ::close(kept.back());
  kept.pop_back();
  return true;
}

// As many as there were, as far as they can be had.
void fill() {
  const int error = errno;
  const auto lock = lock_unless_alone(mutex);
  while (kept.size() < kKept) {
    const int fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (fd < 0) break;
    kept.push_back(fd);
  }
  errno = error;
}

}  // namespace

void Momentary::keep_some() { fill(); }

// Another thread may be quicker to take what is given free here.
Momentary::Momentary(const char* path, int flags) : fd_(::open(path, flags | O_CLOEXEC)) {
  while (fd_ < 0 && none_left(errno) && lend()) {
    lent_ = true;
    fd_ = ::open(path, flags | O_CLOEXEC);
  }
}

Momentary::~Momentary() {
  const int error = errno;
  if (fd_ >= 0) ::close(fd_);
  if (lent_) fill();
  errno = error;
}

int Momentary::release() { return std::exchange(fd_, -1); }

}  // namespace probed
