#include "daemon/control/planner.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <functional>

#include "arch/arch.hpp"
#include "daemon/base/reserve.hpp"
#include "daemon/control/further_places.hpp"
#include "daemon/control/planner_returns.hpp"
#include "daemon/control/variable_arguments.hpp"
#include "daemon/events/usdt_arguments.hpp"
#include "daemon/symbols/target_files.hpp"

namespace probed::control {
namespace {

namespace native = arch::native;

// Decoding from a function's start to a place far inside it: no compiler emits functions near this size.
constexpr std::uint64_t kMaxDecode = 4 << 20;

constexpr std::uint64_t kWindow = 64 << 10;  // bytes of text read at a time
constexpr std::uint64_t kPage = 4096;        // at most this much of a window is in front of what is asked for

// Intel CET, arm64 GCS: calls push a second copy of the return address, which a relocated call could not.
bool uses_shadow_stack(pid_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("x86_Thread_features:") && line.find("shstk") != std::string::npos) return true;
  return false;
}

// Empty: it has gone.
std::string program_of(pid_t pid) {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/" + std::to_string(pid) + "/exe", error).string();
}

std::string address_or_place(const symbols::Site& site) {
  return site.symbol.empty() ? fmt::format("address {:#x}", site.address.value) : place(site);
}

using TrapBytes = std::array<std::uint8_t, native::kBreakpointSize>;

// What the file behind a place holds there; nullopt: no file, or not the one that is mapped any more.
std::optional<TrapBytes> bytes_in_file(pid_t pid, const symbols::Mapping& mapping, RemoteAddr address) {
  if (mapping.inode == 0) return std::nullopt;
  const auto file = symbols::open_mapped(pid, mapping, [](int) { return false; });
  const auto offset = mapping.file_offset + (address.value - mapping.start.value);
  TrapBytes bytes{};
  if (!file || ::pread(file->get(), bytes.data(), bytes.size(), static_cast<off_t>(offset)) != ssize_t{bytes.size()})
    return std::nullopt;
  return bytes;
}

std::string hex_of(std::span<const std::uint8_t> bytes) {
  std::string text;
  for (const std::uint8_t byte : bytes) text += fmt::format("{}{:#04x}", text.empty() ? "" : ",", byte);
  return text;
}

Result<PlannedProbe> compiled(std::size_t spec, const lang::Definition& definition,
                              std::span<const lang::FetchArg> args, const std::optional<std::string>& filter,
                              const events::CompileContext& context) {
  auto fetch = events::FetchProgram::compile(args, context);
  if (!fetch) return std::move(fetch).error();
  std::optional<lang::Filter> checked;
  if (const lang::Condition condition(definition, filter); !condition.empty()) {
    auto result = condition.compile(fetch->args(), false, context.address);
    if (!result) return std::move(result).error();
    checked = std::move(result).value();
  }
  PlannedProbe probe;
  probe.spec = spec;
  probe.fetch = std::move(fetch).value();
  probe.filter = std::move(checked);
  return probe;
}

// Whether an instruction begins there, as far as the file's code tells: behind a jump there may be data. A function's
// start needs no such proof, and of most functions nothing else is asked for; so that code is looked at only where it
// matters. nullopt: it isn't to be had, or the program has changed it (`there`: what it has at the place).
std::optional<bool> known_instruction(const symbols::TargetSymbols& symbols, const symbols::Site& site,
                                      std::span<const std::uint8_t> there) {
  const bool is_start = site.function_start == site.address && site.function_size != 0;
  if (!site.function_start || is_start) return std::nullopt;
  const auto code = symbols.code_around(site.address);
  if (!code.flow) return std::nullopt;
  const std::uint64_t address = site.address.value - code.bias;
  const arch::FunctionFacts* const function = code.flow->function_at(address);
  if (!function || function->range.begin == address || there.empty()) return std::nullopt;
  if (!std::ranges::equal(there, code.flow->bytes(address, there.size()))) return std::nullopt;
  return code.flow->is_instruction(address);
}

using ReadText = std::function<std::vector<std::uint8_t>(RemoteAddr, std::size_t)>;

// Decodes from the function's start, as the kernel's probes do not: a breakpoint in the middle of an instruction would
// change what the program computes.
Result<void> check_decoding(const symbols::Site& site, const ReadText& original_bytes) {
  if (!site.function_start || site.function_start == site.address) return {};
  const std::uint64_t offset = site.address.value - site.function_start.value;
  if (offset > kMaxDecode) return {};
  const auto bytes = original_bytes(site.function_start, offset + arch::kMaxInsnLength);
  std::uint64_t at = 0, previous = 0;
  while (at < offset && at < bytes.size()) {
    const arch::Insn insn = native::decode(std::span(bytes).subspan(at), site.function_start.value + at);
    if (insn.length == 0) break;
    previous = at;
    at += insn.length;
  }
  if (at == offset) return {};
  if (at < offset)
    return Error{
        Reason::not_instruction_boundary,
        fmt::format("{} can't be proved to be the start of an instruction: the code at {}+{:#x} doesn't decode",
                    place(site), site.symbol, at),
        "probe the function's start, or an address before the data in its code",
        {}};
  const std::uint64_t base = site.offset - offset;  // of the function's start from the symbol
  return Error{Reason::not_instruction_boundary,
               fmt::format("{} is in the middle of an instruction of {} bytes", place(site), at - previous),
               fmt::format("the nearest instructions start at {0}+{1:#x} and {0}+{2:#x}",
                           site.symbol.empty() ? fmt::format("{:#x}", site.function_start.value) : site.symbol,
                           base + previous, base + at),
               {}};
}

}  // namespace

Error none_fits(const lang::Definition& definition, const std::vector<Skipped>& skipped) {
  // What most of them have in common says more than what the first happens to have.
  const auto as_many = [&](const Skipped& one) {
    return std::ranges::count(skipped, one.why.reason, [](const Skipped& s) { return s.why.reason; });
  };
  std::vector<std::pair<Reason, std::ptrdiff_t>> counted;
  const Skipped* typical = &skipped.front();
  std::ptrdiff_t most = 0;
  for (const Skipped& one : skipped) {
    if (std::ranges::find(counted, one.why.reason, &std::pair<Reason, std::ptrdiff_t>::first) != counted.end())
      continue;
    counted.emplace_back(one.why.reason, as_many(one));
    if (counted.back().second > most) most = counted.back().second, typical = &one;
  }
  Error why = typical->why;
  if (skipped.size() > 1)
    why.message = fmt::format("none of the {} functions that match {} can be probed; {} of them: {}", skipped.size(),
                              definition.location.text, most, why.message);
  return why;
}

Planner::Planner(pid_t pid, const symbols::TargetSymbols& symbols, const tracer::TextOverlay* overlay)
    : pid_(pid),
      symbols_(symbols),
      overlay_(overlay),
      memory_(tracer::TargetMemory::open(pid)),
      shadow_stack_(uses_shadow_stack(pid)),
      translator_(symbols::translator_in(program_of(pid), symbols.mappings())) {}

// What the program itself has there: our own jumps and breakpoints are replaced by what they hide. As many bytes as are
// readable, through the window.
std::vector<std::uint8_t> Planner::original_bytes(RemoteAddr from, std::size_t size) {
  std::vector<std::uint8_t> bytes(size);
  const auto holds = [&] { return from >= window_start_ && from.value + size <= window_start_.value + window_.size(); };
  if (size <= kPage && !holds()) {
    window_start_ = RemoteAddr{from.value / kPage * kPage};
    window_.resize(kWindow);
    window_.resize(read(window_start_, window_));
  }
  if (size <= kPage && holds())
    std::copy_n(window_.begin() + (from - window_start_), size, bytes.begin());
  else  // or at the end of what is mapped; or the page's start isn't
    bytes.resize(read(from, bytes));
  return bytes;
}

std::size_t Planner::read(RemoteAddr from, std::span<std::uint8_t> to) {
  if (!overlay_) return memory_.read_some(from, std::as_writable_bytes(to));
  const tracer::TextOverlay::Reading reading(*overlay_);
  const std::size_t got = memory_.read_some(from, std::as_writable_bytes(to));
  reading.undo(to.first(got), from);
  return got;
}

Result<void> Planner::check_mapping(const symbols::Site& site) const {
  const RemoteAddr address = site.address;
  const std::string where = address_or_place(site);
  const symbols::Mapping* mapping = symbols_.mapping_at(address);
  if (!mapping)
    return Error{Reason::unmapped_address,
                 fmt::format("{} is not mapped in process {}", where, pid_),
                 fmt::format("see /proc/{}/maps", pid_),
                 {}};
  if (mapping->path == "[vsyscall]")
    return Error{Reason::blacklisted,
                 where + " is in the vsyscall page, which belongs to the kernel",
                 "probe the function that calls it",
                 {}};
  if (translator_ && translator_->translates(*mapping))
    return Error{Reason::unsupported_target,
                 fmt::format("{} would never be hit: {} runs process {}, and executes a translation of that code",
                             where, translator_->name, pid_),
                 translator_->hint(),
                 {}};
  if (!mapping->executable && translator_ && translator_->what == symbols::Translator::What::other_program)
    return Error{Reason::unsupported_target,
                 fmt::format("{} is not executed as it is: {} emulates the program that it belongs to", where,
                             translator_->name),
                 translator_->hint(),
                 {}};
  if (!mapping->executable)
    return Error{Reason::not_executable,
                 fmt::format("{} is data: its mapping ({}) is not executable", where,
                             mapping->path.empty() ? "anonymous" : mapping->path),
                 "probes go on code; read data with @ADDR in a fetch argument",
                 {}};
  if (mapping->shared)
    return Error{Reason::unsupported_target,
                 where + " is in a MAP_SHARED mapping: a breakpoint would be seen by every process that maps it",
                 "let the program map the file MAP_PRIVATE, as the dynamic loader does",
                 {}};
  return {};
}

// A counter that can't be written for this process alone is none to be raised.
Result<void> Planner::check_semaphore(const symbols::Site& site) const {
  if (!site.semaphore) return {};
  const symbols::Mapping* mapping = symbols_.mapping_at(site.semaphore);
  if (mapping && mapping->writable && !mapping->shared) return {};
  return Error{Reason::unsupported_target,
               fmt::format("the static probe at {} can't be switched on: its semaphore at {:#x} is in no private "
                           "writable memory of process {}",
                           place(site), site.semaphore.value, pid_),
               "probe the place by its address: it will only be hit while another tracer has raised the semaphore",
               {}};
}

Result<void> Planner::check_boundary(const symbols::Site& site) {
  // Assembly keeps tables among its code (libcrypto's S-boxes): a byte changed there changes what is computed.
  if (site.between_functions)
    return Error{
        Reason::not_instruction_boundary,
        fmt::format("{} can't be proved to be the start of an instruction: neither a symbol nor the unwind table "
                    "of {} has a function there, so it may be data",
                    address_or_place(site), site.module),
        "probe a function's start or an offset in one",
        {}};
  if (const std::uint64_t inside = site.address.value % native::kInsnAlignment; !site.function_start && inside != 0)
    return Error{Reason::not_instruction_boundary,
                 fmt::format("{} is in the middle of an instruction: they begin at multiples of {}",
                             address_or_place(site), native::kInsnAlignment),
                 fmt::format("the nearest ones start at {:#x} and {:#x}", site.address.value - inside,
                             site.address.value - inside + native::kInsnAlignment),
                 {}};
  const auto known = known_instruction(symbols_, site, original_bytes(site.address, 1));
  if (known == true) return {};
  const auto read_text = [this](RemoteAddr from, std::size_t size) { return original_bytes(from, size); };
  if (auto fit = check_decoding(site, read_text); !fit || known != false) return fit;
  return Error{Reason::not_instruction_boundary,
               fmt::format("{} isn't known to be the start of an instruction: the program reads it as data, or nothing "
                           "leads there",
                           address_or_place(site)),
               "probe a place in front of it, or one that a branch leads to",
               {}};
}

Result<void> Planner::check_blacklist(const symbols::Site& site) {
  const RemoteAddr address = site.address;
  const std::span<const std::uint8_t> code(native::kSignalReturn);
  // Any of the trampoline's instructions: look for it around the address. Nothing may be mapped in front of it.
  auto bytes = original_bytes(address - (code.size() - 1), 2 * code.size() - 1);
  if (bytes.empty()) bytes = original_bytes(address, code.size());
  if (!std::ranges::search(bytes, code).empty())
    return Error{Reason::blacklisted,
                 address_or_place(site) + " is in the signal return trampoline: unwinders recognise it by its bytes",
                 "probe the signal handler instead",
                 {}};
  if (symbols_.restartable(address))
    return Error{Reason::blacklisted,
                 address_or_place(site) +
                     " is in a restartable sequence (rseq): executed elsewhere, its thread would no longer be sent to "
                     "the abort handler",
                 "probe the function's start, or an instruction behind the sequence",
                 {}};
  if (near_unknown_sequence(site))
    return Error{
        Reason::blacklisted,
        address_or_place(site) +
            " is in a function with a restartable sequence (rseq) that no section __rseq_cs describes: where it "
            "begins and ends isn't known",
        "probe what calls the function",
        {}};
  return {};
}

// A sequence whose descriptor the program makes itself still has its signature, close to it.
bool Planner::near_unknown_sequence(const symbols::Site& site) {
  constexpr std::uint64_t kReach = 2048;
  const std::uint64_t behind = std::min(site.address.value, kReach);
  RemoteAddr from = site.address - behind, to = site.address + kReach;
  if (site.function_start) {
    from = std::max(from, site.function_start);
    if (site.function_size != 0) to = std::min(to, site.function_start + site.function_size);
  }
  const std::vector<std::uint8_t> code = original_bytes(from, to.value - from.value);
  const std::span<const std::uint8_t> signature(native::kRestartableSignature);
  for (auto at = code.begin();; ++at) {
    at = std::search(at, code.end(), signature.begin(), signature.end());
    if (at == code.end()) return false;
    if (!symbols_.restartable(from + static_cast<std::uint64_t>(at - code.begin()))) return true;
  }
}

arch::Refusal Planner::refusal_by_context(const symbols::Site& site) {
  constexpr std::uint64_t kReach = native::kContextReach;
  if constexpr (kReach == 0) return arch::Refusal::none;
  RemoteAddr from = std::max(site.address - std::min(site.address.value, kReach), site.function_start);
  auto code = original_bytes(from, site.address.value - from.value + kReach);
  if (code.size() <= site.address.value - from.value) {  // nothing is mapped in front
    from = site.address;
    code = original_bytes(from, kReach);
  }
  return native::refusal_in_context(code, site.address.value - from.value);
}

// What a refusal says that can be done instead: where instructions belong together, the first one behind them.
std::string Planner::instead_of(const symbols::Site& site) {
  constexpr const char* kUsual = "probe the instruction before or after it";
  if constexpr (native::kContextReach == 0) return kUsual;
  constexpr std::uint64_t kMost = 32;
  for (std::uint64_t behind = native::kInsnAlignment; behind <= kMost * native::kInsnAlignment;
       behind += native::kInsnAlignment) {
    symbols::Site next = site;
    next.address = site.address + behind;
    next.offset += behind;
    if (site.function_size != 0 && next.address >= site.function_start + site.function_size) break;
    const auto bytes = original_bytes(next.address, arch::kMaxInsnLength);
    if (bytes.empty()) break;
    if (native::is_breakpoint(bytes) || native::decode(bytes, next.address.value).refusal != arch::Refusal::none)
      continue;
    if (refusal_by_context(next) == arch::Refusal::none && check_blacklist(next))
      return "the next place that can be is " + place(next);
  }
  return kUsual;
}

Result<void> Planner::check_context(const symbols::Site& site) {
  const arch::Refusal refusal = refusal_by_context(site);
  if (refusal == arch::Refusal::none) return {};
  return Error{Reason::unsupported_instruction,
               fmt::format("{} can't be probed where it stands: {}", place(site), arch::describe(refusal)),
               instead_of(site),
               {}};
}

// Its file tells who put it there: text is changed in memory only by debuggers and by us.
Error Planner::existing_breakpoint(const symbols::Site& site) const {
  const symbols::Mapping* mapping = symbols_.mapping_at(site.address);
  const auto on_disk = mapping ? bytes_in_file(pid_, *mapping, site.address) : std::nullopt;
  const std::string message = place(site) + " already holds a breakpoint instruction";
  if (!on_disk || native::is_breakpoint(*on_disk))
    return {Reason::existing_breakpoint,
            message,
            on_disk ? "it is the program's own, its file has it too; probe the next instruction"
                    : "it is the program's own, or another debugger's; probe the next instruction",
            {}};
  return {Reason::existing_breakpoint,
          fmt::format("{} that {} does not have on disk ({} is there): a debugger has put it there, or a probed that "
                      "was killed has left it",
                      message, site.module, hex_of(*on_disk)),
          fmt::format("end the debugger that process {} was under; what a killed probed has left is put back by "
                      "`probed --recover`, run as the user that it ran as and with its --state-dir",
                      pid_),
          {}};
}

Result<tracer::SitePlan> Planner::analyse(const symbols::Site& site) {
  if (auto fit = check_mapping(site); !fit) return std::move(fit).error();
  if (auto fit = check_semaphore(site); !fit) return std::move(fit).error();
  // First: the unwind table gives the trampoline a start of its own, which is no instruction's.
  if (auto fit = check_blacklist(site); !fit) return std::move(fit).error();
  if (auto fit = check_boundary(site); !fit) return std::move(fit).error();
  return look_at(site);
}

// What stands at a place of which it is known that an instruction begins there.
Result<tracer::SitePlan> Planner::look_at(const symbols::Site& site) {
  const auto bytes = original_bytes(site.address, arch::kMaxInsnLength);
  if (bytes.empty() && memory_.unanswered())
    return Error{
        Reason::timed_out,
        fmt::format("{} can't be read: the process hasn't touched that page yet, and it wasn't fetched from its "
                    "file in time",
                    place(site)),
        fmt::format("see whether {} can be read; try again once the machine has less to do",
                    site.module_path.empty() ? site.module : site.module_path),
        {}};
  if (bytes.empty())
    return Error{Reason::unmapped_address,
                 fmt::format("{} can't be read", place(site)),
                 fmt::format("see /proc/{}/maps; it may just have been unmapped", pid_),
                 {}};
  if (native::is_breakpoint(bytes)) return existing_breakpoint(site);
  tracer::SitePlan plan;
  plan.address = site.address;
  plan.insn = native::decode(bytes, site.address.value);
  if (plan.insn.refusal != arch::Refusal::none)
    return Error{Reason::unsupported_instruction,
                 fmt::format("{} can't be probed: {}", place(site), arch::describe(plan.insn.refusal)),
                 instead_of(site),
                 {}};
  if (auto fit = check_context(site); !fit) return std::move(fit).error();
  const bool calls = plan.insn.flow == arch::Flow::call || plan.insn.flow == arch::Flow::indirect_call;
  if (calls && shadow_stack_)
    return Error{Reason::unsupported_instruction,
                 fmt::format("the call at {} can't be probed: the process uses a shadow stack", place(site)),
                 "probe the called function's start",
                 {}};
  plan.context = static_cast<std::uint8_t>(std::min(bytes.size(), plan.bytes.size()));
  std::copy_n(bytes.begin(), plan.context, plan.bytes.begin());
  plan.backing = symbols_.mapping_at(site.address)->backing(site.address);
  return plan;
}

// The definition's, with what only the place can tell.
Result<std::vector<lang::FetchArg>> Planner::arguments(const lang::Definition& definition, const symbols::Site& site,
                                                       std::vector<std::string>& notes) const {
  std::vector<lang::FetchArg> args = definition.args;
  const bool is_return = definition.kind == lang::Kind::return_probe;
  const bool needed = needs_variables(args, site.usdt != nullptr);
  // By an address everything means what it means in uprobe_events.
  const bool by_name = std::holds_alternative<lang::SymbolLocation>(definition.location.where) ||
                       std::holds_alternative<lang::LineLocation>(definition.location.where);
  if (needed || (is_return && by_name && wants_result_type(args))) {
    auto variables = symbols_.variables_at(site);
    if (!variables && !needed) return args;
    if (!variables) {
      Error error = std::move(variables).error();
      error.column = definition.args.front().column;
      return error;
    }
    if (std::string lacking = variables->lacking(); !lacking.empty()) notes.push_back(std::move(lacking));
    auto placed = with_variables(args, *variables, is_return ? At::function_return : At::place, notes);
    if (!placed) return placed;
    args = std::move(placed).value();
  }
  if (site.usdt) return events::with_usdt_arguments(args, *site.usdt);
  return args;
}

events::CompileContext Planner::context_of(const symbols::Site& site) const {
  events::CompileContext context;
  context.resolve_data = [this](std::string_view symbol) { return symbols_.resolve_data(symbol); };
  context.at_function_entry = !site.function_start || site.function_start == site.address;
  context.usdt = site.usdt.get();
  context.address = site.address.value;
  if (!site.module_path.empty()) context.file_bias = site.address.value - site.file_offset;
  return context;
}

// A fault of the arguments or the filter is the definition's, and the same at each of its places; a fault of the place
// is that place's.
Result<PlannedProbe> Planner::plan_one(std::size_t spec, const lang::Definition& definition,
                                       const std::optional<std::string>& filter, const symbols::Site& site) {
  const events::CompileContext context = context_of(site);
  std::vector<std::string> notes;
  if (!site.note.empty()) notes.push_back(site.note);
  auto args = arguments(definition, site, notes);
  if (!args) return std::move(args).error();
  auto probe = compiled(spec, definition, *args, filter, context);
  if (!probe) return probe;
  probe->notes = std::move(notes);
  const bool plain = args->empty() && !probe->filter;
  if (plain && plain_detour_) {
    probe->detour = plain_detour_;
    return probe;
  }
  auto detour = events::plan_detour(probe->fetch, probe->filter ? *probe->filter : lang::Filter(), pid_);
  if (detour)
    probe->detour = std::make_shared<const events::DetourPlan>(std::move(detour).value());
  else
    probe->no_detour = std::move(detour).error().message;
  if (plain) plain_detour_ = probe->detour;
  return probe;
}

Result<PlannedProbe> Planner::plan_without_place(std::size_t spec, const lang::Definition& definition,
                                                 const std::optional<std::string>& filter) {
  events::CompileContext context;
  context.resolve_data = [](std::string_view) { return RemoteAddr{}; };
  context.file_bias = 0;
  context.no_place = true;
  if (definition.kind == lang::Kind::return_probe) return return_without_place(spec, definition, filter, context);
  return compiled(spec, definition, definition.args, filter, context);
}

Result<Planned> Planner::plan_matches(std::size_t spec, const lang::Definition& definition,
                                      const std::optional<std::string>& filter) {
  const auto at_location = [&](Error error) {
    if (!error.column) error.column = definition.location.column;
    return error;
  };
  auto places = symbols_.places(definition.location);
  if (!places) {
    Error error = at_location(std::move(places).error());
    const bool not_found = error.reason == Reason::no_such_symbol || error.reason == Reason::no_such_module;
    // What is looked for may be the emulated program's.
    if (not_found && translator_ && translator_->what == symbols::Translator::What::other_program)
      error.hint = translator_->hint();
    return error;
  }
  Planned planned;
  for (symbols::LeftOut& left : places->left_out)
    planned.skipped.push_back({std::move(left.symbol), left.address, std::move(left.why)});
  make_room(planned.probes, places->sites.size());
  // A fault of the arguments is the definition's, unless they are found by what debug information says of each place.
  const auto is_of_place = [&](const symbols::Site& site, const Error& error) {
    return places->by_glob && error.reason != Reason::bad_filter &&
           needs_variables(definition.args, site.usdt != nullptr);
  };
  FurtherPlaces further(definition, places->sites.front());
  LackingPlaces lacking(definition, places->by_glob ? 0 : places->sites.size());
  for (symbols::Site& site : places->sites) {
    if (further.leaves_out(site)) continue;
    if (definition.kind == lang::Kind::return_probe) {
      auto parts = plan_return(spec, definition, filter, site);
      if (parts)
        std::ranges::move(*parts, std::back_inserter(planned.probes));
      else if (!places->by_glob || ((parts.error().reason == Reason::bad_filter || parts.error().column) &&
                                    !is_of_place(site, parts.error())))
        return at_location(std::move(parts).error());
      else
        planned.skipped.push_back({site.symbol, site.address, std::move(parts).error()});
      continue;
    }
    auto fit = analyse(site);
    if (!fit && further.has(site)) {
      further.failed(site, fit.error());
      continue;
    }
    if (!fit && !places->by_glob) return at_location(std::move(fit).error());
    if (!fit) {
      planned.skipped.push_back({site.symbol, site.address, std::move(fit).error()});
      continue;
    }
    auto probe = plan_one(spec, definition, filter, site);
    if (!probe && further.has(site)) {
      further.failed(site, probe.error());
      continue;
    }
    if (!probe && lacking.may_lack(probe.error())) {
      lacking.add(site, std::move(probe).error());
      continue;
    }
    if (!probe && !is_of_place(site, probe.error())) return std::move(probe).error();
    if (!probe) {
      planned.skipped.push_back({site.symbol, site.address, std::move(probe).error()});
      continue;
    }
    probe->where = std::move(site);
    probe->plan = std::move(fit).value();
    if (const RemoteAddr semaphore = probe->where.semaphore)
      probe->semaphore_backing = symbols_.mapping_at(semaphore)->backing(semaphore);
    planned.probes.push_back(std::move(probe).value());
  }
  if (planned.probes.empty() && lacking.first()) return *lacking.first();
  if (!planned.probes.empty() && translator_) planned.probes.front().notes.push_back(translator_->note());
  if (planned.probes.empty() || places->by_glob) return planned;
  PlannedProbe& first = planned.probes.front();
  if (further.are_probed())
    for (PlannedProbe& p : planned.probes) p.where.one_probe = further.name();
  const bool is_one_probe = first.where.usdt || !first.where.one_probe.empty();
  if (planned.probes.size() > 1 && is_one_probe) gather_notes(planned.probes);
  std::ranges::move(further.notes(), std::back_inserter(first.notes));
  if (std::string note = lacking.note(); !note.empty()) first.notes.push_back(std::move(note));
  return planned;
}

Result<Planned> Planner::plan(std::size_t spec, const lang::Definition& definition,
                              const std::optional<std::string>& filter) {
  auto planned = plan_matches(spec, definition, filter);
  if (!planned || !planned->probes.empty()) return planned;
  Error why = none_fits(definition, planned->skipped);
  if (!why.column) why.column = definition.location.column;
  return why;
}

}  // namespace probed::control
