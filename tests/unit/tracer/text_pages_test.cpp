// TextPages on this process's own memory.
#include "daemon/tracer/text/text_pages.hpp"

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "daemon/tracer/kernel/memory.hpp"

namespace probed::tracer {
namespace {

constexpr std::size_t kPage = 4096, kPages = 40;

// Some private pages, of which every byte is its page's number.
class Stretch {
 public:
  explicit Stretch(int protection) {
    void* const at = ::mmap(nullptr, kPages * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(at != MAP_FAILED);
    bytes = static_cast<unsigned char*>(at);
    for (std::size_t i = 0; i < kPages; ++i) std::memset(bytes + i * kPage, static_cast<int>(i), kPage);
    protect(protection);
  }
  ~Stretch() { ::munmap(bytes, kPages * kPage); }
  void protect(int protection) { REQUIRE(::mprotect(bytes, kPages * kPage, protection) == 0); }
  RemoteAddr at(std::size_t offset) const { return RemoteAddr{reinterpret_cast<std::uint64_t>(bytes) + offset}; }

  unsigned char* bytes = nullptr;
};

std::vector<symbols::Mapping> own_maps() {
  auto maps = symbols::read_maps(getpid());
  REQUIRE(maps);
  return *maps;
}

const std::byte kTrap[] = {std::byte{0xcc}};
const std::byte kFive[] = {std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4}, std::byte{5}};

}  // namespace

TEST_CASE("what is written to text pages is in the memory after the flush, and seen by readers before it") {
  Stretch stretch(PROT_READ | PROT_EXEC);
  TargetMemory memory = TargetMemory::open(getpid());
  {
    TextPages pages(memory, own_maps());
    REQUIRE(memory.write(stretch.at(7), kTrap));
    REQUIRE(memory.write(stretch.at(20 * kPage - 2), kFive));  // over a page's end
    REQUIRE(memory.write(stretch.at(39 * kPage + 1), kTrap));
    std::byte seen[5];
    REQUIRE(memory.read_some(stretch.at(20 * kPage - 2), seen) == 5);
    CHECK(std::memcmp(seen, kFive, 5) == 0);
    CHECK(stretch.bytes[7] == 0);
    CHECK_FALSE(pages.flush());
  }
  CHECK(stretch.bytes[6] == 0);
  CHECK(stretch.bytes[7] == 0xcc);
  CHECK(std::memcmp(stretch.bytes + 20 * kPage - 2, kFive, 5) == 0);
  CHECK(stretch.bytes[39 * kPage + 1] == 0xcc);
  CHECK(stretch.bytes[39 * kPage + 2] == 39);
}

TEST_CASE("text pages that are not flushed leave the memory as it was") {
  Stretch stretch(PROT_READ | PROT_EXEC);
  TargetMemory memory = TargetMemory::open(getpid());
  {
    TextPages pages(memory, own_maps());
    REQUIRE(memory.write(stretch.at(7), kTrap));
  }
  CHECK(stretch.bytes[7] == 0);
  REQUIRE(memory.write(stretch.at(7), kTrap));
  CHECK(stretch.bytes[7] == 0xcc);
}

TEST_CASE("memory that the program can write is not gathered") {
  Stretch stretch(PROT_READ | PROT_WRITE | PROT_EXEC);
  TargetMemory memory = TargetMemory::open(getpid());
  TextPages pages(memory, own_maps());
  REQUIRE(memory.write(stretch.at(7), kTrap));
  CHECK(stretch.bytes[7] == 0xcc);
  CHECK_FALSE(pages.flush());
}

TEST_CASE("text that the program has changed meanwhile is not written over") {
  Stretch stretch(PROT_READ | PROT_EXEC);
  TargetMemory memory = TargetMemory::open(getpid());
  TextPages pages(memory, own_maps());
  REQUIRE(memory.write(stretch.at(7), kTrap));
  REQUIRE(memory.write(stretch.at(9 * kPage), kTrap));
  stretch.protect(PROT_READ | PROT_WRITE);
  stretch.bytes[9 * kPage + 100] = 0x90;
  stretch.protect(PROT_READ | PROT_EXEC);
  const auto failed = pages.flush();
  REQUIRE(failed);
  CHECK(*failed == stretch.at(9 * kPage));
  CHECK(stretch.bytes[9 * kPage] == 9);
  CHECK(stretch.bytes[9 * kPage + 100] == 0x90);
}

}  // namespace probed::tracer
