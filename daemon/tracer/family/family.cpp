// New tasks, new programs, ends: clone, fork, vfork, exec, exit.
//
// A new task's first stop and its parent's event arrive in either order. Whatever comes first identifies the child:
// a thread by its thread group, a process by its creator's event only (CLONE_PARENT: its parent may be another one).
// Whether a child shares memory is asked of the kernel (kcmp), not guessed from the kind of event: clone() with odd
// flags reports itself as fork or vfork.
#include "daemon/tracer/family/family.hpp"

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "daemon/base/process.hpp"
#include "daemon/tracer/family/remote_calls.hpp"
#include "daemon/tracer/kernel/left_calls.hpp"
#include "daemon/tracer/kernel/sharing.hpp"
#include "daemon/tracer/recovery/left_landings.hpp"
#include "daemon/tracer/rooms.hpp"

namespace probed::tracer {
namespace {

using ptrace::Outcome;
using Kind = WaitStatus::Kind;
using namespace std::chrono_literals;

constexpr auto kClaimTimeout = 200ms;

}  // namespace

Tracee* Family::tracee_of(const Stop& stop) {
  if (const auto it = targets_.tracees.find(stop.tid); it != targets_.tracees.end()) return &it->second;
  if (!stop.status.stopped()) return nullptr;  // a thread that an exec took away, or one we have forgotten
  Tracee& child = targets_.tracees[stop.tid];
  child.tid = stop.tid;
  child.stop = stop.status.kind();
  child.left = Unclaimed{Waiter::Clock::now() + kClaimTimeout};  // its creator's event comes before that, or never
  if (Process* own = targets_.process_of(stop.tid)) claim(child, *own);
  return child.process ? &child : nullptr;
}

Act Family::on_new_task(Tracee& parent) {
  unsigned long message = 0;
  if (ptrace::get_event_message(parent.tid, message) == Outcome::ok && message != 0) {
    const pid_t tid = static_cast<pid_t>(message);
    if (parent.stop == Kind::vfork) rooms_.lanes.lend_lanes(parent, tid);
    if (parent.stop == Kind::fork && parent.process->follow_fork) rooms_.calls.take_all_calls(parent);
    const auto it = targets_.tracees.find(tid);
    if (it == targets_.tracees.end()) {
      // Not seen yet; or it has already come, run and ended, all before this event could be read.
      if (const auto tracer = process::tracer_pid(tid); tracer && *tracer == gettid()) {
        targets_.tracees[tid].tid = tid;
        claim(targets_.tracees[tid], *parent.process);
        targets_.tracees[tid].vforked = parent.stop == Kind::vfork;
        inherit_slot(targets_.tracees[tid], parent);
      }
    } else if (it->second.unclaimed()) {
      const Stop stop{tid, WaitStatus(SIGTRAP << 8 | 0x7f | (128 << 16))};  // the PTRACE_EVENT_STOP it stands in
      claim(it->second, *parent.process);
      it->second.vforked = parent.stop == Kind::vfork;
      inherit_slot(it->second, parent);
      rooms_.loop.handle(stop);
    } else {
      inherit_slot(it->second, parent);
    }
  }
  return rooms_.detacher.go_on_or_leave(parent, "it has made a new task");
}

// Gives a new task its process: its creator's, or one of its own.
void Family::claim(Tracee& child, Process& parent) {
  // Also when it is the process's own id: after an exec that is the thread that called it, whoever had the id before.
  const auto join = [&](Process& process) {
    targets_.add_tracee(child.tid, process);
    rooms_.masks.watch_first_faults(process);
  };
  const bool leads = process::is_thread_of(child.tid, child.tid);
  if (!leads) begin_call_notes(child.tid, Tracked::born);
  if (Process* own = targets_.process_of(child.tid)) return join(*own);
  if (!leads) return join(parent);
  const auto id = process::target_id(child.tid);
  auto owned = std::make_unique<Process>();
  Process& process = *owned;
  process.id = id ? *id : TargetId{child.tid, 0};
  process.root = parent.root;
  process.follow_fork = parent.follow_fork;
  process.hold_at_execs = parent.hold_at_execs && parent.follow_fork;
  if (parent.detaching()) process.begin_to_leave();
  process.actions = parent.actions;
  // A thread of the creator's may have had the kernel reset them before they were copied, which we hear of later.
  rooms_.actions.will_look_behind_traps(process);
  process.watch = parent.watch;
  if (parent.space && shares_memory(child.tid, parent.id.pid))
    process.space = parent.space;
  else
    process.copy_of = parent.space;
  // Told here, where the creator stands in its event: its end must not be told before.
  if (process.copy_of && process.follow_fork && !process.detaching()) listener_.process_forked(process.root, child.tid);
  targets_.processes.insert_or_assign(child.tid, std::move(owned));
  targets_.add_tracee(child.tid, process);
}

// Whoever is made by a system call in a slot begins in that slot. The creator stands in its event, so it is still in
// it.
void Family::inherit_slot(Tracee& child, const Tracee& creator) {
  if (!creator.in_slot || !child.process || child.in_slot) return;
  RemoteAddr base;
  const Slot* slot = creator.process->space->xol().find(creator.in_slot->base, base);
  if (!slot) return;  // the program has unmapped it
  if (child.process->space && child.process->space == creator.process->space)
    return rooms_.slot_threads.enter_slot(child, creator.in_slot->base);
  child.process->born_in = {base, *slot};
}

// Takes a forked child, before its first instruction, to where it would be without us.
void Family::leave_birth_place(Tracee& child) {
  const auto born_in = std::exchange(child.process->born_in, std::nullopt);
  ptrace::Registers regs;
  if (!born_in || ptrace::get_registers(child.tid, regs) != Outcome::ok) return;
  const std::uint64_t offset = regs.pc() - born_in->base.value;
  if (offset >= kSlotSize) return;
  const arch::CopyPoint* point = born_in->slot.copy.at(offset);
  // A new task starts behind its creator's system call, never in front of it.
  if (!point || point->meaning != arch::CopyPoint::Meaning::after) return;
  regs.set_pc(point->original_pc);
  if (point->fix_link) regs.set_link(point->link);
  ptrace::set_registers(child.tid, regs);
}

Act Family::adopt_child(Tracee& child, Process& process) {
  const std::shared_ptr<AddressSpace> parent_space = std::exchange(process.copy_of, nullptr);
  const pid_t pid = process.id.pid;
  leave_birth_place(child);
  TargetMemory memory = TargetMemory::open(pid);
  const Layout layout = parent_space->touched() ? Layout::of(memory) : Layout::unknown();
  if (process.follow_fork && !process.detaching() && memory.valid()) {
    process.space = parent_space->clone_for(std::move(memory), layout);
    inherit_left(*parent_space, process.space);
    rooms_.actions.begin_journal(process);
    child.in_slot.reset();
    if (!forget_detours(child, *parent_space)) return Act::away();
    for (const auto& [address, site] : process.space->sites_in_order())
      rooms_.optimiser.consider(*process.space, *site);
    return Act::go_on("a forked child that is followed");
  }
  parent_space->clean_copy(memory, layout);
  if (const Process* root = targets_.find_process(process.root); root && root->before_exec)
    root->before_exec->clean_copy(memory, layout);
  process.space = std::make_shared<AddressSpace>(std::move(memory));
  if (!process.detaching()) {
    listener_.child_let_go(process.root);
    if (process.follow_fork) listener_.process_gone(process.root, pid, std::nullopt);  // as claim() has told of it
  }
  return release_copy(child, *parent_space);
}

// A followed child has breakpoints only, and gets detours and channels of its own: its parent's go. False: it has died
// meanwhile, or is late.
bool Family::forget_detours(Tracee& child, const AddressSpace& parent_space) {
  const DetourSpace& parents = parent_space.detours();
  AddressSpace& space = *child.process->space;
  if (parents.lines().empty() && parents.areas().empty()) return true;
  const Layout layout = Layout::of(space.memory());
  return rooms_.jobs.with_remote_calls(child, space, [&](RemoteSyscalls& remote) {
    const auto unmap = [&](RemoteAddr base, std::uint64_t size) {
      const XolAreas::Area* area = space.xol().area_of(base);
      if (area && !space.is_ours(*area, layout)) return space.xol().forget_area(base);
      if (remote.call(SYS_munmap, {base.value, size, 0, 0, 0, 0}) == 0) space.xol().forget_area(base);
    };
    for (const CodeArea& area : parents.areas()) unmap(area.base, area.size);
    for (const Line& line : parents.lines()) unmap(line.base, line.size);
  });
}

// The child's breakpoints are out: take the injected code out, let it go.
Act Family::release_copy(Tracee& child, AddressSpace& parent_space) {
  Process& process = *child.process;
  process.space->set_scratch(parent_space.scratch());
  if (rooms_.actions.must_leave_actions(process) && rooms_.actions.leave_actions(child) == Leaves::away)
    return Act::away();
  process.begin_to_leave();  // also when it can't be let go at once
  const bool alive = parent_space.xol().areas().empty() ||
                     rooms_.jobs.with_remote_calls(child, *process.space, [&](RemoteSyscalls& remote) {
                       const Layout layout = Layout::of(process.space->memory());
                       for (const XolAreas::Area& area : parent_space.areas_to_unmap())
                         if (process.space->is_ours(area, layout))
                           remote.call(SYS_munmap, {area.base.value, area.size, 0, 0, 0, 0});
                     });
  return alive ? Act::detach("a forked child, which isn't followed or can't be") : Act::away();
}

// ---- exec -----------------------------------------------------------------------------------------------------------

Act Family::on_exec(Tracee& tracee) {
  Process& process = *tracee.process;
  const pid_t pid = process.id.pid;
  // The other threads are gone without a word; the one that called exec has taken over the leader's id.
  for (const pid_t tid : std::set<pid_t>(process.threads))
    if (tid != pid) rooms_.detacher.forget_tracee(tid);
  rooms_.slot_threads.leave_slot(tracee);
  rooms_.lanes.take_lanes(tracee);
  tracee.start_program();
  begin_call_notes(pid, Tracked::born);
  rooms_.actions.actions_after_exec(tracee);
  ++process.execs;  // before those are answered who wait for the program before
  process.before_exec = std::exchange(process.space, std::make_shared<AddressSpace>(TargetMemory::open(pid)));
  const auto has_it = [&](const auto& p) { return p.second->space == process.before_exec; };
  if (process.before_exec && std::ranges::none_of(targets_.processes, has_it)) {
    process.before_exec->returns().program_ended();
    rooms_.jump_memory.close_feeds(*process.before_exec);
    process.before_exec->drop_journal();
  }
  for (Job& job : std::exchange(process.jobs, {})) job.fail(process::no_longer_there(pid));

  const pid_t root = process.root;
  const bool own = root == pid;
  if (process.attaching && !process.detaching()) {
    rooms_.actions.settle_actions(process);
    return Act::go_on("an exec in the middle of its attach: that is the program to attach to");
  }
  const bool hold = !process.detaching() && ((own && process.hold_at_entry) || process.hold_at_execs);
  const bool kept = hold || (own && !process.detaching() && process.keep_after_exec);
  process.hold_at_entry = hold;
  if (hold && !own) {
    process.root = pid;
    process.keep_after_exec = true;
  }
  const bool runs_to_entry = hold && rooms_.holds.plant_entry_breakpoint(process);
  const std::string comm = process::comm(pid);  // while it is sure to be there
  if (kept) {
    listener_.process_execed(root, pid, true, comm);
    if (hold && !runs_to_entry) {  // nothing to wait for: hold it right here
      process.hold_at_entry = false;
      listener_.process_ready(pid);
      return Act::stay(Hold::entry, "at its exec: its program's entry can't be found");
    }
    rooms_.actions.settle_actions(process);
    return Act::go_on("an exec, and it stays attached");
  }
  const bool detaching = process.detaching(), owes = process.actions.any_owed();
  if (!owes) rooms_.loop.carry_out(tracee.tid, Act::detach("an exec"));  // before anybody is told that it is free
  if (!detaching) listener_.process_execed(root, pid, false, comm);
  if (!owes) return Act::none("it has been let go");
  // What is owed is put back from the next stop, before the program's first instruction.
  process.begin_to_leave();
  ptrace::interrupt(pid);
  return Act::go_on("an exec; it leaves when the actions of its signals have been put back");
}

// ---- ends -----------------------------------------------------------------------------------------------------------

void Family::bury(Tracee& tracee, const WaitStatus& status) {
  const pid_t tid = tracee.tid;
  Process* process = tracee.process;
  rooms_.detacher.forget_tracee(tid);
  if (!process) return;
  // The leader's end is told last (kernel/exit.c, delay_group_leader). Who is left then has been killed in the middle
  // of an execve(2) that had given it the leader's id already, and will never be heard of again.
  if (tid == process->id.pid)
    for (const pid_t other : std::set<pid_t>(process->threads)) rooms_.detacher.forget_tracee(other);
  if (!process->threads.empty()) {
    if (process->threads.size() == 1 && !process->detaching()) rooms_.actions.settle_actions(*process);
    return rooms_.detacher.leave_if_complete(*process);
  }
  rooms_.detacher.tell_end(*process, status);
}

// Every space that the task may be a copy of is looked through; what isn't exactly a breakpoint of ours is left alone.
void Family::release_orphan(pid_t tid) {
  TargetMemory memory = TargetMemory::open(tid);
  const Layout layout = Layout::of(memory);
  for (const auto& [pid, process] : targets_.processes)
    if (process->space && memory.valid()) process->space->clean_copy(memory, layout);
  for (const auto& space : targets_.recent_spaces)
    if (memory.valid()) space->clean_copy(memory, layout);
  rooms_.loop.carry_out(tid, Act::detach("a new task of a creator that has ended"));
}

}  // namespace probed::tracer
