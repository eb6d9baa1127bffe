// What jumps make of text, and back. A Patch is some bytes of text that a jump replaces; a TextOverlay is all the
// patches that a target's text may hold, so that whoever reads the text on another thread sees the program's own bytes.
//
// Any thread; the overlay is locked. The tracer adds a patch before it writes it; so a reader that looks here after it
// has read the text knows of everything that it may have read.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>

#include "daemon/base/types.hpp"

namespace probed::tracer {

struct Patch {
  static constexpr std::size_t kMaxSize = 8;
  RemoteAddr at;
  std::uint8_t size = 0;
  std::array<std::uint8_t, kMaxSize> before{}, after{};
};
inline std::span<const std::uint8_t> before(const Patch& p) { return std::span(p.before).first(p.size); }
inline std::span<const std::uint8_t> after(const Patch& p) { return std::span(p.after).first(p.size); }

// Takes the patch's bytes, in whatever stage they are, back to the original ones, or to the breakpoint: where the
// breakpoint is that, the jump's or the original ones, behind it the jump's or the original ones, on each of two pages:
// who is killed while it writes may have written to the first (ptrace writes page by page, mm/memory.c,
// __access_remote_vm). Anything else is the program's. True: they changed.
bool settle(std::span<std::uint8_t> bytes, const Patch& patch, bool keep_trap);

class TextOverlay {
 public:
  void add(const Patch& patch);
  // Undoes what jumps have done to these bytes of text, which begin at `from`. First bytes may stay breakpoints. A patch
  // that is only in part among them is left alone: read kMargin bytes more on either side.
  void undo(std::span<std::uint8_t> bytes, RemoteAddr from) const;
  static constexpr std::size_t kMargin = Patch::kMaxSize - 1;
  bool empty() const;

 private:
  mutable std::mutex mutex_;
  std::map<RemoteAddr, Patch> patches_;  // the last of each address
};

}  // namespace probed::tracer
