// The landing of one address space: where its threads go on from our breakpoints when nobody traces them any more
// (arch/orphan.hpp). The code and its table are memory of the target that the program can't write to.
//
// Owning thread: the tracer thread. What maps the memory and makes the code SIGTRAP's action is Actions
// (signals/actions_landing.cpp); this keeps the table.
//
// Write-ahead: a breakpoint's entry is there before the breakpoint, and stays as long as anybody may run into it. One
// that was taken out keeps its entry for good, which then says to execute what stands there now: a thread may have
// trapped before. So entries only grow in number, by one for each address that was ever probed.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "arch/arch.hpp"
#include "daemon/base/types.hpp"
#include "daemon/tracer/kernel/memory.hpp"
#include "daemon/tracer/signals/trap_action.hpp"

namespace probed::tracer {

class Landing {
 public:
  // Whether threads can land.
  bool ready() const { return page_.value != 0; }
  RemoteAddr page() const { return page_; }
  // What SIGTRAP's action is to be; the landing must be ready.
  Action action() const;
  bool is_ours(const Action& action) const { return ready() && action.handler == this->action().handler; }
  // Whether the action is some daemon's landing, by its code.
  static bool is_left(TargetMemory& memory, const Action& action);

  // The program has taken it out of its memory: nothing is written there again, and nobody lands.
  void lose() { lost_ = true; }
  // The code, into a page that has just been mapped. False: it can't be written, or there is none for this
  // architecture.
  bool write_code(TargetMemory& memory, RemoteAddr page);
  // Whether so many more breakpoints have room.
  bool has_room(std::size_t more) const { return lost_ || (!entries_.empty() && used_ + more <= capacity() / 2); }
  // The bytes of a table that has room for so many more.
  std::uint64_t table_size(std::size_t more) const;
  // All entries go there; the memory is zeros and of that size. The former table is no longer used.
  bool move_table(TargetMemory& memory, RemoteAddr table, std::uint64_t size);
  struct Area {
    RemoteAddr base;
    std::uint64_t size = 0;
  };
  Area table() const { return {table_, entries_.size() * sizeof(arch::LandingEntry)}; }

  // Where to go on from a breakpoint, from flush() on. No-op while it isn't ready, or when there is no room.
  void stage(RemoteAddr breakpoint, RemoteAddr landing);
  bool flush(TargetMemory& memory);
  // Both. While `memory` gathers what is written (text_pages.hpp) only the first: where a thread lands must neither be
  // known before the code there is, nor be forgotten as long as the breakpoint is in the text. flush() belongs behind
  // the end of that.
  bool set(TargetMemory& memory, RemoteAddr breakpoint, RemoteAddr landing);
  // Whether it leads somewhere from there.
  bool covers(RemoteAddr breakpoint) const;

 private:
  std::uint64_t capacity() const { return entries_.size() - arch::kLandingOverrun; }
  // The entry of a breakpoint, or the free one that it would get; null: no room.
  arch::LandingEntry* find(std::uint64_t trapped);
  void touch(const arch::LandingEntry* entry);

  RemoteAddr page_, table_;
  arch::LandingCode code_;
  std::vector<arch::LandingEntry> entries_;  // as in the target, but for [first_, last_)
  std::size_t used_ = 0, first_ = 0, last_ = 0;
  bool lost_ = false;
};

}  // namespace probed::tracer
