// What a trace didn't see though it might have been meant: programs that ran without its probes. Any thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace probed::client {

class Untraced {
 public:
  // A process that was followed, or a child of one, ran this program without probes.
  void ran(std::string_view comm, bool child = false) {
    ++programs_[std::string(comm)];
    children_ran_ = children_ran_ || child;
  }
  // Children that were not followed. Of each target the last number holds.
  void let_go(std::int64_t pid, std::uint64_t children) { let_go_[pid] = children; }
  // "2 processes ran other programs (cat, nice) and were not traced there", "3 children were not traced (--follow-fork
  // traces children)"; empty: nothing is to be told. follows: children are traced.
  std::string text(bool follows) const;

 private:
  std::map<std::string, std::uint64_t> programs_;
  bool children_ran_ = false;
  std::map<std::int64_t, std::uint64_t> let_go_;
};

// Whether a definition names an address: in another program that is another place, or none.
bool names_address(std::string_view definition);

}  // namespace probed::client
