// Lines and variables of a target, by its modules' debug information. See target_impl.hpp and daemon/dwarf/.
#include <algorithm>
#include <set>

#include "daemon/base/hex.hpp"
#include "daemon/dwarf/info.hpp"
#include "daemon/symbols/resolve.hpp"
#include "daemon/symbols/target_impl.hpp"

namespace probed::symbols {
namespace {

constexpr const char* kGetDebugSymbols =
    "build it with -g, install its debug symbols, or set DEBUGINFOD_URLS for the daemon";

// [MODULE:]FILE
std::pair<std::string_view, std::string_view> split_file(std::string_view text) {
  const std::size_t colon = text.find(':');
  if (colon == text.npos) return {{}, text};
  return {text.substr(0, colon), text.substr(colon + 1)};
}

std::string line_text(const std::string& file, unsigned line) {
  return file.substr(file.rfind('/') + 1) + ":" + std::to_string(line);
}

}  // namespace

std::shared_ptr<const dwarf::DebugInfo> TargetSymbols::Impl::debug_info(const Instance& in) const {
  return in.vdso ? nullptr : in.module->debug_info(source_of(in));
}

Result<Places> TargetSymbols::Impl::resolve_line(const lang::Location& location,
                                                 const lang::LineLocation& where) const {
  Result<std::vector<const Instance*>> selected = select(location.module);
  if (!selected) return std::move(selected).error();
  bool has_debug_info = false, file_known = false;
  for (const auto& stage : stages(*selected, location.module.empty())) {
    for (const Instance* in : stage) {
      const auto info = debug_info(*in);
      if (!info) continue;
      has_debug_info = true;
      const dwarf::LinePlaces found = info->find_line(where.file, where.line);
      if (found.files.size() > 1)
        return Error{Reason::ambiguous_symbol,
                     where.file + " means " + std::to_string(found.files.size()) + " files in " +
                         std::string(in->name()),
                     "say which one: " + found.files[0] + " or " + found.files[1], {}};
      file_known |= !found.files.empty();
      if (found.places.empty()) continue;
      Places places;
      for (const dwarf::LinePlace& line : found.places) {
        Result<Site> site = site_at(in->remote({line.address}));
        if (!site) return std::move(site).error();
        if (found.places.size() > 1) site->one_probe = line_text(found.file, found.line);
        if (found.line != where.line)
          site->note = "there is no code at " + line_text(found.file, where.line) + ": the probe is at line " +
                       std::to_string(found.line);
        places.sites.push_back(std::move(site).value());
      }
      return places;
    }
  }
  return no_such_line(location, where, file_known, has_debug_info);
}

Error TargetSymbols::Impl::no_such_line(const lang::Location& location, const lang::LineLocation& where,
                                        bool file_known, bool debug_info) const {
  const std::string in = location.module.empty() ? "process " + std::to_string(pid_) : "module " + location.module;
  if (file_known)
    return {Reason::no_such_symbol, where.file + " has no code at line " + std::to_string(where.line) + " or behind it",
            "probectl lines -p " + std::to_string(pid_) + " " + where.file + " lists those that have", {}};
  if (debug_info)
    return {Reason::no_such_symbol, "no source file " + where.file + " in the debug information of " + in,
            "write its name as the compiler saw it; a part of its path will do", {}};
  return {Reason::unsupported, "no debug information in " + in + ": its source lines aren't known", kGetDebugSymbols, {}};
}

Result<dwarf::Variables> TargetSymbols::Impl::variables_at(RemoteAddr address) const {
  const Instance* in = instance_at(address);
  auto info = in ? debug_info(*in) : nullptr;
  if (!info)
    return Error{Reason::unsupported,
                 "variables need debug information, and " +
                     (in ? std::string(in->name()) + " has none" : "the code at " + hex(address.value) + " has none"),
                 kGetDebugSymbols, {}};
  const auto objects = [this](std::string_view name) -> std::optional<std::uint64_t> {
    const Result<RemoteAddr> found = resolve_data(name);
    return found ? std::optional(found->value) : std::nullopt;
  };
  return dwarf::Variables(std::move(info), in->elf(address).value, in->bias, objects);
}

Result<std::vector<dwarf::VisibleVariable>> TargetSymbols::Impl::list_variables(const lang::Location& location) const {
  Result<Places> found = places(location);
  if (!found) return std::move(found).error();
  auto variables = variables_at(found->sites.front().address);
  if (!variables) return std::move(variables).error();
  return variables->visible();
}

Result<std::vector<SourceLine>> TargetSymbols::Impl::list_lines(std::string_view text, std::size_t limit) const {
  const auto [module, file] = split_file(text);
  Result<std::vector<const Instance*>> selected = select(module);
  if (!selected) return std::move(selected).error();
  bool has_debug_info = false;
  for (const auto& stage : stages(*selected, module.empty())) {
    std::vector<SourceLine> out;
    for (const Instance* in : stage) {
      const auto info = debug_info(*in);
      if (!info) continue;
      has_debug_info = true;
      for (dwarf::SourceLine& line : info->lines_of(file, limit))
        out.push_back({std::move(line.file), line.line, in->remote({line.address}), std::move(line.function),
                       std::string(in->name())});
    }
    if (!out.empty()) return out;
  }
  lang::Location location;
  location.module = module;
  return no_such_line(location, {std::string(file), 1}, false, has_debug_info);
}

}  // namespace probed::symbols
