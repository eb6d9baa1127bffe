// The breakpoint tier's view of the test's own process: what detours record is compared with what it would.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "daemon/events/fetch.hpp"

namespace probed::test {

using Packed = std::vector<std::byte>;

// This process's memory, where unreadable pages fail instead of faulting.
class OwnMemory : public events::MemoryReader {
 public:
  bool read(RemoteAddr from, std::span<std::byte> to) override { return available(from, to) == to.size(); }
  std::ptrdiff_t read_string(RemoteAddr from, std::span<std::byte> to) override;

 private:
  // How many bytes can be read, up to the first page that can't.
  static std::size_t available(RemoteAddr from, std::span<std::byte> to);
};

std::string hex(const Packed& bytes);

}  // namespace probed::test
