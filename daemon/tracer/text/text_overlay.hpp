// What breakpoints and jumps make of text, and back. A Patch is some bytes of text that we replace; a TextOverlay is
// all the patches that a target's text may hold, so that whoever reads the text on another thread sees the program's
// own bytes.
//
// Any thread; the overlay is locked, but never while somebody reads or writes the target. The tracer adds a patch
// before it writes it, and removes it after it has taken it out. A reader says when it begins (TextOverlay::Reading):
// what is removed while it reads is kept until it has ended. So it knows of every byte that it may have read, whatever
// the tracer did meanwhile, and of none that was taken out before.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
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
  // Of one thread, around one read of the text.
  class Reading {
   public:
    explicit Reading(const TextOverlay& overlay);
    ~Reading();
    Reading(const Reading&) = delete;
    Reading& operator=(const Reading&) = delete;
    // Makes what has been read since, which begins at `from`, the program's own bytes. What a patch covers and is
    // neither the program's nor ours was written by the program, and is left as it is.
    void undo(std::span<std::uint8_t> bytes, RemoteAddr from) const;

   private:
    const TextOverlay& overlay_;
    std::uint64_t began_;
  };

  // The tracer's. One patch may be added again while it is there.
  void add(const Patch& patch);
  void remove(const Patch& patch);  // no-op when it isn't there
  std::size_t size() const;         // of what the text may hold now

 private:
  struct Written {
    Patch patch;
    std::uint64_t removed = 0;  // when; 0: the text may hold it
  };
  using Entries = std::multimap<RemoteAddr, Written>;

  Entries::const_iterator first_reaching(RemoteAddr from) const;
  bool explains(RemoteAddr at, std::uint8_t byte, std::uint64_t began) const;
  bool explains(std::span<const std::uint8_t> bytes, RemoteAddr from, const Patch& patch, std::uint64_t began) const;
  void forget_removed() const;

  mutable std::mutex mutex_;
  mutable Entries entries_;
  mutable std::uint64_t clock_ = 0;                           // counts readers that begin, and removals
  mutable std::multiset<std::uint64_t> readers_;              // when those began that haven't ended
  mutable std::multimap<std::uint64_t, RemoteAddr> removed_;  // entries that wait for readers, by `removed`
};

}  // namespace probed::tracer
