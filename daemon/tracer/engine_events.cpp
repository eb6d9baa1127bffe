// New tasks, new programs, ends: clone, fork, vfork, exec, exit.
//
// A new task's first stop and its parent's event arrive in either order. Whatever comes first identifies the child:
// a thread by its thread group, a process by its creator's event only (CLONE_PARENT: its parent may be another one).
// Whether a child shares memory is asked of the kernel (kcmp), not guessed from the kind of event: clone() with odd
// flags reports itself as fork or vfork.
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "daemon/base/process.hpp"
#include "daemon/tracer/engine.hpp"
#include "daemon/tracer/engine_remote.hpp"
#include "daemon/tracer/left_calls.hpp"
#include "daemon/tracer/left_landings.hpp"
#include "daemon/tracer/sharing.hpp"

namespace probed::tracer {
namespace {

namespace native = arch::native;
using ptrace::Outcome;
using Kind = WaitStatus::Kind;

using namespace std::chrono_literals;
constexpr auto kClaimTimeout = 200ms;

}  // namespace

// ---- new tasks ------------------------------------------------------------------------------------------------------

// The known process whose thread it is. What belongs to whom must be right when no descriptor is left for /proc, too:
// a thread that is taken for a copy of its process would have the text that it runs put back under its creator.
Process* Engine::process_of(pid_t tid) {
  if (const auto group = process::thread_group(tid)) return find_process(*group);
  const auto own =
      std::ranges::find_if(processes_, [tid](const auto& entry) { return process::is_thread_of(tid, entry.first); });
  return own == processes_.end() ? nullptr : own->second.get();
}

// Whose stop it is, and may be dealt with. Null: nobody's that we know, or a new task's whose creator's event hasn't
// come.
Tracee* Engine::tracee_of(const Stop& stop) {
  if (const auto it = tracees_.find(stop.tid); it != tracees_.end()) return &it->second;
  if (!stop.status.stopped()) return nullptr;  // a thread that an exec took away, or one we have forgotten
  Tracee& child = tracees_[stop.tid];
  child.tid = stop.tid;
  child.stop = stop.status.kind();
  child.state = Tracee::State::unclaimed;
  if (Process* own = process_of(stop.tid)) claim(child, *own);
  if (child.process) return &child;
  child.unclaimed_until = Waiter::Clock::now() + kClaimTimeout;  // its creator's event comes before that, or never
  return nullptr;
}

Act Engine::on_new_task(Tracee& parent) {
  unsigned long message = 0;
  if (ptrace::get_event_message(parent.tid, message) == Outcome::ok && message != 0) {
    const pid_t tid = static_cast<pid_t>(message);
    if (parent.stop == Kind::vfork) lend_lanes(parent, tid);
    if (parent.stop == Kind::fork && parent.process->follow_fork) take_all_calls(parent);
    const auto it = tracees_.find(tid);
    if (it == tracees_.end()) {
      // Not seen yet; or it has already come, run and ended, all before this event could be read.
      if (const auto tracer = process::tracer_pid(tid); tracer && *tracer == gettid()) {
        tracees_[tid].tid = tid;
        claim(tracees_[tid], *parent.process);
        tracees_[tid].vforked = parent.stop == Kind::vfork;
        inherit_slot(tracees_[tid], parent);
      }
    } else if (it->second.state == Tracee::State::unclaimed) {
      const Stop stop{tid, WaitStatus(SIGTRAP << 8 | 0x7f | (128 << 16))};  // the PTRACE_EVENT_STOP it stands in
      claim(it->second, *parent.process);
      it->second.vforked = parent.stop == Kind::vfork;
      inherit_slot(it->second, parent);
      handle(stop);
    } else {
      inherit_slot(it->second, parent);
    }
  }
  return go_on_or_leave(parent, "it has made a new task");
}

// Gives a new task its process: its creator's, or one of its own.
void Engine::claim(Tracee& child, Process& parent) {
  // Also when it is the process's own id: after an exec that is the thread that called it, whoever had the id before.
  const auto join = [&](Process& process) {
    add_tracee(child.tid, process);
    watch_first_faults(process);
  };
  const bool leads = process::is_thread_of(child.tid, child.tid);
  if (!leads) begin_call_notes(child.tid, Tracked::born);
  if (Process* own = process_of(child.tid)) return join(*own);
  if (!leads) return join(parent);
  const auto id = process::target_id(child.tid);
  auto owned = std::make_unique<Process>();
  Process& process = *owned;
  process.id = id ? *id : TargetId{child.tid, 0};
  process.root = parent.root;
  process.follow_fork = parent.follow_fork;
  process.hold_at_execs = parent.hold_at_execs && parent.follow_fork;
  process.detaching = parent.detaching;
  process.actions = parent.actions;
  // A thread of the creator's may have had the kernel reset them before they were copied, which we hear of later.
  will_look_behind_traps(process);
  process.watch = parent.watch;
  if (parent.space && shares_memory(child.tid, parent.id.pid))
    process.space = parent.space;
  else
    process.copy_of = parent.space;
  // Told here, where the creator stands in its event: its end must not be told before.
  if (process.copy_of && process.follow_fork && !process.detaching) listener_.process_forked(process.root, child.tid);
  processes_.insert_or_assign(child.tid, std::move(owned));
  add_tracee(child.tid, process);
}

// Whoever is made by a system call in a slot begins in that slot. The creator stands in its event, so it is still in
// it.
void Engine::inherit_slot(Tracee& child, const Tracee& creator) {
  if (!creator.slot || !child.process || child.slot) return;
  RemoteAddr base;
  const Slot* slot = creator.process->space->xol().find(creator.slot, base);
  if (!slot) return;  // the program has unmapped it
  if (child.process->space && child.process->space == creator.process->space) return enter_slot(child, creator.slot);
  child.process->born_in = {base, *slot};
}

// Takes a forked child, before its first instruction, to where it would be without us.
void Engine::leave_birth_place(Tracee& child) {
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

// A forked child at its first stop, before its first instruction.
Act Engine::adopt_child(Tracee& child, Process& process) {
  const std::shared_ptr<AddressSpace> parent_space = std::exchange(process.copy_of, nullptr);
  const pid_t pid = process.id.pid;
  leave_birth_place(child);
  TargetMemory memory = TargetMemory::open(pid);
  const Layout layout = parent_space->touched() ? Layout::of(memory) : Layout::unknown();
  if (process.follow_fork && !process.detaching && memory.valid()) {
    process.space = parent_space->clone_for(std::move(memory), layout);
    inherit_left(*parent_space, process.space);
    begin_journal(process);
    child.slot = {};
    if (!forget_detours(child, *parent_space)) return Act::away();
    for (const auto& [address, site] : process.space->sites_in_order()) consider(*process.space, *site);
    return Act::go_on("a forked child that is followed");
  }
  parent_space->clean_copy(memory, layout);
  if (const Process* root = find_process(process.root); root && root->before_exec)
    root->before_exec->clean_copy(memory, layout);
  process.space = std::make_shared<AddressSpace>(std::move(memory));
  if (!process.detaching) {
    listener_.child_let_go(process.root);
    if (process.follow_fork) listener_.process_gone(process.root, pid, std::nullopt);  // as claim() has told of it
  }
  return release_copy(child, *parent_space);
}

// A followed child has breakpoints only, and gets detours and channels of its own: its parent's go. False: it has died
// meanwhile, or is late.
bool Engine::forget_detours(Tracee& child, const AddressSpace& parent_space) {
  const DetourSpace& parents = parent_space.detours();
  AddressSpace& space = *child.process->space;
  if (parents.lines().empty() && parents.areas().empty()) return true;
  const Layout layout = Layout::of(space.memory());
  return with_remote_calls(child, space, [&](RemoteSyscalls& remote) {
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
Act Engine::release_copy(Tracee& child, AddressSpace& parent_space) {
  Process& process = *child.process;
  process.space->set_scratch(parent_space.scratch());
  if (must_leave_actions(process) && leave_actions(child) == Leaves::away) return Act::away();
  process.begin_to_leave();  // also when it can't be let go at once
  const bool alive =
      parent_space.xol().areas().empty() || with_remote_calls(child, *process.space, [&](RemoteSyscalls& remote) {
        const Layout layout = Layout::of(process.space->memory());
        for (const XolAreas::Area& area : parent_space.areas_to_unmap())
          if (process.space->is_ours(area, layout)) remote.call(SYS_munmap, {area.base.value, area.size, 0, 0, 0, 0});
      });
  return alive ? Act::detach("a forked child, which isn't followed or can't be") : Act::away();
}

// ---- exec -----------------------------------------------------------------------------------------------------------

Act Engine::on_exec(Tracee& tracee) {
  Process& process = *tracee.process;
  const pid_t pid = process.id.pid;
  // The other threads are gone without a word; the one that called exec has taken over the leader's id.
  for (const pid_t tid : std::set<pid_t>(process.threads))
    if (tid != pid) forget_tracee(tid);
  leave_slot(tracee);
  take_lanes(tracee);
  tracee.start_program();
  begin_call_notes(pid, Tracked::born);
  actions_after_exec(tracee);
  ++process.execs;  // before those are answered who wait for the program before
  process.before_exec = std::exchange(process.space, std::make_shared<AddressSpace>(TargetMemory::open(pid)));
  const auto has_it = [&](const auto& p) { return p.second->space == process.before_exec; };
  if (process.before_exec && std::ranges::none_of(processes_, has_it)) {
    process.before_exec->returns().program_ended();
    close_feeds(*process.before_exec);
    process.before_exec->drop_journal();
  }
  for (Job& job : std::exchange(process.jobs, {}))
    job.fail(Error{Reason::target_gone, "process " + std::to_string(pid) + " has just started a new program", "", {}});

  const pid_t root = process.root;
  const bool own = root == pid;
  if (process.attaching && !process.detaching) {
    settle_actions(process);
    return Act::go_on("an exec in the middle of its attach: that is the program to attach to");
  }
  const bool hold = !process.detaching && ((own && process.hold_at_entry) || process.hold_at_execs);
  const bool kept = hold || (own && !process.detaching && process.keep_after_exec);
  process.hold_at_entry = hold;
  if (hold && !own) {
    process.root = pid;
    process.keep_after_exec = true;
  }
  const bool runs_to_entry = hold && plant_entry_breakpoint(process);
  const std::string comm = process::comm(pid);  // while it is sure to be there
  if (kept) {
    listener_.process_execed(root, pid, true, comm);
    if (hold && !runs_to_entry) {  // nothing to wait for: hold it right here
      process.hold_at_entry = false;
      listener_.process_ready(pid);
      return Act::stay(Hold::entry, "at its exec: its program's entry can't be found");
    }
    settle_actions(process);
    return Act::go_on("an exec, and it stays attached");
  }
  const bool detaching = process.detaching, owes = process.actions.any_owed();
  if (!owes) carry_out(tracee.tid, Act::detach("an exec"));  // before anybody is told that it is free
  if (!detaching) listener_.process_execed(root, pid, false, comm);
  if (!owes) return Act::none("it has been let go");
  // What is owed is put back from the next stop, before the program's first instruction.
  process.begin_to_leave();
  ptrace::interrupt(pid);
  return Act::go_on("an exec; it leaves when the actions of its signals have been put back");
}

// ---- ends -----------------------------------------------------------------------------------------------------------

void Engine::bury(Tracee& tracee, const WaitStatus& status) {
  const pid_t tid = tracee.tid;
  Process* process = tracee.process;
  forget_tracee(tid);
  if (!process) return;
  // The leader's end is told last (kernel/exit.c, delay_group_leader). Who is left then has been killed in the middle
  // of an execve(2) that had given it the leader's id already, and will never be heard of again.
  if (tid == process->id.pid)
    for (const pid_t other : std::set<pid_t>(process->threads)) forget_tracee(other);
  if (!process->threads.empty()) {
    if (process->threads.size() == 1 && !process->detaching) settle_actions(*process);
    return leave_if_complete(*process);
  }
  tell_end(*process, status);
}

void Engine::tell_end(Process& process, std::optional<WaitStatus> how) {
  if (!process.detaching || process.detach_replies.empty()) listener_.process_gone(process.root, process.id.pid, how);
  forget_process(process);
}

// A new task whose creator died before its event could say whose it is. Every space it may be a copy of is looked
// through; what isn't exactly a breakpoint of ours is left alone.
void Engine::release_orphan(pid_t tid) {
  TargetMemory memory = TargetMemory::open(tid);
  const Layout layout = Layout::of(memory);
  for (const auto& [pid, process] : processes_)
    if (process->space && memory.valid()) process->space->clean_copy(memory, layout);
  for (const auto& space : recent_spaces_)
    if (memory.valid()) space->clean_copy(memory, layout);
  carry_out(tid, Act::detach("a new task of a creator that has ended"));
}

}  // namespace probed::tracer
