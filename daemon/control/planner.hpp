// From a definition to what the tracer needs: sites analysed and found fit, programs compiled. All the refusals of a
// probe that need no ptrace are made here.
//
// Thread: the worker pool. Works on values and on a snapshot of the target; whatever it found is verified again when
// the probe is armed.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "daemon/base/types.hpp"
#include "daemon/control/controller.hpp"
#include "daemon/events/detour_plan.hpp"
#include "daemon/events/fetch.hpp"
#include "daemon/lang/definition.hpp"
#include "daemon/lang/filter.hpp"
#include "daemon/symbols/resolve.hpp"
#include "daemon/symbols/translators.hpp"
#include "daemon/tracer/kernel/memory.hpp"
#include "daemon/tracer/program.hpp"
#include "daemon/tracer/text/text_overlay.hpp"
#include "proto/base/result.hpp"

namespace probed::control {

// One probe, ready for the tracer but for its identity.
struct PlannedProbe {
  std::size_t spec = 0;  // which of the request's definitions it came from
  symbols::Site where;
  tracer::SitePlan plan;
  events::FetchProgram fetch;
  std::optional<lang::Filter> filter;
  // What a detour captures; null: none can be made, and why.
  std::shared_ptr<const events::DetourPlan> detour;
  std::string no_detour;
  symbols::Backing semaphore_backing;  // of where.semaphore
  std::vector<std::string> notes;      // what the user should know: where it really is, what has been optimised out
  // Of a return probe, which has a place for its function's entry and one for each exit; they come in this order. All
  // of them share `returns`; fetch and filter are empty.
  tracer::ProbeProgram::Role role = tracer::ProbeProgram::Role::plain;
  std::shared_ptr<tracer::ReturnProbe> returns;
  arch::Exit exit;
  std::string function;  // its name

  // What its events carry.
  std::span<const lang::FetchArg> args() const { return returns ? returns->fetch.args() : fetch.args(); }
  bool needs_comm() const { return returns ? returns->fetch.needs_comm() : fetch.needs_comm(); }
};

struct Planned {
  std::vector<PlannedProbe> probes;
  std::vector<Skipped> skipped;  // of a glob
};

// Why a glob of which every match was skipped (at least one) can't be probed.
Error none_fits(const lang::Definition& definition, const std::vector<Skipped>& skipped);

class Planner {
 public:
  // overlay: what the text may hold of ours; null: nothing.
  Planner(pid_t pid, const symbols::TargetSymbols& symbols, const tracer::TextOverlay* overlay);

  // Every probe that the definition names; what a glob matches and cannot be probed is skipped. Errors: whatever
  // places(), FetchProgram::compile() and Filter::compile() answer; those of analyse(), unless something is left of a
  // glob.
  Result<Planned> plan(std::size_t spec, const lang::Definition& definition, const std::optional<std::string>& filter);
  // The same, but a glob of which nothing is left is no error: all its matches are in `skipped`.
  Result<Planned> plan_matches(std::size_t spec, const lang::Definition& definition,
                               const std::optional<std::string>& filter);

  // A probe without a place, for a definition whose code isn't loaded: its arguments and its filter are checked, what
  // they load from symbols is left for later. Errors: those of FetchProgram::compile() and Filter::compile().
  static Result<PlannedProbe> plan_without_place(std::size_t spec, const lang::Definition& definition,
                                                 const std::optional<std::string>& filter);

  // Whether the instruction at a place can carry a probe. Errors: unmapped_address, not_executable, unsupported_target,
  // blacklisted, not_instruction_boundary, existing_breakpoint, unsupported_instruction.
  Result<tracer::SitePlan> analyse(const symbols::Site& site);

 private:
  Result<void> check_mapping(const symbols::Site& site) const;
  Result<void> check_semaphore(const symbols::Site& site) const;
  Result<void> check_boundary(const symbols::Site& site);
  Result<void> check_blacklist(const symbols::Site& site);
  bool near_unknown_sequence(const symbols::Site& site);
  // Whether what surrounds the instruction forbids a probe on it.
  arch::Refusal refusal_by_context(const symbols::Site& site);
  std::string instead_of(const symbols::Site& site);
  Result<void> check_context(const symbols::Site& site);
  Error existing_breakpoint(const symbols::Site& site) const;
  Result<tracer::SitePlan> look_at(const symbols::Site& site);
  events::CompileContext context_of(const symbols::Site& site) const;
  // planner_returns.cpp
  Result<std::vector<PlannedProbe>> plan_return(std::size_t spec, const lang::Definition& definition,
                                                const std::optional<std::string>& filter, const symbols::Site& site);
  Result<void> check_body(const symbols::Site& site, const symbols::TargetSymbols::Exits& exits);
  Result<PlannedProbe> plan_exit(const symbols::Site& entry, const arch::Exit& exit, std::uint64_t bias);
  Result<std::vector<lang::FetchArg>> arguments(const lang::Definition& definition, const symbols::Site& site,
                                                std::vector<std::string>& notes) const;
  // But for where it is.
  Result<PlannedProbe> plan_one(std::size_t spec, const lang::Definition& definition,
                                const std::optional<std::string>& filter, const symbols::Site& site);
  std::vector<std::uint8_t> original_bytes(RemoteAddr from, std::size_t size);
  std::size_t read(RemoteAddr from, std::span<std::uint8_t> to);

  pid_t pid_;
  const symbols::TargetSymbols& symbols_;
  const tracer::TextOverlay* overlay_;
  tracer::TargetMemory memory_;
  // The program's own bytes, as they were read last. The places of a glob come in the order of their addresses; a read
  // for each would cost more than all the rest.
  std::vector<std::uint8_t> window_;
  RemoteAddr window_start_{};
  bool shadow_stack_;
  std::optional<symbols::Translator> translator_;
  // Of a probe that only tells of its hits: what a detour captures is the same everywhere. Null: not known yet.
  std::shared_ptr<const events::DetourPlan> plain_detour_;
};

}  // namespace probed::control
