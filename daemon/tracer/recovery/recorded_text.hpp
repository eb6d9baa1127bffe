// The text of one target, put back by what a journal, or a landing, tells of it. Breakpoints at once, while its threads
// run; then jumps, which do no harm as they are, when all of them stand still: nobody has to run into a breakpoint for
// one, which ends a thread that blocks SIGTRAP.
//
// Owning thread: recovery's.
#pragma once

#include <cstdint>
#include <set>
#include <span>

#include "daemon/tracer/kernel/memory.hpp"
#include "daemon/tracer/text/journal.hpp"
#include "daemon/tracer/text/layout.hpp"

namespace probed::tracer {

class RecordedText {
 public:
  // Both outlive it.
  RecordedText(TargetMemory& memory, std::span<const JournalRecord> records);

  // Behind a breakpoint may be the rest of a jump: the program's bytes come first.
  void take_out_breakpoints();
  // Every thread stands still: many by the page.
  void take_out_jumps();
  // Some thread runs, or may: by way of breakpoints. Who runs into one lands in the detour's tail.
  void take_out_running_jumps();
  // The second jumps of two, in padding, that nobody stands at. Every thread stands still.
  void put_back_islands(const std::set<std::uint64_t>& occupied);
  // Says so in the journal, step by step as the daemon did: whoever recovers next lowers none of them again.
  void lower_semaphores(const FoundJournal& journal);

  // That have been put back.
  std::size_t places() const { return restored_.size(); }
  // Whether anything that the records tell of is there: then it is the process that they were written for.
  bool holds_ours() const;

 private:
  enum class Jumps : std::uint8_t { begun, standing, running };  // those that have a breakpoint for their first byte

  template <class F>
  void for_each(JournalRecord::Kind kind, F f);
  bool is_island(const JournalRecord& record) const { return !breakpoints_.contains(record.address); }
  void take_out_jump(const JournalRecord& record, Jumps which);
  void take_out_breakpoint(const JournalRecord& record);
  void lower_semaphore(const FoundJournal& journal, std::size_t index);

  TargetMemory& memory_;
  Layout layout_;
  std::span<const JournalRecord> records_;
  std::set<std::uint64_t> breakpoints_, restored_;
};

}  // namespace probed::tracer
