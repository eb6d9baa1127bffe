#include "daemon/tracer/memory.hpp"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

namespace probed::tracer {
namespace {

constexpr std::uint64_t kChunk = 256;  // strings are read in aligned pieces, which never straddle a page

// pread's offset is signed; the kernel's upper half is no user memory anyway.
bool addressable(RemoteAddr a, std::size_t size) { return a.value <= static_cast<std::uint64_t>(INT64_MAX) - size; }

}  // namespace

TargetMemory TargetMemory::open(pid_t tid) {
  TargetMemory memory;
  memory.fd_.reset(::open(("/proc/" + std::to_string(tid) + "/mem").c_str(), O_RDWR | O_CLOEXEC));
  return memory;
}

std::size_t TargetMemory::read_some(RemoteAddr from, std::span<std::byte> to) const {
  if (!addressable(from, to.size())) return 0;
  std::size_t done = 0;
  while (done < to.size()) {
    const ssize_t n = pread(fd_.get(), to.data() + done, to.size() - done, static_cast<off_t>(from.value + done));
    if (n <= 0) {
      if (n < 0 && errno == EINTR) continue;
      break;
    }
    done += static_cast<std::size_t>(n);
  }
  return done;
}

bool TargetMemory::read(RemoteAddr from, std::span<std::byte> to) { return read_some(from, to) == to.size(); }

std::ptrdiff_t TargetMemory::read_string(RemoteAddr from, std::span<std::byte> to) {
  std::size_t done = 0;
  while (done < to.size()) {
    const RemoteAddr at = from + done;
    const std::size_t want = std::min<std::size_t>(to.size() - done, kChunk - at.value % kChunk);
    const std::span<std::byte> piece = to.subspan(done, want);
    if (!read(at, piece)) return -1;
    const auto nul = std::find(piece.begin(), piece.end(), std::byte{0});
    done += static_cast<std::size_t>(nul - piece.begin());
    if (nul != piece.end()) break;
  }
  return static_cast<std::ptrdiff_t>(done);
}

bool TargetMemory::write(RemoteAddr to, std::span<const std::byte> from) {
  if (!addressable(to, from.size())) return false;
  std::size_t done = 0;
  while (done < from.size()) {
    const ssize_t n = pwrite(fd_.get(), from.data() + done, from.size() - done, static_cast<off_t>(to.value + done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    done += static_cast<std::size_t>(n);
  }
  return true;
}

}  // namespace probed::tracer
