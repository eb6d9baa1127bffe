// TargetMemory on this process's own memory.
#include "daemon/tracer/kernel/memory.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstring>

#include "arch/arch.hpp"

namespace probed::tracer {

// Where the processor looks past a pointer's highest byte, so do reads; elsewhere there is nothing to be read.
TEST_CASE("a pointer with a tag leads to what the program would read there") {
  static const char text[] = "tagged";
  TargetMemory memory = TargetMemory::open(getpid());
  for (const std::uint64_t tag : {0x01ULL, 0x7fULL, 0x80ULL, 0xffULL}) {
    CAPTURE(tag);
    const std::uint64_t plain = reinterpret_cast<std::uint64_t>(text), tagged = plain | tag << 56;
    const bool ignored = arch::native::without_tag(tagged) == plain;
    std::byte bytes[sizeof text];
    CHECK(memory.read(RemoteAddr{tagged}, bytes) == ignored);
    std::byte string[64];
    CHECK(memory.read_string(RemoteAddr{tagged}, string) == (ignored ? std::ptrdiff_t{sizeof text - 1} : -1));
    if (ignored) CHECK(std::memcmp(string, text, sizeof text - 1) == 0);
  }
  std::byte byte[1];
  CHECK_FALSE(memory.read(RemoteAddr{~0ULL - 4096}, byte));  // the kernel's half
}

}  // namespace probed::tracer
