// What of ours stands in the text of one traced address space, and everybody who has to know of it:
//   the journal   what whoever comes after this daemon takes out
//   the landing   where threads go on from a breakpoint when nobody traces them any more
//   the overlay   what those who read the text on other threads undo
//   former        places that held something: a thread may have trapped there before, a child that was forked before
//                 may still have it
// This daemon may die at any moment: they know of what is about to be there, and forget only what has gone. While the
// memory gathers what is written (text_pages.hpp) nothing is there yet, and nothing has gone: settle() belongs behind
// that. (Where a breakpoint leads to is told to the landing beforehand, for a whole batch.)
//
// Owning thread: the tracer thread.
#pragma once

#include <bitset>
#include <memory>
#include <unordered_map>
#include <vector>

#include "daemon/tracer/kernel/memory.hpp"
#include "daemon/tracer/places/detours.hpp"
#include "daemon/tracer/program.hpp"
#include "daemon/tracer/text/journal.hpp"
#include "daemon/tracer/text/landing.hpp"
#include "daemon/tracer/text/layout.hpp"
#include "daemon/tracer/text/text_overlay.hpp"

namespace probed::tracer {

// The bytes that a jump takes: its head's, and its island's. Null: none.
std::vector<Patch> patches_of(const Jump* jump);

class TextLedger {
 public:
  // The memory outlives it.
  explicit TextLedger(TargetMemory& memory) : memory_(memory) {}
  TextLedger(const TextLedger&) = delete;
  TextLedger& operator=(const TextLedger&) = delete;

  // ---- breakpoints
  // Precondition: the plan's instruction is there as the program has it. False: it can't be written, or
  // isn't there then.
  bool put_breakpoint(const SitePlan& plan);
  // False: it wasn't there any more.
  bool take_out_breakpoint(const SitePlan& plan, const Layout& layout);
  // What was gathered has not been written, as the program changes its text at this very moment: once more, by itself.
  // Before settle().
  void take_out_breakpoint_again(const SitePlan& plan, const Layout& layout);
  // The program has rewritten the instruction behind a breakpoint that stands.
  void replan_breakpoint(const SitePlan& was, const SitePlan& is);
  // A breakpoint in generated code: a thread that runs into it when nobody traces it any more goes on at `done`, and
  // whoever recovers the target makes it a nop. 0: where it will be isn't known yet.
  void note_call_trap(RemoteAddr trap, RemoteAddr done);

  // ---- jumps: announced, island, tail, head; each is written only where all that is there is as it should be
  // False, here and below: it isn't, or can't be written.
  bool announce_jump(const SitePlan& plan, const Jump& jump);
  bool write_island(const SitePlan& plan, const Jump& jump);
  bool write_tail(const Jump& jump);
  bool write_head(const SitePlan& plan, const Jump& jump);
  // Out of the text; the books know of it until forget_jump(). `sure`: as for take_out_jump() of edits.hpp.
  bool take_out_jump(const Jump& jump, bool sure);
  // The same for one of many that are whole, in two steps, each for all of them before the next one. False: as above.
  bool take_out_jump_head(const Jump& jump);
  void take_out_jump_tail(const Jump& jump);
  // It isn't in the text any more, but for its island. Threads that run into the breakpoint land at `lands`.
  void forget_jump(const SitePlan& plan, const Jump& jump, RemoteAddr lands);
  void take_out_island(const Patch& island);

  // What was gathered is in the text now, or out of it.
  void settle();

  // ---- what is kept
  // Null: none is.
  Journal* journal() { return journal_.get(); }
  void keep_journal(std::unique_ptr<Journal> journal) { journal_ = std::move(journal); }
  // Nothing of ours is in this memory any more, or the memory itself has gone.
  void drop_journal();
  Landing& landing() { return landing_; }
  const Landing& landing() const { return landing_; }
  const std::shared_ptr<TextOverlay>& overlay() const { return overlay_; }

  // A place as it was when its breakpoint, or its last jump, was taken out: one for an address, however often that is
  // probed.
  struct Former {
    SitePlan plan;
    std::vector<Patch> patches;
  };
  const std::unordered_map<RemoteAddr, Former>& former() const { return former_; }
  // No patches: those that are known stay.
  void note_former(const SitePlan& plan, std::vector<Patch> patches = {});
  // Whether a breakpoint was ever put at this offset of some page; mremap(2) doesn't change that.
  bool ever_held(RemoteAddr address) const { return places_in_page_[address.value % kPageSize]; }

  // For a fork's copy of the memory: landing and former places. What stands there is told by note_standing().
  void inherit(const TextLedger& parent);
  void note_standing(const SitePlan& plan);

 private:
  void forget(const Patch& patch);

  TargetMemory& memory_;
  Landing landing_;
  std::unique_ptr<Journal> journal_;
  std::shared_ptr<TextOverlay> overlay_ = std::make_shared<TextOverlay>();
  std::vector<Patch> taken_out_;         // the overlay has them until what is gathered has been written
  std::vector<RemoteAddr> traps_taken_;  // likewise, the journal
  std::unordered_map<RemoteAddr, Former> former_;
  std::bitset<kPageSize> places_in_page_;
};

}  // namespace probed::tracer
