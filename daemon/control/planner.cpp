#include "daemon/control/planner.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <fstream>

#include "arch/arch.hpp"

namespace probed::control {
namespace {

namespace native = arch::native;

// Decoding from a function's start to a place far inside it: no compiler emits functions near this size.
constexpr std::uint64_t kMaxDecode = 4 << 20;

// Intel CET, arm64 GCS: calls push a second copy of the return address, which a relocated call could not.
bool uses_shadow_stack(pid_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("x86_Thread_features:") && line.find("shstk") != std::string::npos) return true;
  return false;
}

std::string place(const symbols::Site& site) {
  if (site.symbol.empty()) return fmt::format("{:#x}", site.address.value);
  return fmt::format("{}+{:#x} ({:#x})", site.symbol, site.offset, site.address.value);
}

}  // namespace

Planner::Planner(pid_t pid, const symbols::TargetSymbols& symbols, const KnownPlans& known)
    : pid_(pid),
      symbols_(symbols),
      known_(known),
      memory_(tracer::TargetMemory::open(pid)),
      shadow_stack_(uses_shadow_stack(pid)) {}

// What the program itself has there: our own breakpoints are replaced by what they hide.
std::vector<std::uint8_t> Planner::original_bytes(RemoteAddr from, std::size_t size) {
  std::vector<std::uint8_t> bytes(size);
  bytes.resize(memory_.read_some(from, std::as_writable_bytes(std::span(bytes))));
  const auto& trap = native::kBreakpoint;
  for (std::size_t i = 0; i + trap.size() <= bytes.size(); ++i) {
    if (!std::equal(trap.begin(), trap.end(), bytes.begin() + static_cast<std::ptrdiff_t>(i))) continue;
    const auto known = known_.find(from + i);
    if (known == known_.end()) continue;
    const auto code = known->second.code();
    for (std::size_t j = 0; j < trap.size() && j < code.size(); ++j) bytes[i + j] = code[j];
  }
  return bytes;
}

Result<void> Planner::check_mapping(RemoteAddr address) const {
  const symbols::Mapping* mapping = symbols_.mapping_at(address);
  if (!mapping)
    return Error{Reason::unmapped_address,
                 fmt::format("address {:#x} is not mapped in process {}", address.value, pid_),
                 fmt::format("see /proc/{}/maps", pid_),
                 {}};
  if (mapping->path == "[vsyscall]")
    return Error{Reason::blacklisted,
                 fmt::format("address {:#x} is in the vsyscall page, which belongs to the kernel", address.value),
                 "probe the function that calls it",
                 {}};
  if (!mapping->executable)
    return Error{Reason::not_executable,
                 fmt::format("address {:#x} is data: its mapping ({}) is not executable", address.value,
                             mapping->path.empty() ? "anonymous" : mapping->path),
                 "probes go on code; read data with @ADDR in a fetch argument",
                 {}};
  if (mapping->shared)
    return Error{
        Reason::unsupported_target,
        fmt::format(
            "address {:#x} is in a MAP_SHARED mapping: a breakpoint would be seen by every process that maps it",
            address.value),
        "let the program map the file MAP_PRIVATE, as the dynamic loader does",
        {}};
  return {};
}

// Decodes from the function's start, as the kernel's probes do not: a breakpoint in the middle of an instruction would
// change what the program computes.
Result<void> Planner::check_boundary(const symbols::Site& site) {
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

Result<void> Planner::check_blacklist(RemoteAddr address) {
  const std::span<const std::uint8_t> code(native::kSignalReturn);
  // Any of the trampoline's instructions: look for it around the address. Nothing may be mapped in front of it.
  auto bytes = original_bytes(address - (code.size() - 1), 2 * code.size() - 1);
  if (bytes.empty()) bytes = original_bytes(address, code.size());
  if (!std::ranges::search(bytes, code).empty())
    return Error{Reason::blacklisted,
                 fmt::format("address {:#x} is in the signal return trampoline: unwinders recognise it by its bytes",
                             address.value),
                 "probe the signal handler instead",
                 {}};
  return {};
}

Result<tracer::SitePlan> Planner::analyse(const symbols::Site& site) {
  if (auto fit = check_mapping(site.address); !fit) return std::move(fit).error();
  if (auto fit = check_boundary(site); !fit) return std::move(fit).error();
  const auto bytes = original_bytes(site.address, arch::kMaxInsnLength);
  if (bytes.empty())
    return Error{Reason::unmapped_address,
                 fmt::format("{} can't be read", place(site)),
                 fmt::format("see /proc/{}/maps; it may just have been unmapped", pid_),
                 {}};
  if (native::is_breakpoint(bytes))
    return Error{Reason::existing_breakpoint,
                 fmt::format("{} already holds a breakpoint instruction", place(site)),
                 "it is the program's own, or another debugger's; probe the next instruction",
                 {}};
  tracer::SitePlan plan;
  plan.address = site.address;
  plan.insn = native::decode(bytes, site.address.value);
  if (plan.insn.refusal != arch::Refusal::none)
    return Error{
        Reason::unsupported_instruction,
        fmt::format("the instruction at {} can't be probed: {}", place(site), arch::describe(plan.insn.refusal)),
        "probe the instruction before or after it",
        {}};
  const bool calls = plan.insn.flow == arch::Flow::call || plan.insn.flow == arch::Flow::indirect_call;
  if (calls && shadow_stack_)
    return Error{Reason::unsupported_instruction,
                 fmt::format("the call at {} can't be probed: the process uses a shadow stack", place(site)),
                 "probe the called function's start",
                 {}};
  if (auto fit = check_blacklist(site.address); !fit) return std::move(fit).error();
  std::copy_n(bytes.begin(), plan.insn.length, plan.bytes.begin());
  return plan;
}

Result<std::vector<PlannedProbe>> Planner::plan(std::size_t spec, const lang::Definition& definition,
                                                const std::optional<std::string>& filter) {
  auto sites = symbols_.resolve(definition.location);
  if (!sites) {
    if (!sites.error().column) sites.error().column = definition.location.column;
    return std::move(sites).error();
  }
  std::vector<PlannedProbe> planned;
  planned.reserve(sites->size());
  for (symbols::Site& site : *sites) {
    auto fit = analyse(site);
    if (!fit) {
      if (!fit.error().column) fit.error().column = definition.location.column;
      return std::move(fit).error();
    }
    events::CompileContext context;
    context.resolve_data = [this](std::string_view symbol) { return symbols_.resolve_data(symbol); };
    context.at_function_entry = !site.function_start || site.function_start == site.address;
    if (!site.module_path.empty()) context.file_bias = site.address.value - site.file_offset;
    auto fetch = events::FetchProgram::compile(definition.args, context);
    if (!fetch) return std::move(fetch).error();
    std::optional<lang::Filter> compiled;
    if (filter) {
      auto result = lang::Filter::compile(*filter, fetch->args());
      if (!result) return std::move(result).error();
      compiled = std::move(result).value();
    }
    planned.push_back({spec, std::move(site), std::move(fit).value(), std::move(fetch).value(), std::move(compiled)});
  }
  return planned;
}

}  // namespace probed::control
