// Whole small files, as /proc has them. Thread: any.
#include "daemon/base/file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

#include "daemon/base/momentary.hpp"

namespace probed {

namespace {

// read_some(to, size, have): as read(2), behind what has been read.
template <class ReadSome>
int gather(std::string& content, std::size_t limit, ReadSome read_some) {
  std::string gathered;
  for (;;) {
    // Most are short, and what is asked for is cleared first. seq_file hands out at most a page or a few at a time.
    constexpr std::size_t kLeast = 4 * 1024, kMost = 64 * 1024;
    const std::size_t have = gathered.size(), chunk = std::clamp(have, kLeast, kMost);
    gathered.resize(have + chunk);
    const ssize_t n = read_some(gathered.data() + have, chunk, have);
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

}  // namespace

int read_file(const std::string& path, std::string& content, std::size_t limit) {
  const Momentary fd(path.c_str(), O_RDONLY | O_NOCTTY);
  return fd ? read_rest(fd.get(), content, limit) : errno;
}

int read_rest(int fd, std::string& content, std::size_t limit) {
  return gather(content, limit, [fd](char* to, std::size_t size, std::size_t) { return ::read(fd, to, size); });
}

int read_whole(int fd, std::string& content) {
  return gather(content, SIZE_MAX, [fd](char* to, std::size_t size, std::size_t have) {
    return ::pread(fd, to, size, static_cast<off_t>(have));
  });
}

}  // namespace probed
