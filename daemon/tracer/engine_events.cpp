// New tasks, new programs, ends: clone, fork, vfork, exec, exit.
//
// A new task's first stop and its parent's event arrive in either order. Whatever comes first identifies the child:
// a thread by its thread group, a process by its parent. Whether a child shares memory is asked of the kernel (kcmp),
// not guessed from the kind of event: clone() with odd flags reports itself as fork or vfork.
#include <elf.h>
#include <fcntl.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <string>

#include "daemon/base/process.hpp"
#include "daemon/tracer/engine.hpp"
#include "daemon/tracer/engine_remote.hpp"
#include "daemon/tracer/sharing.hpp"

namespace probed::tracer {
namespace {

namespace native = arch::native;
using ptrace::Outcome;
using Kind = WaitStatus::Kind;

using namespace std::chrono_literals;
constexpr auto kClaimTimeout = 200ms;

// AT_ENTRY of a process: the address of its program's entry point, before which the dynamic loader runs.
RemoteAddr entry_point(pid_t pid) {
  const UniqueFd fd(::open(("/proc/" + std::to_string(pid) + "/auxv").c_str(), O_RDONLY | O_CLOEXEC));
  std::array<Elf64_auxv_t, 64> auxv{};
  const ssize_t n = fd ? ::read(fd.get(), auxv.data(), sizeof auxv) : 0;
  for (const Elf64_auxv_t& entry : std::span(auxv).first(n > 0 ? static_cast<std::size_t>(n) / sizeof auxv[0] : 0))
    if (entry.a_type == AT_ENTRY) return {entry.a_un.a_val};
  return {};
}

std::optional<SitePlan> plan_entry_breakpoint(AddressSpace& space, pid_t pid) {
  SitePlan plan;
  plan.address = entry_point(pid);
  if (!plan.address || !space.memory().read(plan.address, std::as_writable_bytes(std::span(plan.bytes))))
    return std::nullopt;
  plan.insn.length = static_cast<std::uint8_t>(native::kBreakpointSize);
  const std::span<const std::uint8_t> trap(native::kBreakpoint);
  if (!space.memory().write(plan.address, std::as_bytes(trap))) return std::nullopt;
  return plan;
}

}  // namespace

// ---- new tasks ------------------------------------------------------------------------------------------------------

void Engine::on_unknown(const Stop& stop) {
  if (!stop.status.stopped()) return;  // a thread that an exec took away, or one we have forgotten
  Tracee& child = tracees_[stop.tid];
  child.tid = stop.tid;
  child.stop = stop.status.kind();
  child.state = Tracee::State::unclaimed;
  const auto group = process::thread_group(stop.tid);
  if (Process* own = group ? find_process(*group) : nullptr) {
    claim(child, *own);
  } else if (const auto stat = process::read_stat(stop.tid)) {
    if (Process* parent = find_process(stat->parent)) claim(child, *parent);
  }
  if (child.process) return handle(stop);
  child.unclaimed_until = Waiter::Clock::now() + kClaimTimeout;  // its creator's event comes before that, or never
}

void Engine::on_new_task(Tracee& parent) {
  unsigned long message = 0;
  if (ptrace::get_event_message(parent.tid, message) == Outcome::ok && message != 0) {
    const pid_t tid = static_cast<pid_t>(message);
    const auto it = tracees_.find(tid);
    if (it == tracees_.end()) {
      // Not seen yet; or it has already come, run and ended, all before this event could be read.
      if (const auto tracer = process::tracer_pid(tid); tracer && *tracer == gettid()) {
        tracees_[tid].tid = tid;
        claim(tracees_[tid], *parent.process);
      }
    } else if (it->second.state == Tracee::State::unclaimed) {
      const Stop stop{tid, WaitStatus(SIGTRAP << 8 | 0x7f | (128 << 16))};  // the PTRACE_EVENT_STOP it stands in
      claim(it->second, *parent.process);
      handle(stop);
    }
  }
  if (parent.process->detaching) return release(parent, 0);
  resume(parent);
}

// Gives a new task its process: its creator's, or one of its own.
void Engine::claim(Tracee& child, Process& parent) {
  const auto group = process::thread_group(child.tid);
  if (group && *group != child.tid) {
    Process* own = find_process(*group);
    add_tracee(child.tid, own ? *own : parent);
    return;
  }
  const auto id = process::target_id(child.tid);
  auto owned = std::make_unique<Process>();
  Process& process = *owned;
  process.id = id ? *id : TargetId{child.tid, 0};
  process.root = parent.root;
  process.follow_fork = parent.follow_fork;
  process.detaching = parent.detaching;
  if (parent.space && shares_memory(child.tid, parent.id.pid))
    process.space = parent.space;
  else
    process.copy_of = parent.space;
  processes_.insert_or_assign(child.tid, std::move(owned));
  add_tracee(child.tid, process);
}

// A forked child at its first stop, before its first instruction.
void Engine::adopt_child(Tracee& child, Process& process) {
  const std::shared_ptr<AddressSpace> parent_space = std::exchange(process.copy_of, nullptr);
  const pid_t pid = process.id.pid;
  TargetMemory memory = TargetMemory::open(pid);
  if (process.follow_fork && !process.detaching && memory.valid()) {
    process.space = parent_space->clone_for(std::move(memory));
    child.slot = {};
    listener_.process_forked(process.root, pid);
    return resume(child);
  }
  parent_space->clean_copy(memory);
  if (const Process* root = find_process(process.root); root && root->before_exec)
    root->before_exec->clean_copy(memory);
  process.space = std::make_shared<AddressSpace>(std::move(memory));
  release_copy(child, *parent_space);
}

// The child's breakpoints are out: take it off the injected code, take that out too, let it go.
void Engine::release_copy(Tracee& child, AddressSpace& parent_space) {
  Process& process = *child.process;
  ptrace::Registers regs;
  if (ptrace::get_registers(child.tid, regs) != Outcome::ok) return;
  RemoteAddr base;
  if (const Slot* slot = parent_space.xol().find(RemoteAddr{regs.pc()}, base)) {
    const arch::CopyPoint* point = slot->copy.at(regs.pc() - base.value);
    if (point && point->meaning == arch::CopyPoint::Meaning::after) {
      regs.set_pc(point->original_pc);
      if (point->fix_link) regs.set_link(point->link);
    } else {
      regs.set_pc(slot->original.value);  // a new task starts behind its creator's system call, never in front of it
    }
    ptrace::set_registers(child.tid, regs);
  }
  const bool alive =
      parent_space.xol().areas().empty() || with_remote_calls(child, *process.space, [&](RemoteSyscalls& remote) {
        for (const XolAreas::Area& area : parent_space.xol().areas())
          remote.call(SYS_munmap, {area.base.value, area.size, 0, 0, 0, 0});
      });
  if (!alive) return;
  ptrace::detach(child.tid, 0);
  forget_tracee(child.tid);
  finish_detach_if_empty(process);
}

// ---- exec -----------------------------------------------------------------------------------------------------------

void Engine::on_exec(Tracee& tracee) {
  Process& process = *tracee.process;
  const pid_t pid = process.id.pid;
  // The other threads are gone without a word; the one that called exec has taken over the leader's id.
  for (const pid_t tid : std::set<pid_t>(process.threads))
    if (tid != pid) forget_tracee(tid);
  leave_slot(tracee);
  tracee.stepping.reset();
  tracee.rehit.reset();
  tracee.rewound.reset();
  tracee.rseq.reset();
  tracee.comm_read = {};
  process.before_exec = std::exchange(process.space, std::make_shared<AddressSpace>(TargetMemory::open(pid)));
  process.entry_breakpoint.reset();
  ++process.execs;
  for (Job& job : std::exchange(process.jobs, {}))
    job.fail(Error{Reason::target_gone, "process " + std::to_string(pid) + " has just started a new program", "", {}});

  const bool own = process.root == pid;
  const bool hold = own && process.hold_at_entry && !process.detaching;
  const bool kept = own && !process.detaching && (process.keep_after_exec || hold);
  if (hold) {
    process.hold_at_entry = false;
    process.entry_breakpoint = plan_entry_breakpoint(*process.space, pid);
  }
  const pid_t root = process.root;
  if (kept) {
    listener_.process_execed(root, pid, true);
    if (hold && !process.entry_breakpoint) {  // nothing to wait for: hold it right here
      tracee.state = Tracee::State::held;
      return listener_.process_ready(pid);
    }
    return resume(tracee);
  }
  ptrace::detach(pid, 0);
  forget_tracee(pid);
  if (!process.detaching) listener_.process_execed(root, pid, false);
  finish_detach_if_empty(process);
}

// ---- ends -----------------------------------------------------------------------------------------------------------

void Engine::on_end(Tracee& tracee, const WaitStatus& status) {
  const pid_t tid = tracee.tid;
  Process* process = tracee.process;
  forget_tracee(tid);
  if (!process || !process->threads.empty()) return;
  const pid_t root = process->root;
  const pid_t pid = process->id.pid;
  const bool detaching = process->detaching;
  if (!detaching || process->detach_replies.empty()) listener_.process_gone(root, pid, status);
  forget_process(*process);
}

// A new task whose creator died before its event could say whose it is. Every space it may be a copy of is looked
// through; what isn't exactly a breakpoint of ours is left alone.
void Engine::release_orphan(pid_t tid) {
  TargetMemory memory = TargetMemory::open(tid);
  for (const auto& [pid, process] : processes_)
    if (process->space && memory.valid()) process->space->clean_copy(memory);
  for (const auto& space : recent_spaces_)
    if (memory.valid()) space->clean_copy(memory);
  ptrace::detach(tid, 0);
  tracees_.erase(tid);
}

}  // namespace probed::tracer
