// Ready for the day on which this daemon is killed: a target's journal, and its landing (landing.hpp): mapped, and made
// SIGTRAP's action, before its first breakpoint.
//
// Only where the program has left SIGTRAP at its default. There the action belongs to nobody: a SIGTRAP of the
// program's own finds the default in its place (before_own_signal, and the landing itself when no tracer lives). Who
// asks for the action sees ours.
//
// Owning thread: the tracer thread.
#include <spdlog/spdlog.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "daemon/tracer/family/remote_calls.hpp"
#include "daemon/tracer/recovery/left_landings.hpp"
#include "daemon/tracer/rooms.hpp"
#include "daemon/tracer/signals/action_calls.hpp"
#include "daemon/tracer/signals/actions.hpp"

namespace probed::tracer {
namespace {

namespace native = arch::native;

// 0: it can't be mapped.
RemoteAddr map(RemoteSyscalls& remote, AddressSpace& space, std::uint64_t size, XolAreas::Access access) {
  const std::uint64_t protection = access == XolAreas::Access::code ? PROT_READ | PROT_EXEC : PROT_READ;
  const auto at = remote.call(SYS_mmap, {0, size, protection, MAP_PRIVATE | MAP_ANONYMOUS, ~0ULL, 0});
  if (!at || *at <= 0) return {};
  const RemoteAddr base{static_cast<std::uint64_t>(*at)};
  space.xol().add_data(base, size, false, access);
  return base;
}

bool map_landing(RemoteSyscalls& remote, AddressSpace& space) {
  if (space.landing().ready()) return true;
  const RemoteAddr page = map(remote, space, kPageSize, XolAreas::Access::code);
  return page && space.landing().write_code(space.memory(), page);
}

bool map_landing_table(RemoteSyscalls& remote, AddressSpace& space, std::size_t more) {
  Landing& landing = space.landing();
  if (landing.has_room(more)) return true;
  const Landing::Area before = landing.table();
  const std::uint64_t size = round_up(landing.table_size(more), kPageSize);
  const RemoteAddr table = map(remote, space, size, XolAreas::Access::constant);
  if (!table || !landing.move_table(space.memory(), table, landing.table_size(more))) return false;
  if (before.base && remote.call(SYS_munmap, {before.base.value, before.size, 0, 0, 0, 0}) == 0)
    space.xol().forget_area(before.base);
  return true;
}

// In the program's memory, for good: the code, and what it looks into.
void keep_landing(AddressSpace& space) {
  space.xol().forget_area(space.landing().page());
  space.xol().forget_area(space.landing().table().base);
}

}  // namespace

bool Actions::lacks_landing(const Process& process, std::size_t more) const {
  if (!native::kHasLanding) return false;
  const Landing& landing = process.space->landing();
  const bool installed = process.actions.landing_in_place() || process.actions.of(SIGTRAP).known;
  return !landing.ready() || !landing.has_room(more) || !installed;
}

// Where it fails the probes work all the same, but for the day on which the daemon is killed.
void Actions::prepare_landing(Tracee& tracee, std::size_t more) {
  Process& process = *tracee.process;
  AddressSpace& space = *process.space;
  bool done = false;
  if (!process.actions.landing_in_place() && !process.actions.of(SIGTRAP).known) rooms_.jobs.stop_few_others(tracee);
  if (!space.landing().ready()) more += left_entries(space);
  const bool alive = rooms_.jobs.with_remote_calls(tracee, space, [&](RemoteSyscalls& remote) {
    done = map_landing(remote, space) && map_landing_table(remote, space, more);
    if (done) stage_left(space);
    ActionCalls calls(remote, space);
    if (done) install_landing(process, calls);
  });
  if (alive && !done)
    spdlog::warn(
        "process {}: no landing could be mapped: should this daemon be killed, its breakpoints end the process",
        process.id.pid);
}

// The landing may be in place already: inherited, or its creator's.
void Actions::begin_journal(const Process& process) {
  AddressSpace& space = *process.space;
  if (space.journal() || rooms_.state_directory.empty()) return;
  space.keep_journal(Journal::create(rooms_.state_directory, process.id));
  if (const auto& landing = process.actions.landing; space.journal() && landing)
    space.journal()->note_landing(landing->ours, landing->before);
}

void install_landing(Process& process, ActionCalls& calls) {
  const Landing& landing = process.space->landing();
  if (!landing.ready() || process.actions.of(SIGTRAP).known) return;
  auto now = calls.get(SIGTRAP);
  // Not known: it is looked for again where it should be.
  if (!now && process.actions.landing) process.actions.landing->in_place = true;
  // Where a killed daemon's is in the way, which knows breakpoints that are still there, that is what is put back.
  const auto left = now ? left_action(*process.space, *now) : std::nullopt;
  const auto is_free = [&] {
    return !note_landing(process, calls, now) && now && disposition_of(*now) == Disposition::standard;
  };
  if (!now || (!left && !is_free())) return;
  const Action before = left.value_or(*now);
  if (Journal* journal = process.space->journal()) journal->note_landing(landing.action(), before);
  process.actions.landing = LandingAction{landing.action(), before};
  // A call that was not seen to its end may have been made.
  if (!calls.replace(SIGTRAP, *now, landing.action()) && !calls.cut_short()) process.actions.landing.reset();
}

bool note_landing(Process& process, ActionCalls& calls, std::optional<Action>& now) {
  auto& landing = process.actions.landing;
  if (!now) return false;
  const bool is_ours = landing && now->handler == landing->ours.handler;
  if (!is_ours && Landing::is_left(process.space->memory(), *now)) {
    const bool leads = has_left(*process.space) || leads_on(process.id.pid, process.space->memory(), *now);
    if (leads && !landing) return true;  // as it is, until ours takes its place
    // Whatever the default action's flags were.
    const Action wanted = leads ? landing->ours : Action{};
    if (calls.replace(SIGTRAP, *now, wanted)) now = wanted;
  }
  if (!landing) return false;
  const bool reset = was_reset(*now, landing->ours);
  landing->in_place = now->handler == landing->ours.handler;
  landing->shared |= !landing->in_place && !reset;
  if (reset && calls.replace(SIGTRAP, *now, landing->ours)) {
    landing->in_place = true;
    now = landing->ours;
  }
  return landing->in_place;
}

void remove_landing(Process& process, ActionCalls& calls) {
  auto& landing = process.actions.landing;
  if (!landing) return;
  auto now = calls.get(SIGTRAP);
  if (note_landing(process, calls, now) && calls.replace(SIGTRAP, *now, landing->before)) landing->in_place = false;
}

// A program that has put another action in the landing's place may have kept it, to put it back one day: the code stays
// then. And what it puts there while we take the landing away, other threads of its having been let go, would be undone
// for a moment, in which a SIGTRAP ends it: so the landing, which does as the default action would, stays as well.
void leave_landing(Process& process, ActionCalls& calls) {
  auto& landing = process.actions.landing;
  if (!landing) return;
  auto now = calls.get(SIGTRAP);
  if (note_landing(process, calls, now) && !landing->shared) calls.replace(SIGTRAP, *now, landing->before);
  if (calls.cut_short()) return;  // it is tried again when the thread has come back
  // As nobody can say that it isn't SIGTRAP's action, it stays.
  if (!now) return keep_landing(*process.space);
  // Those that have been let go may be in it, too, by way of a breakpoint that another daemon has left.
  const bool may_come_back = disposition_of(*now) == Disposition::handled && landing->shared;
  if (may_come_back || has_left(*process.space)) keep_landing(*process.space);
  landing.reset();
}

}  // namespace probed::tracer
