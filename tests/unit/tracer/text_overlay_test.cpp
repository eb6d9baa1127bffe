#include "daemon/tracer/text/text_overlay.hpp"

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
}

// ---- the overlay ----------------------------------------------------------------------------------------------------

Patch patch_at(std::uint64_t at, const Bytes& before, const Bytes& after) {
  Patch p = patch(before, after);
  p.at = RemoteAddr{at};
  return p;
}

Patch trap_at(std::uint64_t at, const Bytes& code) {
  const Bytes trap(arch::native::kBreakpoint.begin(), arch::native::kBreakpoint.end());
  return patch_at(at, Bytes(code.begin(), code.begin() + kHead), trap);
}

Bytes undone(const TextOverlay& overlay, Bytes text, std::uint64_t from) {
  const TextOverlay::Reading reading(overlay);
  reading.undo(text, RemoteAddr{from});
  return text;
}

TEST_CASE("whoever reads text sees the program's bytes behind a breakpoint and behind every stage of a jump") {
  TextOverlay overlay;
  CHECK(undone(overlay, trap_with(kOld), 0x1000) == trap_with(kOld));
  overlay.add(trap_at(0x1000, kOld));
  CHECK(undone(overlay, trap_with(kOld), 0x1000) == kOld);
  overlay.add(patch_at(0x1000, kOld, kNew));
  for (const Bytes& stage : {kNew, trap_with(kNew), trap_with(kOld), kOld})
    CHECK(undone(overlay, stage, 0x1000) == kOld);
  Bytes half = kNew;  // it is just being written
  half.back() = kOld.back();
  CHECK(undone(overlay, half, 0x1000) == kOld);
}

// Where no breakpoint was ever: before, the reader took its first byte for one.
TEST_CASE("the second jump of two is seen through as a whole, and in part") {
  TextOverlay overlay;
  overlay.add(patch_at(0x1000, kOld, kNew));
  CHECK(undone(overlay, kNew, 0x1000) == kOld);
  for (std::size_t first = 0; first < kNew.size(); ++first) {
    const auto at = static_cast<std::ptrdiff_t>(first);
    CHECK(undone(overlay, Bytes(kNew.begin() + at, kNew.end()), 0x1000 + first) ==
          Bytes(kOld.begin() + at, kOld.end()));
    CHECK(undone(overlay, Bytes(kNew.begin(), kNew.begin() + at), 0x1000) == Bytes(kOld.begin(), kOld.begin() + at));
  }
}

TEST_CASE("what the program has written over a jump is left as it is") {
  TextOverlay overlay;
  overlay.add(trap_at(0x1000, kOld));
  overlay.add(patch_at(0x1000, kOld, kNew));
  Bytes others = code::kOther;
  CHECK(undone(overlay, others, 0x1000) == others);
  Bytes elsewhere = kNew;  // a jump of its own, with our first byte
  elsewhere.back() ^= 0x55;
  if (elsewhere.back() != kOld.back()) CHECK(undone(overlay, elsewhere, 0x1000) == elsewhere);
}

TEST_CASE("what was taken out is forgotten, but not while somebody reads who may have seen it") {
  TextOverlay overlay;
  const Patch first = patch_at(0x1000, kOld, kNew);
  Bytes other = kNew;
  other.back() ^= 0x11;
  const Patch second = patch_at(0x1000, kOld, other);
  overlay.add(first);
  {
    const TextOverlay::Reading reading(overlay);
    overlay.remove(first);
    overlay.add(second);  // at the same place, and leads elsewhere
    for (const Bytes& seen : {kNew, other}) {
      Bytes text = seen;
      reading.undo(text, first.at);
      CHECK(text == kOld);
    }
    if (other.back() != kOld.back()) CHECK(undone(overlay, kNew, 0x1000) == kNew);  // began behind the removal
    CHECK(overlay.size() == 1);
  }
  overlay.remove(second);
  CHECK(overlay.size() == 0);
  CHECK(undone(overlay, other, 0x1000) == other);
  overlay.remove(second);  // no-op
}

TEST_CASE("patches that overlap, as they come and go while the text is read, are all undone") {
  TextOverlay overlay;
  Bytes text = kOld, before = kOld;
  text.insert(text.end(), kOld.begin(), kOld.end());
  before.insert(before.end(), kOld.begin(), kOld.end());
  const std::size_t step = kHead;
  const TextOverlay::Reading reading(overlay);
  const Patch early = patch_at(0x1000, kOld, kNew);
  const Bytes inner(before.begin() + static_cast<std::ptrdiff_t>(step),
                    before.begin() + static_cast<std::ptrdiff_t>(step + kOld.size()));
  const Patch late = patch_at(0x1000 + step, inner, kNew);
  overlay.add(early);
  overlay.remove(early);
  overlay.add(late);
  std::copy_n(kNew.begin(), step, text.begin());  // read while the first was there, the rest behind the second
  std::copy(kNew.begin(), kNew.end(), text.begin() + static_cast<std::ptrdiff_t>(step));
  reading.undo(text, early.at);
  CHECK(text == before);
}

}  // namespace
}  // namespace probed::tracer
