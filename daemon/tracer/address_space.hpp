// One target address space as the tracer sees it: its memory, the sites in its text, its XOL areas.
//
// Owning thread: the tracer thread. Shared by every traced process that shares the memory (vfork and CLONE_VM
// children). A site's breakpoint is the effect; which programs want it is the intent: arming is always derived from the
// programs.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "daemon/tracer/memory.hpp"
#include "daemon/tracer/program.hpp"
#include "daemon/tracer/xol.hpp"
#include "proto/result.hpp"

namespace probed::tracer {

struct Site {
  SitePlan plan;
  RemoteAddr slot;     // 0: the instruction is emulated
  bool armed = false;  // the breakpoint is in the text now
  std::vector<ProgramPtr> programs;

  bool wanted() const;  // some program is enabled
};

class AddressSpace {
 public:
  explicit AddressSpace(TargetMemory memory) : memory_(std::move(memory)) {}

  TargetMemory& memory() { return memory_; }
  XolAreas& xol() { return xol_; }
  // A page of the target for the arguments of remote calls, inside xol(); 0: not mapped yet.
  RemoteAddr scratch() const { return scratch_; }
  void set_scratch(RemoteAddr page) { scratch_ = page; }
  const std::unordered_map<RemoteAddr, Site>& sites() const { return sites_; }
  Site* find(RemoteAddr address);
  // A site at another address whose instruction shares bytes with this one; null: none.
  const Site* overlapping(const SitePlan& plan) const;
  // Whether a site was here earlier and its breakpoint has been taken out since.
  bool was_site(RemoteAddr address) const { return removed_.contains(address); }

  // Whether the target's bytes at the plan's address are still the ones it was made from.
  Result<void> verify(const SitePlan& plan) const;
  // Adds an unarmed site. Precondition: none is there. `slot`: 0 for emulated instructions.
  Site& add_site(const SitePlan& plan, RemoteAddr slot);
  // Disarms and forgets; its slot is retired.
  void remove_site(RemoteAddr address);
  // Writes or removes the breakpoint. False: the target's memory is not what we left there (unmapped, replaced); the
  // site is then not armed, and nothing was written.
  bool set_armed(Site& site, bool armed);
  // The breakpoint at the program's entry point, before any site: a thread is to stop there once. False: the text can't
  // be written. remove_entry: no-op when there is none.
  bool plant_entry(const SitePlan& plan);
  const std::optional<SitePlan>& entry() const { return entry_; }
  void remove_entry();
  // Takes every breakpoint out of the text for good: the target is being let go, and nothing is armed any more.
  void close();

  // In a fork's copy of this space: writes back the original bytes of every breakpoint the copy may have inherited.
  void clean_copy(TargetMemory& copy) const;
  // For a followed fork: the same sites, slots and programs over the child's memory.
  std::shared_ptr<AddressSpace> clone_for(TargetMemory child) const;

  // Whether anything of ours has ever been written or mapped here.
  bool touched() const { return entry_ || !removed_.empty() || !sites_.empty() || !xol_.areas().empty(); }
  // Pages that we made private copies of and whose bytes are the mapped file's again: giving the copies back changes
  // nothing but the memory used. In address order, neighbours merged. Only mappings that can't be written to count.
  struct PageRange {
    RemoteAddr start;
    std::uint64_t size = 0;
  };
  std::vector<PageRange> superfluous_copies(pid_t pid) const;

  // A `syscall` instruction anywhere in the target's executable memory, the vdso first. 0: none found.
  RemoteAddr syscall_insn(pid_t pid);

 private:
  void clean_removed(TargetMemory& copy) const;

  TargetMemory memory_;
  XolAreas xol_;
  std::optional<SitePlan> entry_;
  std::unordered_map<RemoteAddr, Site> sites_;
  // Addresses that held a breakpoint of ours once: a thread may have trapped there before it was taken out, and a child
  // forked before that may still contain it. One entry an address, however often it is probed.
  std::unordered_map<RemoteAddr, SitePlan> removed_;
  RemoteAddr syscall_insn_;
  RemoteAddr scratch_;
  bool closed_ = false;
};

}  // namespace probed::tracer
