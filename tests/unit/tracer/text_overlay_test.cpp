#include "daemon/tracer/text_overlay.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "arch/arch.hpp"

namespace probed::tracer {
namespace {

using Bytes = std::vector<std::uint8_t>;

constexpr std::uint8_t kTrap = arch::native::kBreakpoint[0];

Patch patch(const Bytes& before, const Bytes& after) {
  Patch p{RemoteAddr{0x1000}, static_cast<std::uint8_t>(before.size()), {}, {}};
  std::ranges::copy(before, p.before.begin());
  std::ranges::copy(after, p.after.begin());
  return p;
}

Bytes settled(Bytes bytes, const Patch& p, bool keep_trap) {
  const Bytes was = bytes;
  const bool changed = settle(bytes, p, keep_trap);
  CHECK(changed == (bytes != was));
  return bytes;
}

const Bytes kOld{0x55, 0x48, 0x89, 0xe5, 0x53}, kNew{0xe9, 1, 2, 3, 4};

TEST_CASE("a jump in every stage goes back to the breakpoint, or to the program's bytes") {
  const Patch p = patch(kOld, kNew);
  const Bytes trap{kTrap, 0x48, 0x89, 0xe5, 0x53}, trap_and_tail{kTrap, 1, 2, 3, 4};
  for (const Bytes& stage : {kNew, trap_and_tail, trap}) {
    CHECK(settled(stage, p, true) == trap);
    CHECK(settled(stage, p, false) == kOld);
  }
  for (const bool keep_trap : {true, false}) {
    CHECK(settled(kOld, p, keep_trap) == kOld);
    const Bytes others{0x90, 0x48, 0x89, 0xe5, 0x53}, half{0xe9, 1, 2, 3, 0x53};
    CHECK(settled(others, p, keep_trap) == others);
    CHECK(settled(half, p, keep_trap) == half);
  }
}

// Whoever wrote it, or took it out, was killed between two pages.
TEST_CASE("a jump of which one page was written goes back") {
  for (std::size_t first = 1; first < kOld.size(); ++first) {
    CAPTURE(first);
    Patch p = patch(kOld, kNew);
    p.at = RemoteAddr{0x2000 - first};
    const auto mixed = [&](const Bytes& before_page, const Bytes& behind_page, std::uint8_t head) {
      Bytes bytes = behind_page;
      std::copy_n(before_page.begin(), first, bytes.begin());
      bytes[0] = head;
      return bytes;
    };
    for (const std::uint8_t head : {kTrap, kNew[0], kOld[0]}) {
      CHECK(settled(mixed(kOld, kNew, head), p, false) == kOld);
      CHECK(settled(mixed(kNew, kOld, head), p, false) == kOld);
    }
    Bytes others = mixed(kOld, kNew, kTrap);
    others[first] ^= 0x80;
    CHECK(settled(others, p, false) == others);
  }
}

// It has the first byte of what replaces it.
TEST_CASE("a jump of the program's own is left alone once it is back") {
  const Bytes own{0xe9, 5, 6, 7, 8}, trap{kTrap, 5, 6, 7, 8};
  const Patch p = patch(own, kNew);
  for (const bool keep_trap : {true, false}) CHECK(settled(own, p, keep_trap) == own);
  CHECK(settled(trap, p, true) == trap);
  CHECK(settled(kNew, p, true) == trap);
  CHECK(settled(kNew, p, false) == own);
  TextOverlay overlay;
  overlay.add(p);
  Bytes text = own;
  overlay.undo(text, p.at);
  CHECK(text == own);
}

}  // namespace
}  // namespace probed::tracer
