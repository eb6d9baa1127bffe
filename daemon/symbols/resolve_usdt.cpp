// Static probes of a target: by name, and listed. See target_impl.hpp and usdt.hpp.
#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "daemon/base/hex.hpp"
#include "daemon/elf/usdt.hpp"
#include "daemon/symbols/resolve.hpp"
#include "daemon/symbols/target_impl.hpp"

namespace probed::symbols {
namespace {

// perf(1) writes PROVIDER so.
constexpr std::string_view kPrefix = "sdt_";

// Tracers show the "__" of C's identifiers as "-"; both are taken.
std::string as_in_notes(std::string_view name) {
  std::string out;
  for (const char c : name) out.append(c == '-' ? "__" : std::string(1, c));
  return out;
}

bool fits(std::string_view wanted, std::string_view name) {
  return names::has_glob(wanted) ? names::glob_match(wanted, name) : wanted == name;
}

struct Pattern {
  std::string_view module, provider = "*", name = "*";
};

// [[MODULE:]PROVIDER:]NAME
Pattern split_pattern(std::string_view text) {
  Pattern pattern;
  if (text.empty()) return pattern;
  const std::size_t last = text.rfind(':');
  pattern.name = text.substr(last == text.npos ? 0 : last + 1);
  if (pattern.name.empty()) pattern.name = "*";
  if (last == text.npos) return pattern;
  text = text.substr(0, last);
  const std::size_t before = text.rfind(':');
  pattern.provider = text.substr(before == text.npos ? 0 : before + 1);
  if (before != text.npos) pattern.module = text.substr(0, before);
  return pattern;
}

}  // namespace

std::vector<TargetSymbols::Impl::FoundNote> TargetSymbols::Impl::matching_notes(
    std::span<const Instance* const> instances, std::string_view provider, std::string_view name) const {
  std::vector<FoundNote> found;
  const std::string wanted = as_in_notes(name);
  for (const Instance* in : instances) {
    if (!ready(*in)) continue;
    for (const elf::UsdtNote& note : in->module->usdt_notes())
      if (fits(provider, note.provider) && fits(wanted, note.name)) found.push_back({in, &note});
  }
  return found;
}

std::vector<elf::UsdtArgument> TargetSymbols::Impl::arguments_of(const Instance& in, const elf::UsdtNote& note) const {
  std::vector<elf::UsdtArgument> arguments = elf::parse_usdt_arguments(note.arguments);
  for (elf::UsdtArgument& argument : arguments) {
    if (argument.operand.symbol.empty() || !argument.why_not.empty()) continue;
    const auto symbols = in.module->symbols().named(argument.operand.symbol);
    const bool one = std::ranges::all_of(symbols, [&](const Symbol* s) { return s->address == symbols[0]->address; });
    if (symbols.empty() || !one || symbols[0]->kind == SymbolKind::tls)
      argument.why_not = "the symbol " + argument.operand.symbol +
                         (symbols.empty() ? " isn't in the symbol table (stripped?)" : " isn't one place in memory");
    else
      argument.operand.number += in.remote(symbols[0]->address).value;
  }
  return arguments;
}

Result<Places> TargetSymbols::Impl::places_of_notes(std::span<const FoundNote> found, bool by_glob) const {
  Places places;
  places.by_glob = by_glob;
  std::set<std::tuple<RemoteAddr, std::string_view, std::string_view>> seen;
  for (const FoundNote& f : found) {
    const RemoteAddr address = f.in->remote(f.note->place);
    if (!seen.emplace(address, f.note->provider, f.note->name).second) continue;
    Result<Site> site = site_at(address);
    if (!site && by_glob) {
      places.left_out.push_back({f.note->provider + ":" + f.note->name, address, std::move(site).error()});
      continue;
    }
    if (!site) return std::move(site).error();
    site->usdt = std::make_shared<const elf::UsdtSite>(
        elf::UsdtSite{f.note->provider, f.note->name, arguments_of(*f.in, *f.note)});
    if (f.note->semaphore.value != 0) site->semaphore = f.in->remote(f.note->semaphore);
    places.sites.push_back(std::move(site).value());
  }
  if (places.sites.empty()) return std::move(places.left_out.front().why);
  return places;
}

Result<Places> TargetSymbols::Impl::resolve_usdt(const lang::Location& location,
                                                 const lang::UsdtLocation& where) const {
  Result<std::vector<const Instance*>> selected = select(location.module);
  if (!selected) return std::move(selected).error();
  std::string_view provider = where.provider;
  std::vector<FoundNote> found = matching_notes(*selected, provider, where.name);
  if (found.empty() && provider.starts_with(kPrefix))
    found = matching_notes(*selected, provider.substr(kPrefix.size()), where.name);
  if (!found.empty()) return places_of_notes(found, names::has_glob(where.provider) || names::has_glob(where.name));
  names::NearNames near(where.name);
  for (const Instance* in : *selected)
    if (ready(*in))
      for (const elf::UsdtNote& note : in->module->usdt_notes()) near.consider(note.name);
  std::string hint = "probectl functions --usdt -p " + std::to_string(pid_) + " lists those there are";
  const std::vector<std::string> names = near.best();
  if (!names.empty()) hint = "did you mean " + names.front() + "? " + hint;
  return Error{Reason::no_such_symbol,
               "no static probe " + where.provider + ":" + where.name + " in " +
                   (location.module.empty() ? "process " + std::to_string(pid_) : "module " + location.module),
               hint,
               {}};
}

std::optional<Result<Places>> TargetSymbols::Impl::usdt_instead(const lang::Location& location,
                                                                const lang::SymbolLocation& where) const {
  if (location.module.empty() || where.offset != 0) return std::nullopt;
  lang::Location anywhere = location;
  anywhere.module.clear();
  const auto has_provider = [&](std::string_view provider) {
    return std::ranges::any_of(instances_, [&](const Instance& in) {
      return ready(in) && std::ranges::any_of(in.module->usdt_notes(),
                                              [&](const elf::UsdtNote& n) { return fits(provider, n.provider); });
    });
  };
  const std::string_view provider = location.module;
  const bool known =
      has_provider(provider) || (provider.starts_with(kPrefix) && has_provider(provider.substr(kPrefix.size())));
  if (!known) return std::nullopt;
  Result<Places> found = resolve_usdt(anywhere, {location.module, where.name});
  // A module of that name has been asked for the symbol already, and says more.
  if (!found && select(location.module)) return std::nullopt;
  return found;
}

Result<RemoteAddr> TargetSymbols::Impl::counter_at(const Instance& in, std::uint64_t file_offset) const {
  // As the kernel looks for it (kernel/events/uprobes.c, valid_ref_ctr_vma).
  for (std::size_t i = 0; i < mappings_.size(); ++i) {
    const Mapping& m = mappings_[i];
    const int index = instance_of_mapping_[i];
    if (index < 0 || &instances_[static_cast<std::size_t>(index)] != &in || !m.writable || m.shared) continue;
    if (file_offset >= m.file_offset && file_offset - m.file_offset + 2 <= m.size())
      return m.start + (file_offset - m.file_offset);
  }
  return Error{Reason::unmapped_address,
               "the reference counter's file offset " + hex(file_offset) + " of " + std::string(in.name()) +
                   " is in no writable mapping of process " + std::to_string(pid_),
               "readelf -n shows a probe's semaphore as an address: subtract its segment's address, add its offset",
               {}};
}

Result<std::vector<UsdtProbe>> TargetSymbols::Impl::list_usdt(std::string_view text, std::size_t limit) const {
  const Pattern pattern = split_pattern(text);
  Result<std::vector<const Instance*>> selected = select(pattern.module);
  if (!selected) return std::move(selected).error();
  std::map<std::tuple<std::string_view, std::string_view, const Module*>, UsdtProbe> probes;
  for (const FoundNote& f : matching_notes(*selected, pattern.provider, pattern.name)) {
    UsdtProbe& probe = probes[{f.note->provider, f.note->name, f.in->module.get()}];
    if (probe.addresses.empty()) {
      probe.provider = f.note->provider;
      probe.name = f.note->name;
      probe.module = f.in->name();
      probe.argument_text = f.note->arguments;
    }
    probe.arguments = std::max<std::uint64_t>(probe.arguments, elf::count_usdt_arguments(f.note->arguments));
    probe.has_semaphore |= f.note->semaphore.value != 0;
    probe.addresses.push_back(f.in->remote(f.note->place));
  }
  std::vector<UsdtProbe> list;
  for (auto& [key, probe] : probes) {
    if (limit != 0 && list.size() >= limit) break;
    std::ranges::sort(probe.addresses);
    list.push_back(std::move(probe));
  }
  return list;
}

}  // namespace probed::symbols
