// What is mapped where in a target, at one moment: whether a place still is the one that a breakpoint was put in.
//
// Owning thread: the tracer thread. The program goes on meanwhile and may change its mappings at any time; a Layout is
// read, used for the command or the stop at hand, and thrown away.
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "daemon/symbols/maps.hpp"
#include "daemon/tracer/kernel/memory.hpp"
#include "daemon/tracer/program.hpp"
#include "daemon/tracer/text/text_overlay.hpp"

namespace probed::tracer {

class Layout {
 public:
  // Not known() when /proc can't be read: no descriptor left, or the process has gone.
  static Layout of(const TargetMemory& memory);
  explicit Layout(std::vector<symbols::Mapping> mappings) : known_(true), mappings_(std::move(mappings)) {}

  static Layout unknown() { return Layout(); }

  bool known() const { return known_; }
  const std::vector<symbols::Mapping>& mappings() const { return mappings_; }
  // The mapping that holds an address; null: none.
  const symbols::Mapping* at(RemoteAddr address) const;
  // Whether what is mapped at the plan's place is what the plan was made from, for this process alone. What isn't known
  // counts as unchanged: a breakpoint that stays behind does more harm.
  bool holds(const SitePlan& plan) const;
  // Whether a file's code that the plan was made from may have been copied to memory of the program's own at the same
  // place, as programs do that want huge pages under it. Then the bytes tell: is_copy().
  bool may_hold_copy(const SitePlan& plan) const;

 private:
  Layout() = default;

  bool known_ = false;
  std::vector<symbols::Mapping> mappings_;  // by address
};

// Whether the plan's breakpoint is at the plan's address. Where a file says that the code is the same, its first bytes
// are enough; what follows is the program's to change (an inline cache, say). Other memory may hold other code by now,
// with a breakpoint instruction in the same place: so something of what followed ours must be left. In doubt it is
// ours.
bool holds_breakpoint(const TargetMemory& memory, const SitePlan& plan);

// Whether these bytes are the plan's breakpoint and what follows it; other sites' breakpoints may be in that.
bool looks_like(const SitePlan& plan, std::span<const std::uint8_t> now);

// What is, or was last, in the text for a plan: its breakpoint, or the jump that took its place.
struct Imprint {
  const SitePlan* plan = nullptr;
  std::optional<Patch> head, island;  // of the jump
};
// The same for an imprint, whatever stage its jump is in.
bool looks_like(const Imprint& imprint, std::span<const std::uint8_t> now);

// Whether the plan's place holds a copy of its file's code, with what we had put there in it: all of the instruction
// and most of what follows is as it was. Other sites' jumps may be in that.
bool is_copy(const TargetMemory& memory, const Layout& layout, const Imprint& imprint);

// A breakpoint or a jump of ours at a place where we haven't put it: the program has moved its code, with mremap(2).
struct Stray {
  SitePlan plan;  // its address is where the breakpoint is now
  RemoteAddr from;
  std::optional<Patch> head, island;  // where they would be now
};

// Looks for what was put in by these plans and has been moved since. Code of a file is recognised by the
// part of the file it comes from, whatever its protection is now. Other code is looked for in executable memory, by the
// bytes around the breakpoint, and only where a plan's own place has lost it. `expected`: there is one of ours here by
// right.
std::vector<Stray> find_strays(const TargetMemory& memory, const Layout& layout, std::span<const Imprint> imprints,
                               const std::function<bool(RemoteAddr)>& expected);

}  // namespace probed::tracer
