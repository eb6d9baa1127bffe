// Where injected memory goes, and when a slot may be used again.
#include "daemon/tracer/places/xol.hpp"

#include <doctest/doctest.h>

#include <vector>

using namespace probed;
using namespace probed::tracer;

namespace {

symbols::Mapping mapping(std::uint64_t start, std::uint64_t end, std::string path = "") {
  symbols::Mapping m;
  m.start = {start};
  m.end = {end};
  m.path = std::move(path);
  return m;
}

bool overlaps(const symbols::Mapping& m, RemoteAddr at, std::uint64_t size) {
  return at < m.end && at + size > m.start;
}

const std::vector<symbols::Mapping> kPie = {
    mapping(0x555555554000, 0x555555580000, "/bin/x"), mapping(0x555555590000, 0x5555555b0000, "[heap]"),
    mapping(0x7ffff7c00000, 0x7ffff7e00000, "/lib/libc.so.6"), mapping(0x7ffffffde000, 0x7ffffffff000, "[stack]")};

}  // namespace

TEST_CASE("the place for a new area is free, page aligned and within reach of the site") {
  for (const std::uint64_t near : {0x555555560000, 0x7ffff7d00000}) {
    unsigned found = 0;
    for (unsigned attempt = 0; attempt < 8; ++attempt) {
      const auto at = choose_hole(kPie, {near}, 0x3000, attempt);
      if (!at) break;
      ++found;
      CHECK(at->value % kPageSize == 0);
      for (const auto& m : kPie) CHECK_FALSE(overlaps(m, *at, 0x3000));
      const std::uint64_t distance = at->value > near ? at->value - near : near - at->value;
      CHECK(distance < kSlotReach);
    }
    CHECK(found >= 1);
  }
}

TEST_CASE("neither the heap's nor the stack's room to grow is used") {
  for (unsigned attempt = 0; attempt < 8; ++attempt) {
    const auto heap_side = choose_hole(kPie, {0x5555555a0000}, kPageSize, attempt);
    constexpr std::uint64_t kRoom = 1 << 30;
    if (heap_side) CHECK_FALSE((heap_side->value >= 0x5555555b0000 && heap_side->value < 0x5555555b0000 + kRoom));
    const auto stack_side = choose_hole(kPie, {0x7ffff7d00000}, kPageSize, attempt);
    if (stack_side) CHECK_FALSE((stack_side->value >= 0x7ffff7e00000 && stack_side->value < 0x7ffffffff000));
  }
}

// 44 threads' stacks of 8 MiB below the libraries.
TEST_CASE("a stack that needs less room leaves a place above the libraries") {
  const std::vector<symbols::Mapping> crowded = {mapping(0x700000000000, 0x7ffff7e00000),
                                                 mapping(0x7ffffffde000, 0x7ffffffff000, "[stack]")};
  CHECK_FALSE(choose_hole(crowded, {0x7ffff7d00000}, kPageSize, 0));
  const auto at = choose_hole(crowded, {0x7ffff7d00000}, kPageSize, 0, 64 << 20);
  REQUIRE(at);
  CHECK(at->value >= 0x7ffff7e00000);
  CHECK(at->value + kPageSize + (64 << 20) <= 0x7ffffffde000);
}

TEST_CASE("no place is offered when everything within reach is taken") {
  const std::vector<symbols::Mapping> full = {mapping(0x10000, 0x200000000)};
  CHECK_FALSE(choose_hole(full, {0x400000}, kPageSize, 0));
}

TEST_CASE("a non-PIE program's low addresses have a place below or above") {
  const std::vector<symbols::Mapping> maps = {mapping(0x400000, 0x500000, "/bin/x"),
                                              mapping(0x700000, 0x800000, "[heap]")};
  CHECK(choose_hole(maps, {0x401000}, kPageSize, 0).has_value());
}

TEST_CASE("a hole keeps clear of neighbours, of stacks, and of where the heap may grow") {
  const std::vector<symbols::Mapping> maps = {mapping(0x555555554000, 0x555555580000, "/bin/x"),
                                              mapping(0x7ffff7c00000, 0x7ffff7e00000, "/lib/libc.so.6"),
                                              mapping(0x7ffffffde000, 0x7ffffffff000, "[stack]")};
  CHECK(is_hole(maps, {0x555540000000}, kPageSize));
  CHECK_FALSE(is_hole(maps, {0x555555400000}, kPageSize));  // too near below
  CHECK_FALSE(is_hole(maps, {0x555555560000}, kPageSize));
  CHECK_FALSE(is_hole(maps, {0x555555600000}, kPageSize));  // too near above
  CHECK_FALSE(is_hole(maps, {0x555565600000}, kPageSize));  // the heap's to be
  CHECK(is_hole(maps, {0x7ffff0000000}, kPageSize));
  CHECK_FALSE(is_hole(maps, {0x7ffff9000000}, kPageSize));  // the stack's to be
  CHECK_FALSE(is_hole(maps, {0x1000}, kPageSize));
}

TEST_CASE("a retired slot is used again only when every thread sent there has been seen outside") {
  XolAreas xol;
  xol.add_area({0x10000}, kSlotSize);  // room for exactly one
  const auto slot = xol.allocate({0x20000});
  REQUIRE(slot);
  xol.publish(*slot, Slot{});
  CHECK_FALSE(xol.allocate({0x20000}));
  xol.enter(*slot);
  xol.enter(*slot);
  xol.retire(*slot);
  CHECK_FALSE(xol.allocate({0x20000}));
  xol.leave(*slot);
  CHECK_FALSE(xol.allocate({0x20000}));
  xol.leave(*slot);
  CHECK(xol.allocate({0x20000}) == slot);
}

TEST_CASE("slots are as long as their copies need, and each is told from its neighbours") {
  XolAreas xol;
  xol.add_area({0x10000}, kPageSize);
  std::vector<std::pair<RemoteAddr, std::uint64_t>> slots;
  for (const std::uint64_t size : {8, 64, 16, 24, 8, 16}) {
    const auto slot = xol.allocate({0x20000}, size);
    REQUIRE(slot);
    Slot content;
    content.original = {0x1000 + size};
    xol.publish(*slot, content);
    slots.emplace_back(*slot, size);
  }
  CHECK(slots.back().first == RemoteAddr{0x10000 + 8 + 64 + 16 + 24 + 8});
  for (const auto& [slot, size] : slots) {
    for (std::uint64_t offset = 0; offset < size; ++offset) {
      RemoteAddr base;
      const Slot* found = xol.find(slot + offset, base);
      REQUIRE(found != nullptr);
      CHECK(base == slot);
      CHECK(found->original == RemoteAddr{0x1000 + size});
    }
  }
  RemoteAddr base;
  CHECK(xol.find(slots.back().first + 16, base) == nullptr);
  xol.retire(slots[2].first);
  CHECK(xol.allocate({0x20000}, 16) == slots[2].first);
}

TEST_CASE("a slot is found by any address in it, and never out of reach of its site") {
  XolAreas xol;
  xol.add_area({0x10000}, kPageSize);
  CHECK_FALSE(xol.allocate({0x10000 + 0x100000000}));
  const auto slot = xol.allocate({0x20000});
  REQUIRE(slot);
  Slot content;
  content.original = {0x1234};
  xol.publish(*slot, content);
  RemoteAddr base;
  const Slot* found = xol.find(*slot + 5, base);
  REQUIRE(found != nullptr);
  CHECK(base == *slot);
  CHECK(found->original == RemoteAddr{0x1234});
  CHECK(xol.find({0x9000}, base) == nullptr);
}
