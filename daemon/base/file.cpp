// Whole small files, as /proc has them. Thread: any.
#include "daemon/base/file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "daemon/base/momentary.hpp"

namespace probed {

int read_file(const std::string& path, std::string& content, std::size_t limit) {
  const Momentary fd(path.c_str(), O_RDONLY | O_NOCTTY);
  return fd ? read_rest(fd.get(), content, limit) : errno;
}

int read_rest(int fd, std::string& content, std::size_t limit) {
  std::string gathered;
  for (;;) {
    // Most are short, and what is asked for is cleared first. seq_file hands out at most a page or a few at a time.
    constexpr std::size_t kLeast = 4 * 1024, kMost = 64 * 1024;
    const std::size_t have = gathered.size(), chunk = std::clamp(have, kLeast, kMost);
    gathered.resize(have + chunk);
    const ssize_t n = ::read(fd, gathered.data() + have, chunk);
    const int why = errno;
    gathered.resize(have + (n > 0 ? static_cast<std::size_t>(n) : 0));
    if (n < 0 && why == EINTR) continue;
    if (n < 0) return why;
    if (n == 0) break;
    if (gathered.size() > limit) return EFBIG;
  }
  content += gathered;
  return 0;
}

}  // namespace probed
