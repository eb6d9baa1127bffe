// Where punned jumps can lead: pages that nothing is near, and room in those that have been mapped.
#include <doctest/doctest.h>

#include <vector>

#include "daemon/tracer/detours.hpp"
#include "daemon/tracer/xol.hpp"

using namespace probed;
using namespace probed::tracer;

namespace {

constexpr std::uint64_t kBase = 0x10000000, kMarkSize = 16;

symbols::Mapping mapping(std::uint64_t start, std::uint64_t end, std::string path = "") {
  symbols::Mapping m;
  m.start = {start};
  m.end = {end};
  m.path = std::move(path);
  return m;
}

// One page whose first bytes are a mark.
DetourSpace space_with_page() {
  DetourSpace space;
  CodeArea area;
  area.base = {kBase};
  area.size = kPageSize;
  area.line = CodeArea::kNoLine;
  area.puns.emplace(kBase, kMarkSize);
  space.areas().push_back(std::move(area));
  return space;
}

}  // namespace

TEST_CASE("a punned jump leads to the first bytes in its range that are free") {
  DetourSpace space = space_with_page();
  CHECK(space.room_for_pun({kBase, 256}) == RemoteAddr{kBase + kMarkSize});
  CHECK(space.room_for_pun({kBase + 100, 1}) == RemoteAddr{kBase + 100});
  CHECK_FALSE(space.room_for_pun({kBase + kMarkSize - 1, 1}));
  CHECK_FALSE(space.room_for_pun({kBase + kPageSize - 4, 1}));  // its end would be beyond the page
  CHECK(space.room_for_pun({kBase + kPageSize - 5, 1}));
  space.place_pun({kBase + 100}, {});
  CHECK_FALSE(space.room_for_pun({kBase + 96, 1}));
  CHECK_FALSE(space.room_for_pun({kBase + 104, 1}));
  CHECK(space.room_for_pun({kBase + 95, 1}) == RemoteAddr{kBase + 95});
  CHECK(space.room_for_pun({kBase + 96, 256}) == RemoteAddr{kBase + 105});
}

TEST_CASE("a punned jump waits for bytes only where those in the way are about to be given back") {
  DetourSpace space = space_with_page();
  const arch::PunRange in_mark{kBase + 3, 1}, in_jump{kBase + 98, 1};
  space.place_pun({kBase + 100}, {});
  CHECK_FALSE(space.awaits_pun(in_mark));
  CHECK_FALSE(space.awaits_pun(in_jump));
  space.retire({kBase + 100});
  CHECK_FALSE(space.room_for_pun(in_jump));
  CHECK(space.awaits_pun(in_jump));
  CHECK_FALSE(space.awaits_pun(in_mark));
  space.round_done(space.begin_round());
  CHECK(space.room_for_pun(in_jump));
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
