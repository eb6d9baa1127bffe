// Return probes: a function's entry and all of its exits, or a refusal. Nothing of the stack is written, so that
// exceptions, unwinders, shadow stacks and moving stacks see the program's own; what can't be done so isn't done.
#include "daemon/control/planner_returns.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "daemon/lang/filter_program.hpp"

namespace probed::control {
namespace {

using Role = tracer::ProbeProgram::Role;

constexpr const char* kBounded = "MAXACTIVE is counted by its breakpoints";
constexpr const char* kMovingStack = "Go's stacks move, and detours know a call by where it lies on the stack";
constexpr const char* kLeap =
    "an indirect jump may leave the function, and where it leads is looked at by a breakpoint";
constexpr const char* kNoFlags = "a conditional jump out of the function isn't decided by the flags";
constexpr std::uint64_t kCompared = 64 << 10;  // bytes of code at a time

// Whether all that a filter compares is known at the function's entry.
bool belongs_to_entry(const lang::Filter& filter, const events::ReturnFetch& fetch) {
  return std::ranges::all_of(filter.program()->predicates, [&](const lang::Predicate& p) {
    if (p.field == lang::FilterField::argument) return fetch.is_at_entry(p.argument);
    return p.field != lang::FilterField::duration;
  });
}

Result<std::shared_ptr<tracer::ReturnProbe>> compiled(const lang::Definition& definition,
                                                      std::span<const lang::FetchArg> args,
                                                      const std::optional<std::string>& filter,
                                                      const events::CompileContext& context) {
  auto fetch = events::ReturnFetch::compile(args, context);
  if (!fetch) return std::move(fetch).error();
  auto probe = std::make_shared<tracer::ReturnProbe>();
  probe->fetch = std::move(fetch).value();
  probe->max_active = definition.max_active;
  const lang::Condition condition(definition, filter);
  if (condition.empty()) return probe;
  auto checked = condition.compile(probe->fetch.args(), true, context.address);
  if (!checked) return std::move(checked).error();
  if (!belongs_to_entry(*checked, probe->fetch))
    probe->exit_filter = std::move(checked).value();
  else
    probe->entry_filter = condition.compile(probe->fetch.entry_args(), true, context.address).value();
  return probe;
}

PlannedProbe part_of(std::size_t spec, Role role, std::shared_ptr<tracer::ReturnProbe> returns) {
  PlannedProbe part;
  part.spec = spec;
  part.role = role;
  part.returns = std::move(returns);
  return part;
}

// What the detours of a return probe's places capture, or why there are none.
std::string plan_detours(tracer::ReturnProbe& probe, pid_t pid) {
  if (probe.is_go) return kMovingStack;
  if (probe.max_active != 0) return kBounded;
  auto plan = events::plan_return_detours(probe.fetch, probe.entry_filter.value_or(lang::Filter()),
                                          probe.exit_filter.value_or(lang::Filter()), pid);
  if (!plan) return plan.error().message;
  probe.detours = std::make_shared<const events::ReturnPlan>(std::move(plan).value());
  return {};
}

void let_detour(PlannedProbe& part, const std::string& why_not) {
  const std::shared_ptr<const events::ReturnPlan>& plan = part.returns->detours;
  const bool is_exit = part.role == Role::exit;
  const bool unflagged = is_exit && part.exit.kind == arch::ExitKind::branch && !part.exit.condition;
  part.no_detour = !plan                                               ? why_not
                   : is_exit && part.exit.kind == arch::ExitKind::leap ? kLeap
                   : unflagged                                         ? kNoFlags
                                                                       : "";
  if (part.no_detour.empty()) part.detour = {plan, is_exit ? &plan->exit : &plan->entry};
}

std::string name_of(const symbols::Site& site) {
  return site.symbol.empty() ? fmt::format("{:#x}", site.address.value) : site.symbol;
}

Error refused(const symbols::Site& site, std::string_view why, std::uint64_t where) {
  const std::string at = where == 0 || where == site.address.value ? "" : fmt::format(" (at {:#x})", where);
  return {Reason::unsupported_instruction,
          fmt::format("{} can't carry a return probe: {}{}", name_of(site), why, at),
          "probe its entry, or the instructions behind its calls",
          {}};
}

Result<void> check_entry(const symbols::Site& site) {
  if (site.usdt)
    return Error{Reason::bad_definition,
                 "a static probe is an instruction: it returns nothing",
                 "leave out r, or name the function that it is in",
                 {}};
  if (!site.one_probe.empty())
    return Error{Reason::bad_definition,
                 fmt::format("{} exists only inlined, so it has no return of its own", site.one_probe),
                 fmt::format("probe a line of it (FILE:LINE){}",
                             site.symbol.empty() ? "" : ", or the return of a function around it: " + site.symbol),
                 {}};
  if (site.function_start == site.address) return {};
  return Error{Reason::bad_definition,
               fmt::format("a return probe must be at a function's entry, and {} is not known to be one",
                           site.symbol.empty() ? fmt::format("{:#x}", site.address.value)
                                               : fmt::format("{}+{:#x}", site.symbol, site.offset)),
               "name the function, or the address where it starts",
               {}};
}

// `+0($arg1):string` is what stands there at the return, as for the kernel; most people mean what the call was given.
void note_late_strings(std::span<const lang::FetchArg> args, std::vector<std::string>& notes) {
  for (const lang::FetchArg& arg : args) {
    const bool is_string = arg.type.base == values::BaseType::string || arg.type.base == values::BaseType::ustring;
    const lang::FetchExpr* expr = arg.expr.get();
    while (const auto* deref = std::get_if<lang::DerefExpr>(&expr->node)) expr = deref->inner.get();
    if (!is_string || expr == arg.expr.get() || !std::holds_alternative<lang::ArgumentExpr>(expr->node)) continue;
    notes.push_back(
        fmt::format("{0} is the text that stands there when the function returns; $entry({1}):string is the "
                    "one that stood there when it was called",
                    arg.name, arg.text));
  }
}

// GCC takes the result of a function away that no caller uses (-fipa-sra), and debug information doesn't say so.
void note_lost_result(std::span<const lang::FetchArg> args, const std::string& function,
                      std::vector<std::string>& notes) {
  const auto is_result = [](const lang::FetchArg& arg) {
    return arg.expr && std::holds_alternative<lang::RetvalExpr>(arg.expr->node);
  };
  const auto result = std::ranges::find_if(args, is_result);
  if (result == args.end() || function.find(".isra.") == std::string::npos) return;
  notes.push_back(
      fmt::format("{} may be nothing but what the register holds: {} is a copy by the compiler, which returns nothing "
                  "if no caller uses it (GCC, -fipa-sra)",
                  result->name, function));
}

}  // namespace

Result<PlannedProbe> return_without_place(std::size_t spec, const lang::Definition& definition,
                                          const std::optional<std::string>& filter,
                                          const events::CompileContext& context) {
  auto returns = compiled(definition, definition.args, filter, context);
  if (!returns) return std::move(returns).error();
  return part_of(spec, Role::entry, std::move(returns).value());
}

// The exits were found in the file: the target must have the same code.
Result<void> Planner::check_body(const symbols::Site& site, const symbols::TargetSymbols::Exits& exits) {
  for (const arch::CodeRange& part : exits.plan.body) {
    for (std::uint64_t at = part.begin; at < part.end; at += kCompared) {
      const std::size_t size = std::min(kCompared, part.end - at);
      const auto expected = exits.flow->bytes(at, size);
      if (std::ranges::equal(original_bytes(RemoteAddr{at + exits.bias}, size), expected)) continue;
      return refused(site, "its code isn't what its file has there, so its exits aren't known", at + exits.bias);
    }
  }
  return {};
}

Result<PlannedProbe> Planner::plan_exit(const symbols::Site& entry, const arch::Exit& exit, std::uint64_t bias) {
  PlannedProbe part;
  const RemoteAddr address{exit.address + bias};
  auto where = symbols_.site_at(address);
  if (!where) return std::move(where).error();
  const bool own = address >= entry.address && address.value - entry.address.value < entry.function_size;
  if (own) {
    where->symbol = entry.symbol;
    where->offset = address.value - entry.address.value;
  }
  if (auto fit = check_mapping(*where); !fit) return std::move(fit).error();
  if (auto fit = check_blacklist(*where); !fit) return std::move(fit).error();
  auto plan = look_at(*where);
  if (!plan) return std::move(plan).error();
  if (exit.kind == arch::ExitKind::branch && !plan->insn.emulable)
    return refused(entry, "processors disagree on a conditional jump out of it", address.value);
  part.where = std::move(where).value();
  part.plan = std::move(plan).value();
  part.exit = exit;
  part.exit.address += bias;
  if (!part.exit.target.symbol.empty()) part.exit.target.number += bias;
  return part;
}

Result<std::vector<PlannedProbe>> Planner::plan_return(std::size_t spec, const lang::Definition& definition,
                                                       const std::optional<std::string>& filter,
                                                       const symbols::Site& site) {
  if (auto entry = check_entry(site); !entry) return std::move(entry).error();
  auto fit = analyse(site);
  if (!fit) return std::move(fit).error();
  const auto exits = symbols_.exits_of(site.address);
  if (exits.why_not && !exits.flow) return refused(site, exits.why_not, 0);
  if (!exits.plan)
    return refused(site, arch::describe(exits.plan.refusal).sentence,
                   exits.plan.where == 0 ? 0 : exits.plan.where + exits.bias);
  if (auto same = check_body(site, exits); !same) return std::move(same).error();
  std::vector<std::string> notes;
  auto args = arguments(definition, site, notes);
  if (!args) return std::move(args).error();
  note_late_strings(*args, notes);
  note_lost_result(definition.args, site.symbol, notes);
  auto returns = compiled(definition, *args, filter, context_of(site));
  if (!returns) return std::move(returns).error();
  (*returns)->is_go = exits.is_go;
  (*returns)->loops_to_entry = exits.plan.loops_to_entry;
  for (const arch::CodeRange& part : exits.plan.body)
    (*returns)->body.push_back({part.begin + exits.bias, part.end + exits.bias});
  std::vector<PlannedProbe> parts{part_of(spec, Role::entry, *returns)};
  parts.front().where = site;
  parts.front().function = name_of(site);
  parts.front().plan = std::move(fit).value();
  parts.front().notes = std::move(notes);
  const std::string no_detours = plan_detours(**returns, pid_);
  let_detour(parts.front(), no_detours);
  for (const arch::Exit& exit : exits.plan.exits) {
    auto planned = plan_exit(site, exit, exits.bias);
    if (!planned) return refused(site, planned.error().message, 0);
    PlannedProbe part = part_of(spec, Role::exit, *returns);
    part.where = std::move(planned->where);
    part.plan = std::move(planned->plan);
    part.exit = std::move(planned->exit);
    part.function = name_of(site);
    let_detour(part, no_detours);
    parts.push_back(std::move(part));
  }
  return parts;
}

}  // namespace probed::control
