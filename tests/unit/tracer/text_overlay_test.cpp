#include "daemon/tracer/text_overlay.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "arch/arch.hpp"
#include "code.hpp"

namespace probed::tracer {
namespace {

using code::Bytes;

// The breakpoint, with these bytes behind it.
Bytes trap_with(const Bytes& tail) {
  Bytes bytes = tail;
  std::ranges::copy(arch::native::kBreakpoint, bytes.begin());
  return bytes;
}

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

const Bytes &kOld = code::kReplaced, &kNew = code::kJump;
constexpr std::size_t kHead = arch::native::kBreakpointSize;

TEST_CASE("a jump in every stage goes back to the breakpoint, or to the program's bytes") {
  const Patch p = patch(kOld, kNew);
  const Bytes trap = trap_with(kOld), trap_and_tail = trap_with(kNew);
  for (const Bytes& stage : {kNew, trap_and_tail, trap}) {
    CHECK(settled(stage, p, true) == trap);
    CHECK(settled(stage, p, false) == kOld);
  }
  for (const bool keep_trap : {true, false}) {
    CHECK(settled(kOld, p, keep_trap) == kOld);
    CHECK(settled(code::kOther, p, keep_trap) == code::kOther);
    Bytes half = kNew;
    half.back() = kOld.back();
    if (half != kNew) CHECK(settled(half, p, keep_trap) == half);
  }
}

// Whoever wrote it, or took it out, was killed between two pages. A jump as long as the breakpoint is in one.
TEST_CASE("a jump of which one page was written goes back") {
  for (std::size_t first = kHead; first < kOld.size(); ++first) {
    CAPTURE(first);
    Patch p = patch(kOld, kNew);
    p.at = RemoteAddr{0x2000 - first};
    const auto mixed = [&](const Bytes& before_page, const Bytes& behind_page, const Bytes& head) {
      Bytes bytes = behind_page;
      std::copy_n(before_page.begin(), first, bytes.begin());
      std::copy_n(head.begin(), kHead, bytes.begin());
      return bytes;
    };
    const Bytes trap = trap_with(kOld);
    for (const Bytes& head : {trap, kNew, kOld}) {
      CHECK(settled(mixed(kOld, kNew, head), p, false) == kOld);
      CHECK(settled(mixed(kNew, kOld, head), p, false) == kOld);
    }
    Bytes others = mixed(kOld, kNew, trap);
    others[first] ^= 0x80;
    CHECK(settled(others, p, false) == others);
  }
}

// It has the first byte of what replaces it.
TEST_CASE("a jump of the program's own is left alone once it is back") {
  const Bytes &own = code::kOwnJump, trap = trap_with(own);
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
