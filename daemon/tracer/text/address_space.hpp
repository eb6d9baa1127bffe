// One target address space as the tracer sees it: its memory, the sites in its text, its XOL areas.
//
// Owning thread: the tracer thread. Shared by every traced process that shares the memory (vfork and CLONE_VM
// children). A site's breakpoint is the effect; which programs want it is the intent: arming is always derived from the
// programs.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "daemon/tracer/calls/return_stacks.hpp"
#include "daemon/tracer/jumps/optimisation.hpp"
#include "daemon/tracer/kernel/call_pads.hpp"
#include "daemon/tracer/kernel/memory.hpp"
#include "daemon/tracer/places/detours.hpp"
#include "daemon/tracer/places/xol.hpp"
#include "daemon/tracer/program.hpp"
#include "daemon/tracer/text/layout.hpp"
#include "daemon/tracer/text/ledger.hpp"
#include "proto/base/result.hpp"

namespace probed::tracer {

struct Site {
  SitePlan plan;
  RemoteAddr slot;     // 0: the instruction is emulated
  bool armed = false;  // the breakpoint is in the text now
  std::vector<ProgramPtr> programs;
  std::vector<RemoteAddr> raised;  // the semaphores that its programs have raised by one each; one may be here twice

  // What is known of the code around it, and where its file is loaded; null: nothing, it isn't optimised.
  std::shared_ptr<const arch::CodeFlow> flow;
  std::uint64_t bias = 0;
  const char* why_not = nullptr;     // set: it isn't optimised, whatever its programs; of static life time
  bool may_be_other_code = false;    // 32-bit code of a 64-bit process, as far as is known
  bool executed = false;             // a thread was seen to, as native code
  std::shared_ptr<Jump> jump;        // its own alone; null: none
  bool queued = false;               // waits for the optimiser
  std::uint8_t trapped_waiting = 0;  // hits since then, up to what makes it hot
  // Where no ordinary jump fits a punned one may. It takes memory of its own, so the site has to be hit often first.
  enum class Pun : std::uint8_t { no, possible, wanted, failed };
  Pun pun = Pun::no;
  const char* why_no_pun = nullptr;  // set: failed; of static life time
  RemoteAddr led_astray;             // where its punned jump led when the program changed what is behind it; 0: nowhere
  unsigned trapped = 0;              // hits since it is possible
  bool rewritten = false;            // by the program, while it was armed: it stays a breakpoint
  std::uint8_t set_backs = 0;        // times that its jump had to be taken out for the program's sake
  std::chrono::steady_clock::time_point no_jump_before{};  // since the last of them
  unsigned absent = 0;                                     // arguments that its detour could not read since then
  std::chrono::steady_clock::time_point absent_since{};

  bool wanted() const;  // some program is enabled
};

class AddressSpace {
 public:
  explicit AddressSpace(TargetMemory memory) : memory_(std::move(memory)) {}

  TargetMemory& memory() { return memory_; }
  XolAreas& xol() { return xol_; }
  // Calls of functions with return probes.
  ReturnStacks& returns() { return *returns_; }
  // Whether injected memory is still what it was: neither unmapped by the program nor replaced by memory of its own.
  bool is_ours(const XolAreas::Area& area, const Layout& layout) const;
  // The mark of this process's areas; an area's first bytes, where it has others there.
  static Mark mark(std::uint64_t offset);
  static Mark mark_of(std::span<const std::uint8_t> code);
  // Gives the landing up when its code or its table is not there any more.
  void look_after_landing(const Layout& layout);
  // A page of the target for the arguments of remote calls, inside xol(); 0: not mapped yet.
  RemoteAddr scratch() const { return scratch_; }
  void set_scratch(RemoteAddr page) { scratch_ = page; }
  // Where threads go on when this daemon is killed, inside xol() too. Kept up to date by what arms, disarms and jumps.
  Landing& landing() { return ledger_.landing(); }
  const Landing& landing() const { return ledger_.landing(); }
  // Told of everything before it is in the target; null: none is kept.
  Journal* journal() { return ledger_.journal(); }
  // Breakpoints and semaphores that are in the target already are written there at once.
  void keep_journal(std::unique_ptr<Journal> journal);
  // Nothing of ours is in this memory any more, or the memory itself has gone.
  void drop_journal() { ledger_.drop_journal(); }
  const std::unordered_map<RemoteAddr, Site>& sites() const { return sites_; }
  Site* find(RemoteAddr address);
  // A site at another address whose instruction shares bytes with this one; null: none.
  const Site* overlapping(const SitePlan& plan) const;
  // What had a breakpoint of ours until it was taken out; nullptr: nothing.
  const SitePlan* former_site(RemoteAddr address) const {
    const auto it = ledger_.former().find(address);
    return it == ledger_.former().end() ? nullptr : &it->second.plan;
  }

  // Whether the target's mapping and bytes at the plan's address are still the ones it was made from. Errors:
  // unmapped_address, existing_breakpoint, target_gone.
  Result<void> verify(const SitePlan& plan, const Layout& layout) const;
  // Adds an unarmed site. Precondition: none is there. `slot`: 0 for emulated instructions.
  Site& add_site(const SitePlan& plan, RemoteAddr slot);
  // Disarms and forgets; its slot is retired.
  void remove_site(RemoteAddr address, const Layout& layout);
  // The same for many; with a known layout by the page.
  void remove_sites(std::span<const RemoteAddr> addresses, const Layout& layout);
  // Writes or removes the breakpoint. False: the target's memory is not what we left there (unmapped, replaced); the
  // site is then not armed, and nothing was written.
  bool set_armed(Site& site, bool armed, const Layout& layout);
  // The program has rewritten a site's instruction behind its breakpoint: from now on the site is this plan's, in this
  // slot (0: emulated); the slot it had is retired, and no jump is made there any more. Preconditions: same address, no
  // jump.
  void renew_site(Site& site, const SitePlan& plan, RemoteAddr slot);
  // The sites whose code has gone: unmapped, replaced by something else, or written over.
  std::vector<RemoteAddr> lost_sites(const Layout& layout) const;
  // Whether a breakpoint or a jump wasn't where it was put when it was to be taken out, since the last heal_strays().
  bool misses_breakpoints() const { return misses_breakpoints_; }
  // Takes our breakpoints and jumps out of code that the program has moved; how many.
  std::size_t heal_strays(const Layout& layout);
  // Whether a breakpoint of ours may have been moved to here, as far as the bytes tell. Costs nothing at most places.
  bool could_be_stray(RemoteAddr address) const;
  // A jump counts its distance: one that was moved leads as far beside its detour as it was moved. The place of the
  // moved jump that leads here; nullopt: none does.
  std::optional<RemoteAddr> moved_jump_to(RemoteAddr pc) const;
  // Where a site's punned jump leads when the program has changed what is behind the site; nullopt: where it should, or
  // there is none.
  std::optional<RemoteAddr> astray(const Site& site) const;
  // The site whose punned jump leads, or has led, to this place for that reason; null: none's.
  Site* astray_to(RemoteAddr pc);

  // Whether the text there is this, but for the site's own breakpoint.
  bool holds_around(const Site& site, std::span<const std::uint8_t> bytes) const;
  // TextLedger::note_call_trap().
  void add_call_trap(RemoteAddr trap, RemoteAddr done) { ledger_.note_call_trap(trap, done); }
  // The jump to a detour, in the order of these three; the breakpoint is in place before the first. `plan`: a jump that
  // is in state planned. False: the text is not what it should be; nothing was changed.
  bool plan_jump(Site& site, Jump jump);
  bool write_jump_tail(Site& site);
  bool write_jump_head(Site& site);
  // Back to the breakpoint, at once; its detour is retired. No-op without a jump. Without a layout a jump is taken for
  // ours by the bytes that were written: those of both jumps where there are two, one to four of a punned one.
  void drop_jump(Site& site, const Layout& layout = Layout::unknown());
  // The sites whose jumps are in the way of another probe at this address.
  std::vector<Site*> hindered_by(RemoteAddr address);
  // All of them: the last thread is about to be let go.
  void take_out_islands();
  // Those that nothing leads to any more, but for these: a thread stands there. Every thread stands still.
  void take_out_islands_but(const std::set<RemoteAddr>& occupied);
  // Every thread has been seen outside of generated code and islands since the round began: DetourSpace::round_done,
  // and the islands that nobody needs any more are taken out.
  std::vector<std::pair<std::size_t, std::uint32_t>> round_done(std::uint64_t number);
  Optimisation& optimisation() { return *optimisation_; }
  const Optimisation& optimisation() const { return *optimisation_; }
  // What the text may hold of ours, for those who read it on other threads.
  const std::shared_ptr<TextOverlay>& overlay() const { return ledger_.overlay(); }
  DetourSpace& detours() { return *detours_; }
  const DetourSpace& detours() const { return *detours_; }
  // Ascending; with all sites there are.
  const std::map<RemoteAddr, Site*>& sites_in_order() const { return in_order_; }

  // The breakpoint at the program's entry point, before any site: a thread is to stop there once. False: the text can't
  // be written. remove_entry: no-op when there is none.
  bool plant_entry(const SitePlan& plan);
  const std::optional<SitePlan>& entry() const { return entry_; }
  void remove_entry();
  // Takes every breakpoint out of the text for good: the target is being let go, and nothing is armed any more.
  void close();

  // In a fork's copy of this space: writes back the original bytes of every breakpoint the copy may have inherited.
  void clean_copy(TargetMemory& copy, const Layout& layout) const;
  // For a followed fork: the same sites, slots and programs over the child's memory, which has this layout and stands
  // still. Jumps are breakpoints there.
  std::shared_ptr<AddressSpace> clone_for(TargetMemory child, const Layout& layout) const;

  // Whether anything of ours has ever been written or mapped here.
  bool touched() const {
    return entry_ || !ledger_.former().empty() || !sites_.empty() || !xol_.areas().empty() || !pads_used_.empty();
  }
  // Pages that we made private copies of and whose bytes are the mapped file's again: giving the copies back changes
  // nothing but the memory used. In address order, neighbours merged. Only mappings that can't be written to count.
  struct PageRange {
    RemoteAddr start;
    std::uint64_t size = 0;
  };
  std::vector<PageRange> superfluous_copies(pid_t pid, const Layout& layout) const;
  // Whether that has been done, with every thread stopped, since the last breakpoint was written.
  bool copies_given_back() const { return copies_given_back_; }
  void set_copies_given_back() { copies_given_back_ = true; }

  // Where a thread may make calls for us.
  CallPad call_pad(pid_t pid);
  // Takes those that have been used out again, and what a daemon that was killed has left of them: the last thread is
  // about to be let go. Not the one that a thread stood in, or comes back to from a handler, which has been let go
  // already (keep_pads_of). `others`: another process shares the memory: then only those that have been used.
  void erase_call_pads(bool others);
  bool has_pads_left() const { return pads_left_ && !pads_left_->empty(); }
  // Of each thread, when it is let go.
  void keep_pads_of(pid_t pid, pid_t tid, const arch::native::Registers& regs);
  // What was injected, in the order to take it out in: the page that calls may be made in is the last.
  std::vector<XolAreas::Area> areas_to_unmap() const;

 private:
  // semaphores.cpp: what static probes count their listeners by. Derived from the site's programs, as arming is.
  void settle_semaphores(Site& site, const Layout& layout);
  void move_semaphore(RemoteAddr at, bool up, const Layout& layout);
  void clean_semaphores(TargetMemory& copy, const Layout& layout, bool keep) const;
  // A `syscall` instruction anywhere in the target's executable memory, the vdso first. 0: none found.
  RemoteAddr syscall_insn(pid_t pid);
  bool write_armed(Site& site, bool armed, const Layout& layout);
  void take_out_jumps(std::span<Site* const> sites, const Layout& layout);
  void forget_jump(Site& site);
  void forget_site(RemoteAddr address, const Layout& layout);
  void clean(TargetMemory& copy, const Layout& layout, bool keep_traps) const;
  std::vector<Imprint> imprints() const;
  const SitePlan* plan_at(RemoteAddr address) const;

  TargetMemory memory_;
  TextLedger ledger_{memory_};
  XolAreas xol_;
  std::unique_ptr<ReturnStacks> returns_ = std::make_unique<ReturnStacks>();
  std::optional<SitePlan> entry_;
  std::unordered_map<RemoteAddr, Site> sites_;
  std::map<RemoteAddr, Site*> in_order_;  // the same
  std::unique_ptr<DetourSpace> detours_ = std::make_unique<DetourSpace>();
  std::unique_ptr<Optimisation> optimisation_ = std::make_unique<Optimisation>();
  // By address: what of a semaphore's value is ours now, and was at most. Entries stay: a child that was forked before
  // may still turn up.
  struct Semaphore {
    symbols::Backing backing;
    std::uint16_t ours = 0, most = 0;
  };
  std::map<RemoteAddr, Semaphore> semaphores_;
  RemoteAddr syscall_insn_, call_pad_;
  std::set<RemoteAddr> pads_used_;
  std::optional<std::set<RemoteAddr>> pads_left_;  // by a daemon that was killed, and nobody stands in them
  RemoteAddr scratch_;
  bool closed_ = false;
  bool misses_breakpoints_ = false;
  bool copies_given_back_ = false;
};

}  // namespace probed::tracer
