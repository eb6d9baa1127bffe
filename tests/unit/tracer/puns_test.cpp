// Where punned jumps can lead: room in the pages that have been mapped for them.
#include <doctest/doctest.h>

#include "daemon/tracer/places/detours.hpp"
#include "daemon/tracer/places/xol.hpp"

using namespace probed;
using namespace probed::tracer;

namespace {

constexpr std::uint64_t kBase = 0x10000000, kMarkSize = 16;

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
