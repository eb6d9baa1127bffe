// The dynamic loader: held when it has loaded something, and before a new program's first constructor.
//
// Debuggers are told of libraries by a function that does nothing (_dl_debug_state of glibc and musl, r_debug.r_brk,
// <link.h>): it is called when r_debug.r_state changes, with RT_CONSISTENT once what was loaded is mapped and before
// any of its constructors runs (glibc: elf/dl-open.c, dl_open_worker_begin; elf/rtld.c, dl_main). A thread that stands
// there is held while somebody has a look at what is new, never longer than kLongestHold.
#include "daemon/tracer/family/holds.hpp"

#include <elf.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <link.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <string>
#include <utility>

#include "daemon/base/momentary.hpp"
#include "daemon/base/process.hpp"
#include "daemon/symbols/loader.hpp"
#include "daemon/tracer/recovery/left_landings.hpp"
#include "daemon/tracer/rooms.hpp"

namespace probed::tracer {
namespace {

using namespace std::chrono_literals;
namespace native = arch::native;

constexpr auto kLongestHold = 3s;

// AT_ENTRY and AT_BASE of a process: the address of its program's entry point, before which the dynamic loader runs,
// and where that is loaded (0: there is none).
struct Auxiliary {
  RemoteAddr entry, loader;
};

Auxiliary read_auxiliary(pid_t pid) {
  const Momentary fd(("/proc/" + std::to_string(pid) + "/auxv").c_str(), O_RDONLY);
  std::array<Elf64_auxv_t, 64> auxv{};
  const ssize_t n = fd ? ::read(fd.get(), auxv.data(), sizeof auxv) : 0;
  Auxiliary found;
  for (const Elf64_auxv_t& entry : std::span(auxv).first(n > 0 ? static_cast<std::size_t>(n) / sizeof auxv[0] : 0)) {
    if (entry.a_type == AT_ENTRY) found.entry = {entry.a_un.a_val};
    if (entry.a_type == AT_BASE) found.loader = {entry.a_un.a_val};
  }
  return found;
}

bool plant(AddressSpace& space, RemoteAddr at) {
  SitePlan plan;
  plan.address = at;
  if (!at || !space.memory().read(at, std::as_writable_bytes(std::span(plan.bytes)))) return false;
  plan.insn.length = static_cast<std::uint8_t>(native::kBreakpointSize);
  plan.context = static_cast<std::uint8_t>(plan.bytes.size());
  const Layout layout = Layout::of(space.memory());
  if (const symbols::Mapping* mapping = layout.at(at)) plan.backing = mapping->backing(at);
  return space.plant_entry(plan);
}

// nullopt: it can't be read.
std::optional<std::int32_t> read_state(AddressSpace& space, RemoteAddr at) {
  std::int32_t state = 0;
  if (!at || !space.memory().read(at, std::as_writable_bytes(std::span(&state, 1)))) return std::nullopt;
  return state;
}

}  // namespace

Result<void> Holds::resume_held(pid_t pid) {
  Process* process = targets_.find_process(pid);
  if (!process) return refuse(Reason::not_attached, fmt::format("process {} is not attached", pid));
  resume_held_threads(*process);
  return {};
}

void Holds::forget_hold(pid_t pid) {
  Process* process = targets_.find_process(pid);
  if (!process) return;
  process->hold_at_entry = false;
  for (auto& [other, member] : targets_.processes)
    if (member->root == pid) member->hold_at_execs = false;
  resume_held_threads(*process);
}

void Holds::forget_keep(pid_t pid) {
  if (Process* process = targets_.find_process(pid)) process->keep_after_exec = false;
}

void Holds::resume_held_threads(const Process& process) {
  for (const pid_t tid : process.threads) {
    Tracee& tracee = targets_.tracees.at(tid);
    tracee.hold_no_longer(Hold::entry);
    if (tracee.is_held(Hold::entry)) rooms_.loop.carry_out(tid, Act::go_on("it is held no longer"));
  }
}

// ---- a new program --------------------------------------------------------------------------------------------------

bool Holds::plant_entry_breakpoint(Process& process) {
  AddressSpace& space = *process.space;
  const Auxiliary auxiliary = read_auxiliary(process.id.pid);
  process.loader_hook = process.loader_state = {};
  if (auxiliary.loader) {
    const Layout layout = Layout::of(space.memory());
    const symbols::Mapping* mapping = layout.at(auxiliary.loader);
    const auto hook = mapping ? symbols::find_loader_hook(process.id.pid, *mapping) : std::nullopt;
    if (hook && plant(space, hook->function)) {
      process.loader_hook = hook->function;
      process.loader_state = hook->state;
      return true;
    }
  }
  return plant(space, auxiliary.entry);
}

// The entry breakpoint has been run into and is out. True: the loader has only begun, and the breakpoint stands
// elsewhere now: where the hook returns to, and from there at the hook again.
bool Holds::loader_is_at_work(Tracee& tracee, const ptrace::Registers& regs) {
  Process& process = *tracee.process;
  AddressSpace& space = *process.space;
  if (!process.loader_hook) return false;
  if (regs.pc() != process.loader_hook.value) return plant(space, process.loader_hook);
  if (read_state(space, process.loader_state).value_or(r_debug::RT_CONSISTENT) == r_debug::RT_CONSISTENT) return false;
  // The next call is the one, whatever is read there: a program that refers to _r_debug gets the variable moved to it.
  process.loader_state = {};
  std::uint64_t back = native::return_address_register(regs);
  if (native::kCallPushesReturnAddress &&
      !space.memory().read({regs.sp()}, std::as_writable_bytes(std::span(&back, 1))))
    return false;
  return plant(space, {back});
}

// ---- libraries loaded later -----------------------------------------------------------------------------------------

bool Holds::loader_has_report(const Tracee& tracee, const ProbeProgram& program) {
  const auto state = read_state(*tracee.process->space, program.loader_state);
  if (state && *state != r_debug::RT_CONSISTENT) return false;
  listener_.libraries_changed(tracee.process->root, ++last_loader_ticket_);
  return true;
}

Act Holds::hold_for_loader(Tracee& tracee) {
  tracee.loader_ticket = last_loader_ticket_;
  tracee.loader_until = Waiter::Clock::now() + kLongestHold;
  return Act::stay(Hold::loader, "until somebody has looked at its new libraries");
}

void Holds::loader_may_go_on(pid_t root, std::uint64_t ticket) {
  for (auto& [tid, tracee] : targets_.tracees) {
    const bool waits = tracee.loader_ticket != 0 && tracee.loader_ticket <= ticket;
    if (!waits || !tracee.process || tracee.process->root != root) continue;
    tracee.hold_no_longer(Hold::loader);
    if (tracee.is_held(Hold::loader)) rooms_.loop.carry_out(tid, Act::go_on("its new libraries have been looked at"));
  }
}

void Holds::release_late_loaders() {
  const auto now = Waiter::Clock::now();
  for (auto& [tid, tracee] : targets_.tracees) {
    if (tracee.loader_ticket == 0 || now < tracee.loader_until) continue;
    tracee.hold_no_longer(Hold::loader);
    if (!tracee.is_held(Hold::loader)) {
      tracee.loader_ticket = 0;
      continue;
    }
    spdlog::warn(
        "thread {} has waited {} s for its new libraries to be looked at, and goes on: their constructors may "
        "run unprobed",
        tid, kLongestHold / 1s);
    rooms_.loop.carry_out(tid, Act::go_on("it has waited long enough"));
  }
}

// ---- entry hold -----------------------------------------------------------------------------------------------------

Act Holds::on_entry_breakpoint(Tracee& tracee, ptrace::Registers& regs) {
  Process& process = *tracee.process;
  regs.set_pc(process.space->entry()->address.value);
  process.space->remove_entry();
  native::mark_dealt_with(regs);
  ptrace::set_registers(tracee.tid, regs);
  if (!process.detaching() && process.hold_at_entry && loader_is_at_work(tracee, regs))
    return Act::go_on("the dynamic loader is at work before its program");
  rooms_.actions.mend_entry_mask(tracee);
  if (process.detaching()) return Act::leave("at its program's entry");
  if (!std::exchange(process.hold_at_entry, false)) return Act::go_on("nobody waits for its program's entry any more");
  listener_.process_ready(process.id.pid);
  return Act::stay(Hold::entry, "at its program's entry");
}

}  // namespace probed::tracer
