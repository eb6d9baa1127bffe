// Code that goes away, moves or changes under our breakpoints; private copies of text pages, given back.
//
// Nobody tells a tracer that its tracee has called munmap(2) or mremap(2), and asking the kernel to (stopping at every
// system call) would cost the program more than all probes together. So it is noticed when something is looked at:
//   a hit              the bytes behind the breakpoint are no longer those that were copied
//   an unknown SIGTRAP a breakpoint of ours stands where we haven't put it
//   a command          a breakpoint to be taken out isn't there; or somebody asks for the list of probes
//   a fork             the child's copy is cleaned of what was moved before
#include "daemon/tracer/probes/code_changes.hpp"

#include <spdlog/spdlog.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include <algorithm>
#include <set>

#include "daemon/base/process.hpp"
#include "daemon/tracer/family/remote_calls.hpp"
#include "daemon/tracer/rooms.hpp"
#include "daemon/tracer/stops.hpp"

namespace probed::tracer {
namespace {

namespace native = arch::native;
using namespace std::chrono_literals;

// After a removal, in case more follow, or the detach.
constexpr auto kGiveBackAfter = 200ms;

bool traps_at(const TargetMemory& memory, RemoteAddr address) {
  std::array<std::uint8_t, native::kBreakpointSize> now{};
  return memory.read_some(address, std::as_writable_bytes(std::span(now))) == now.size() && native::is_breakpoint(now);
}

// What the program would execute at a site now: what our breakpoint hides, and what follows it. Shorter than the
// site's plan when it can't be read.
SitePlan as_it_is_now(const TargetMemory& memory, const SitePlan& plan) {
  constexpr std::size_t kHidden = native::kBreakpointSize;
  SitePlan now = plan;
  const auto rest = std::as_writable_bytes(std::span(now.bytes).subspan(kHidden));
  now.context = static_cast<std::uint8_t>(kHidden + memory.read_some(plan.address + kHidden, rest));
  return now;
}

}  // namespace

// ---- gone and moved -------------------------------------------------------------------------------------------------

// Of a process that is ending all memory has gone, which is told when it has ended.
bool CodeChanges::drop_sites(AddressSpace& space, std::span<const RemoteAddr> addresses, const Layout& layout,
                             const char* why) {
  if (addresses.empty()) return true;
  if (space.memory().has_ended()) return false;
  std::vector<ProbeId> gone;
  for (const RemoteAddr address : addresses) {
    const Site* site = space.find(address);
    if (!site) continue;
    for (const ProgramPtr& program : site->programs) {
      gone.push_back(program->id);
      space.detours().drop_tap(program->id);
    }
    space.remove_site(address, layout);
    rooms_.probes.reconsider_around(space, address);
  }
  if (gone.empty()) return true;
  rooms_.optimiser.wake_optimiser(space, {});  // threads may still be in their detours
  // What a followed child has lost, its parent may still have.
  for (const auto& [pid, process] : targets_.processes)
    if (process->space.get() == &space && process->root == pid) {
      listener_.code_gone(pid, std::move(gone), why);
      break;
    }
  return true;
}

void CodeChanges::heal_if_moved(AddressSpace& space) {
  if (!space.misses_breakpoints()) return;
  if (const std::size_t healed = space.heal_strays(Layout::of(space.memory())); healed > 0)
    spdlog::debug("a process had moved {} breakpoints along with its code; they are out", healed);
}

void CodeChanges::look_at_code(pid_t pid) {
  const Process* asked = targets_.find_process(pid);
  if (!asked) return;
  for (Process* process : targets_.family_of(asked->root)) {
    if (!process->space || process->detaching() || process->space->sites().empty()) continue;
    const Layout layout = Layout::of(process->space->memory());
    for (const auto& [address, site] : process->space->sites_in_order())
      if (const auto leads_to = process->space->astray(*site))
        rooms_.puns.give_up_astray(*process->space, *site, *leads_to);
    const std::vector<RemoteAddr> lost = process->space->lost_sites(layout);
    if (lost.empty()) continue;
    drop_sites(*process->space, lost, layout);
    heal_if_moved(*process->space);
  }
}

bool CodeChanges::trapped_in_moved_code(Process& process, RemoteAddr address) {
  AddressSpace& space = *process.space;
  if (!space.could_be_stray(address)) return false;
  const Layout layout = Layout::of(space.memory());
  if (space.heal_strays(layout) == 0 || traps_at(space.memory(), address)) return false;
  spdlog::debug("process {} had moved code with breakpoints of ours in it to {:#x}; they are out", process.id.pid,
                address.value);
  drop_sites(space, space.lost_sites(layout), layout);
  return true;
}

// Programs do that which unmap all they don't know (sandboxes, checkpointing).
bool CodeChanges::injected_code_gone(const Process& process, RemoteAddr pc) {
  AddressSpace& space = *process.space;
  const Layout layout = Layout::of(space.memory());
  const symbols::Mapping* mapping = layout.at(pc);
  if (!layout.known() || (mapping && mapping->executable && mapping->inode == 0)) return false;
  const auto in = [](const XolAreas::Area& area, RemoteAddr a) { return a >= area.base && a < area.base + area.size; };
  const auto area = std::ranges::find_if(space.xol().areas(), [&](const auto& each) { return in(each, pc); });
  if (area == space.xol().areas().end()) return false;
  return forget_slots(process, *area, layout);
}

// False: the process has ended; its child may have yet to become a copy of what we know of it.
bool CodeChanges::forget_slots(const Process& process, const XolAreas::Area& area, const Layout& layout) {
  AddressSpace& space = *process.space;
  const RemoteAddr base = area.base, end = base + area.size;
  std::vector<RemoteAddr> lost;
  for (const auto& [address, site] : space.sites())
    if (site.slot && site.slot >= base && site.slot < end) lost.push_back(address);
  if (!drop_sites(space, lost, layout)) return false;
  spdlog::debug("process {} has unmapped our code at {:#x}; {} probes go", process.id.pid, base.value, lost.size());
  for (auto& [tid, tracee] : targets_.tracees)
    if (tracee.process && tracee.process->space.get() == &space && tracee.in_slot && tracee.in_slot->base >= base &&
        tracee.in_slot->base < end)
      tracee.in_slot.reset();
  space.xol().forget_area(base);
  return true;
}

// The program may have unmapped our code without anybody running into that, and mapped something of its own there:
// nothing is to be written to it, nor unmapped.
void CodeChanges::forget_lost_code(const Process& process) {
  AddressSpace& space = *process.space;
  if (space.xol().areas().empty()) return;
  const Layout layout = Layout::of(space.memory());
  if (!layout.known()) return;
  space.look_after_landing(layout);
  const auto is_lost = [&](const XolAreas::Area& area) {
    return area.access == XolAreas::Access::code && area.base != space.landing().page() && !space.is_ours(area, layout);
  };
  for (;;) {
    const auto lost = std::ranges::find_if(space.xol().areas(), is_lost);
    if (lost == space.xol().areas().end() || space.memory().has_ended()) return;
    const RemoteAddr base = lost->base;
    if (std::ranges::find(space.detours().areas(), base, &CodeArea::base) != space.detours().areas().end()) {
      space.xol().forget_area(base);
      rooms_.optimiser.refuse_all(space, "the process has unmapped the generated code");
    } else if (!forget_slots(process, *lost, layout)) {
      return;
    }
  }
}

// A thread in the middle of one is lost.
bool CodeChanges::generated_code_gone(Process& process, RemoteAddr pc) {
  AddressSpace& space = *process.space;
  const Layout layout = Layout::of(space.memory());
  const symbols::Mapping* mapping = layout.at(pc);
  if (!layout.known() || (mapping && mapping->executable && mapping->inode == 0)) return false;
  space.xol().forget_area(pc);
  rooms_.optimiser.refuse_all(space, "the process has unmapped the generated code");
  return true;
}

// A thread that has run a jump which the program has moved along with its code is where its detour would be, moved as
// far: outside of all memory, mostly. A jump changes no register, and this one is out by now.
std::optional<Act> CodeChanges::leave_moved_jump(Tracee& tracee, int signal) {
  AddressSpace* space = tracee.process ? tracee.process->space.get() : nullptr;
  if (signal != SIGSEGV || !space || space->detours().areas_empty()) return std::nullopt;
  siginfo_t info{};
  ptrace::Registers regs;
  if (ptrace::get_registers(tracee.tid, regs) != ptrace::Outcome::ok) return std::nullopt;
  if (ptrace::get_siginfo(tracee.tid, info) != ptrace::Outcome::ok || !is_fault(signal, info)) return std::nullopt;
  if (reinterpret_cast<std::uint64_t>(info.si_addr) != regs.pc()) return std::nullopt;
  if (const auto act = rooms_.puns.come_back_from_astray(tracee, signal, regs)) return act;
  const auto from = space->moved_jump_to(native_place(regs));
  if (!from) return std::nullopt;
  const Layout layout = Layout::of(space->memory());
  if (space->heal_strays(layout) == 0 || space->moved_jump_to(native_place(regs))) return std::nullopt;
  drop_sites(*space, space->lost_sites(layout), layout);
  regs.set_pc(from->value);
  ptrace::set_registers(tracee.tid, regs);
  return Act::go_on("back from a jump that the program has moved");
}

// ---- rewritten ------------------------------------------------------------------------------------------------------

// An inline cache, say, or a patched call.
bool CodeChanges::follow_rewriting(Tracee& tracee, Site& site) {
  constexpr std::size_t kHidden = native::kBreakpointSize;
  const std::size_t length = site.plan.insn.length;
  if (length <= kHidden) return true;
  SitePlan expected = site.plan;
  if (site.jump && site.jump->state != Jump::State::planned)
    std::ranges::copy(after(site.jump->head).subspan(kHidden), expected.bytes.begin() + kHidden);
  AddressSpace& space = *tracee.process->space;
  std::array<std::uint8_t, arch::kMaxInsnLength> behind{};
  const auto rest = std::span(behind).first(length - kHidden);
  const std::size_t got = space.memory().read_some(site.plan.address + kHidden, std::as_writable_bytes(rest));
  if (got == rest.size() && std::ranges::equal(rest, expected.code().subspan(kHidden))) return true;

  const Layout layout = Layout::of(space.memory());
  space.drop_jump(site, layout);
  SitePlan now = as_it_is_now(space.memory(), site.plan);
  now.insn = native::decode(std::span<const std::uint8_t>(now.bytes).first(now.context), now.address.value);
  const bool fit = layout.holds(site.plan) && now.insn.refusal == arch::Refusal::none && now.insn.length > 0 &&
                   now.insn.length <= now.context && !space.overlapping(now);
  if (fit && renew_copy(space, site, now, layout)) return true;
  drop_sites(space, std::array{site.plan.address}, layout);
  heal_if_moved(space);
  return false;
}

// Other threads may be in the slot the site has: it gets another one.
bool CodeChanges::renew_copy(AddressSpace& space, Site& site, const SitePlan& plan, const Layout& layout) {
  if (!site.slot && plan.insn.emulable) {
    space.renew_site(site, plan, {});
    rooms_.optimiser.eligible(space, site);
    return true;
  }
  const auto slot = space.xol().allocate(plan.address, slot_size(native::copy_room(plan.insn)));
  if (!slot) return false;
  if (const XolAreas::Area* area = space.xol().area_of(*slot); !space.is_ours(*area, layout)) {
    space.xol().release(*slot);
    return false;
  }
  const arch::RelocateResult relocated = native::relocate(plan.code(), plan.insn, plan.address.value, slot->value);
  const std::span<const std::uint8_t> code(relocated.copy.code.data(), relocated.copy.size);
  if (relocated.refusal != arch::Refusal::none || !space.memory().write(*slot, std::as_bytes(code))) {
    space.xol().release(*slot);
    return false;
  }
  space.xol().publish(*slot, Slot{plan.address, plan.insn, relocated.copy, 0, false});
  space.landing().set(space.memory(), plan.address, *slot);
  space.renew_site(site, plan, *slot);
  rooms_.optimiser.eligible(space, site);
  return true;
}

// Islands that no thread stands at. Precondition: all threads stand still.
void CodeChanges::take_out_islands(AddressSpace& space) {
  if (space.detours().islands().empty()) return;
  std::set<RemoteAddr> occupied;
  for (const auto& [tid, tracee] : targets_.tracees) {
    if (!tracee.process || tracee.process->space.get() != &space) continue;
    ptrace::Registers regs;
    if (ptrace::get_registers(tid, regs) == ptrace::Outcome::ok) occupied.insert(RemoteAddr{regs.pc()});
  }
  space.take_out_islands_but(occupied);
}

// Those whose bytes equal the file's. Between the comparison and the call nobody may run: what a thread writes to the
// page meanwhile would be lost. Without a stop of all threads the copies stay.
bool CodeChanges::give_back_copies(Tracee& tracee, AddressSpace& space) {
  if (!rooms_.jobs.others_stopped(tracee)) return true;
  take_out_islands(space);
  const auto copies = space.superfluous_copies(tracee.tid, Layout::of(space.memory()));
  space.set_copies_given_back();
  if (copies.empty()) return true;
  return rooms_.jobs.with_remote_calls(tracee, space, [&](RemoteSyscalls& remote) {
    for (const AddressSpace::PageRange& range : copies)
      remote.call(SYS_madvise, {range.start.value, range.size, MADV_DONTNEED, 0, 0, 0});
  });
}

void CodeChanges::plan_giving_back(Process& process) {
  if (!process.detaching()) process.give_back_at = Waiter::Clock::now() + kGiveBackAfter;
}

// This stops every thread once, so it isn't done for nothing.
void CodeChanges::give_back_soon(Process& process) {
  process.give_back_at.reset();
  if (process.detaching() || !process.space) return;
  if (process.space->superfluous_copies(process.id.pid, Layout::of(process.space->memory())).empty()) return;
  const auto give_back = [this](Tracee& tracee) { give_back_copies(tracee, *tracee.process->space); };
  rooms_.jobs.request_job(process, Job{give_back, [](const Error&) {}, {}});
}

}  // namespace probed::tracer
