// What else is a function than its own code (copies that the compiler has made of it for some callers, places where it
// has been inlined) when that function is probed: which of it becomes a part of the probe, and what its user is told.
//
// Thread: the worker pool. Pure.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "daemon/control/planner.hpp"
#include "daemon/lang/definition.hpp"
#include "daemon/symbols/resolve.hpp"
#include "proto/base/result.hpp"

namespace probed::control {

// "function+0x4 (0x401234)"
std::string place(const symbols::Site& site);

// Those of one definition's function. They are left out, and that is said, rather than spoil the probe.
class FurtherPlaces {
 public:
  // first: the definition's first place. A function that exists only inlined has no further ones.
  FurtherPlaces(const lang::Definition& definition, const symbols::Site& first);

  // Whether it is one of them, and may be missing.
  bool has(const symbols::Site& site) const;
  // Whether the probe must do without this one: by the definition, all of them.
  bool leaves_out(const symbols::Site& site);
  // Whether some are: then they are one probe with the function's own code.
  bool are_probed() const { return copies_ + inlined_ > failed_ && !is_return_ && !by_convention_; }
  const std::string& name() const { return name_; }
  void failed(const symbols::Site& site, const Error& why);
  // What is to be said of them; empty: there were none.
  std::vector<std::string> notes() const;

 private:
  std::string name_;
  bool is_return_, by_convention_, only_inlined_;
  std::size_t copies_ = 0, inlined_ = 0, failed_ = 0;
  std::string failure_;
};

// Of the places of one line, which may be in several functions, those that lack the variables that are asked for: they
// are left out, and that is said, unless all of them do.
class LackingPlaces {
 public:
  LackingPlaces(const lang::Definition& definition, std::size_t places);

  // Whether the probe can do without a place where this is wrong.
  bool may_lack(const Error& why) const;
  void add(const symbols::Site& site, Error why);
  // Empty: none does.
  std::string note() const;
  const std::optional<Error>& first() const { return first_; }

 private:
  bool possible_;
  std::size_t count_ = 0;
  std::string where_;
  std::optional<Error> first_;
};

// Of the places of one probe: what all of them have to say becomes the first one's note, the rest, too, with where it
// is.
void gather_notes(std::span<PlannedProbe> places);

}  // namespace probed::control
