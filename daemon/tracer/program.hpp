// What runs when a probe is hit, and what it counts: the part of a probe that the tracer needs.
//
// A ProbeProgram is made by the controller, handed to the tracer once, and from then on its plain members belong to the
// tracer thread. The counters and `streaming` are relaxed atomics: each has one writer, and readers only want a number.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "arch/arch.hpp"
#include "daemon/base/types.hpp"
#include "daemon/events/detour_plan.hpp"
#include "daemon/events/fetch.hpp"
#include "daemon/events/return_fetch.hpp"
#include "daemon/lang/filter.hpp"
#include "daemon/symbols/maps.hpp"

namespace probed::tracer {

// hits: passed the filter. Of these, missed: could not be queued for the clients. filtered: turned away by the filter.
struct Counters {
  std::atomic<std::uint64_t> hits{0}, missed{0}, filtered{0};
};

// Shared by the probes of one batch: after this many hits none of them counts any more.
struct HitLimit {
  explicit HitLimit(std::uint64_t hits) : remaining(hits) {}
  std::atomic<std::uint64_t> remaining;  // written by the tracer thread
  std::vector<ProbeId> probes;
};

// What the places of one function's return probe share: its entry's and its exits'.
struct ReturnProbe {
  events::ReturnFetch fetch;
  // The filter belongs to the entry as soon as nothing of the exit is asked for.
  std::optional<lang::Filter> entry_filter, exit_filter;
  std::uint32_t max_active = 0;                       // calls that may be going on in a process; 0: any number
  std::vector<arch::CodeRange> body;                  // ascending; a jump that stays there is no exit
  bool loops_to_entry = false;                        // its first instruction may be executed again in the same call
  bool is_go = false;                                 // its stacks move
  std::shared_ptr<const events::ReturnPlan> detours;  // what its places' detours capture; null: they have none
  ProbeId entry{};                                    // the entry's program: the one that records
  // Tracer thread: what calls that detours enter are known by; 0: none yet, as it is after all were forgotten.
  std::uint32_t tag = 0;
  // Written by the tracer. Calls that are gone without a return; exits of calls that began unseen.
  std::atomic<std::uint64_t> abandoned{0}, unmatched{0};

  // Goes on counting where another one, which isn't run any more, has ended.
  void take_over(const ReturnProbe& before) {
    abandoned = before.abandoned.load();
    unmatched = before.unmatched.load();
  }
};

struct ProbeProgram {
  ProbeId id{};
  // Of a return probe: which of its places this is. The arguments and the filter are `returns`' then, and the exits
  // make the events.
  enum class Role : std::uint8_t { plain, entry, exit };
  Role role = Role::plain;
  std::shared_ptr<ReturnProbe> returns;
  arch::Exit exit;
  events::FetchProgram fetch;
  std::optional<lang::Filter> filter;
  std::shared_ptr<HitLimit> limit;  // null: none
  bool force_step = false;
  bool needs_comm = false;  // $comm: read at the hit, not from the thread's cache
  // Of our own, at the place where the dynamic loader says that it has loaded something: makes no event and counts
  // nothing, but calls Listener::libraries_changed(), and holds the thread until Engine::loader_may_go_on(): what has
  // been loaded is to be probed before its constructors run.
  bool watches_loader = false;
  RemoteAddr loader_state;  // r_debug.r_state (<link.h>): it holds while that isn't RT_CONSISTENT, too, when 0
  // A static probe's counter (u16): one more while this is armed. 0: none.
  RemoteAddr semaphore;
  symbols::Backing semaphore_backing;  // what it was mapped from

  // What its detours capture; null: it stays on the breakpoint tier, and no_detour says why.
  std::shared_ptr<const events::DetourPlan> detour;
  std::string no_detour;

  // A probe's: a program that takes the place of another goes on with its counters.
  std::shared_ptr<Counters> counters = std::make_shared<Counters>();
  std::atomic<bool> streaming{false};  // written by the controller: somebody subscribes to it
  // Written by the tracer: a jump leads to its detour; if not, why not (of static life time; null: it wasn't tried
  // yet, or no_detour says it).
  std::atomic<bool> optimized{false};
  std::atomic<const char*> not_optimized{nullptr};

  // tracer thread
  bool enabled = true;
  RemoteAddr site;  // where it was added; 0: not yet

  // Goes on where another one, which isn't run any more, has ended. Tracer thread, before this one is added.
  void take_over(const ProbeProgram& before) {
    limit = before.limit;
    force_step = before.force_step;
  }
};
using ProgramPtr = std::shared_ptr<ProbeProgram>;

// What a program that records records: a return probe's entry does so for its exits.
inline const events::DetourPlan& recorded_by(const ProbeProgram& program) {
  return program.returns ? program.returns->detours->exit : *program.detour;
}
inline ProbeId recorder_of(const ProbeProgram& program) {
  return program.returns ? program.returns->entry : program.id;
}

// A place that has been analysed and found fit for a probe; made by the planner from the target's bytes, verified
// against them again when it is armed.
struct SitePlan {
  RemoteAddr address;
  arch::Insn insn;
  // The instruction's own, `insn.length` of them, and what followed it: `context` in all.
  std::array<std::uint8_t, arch::kMaxInsnLength> bytes{};
  std::uint8_t context = 0;
  symbols::Backing backing;  // what the address was mapped from

  std::span<const std::uint8_t> code() const { return {bytes.data(), insn.length}; }
};

}  // namespace probed::tracer
