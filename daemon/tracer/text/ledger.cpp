#include "daemon/tracer/text/ledger.hpp"

#include <algorithm>
#include <utility>

#include "arch/arch.hpp"
#include "daemon/tracer/text/edits.hpp"

namespace probed::tracer {
namespace {

namespace native = arch::native;

// Of another byte of what a plan was made from.
symbols::Backing backing_of(const SitePlan& plan, RemoteAddr at) {
  symbols::Backing backing = plan.backing;
  if (backing.from_file()) backing.offset += at.value - plan.address.value;
  return backing;
}

bool keeps_borrowed(const TargetMemory& memory, const Jump& jump) {
  return !jump.borrowed || stands(memory, *jump.borrowed);
}

// The breakpoint, with the program's bytes behind it.
bool stands_alone(const TargetMemory& memory, const SitePlan& plan, const Jump& jump) {
  return holds_breakpoint(memory, plan) && holds(memory, jump.head.at + kHeadSize, tail_of(before(jump.head)));
}

}  // namespace

std::vector<Patch> patches_of(const Jump* jump) {
  if (!jump) return {};
  std::vector<Patch> patches{jump->head};
  if (jump->island) patches.push_back(*jump->island);
  return patches;
}

// ---- breakpoints ----------------------------------------------------------------------------------------------------

bool TextLedger::put_breakpoint(const SitePlan& plan) {
  settle();
  std::erase(traps_taken_, plan.address);
  if (journal_) journal_->note_breakpoint(plan);
  overlay_->add(trap_patch(plan));
  if (!put_trap(memory_, plan.address) || !holds_breakpoint(memory_, plan)) {
    forget(trap_patch(plan));
    return false;
  }
  places_in_page_.set(plan.address.value % kPageSize);
  return true;
}

bool TextLedger::take_out_breakpoint(const SitePlan& plan, const Layout& layout) {
  const bool was_there = take_out_trap(memory_, plan, layout);
  traps_taken_.push_back(plan.address);
  forget(trap_patch(plan));
  return was_there;
}

void TextLedger::take_out_breakpoint_again(const SitePlan& plan, const Layout& layout) {
  take_out_trap(memory_, plan, layout);
}

void TextLedger::replan_breakpoint(const SitePlan& was, const SitePlan& is) {
  if (journal_) journal_->note_breakpoint(is);
  overlay_->add(trap_patch(is));
  forget(trap_patch(was));
}

void TextLedger::note_call_trap(RemoteAddr trap, RemoteAddr done) {
  landing_.set(memory_, trap, done);
  if (!journal_ || trap.value == 0) return;
  SitePlan plan;
  plan.address = trap;
  plan.insn.length = native::kBreakpointSize;
  std::ranges::copy(native::kNop, plan.bytes.begin());
  plan.context = native::kBreakpointSize;
  journal_->note_breakpoint(plan);
}

// ---- jumps ----------------------------------------------------------------------------------------------------------
//
// While its head is a breakpoint, no thread comes in by the front door, and those that run into it go on in the
// detour; so the bytes behind it may be written once no thread is, or can come back, between them (quiesce.hpp).
// Nothing is ever half overwritten for a processor that is about to execute it: it sees the breakpoint with old or new
// bytes behind, or, after every thread has been through the kernel once more, the whole jump.

bool TextLedger::announce_jump(const SitePlan& plan, const Jump& jump) {
  if (!stands_alone(memory_, plan, jump) || !keeps_borrowed(memory_, jump)) return false;
  if (jump.island && !holds(memory_, jump.island->at, before(*jump.island))) return false;
  for (const Patch& patch : patches_of(&jump)) {
    overlay_->add(patch);
    if (journal_) journal_->note_patch(patch, backing_of(plan, patch.at));
  }
  landing_.set(memory_, plan.address, jump.tail);  // the copy ends where the jump's bytes will be
  return true;
}

bool TextLedger::write_island(const SitePlan& plan, const Jump& jump) {
  if (!stands_alone(memory_, plan, jump)) return false;
  return !jump.island || (holds(memory_, jump.island->at, before(*jump.island)) && put_island(memory_, *jump.island));
}

bool TextLedger::write_tail(const Jump& jump) { return put_jump_tail(memory_, jump.head); }

// A breakpoint alone isn't ours: the program may have put other code there since, with one of its own in that place.
bool TextLedger::write_head(const SitePlan& plan, const Jump& jump) {
  const bool as_left = holds_breakpoint(memory_, plan) &&
                       holds(memory_, jump.head.at + kHeadSize, tail_of(after(jump.head))) &&
                       (!jump.island || stands(memory_, *jump.island)) && keeps_borrowed(memory_, jump);
  return as_left && put_jump_head(memory_, jump.head);
}

bool TextLedger::take_out_jump(const Jump& jump, bool sure) {
  return tracer::take_out_jump(memory_, jump.head, jump.state == Jump::State::whole, sure);
}

bool TextLedger::take_out_jump_head(const Jump& jump) {
  return stands(memory_, jump.head) && put_trap(memory_, jump.head.at);
}

void TextLedger::take_out_jump_tail(const Jump& jump) { put_back_tail(memory_, jump.head); }

void TextLedger::forget_jump(const SitePlan& plan, const Jump& jump, RemoteAddr lands) {
  const bool planned = jump.state == Jump::State::planned;
  forget(jump.head);
  if (jump.island && planned) forget(*jump.island);
  if (!planned) note_former(plan, patches_of(&jump));
  landing_.set(memory_, plan.address, lands);
}

void TextLedger::take_out_island(const Patch& island) {
  tracer::take_out_island(memory_, island);
  forget(island);
}

// ---- books ----------------------------------------------------------------------------------------------------------

void TextLedger::forget(const Patch& patch) {
  taken_out_.push_back(patch);
  settle();
}

void TextLedger::settle() {
  if (memory_.gathers()) return;
  for (const RemoteAddr trap : std::exchange(traps_taken_, {}))
    if (journal_) journal_->note_taken_out(trap);
  for (const Patch& patch : std::exchange(taken_out_, {})) overlay_->remove(patch);
}

void TextLedger::drop_journal() {
  if (journal_) journal_->remove();
  journal_.reset();
}

void TextLedger::note_former(const SitePlan& plan, std::vector<Patch> patches) {
  Former& former = former_[plan.address];
  former.plan = plan;
  if (!patches.empty()) former.patches = std::move(patches);
  places_in_page_.set(plan.address.value % kPageSize);
}

void TextLedger::inherit(const TextLedger& parent) {
  landing_ = parent.landing_;
  former_ = parent.former_;
  places_in_page_ = parent.places_in_page_;
}

void TextLedger::note_standing(const SitePlan& plan) { overlay_->add(trap_patch(plan)); }

}  // namespace probed::tracer
