#include "tests/arch/detour/own_memory.hpp"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace probed::test {
namespace {

constexpr std::size_t kPage = 4096;

}  // namespace

std::ptrdiff_t OwnMemory::read_string(RemoteAddr from, std::span<std::byte> to) {
  const std::size_t got = available(from, to);
  const auto end = std::find(to.begin(), to.begin() + static_cast<std::ptrdiff_t>(got), std::byte{0});
  const auto length = end - to.begin();
  return static_cast<std::size_t>(length) == got && got < to.size() ? -1 : length;
}

std::size_t OwnMemory::available(RemoteAddr from, std::span<std::byte> to) {
  std::size_t got = 0;
  while (got < to.size()) {
    const std::uint64_t at = from.value + got;
    const std::size_t chunk = std::min<std::size_t>(to.size() - got, kPage - at % kPage);
    iovec local{to.data() + got, chunk}, remote{reinterpret_cast<void*>(at), chunk};
    const ssize_t n = ::process_vm_readv(::getpid(), &local, 1, &remote, 1, 0);
    if (n <= 0) break;
    got += static_cast<std::size_t>(n);
  }
  return got;
}

std::string hex(const Packed& bytes) {
  std::string text;
  for (const std::byte b : bytes) {
    char two[4];
    std::snprintf(two, sizeof two, "%02x", std::to_integer<unsigned>(b));
    text += two;
  }
  return text;
}

}  // namespace probed::test
