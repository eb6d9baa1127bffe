// From locations to sites and from addresses to names. See resolve.hpp and target_impl.hpp.
#include "daemon/symbols/resolve.hpp"

#include <algorithm>
#include <map>

#include "daemon/base/hex.hpp"
#include "daemon/base/reserve.hpp"
#include "daemon/names/demangle.hpp"
#include "daemon/symbols/target_impl.hpp"

namespace probed::symbols {
namespace {

// name, name@VERSION, name@@VERSION. Readable C++ names have no '@'.
NameQuery parse_name(std::string_view text) {
  NameQuery query{text, text, {}};
  const std::size_t at = text.find('@');
  if (at == std::string_view::npos || at == 0) return query;
  query.name = text.substr(0, at);
  query.version = text.substr(std::min(text.find_first_not_of('@', at), text.size()));
  return query;
}

// Points at the part behind "MODULE:" or at its beginning.
Error at_column(Error error, const lang::Location& location, bool in_name) {
  const bool written = !location.module.empty() && location.text.starts_with(location.module + ":");
  if (!error.column) error.column = location.column + (in_name && written ? location.module.size() + 1 : 0);
  return error;
}

// From an address inside a function to its end; 0 when the end isn't known.
std::uint64_t bytes_left(const FunctionBounds& bounds, ElfAddr from) {
  const std::uint64_t into = from.value - bounds.start.value;
  return into < bounds.size ? bounds.size - into : 0;
}

Result<Places> as_named(Result<std::vector<Site>> sites) {
  if (!sites) return std::move(sites).error();
  return Places{std::move(sites).value(), false, {}};
}

// MODULE:GLOB. A C++ name's "::" is no such separator, and neither is an ABI tag's ':'.
std::pair<std::string_view, std::string_view> split_module(std::string_view pattern) {
  const auto is_colon = [&](std::size_t at) { return at < pattern.size() && pattern[at] == ':'; };
  for (std::size_t at = 1; at < pattern.size(); ++at)
    if (is_colon(at) && !is_colon(at - 1) && !is_colon(at + 1) && !pattern.substr(0, at).ends_with("[abi"))
      return {pattern.substr(0, at), pattern.substr(at + 1)};
  return {{}, pattern};
}

template <class T>
Result<T> with_column(Result<T> result, const lang::Location& location) {
  if (result.ok()) return result;
  const bool in_name = result.error().reason != Reason::no_such_module;
  return at_column(std::move(result).error(), location, in_name);
}

}  // namespace

// ---- the public face
// ----------------------------------------------------------------------------------------------------

TargetSymbols::TargetSymbols(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
TargetSymbols::~TargetSymbols() = default;

bool TargetSymbols::is_current() const { return impl_->is_current(); }

Result<std::shared_ptr<const TargetSymbols>> TargetSymbols::load(pid_t pid, ModuleCache& cache) {
  auto impl = std::make_unique<Impl>();
  if (Result<void> loaded = impl->load(pid, cache); !loaded) return std::move(loaded).error();
  return std::shared_ptr<const TargetSymbols>(new TargetSymbols(std::move(impl)));
}

Result<Places> TargetSymbols::places(const lang::Location& location) const {
  return with_column(impl_->places(location), location);
}
void TargetSymbols::spare_candidates() const { impl_->spare_candidates(); }
bool TargetSymbols::knows_function(std::string_view name) const { return impl_->knows_function(name); }

Result<std::vector<Site>> TargetSymbols::resolve(const lang::Location& location) const {
  Result<Places> found = places(location);
  if (!found) return std::move(found).error();
  return std::move(found->sites);
}
Result<RemoteAddr> TargetSymbols::resolve_data(std::string_view symbol) const { return impl_->resolve_data(symbol); }
Result<Site> TargetSymbols::site_at(RemoteAddr address) const { return impl_->site_at(address); }
std::optional<SymbolizedAddress> TargetSymbols::symbolize(RemoteAddr address) const {
  return impl_->symbolize(address);
}
std::vector<Function> TargetSymbols::functions(std::string_view glob, std::size_t limit) const {
  return impl_->functions(glob, limit);
}
Result<std::vector<Function>> TargetSymbols::list_functions(std::string_view pattern, std::size_t limit) const {
  return impl_->list_functions(pattern, limit);
}
Result<std::vector<UsdtProbe>> TargetSymbols::list_usdt(std::string_view pattern, std::size_t limit) const {
  return impl_->list_usdt(pattern, limit);
}
Result<dwarf::Variables> TargetSymbols::variables_at(const Site& site) const { return impl_->variables_at(site); }
Result<std::vector<SourceLine>> TargetSymbols::list_lines(std::string_view file, std::size_t limit) const {
  return impl_->list_lines(file, limit);
}
Result<std::vector<dwarf::VisibleVariable>> TargetSymbols::list_variables(const lang::Location& location) const {
  return with_column(impl_->list_variables(location), location);
}
const std::vector<Mapping>& TargetSymbols::mappings() const { return impl_->mappings(); }
const Mapping* TargetSymbols::mapping_at(RemoteAddr address) const { return impl_->mapping_at(address); }
TargetSymbols::Code TargetSymbols::code_around(RemoteAddr address) const { return impl_->code_around(address); }
TargetSymbols::Exits TargetSymbols::exits_of(RemoteAddr entry) const { return impl_->exits_of(entry); }
bool TargetSymbols::restartable(RemoteAddr address) const { return impl_->restartable(address); }

// ---- locations
// ----------------------------------------------------------------------------------------------------------

Result<Places> TargetSymbols::Impl::places(const lang::Location& location) const {
  if (const auto* symbol = std::get_if<lang::SymbolLocation>(&location.where)) {
    Result<Places> found = resolve_symbol(location, *symbol);
    if (found) return found;
    auto usdt = usdt_instead(location, *symbol);
    return usdt ? *std::move(usdt) : std::move(found);
  }
  if (const auto* usdt = std::get_if<lang::UsdtLocation>(&location.where)) return resolve_usdt(location, *usdt);
  if (const auto* file = std::get_if<lang::FileOffsetLocation>(&location.where))
    return as_named(resolve_offset(location, *file));
  if (const auto* bare = std::get_if<lang::AddressLocation>(&location.where)) {
    Result<Site> site = site_at({bare->address});
    if (!site) return std::move(site).error();
    return Places{{std::move(site).value()}, false, {}};
  }
  const auto& line = std::get<lang::LineLocation>(location.where);
  return line.function.empty() ? resolve_line(location, line) : resolve_functions_of_file(location, line);
}

Result<Places> TargetSymbols::Impl::resolve_symbol(const lang::Location& location,
                                                   const lang::SymbolLocation& where) const {
  const NameQuery query = parse_name(where.name);
  Result<std::vector<const Instance*>> selected = select(location.module);
  if (!selected) return std::move(selected).error();
  const auto groups = stages(*selected, location.module.empty());
  for (const auto& stage : groups)
    if (std::vector<Found> found = literal(stage, query, Want::code); !found.empty()) {
      const Found first = found.front();
      auto sites = sites_of_one(query, std::move(found), where.offset);
      if (sites && sites->size() == 1 && where.offset == 0) add_further_instances(*sites, first);
      if (sites && location.module.empty() && &stage != &groups.front())
        note_own_ones(sites->front(), with_longer_names(groups.front(), query));
      return as_named(std::move(sites));
    }
  if (names::has_glob(query.text) && query.text.size() > names::kMaxGlob)
    return Error{
        Reason::bad_definition, "a glob may be " + std::to_string(names::kMaxGlob) + " bytes long at most", "", {}};
  for (const auto& stage : groups) {
    std::vector<Found> found;
    if (!names::has_glob(query.text)) break;
    for (const Instance* in : stage) {
      const std::vector<Found> here = matching(*in, query.text);
      found.insert(found.end(), here.begin(), here.end());
    }
    if (found.empty()) continue;
    Result<Places> places = places_of_glob(found, where.offset);
    if (!places) return places;
    if (&stage == &groups.front() || !location.module.empty())
      note_inlined(places->sites.front(), found);
    else
      places->sites.front().note = libraries_note(*selected, query.text);
    return places;
  }
  const auto none = [&] { return not_found(query, location.module, *selected, Want::code); };
  if (names::has_glob(query.text)) {
    Error error = none();
    if (std::string inlined = only_inlined(*selected, query.text); !inlined.empty()) error.hint = std::move(inlined);
    return error;
  }
  for (const auto& stage : groups) {
    Result<Places> inlined = inlined_places(stage, where);
    if (inlined && inlined->sites.empty()) continue;
    // Without its first scopes it isn't taken for what is inlined of it while there is more of it.
    const auto is_meant = [&](const Site& site) { return site.inlined == where.name; };
    const bool is_whole = names::is_mangled(where.name) || (inlined && std::ranges::any_of(inlined->sites, is_meant));
    if (is_whole || !has_longer_names(stage, query)) return inlined;
    break;
  }
  // Parts of a name are enough where one function alone has them: of the program, or of the module that was asked for.
  std::vector<Found> found;
  if (!location.text.starts_with("::")) found = with_longer_names(groups.front(), query);
  if (found.empty()) return none();
  const Found first = found.front();
  auto sites = sites_of_one(query, std::move(found), where.offset);
  if (sites && sites->size() == 1 && where.offset == 0) add_further_instances(*sites, first);
  return as_named(std::move(sites));
}

Result<std::vector<Site>> TargetSymbols::Impl::sites_of_one(const NameQuery& query, std::vector<Found> found,
                                                            std::uint64_t offset) const {
  // Different names of different modules may lead to the same implementation.
  std::map<RemoteAddr, Found> places;
  for (const Found& f : found) {
    if (f.symbol->kind != SymbolKind::ifunc) {
      places.try_emplace(f.in->remote(f.symbol->address), f);
      continue;
    }
    const auto chosen = implementations(*f.in, f.symbol->address);
    if (chosen.empty()) return undetermined_ifunc(f);
    for (const RemoteAddr a : chosen) places.try_emplace(a, f);
  }
  if (found.size() > 1 && places.size() > 1) return ambiguous(query, found);
  std::vector<Site> sites;
  for (const auto& [start, f] : places) {
    Result<Site> site = site_of(f, start, offset);
    if (!site) return std::move(site).error();
    sites.push_back(std::move(site).value());
  }
  return sites;
}

// Nobody has named each match: what has no place is left out, with the reason.
Result<Places> TargetSymbols::Impl::places_of_glob(std::span<const Found> found, std::uint64_t offset) const {
  Places places;
  places.by_glob = true;
  const auto leave_out = [&](const Found& f, Error why) {
    const std::string name = f.in->module->symbols().display(*f.symbol);
    places.left_out.push_back({name, f.in->remote(f.symbol->address), std::move(why)});
  };
  std::map<RemoteAddr, Found> starts;
  for (const Found& f : found) {
    if (f.symbol->kind != SymbolKind::ifunc) {
      starts.try_emplace(f.in->remote(f.symbol->address), f);
      continue;
    }
    const auto chosen = implementations(*f.in, f.symbol->address);
    if (chosen.empty()) leave_out(f, undetermined_ifunc(f));
    for (const RemoteAddr a : chosen) starts.try_emplace(a, f);
  }
  make_room(places.sites, starts.size());
  std::size_t names = 0;  // bytes
  for (const auto& [start, f] : starts) {
    Result<Site> site = site_of(f, start, offset);
    names += site ? site->symbol.size() : 0;
    if (names > kMostNames)
      return Error{Reason::limit_exceeded,
                   "this glob matches " + std::to_string(starts.size()) + " functions, whose names are more than " +
                       std::to_string(kMostNames >> 20) + " MiB",
                   "use a narrower glob",
                   {}};
    if (site)
      places.sites.push_back(std::move(site).value());
    else
      leave_out(f, std::move(site).error());
  }
  if (places.sites.empty()) return std::move(places.left_out.front().why);
  return places;
}

bool TargetSymbols::Impl::begins_sized_function(const Instance& in, RemoteAddr at) {
  const ElfAddr address = in.elf(at);
  const auto bounds = in.module->function_at(address);
  return bounds && bounds->symbol && bounds->symbol->size != 0 && bounds->start == address;
}

// The place `offset` bytes behind `start`, which is the symbol's address or, for an IFUNC, its implementation's.
Result<Site> TargetSymbols::Impl::site_of(const Found& found, RemoteAddr start, std::uint64_t offset) const {
  const RemoteAddr address = start + offset;
  const Instance* in = found.symbol->kind == SymbolKind::ifunc ? instance_at(start) : found.in;
  const auto bounds = in ? in->module->function_at(in->elf(start)) : std::nullopt;
  const bool own = found.symbol->kind != SymbolKind::ifunc;
  // An alias may have a size where the preferred name has none.
  std::uint64_t size = own ? found.symbol->size : 0;
  if (size == 0 && bounds) size = bytes_left(*bounds, in->elf(start));
  const bool named = !own && bounds && bounds->symbol && bounds->symbol->kind != SymbolKind::ifunc;
  const SymbolTable& table = named ? in->module->symbols() : found.in->module->symbols();
  std::string name = table.display(named ? *bounds->symbol : *found.symbol);
  if (size != 0 && offset >= size)
    return Error{Reason::bad_definition,
                 name + "+" + hex(offset) + " lies outside " + name + ", which is " + hex(size) + " bytes long",
                 "use an offset below " + hex(size),
                 {}};
  const Mapping* mapping = mapping_at(address);
  if (!mapping || !mapping->executable) return site_at(address);  // says what is wrong
  Site site = place(address, *mapping, in);
  site.symbol = std::move(name);
  site.offset = offset;
  site.function_start = start;
  // A label may stand anywhere, also in front of data in another function: nothing is known of what it begins.
  const bool is_label = own && found.symbol->size == 0 && !(in && begins_sized_function(*in, start));
  site.function_size = is_label ? 0 : size;
  return site;
}

Result<std::vector<Site>> TargetSymbols::Impl::resolve_offset(const lang::Location& location,
                                                              const lang::FileOffsetLocation& where) const {
  const std::uint64_t offset = where.offset;
  Result<std::vector<const Instance*>> selected = select(location.module);
  if (!selected) return std::move(selected).error();
  if (location.module.empty()) std::erase_if(*selected, [](const Instance* in) { return !in->main; });
  std::vector<Site> sites;
  bool mapped = false;
  for (std::size_t i = 0; i < mappings_.size(); ++i) {
    const Mapping& m = mappings_[i];
    const int index = instance_of_mapping_[i];
    const Instance* in = index >= 0 ? &instances_[static_cast<std::size_t>(index)] : nullptr;
    if (std::find(selected->begin(), selected->end(), in) == selected->end()) continue;
    if (offset < m.file_offset || offset - m.file_offset >= m.size()) continue;
    mapped = true;
    if (!m.executable) continue;
    Result<Site> site = site_at(m.start + (offset - m.file_offset));
    if (!site) return std::move(site).error();
    if (where.reference_counter) {
      Result<RemoteAddr> counter = counter_at(*in, *where.reference_counter);
      if (!counter) return std::move(counter).error();
      site->semaphore = *counter;
    }
    sites.push_back(std::move(site).value());
  }
  const std::string what =
      "file offset " + hex(offset) + " of " + (location.module.empty() ? "the main program" : location.module);
  if (sites.size() == 1) return sites;
  if (sites.size() > 1)
    return Error{Reason::ambiguous_symbol,
                 what + " is mapped " + std::to_string(sites.size()) + " times",
                 "give one of the addresses: " + hex(sites[0].address.value) + ", " + hex(sites[1].address.value),
                 {}};
  if (mapped)
    return Error{Reason::not_executable,
                 what + " is not mapped executable",
                 "an offset is counted from the file's start, as readelf -S shows it under Off",
                 {}};
  return Error{Reason::unmapped_address,
               what + " is not mapped in process " + std::to_string(pid_),
               "readelf -lW shows which parts of a file are loaded",
               {}};
}

// ---- data
// ---------------------------------------------------------------------------------------------------------------

Result<RemoteAddr> TargetSymbols::Impl::resolve_data(std::string_view text) const {
  // MODULE:SYMBOL; a C++ name's "::" is no such separator.
  const std::size_t colon = text.find(':');
  const bool has_module = colon != std::string_view::npos && colon + 1 < text.size() && text[colon + 1] != ':';
  const std::string_view module = has_module ? text.substr(0, colon) : std::string_view();
  const NameQuery query = parse_name(has_module ? text.substr(colon + 1) : text);
  Result<std::vector<const Instance*>> selected = select(module);
  if (!selected) return std::move(selected).error();
  for (const auto& stage : stages(*selected, module.empty())) {
    const std::vector<Found> found = literal(stage, query, Want::data);
    if (found.empty()) continue;
    if (found.size() > 1) return ambiguous(query, found);
    if (found[0].symbol->kind == SymbolKind::tls)
      return Error{
          Reason::unsupported, std::string(text) + " is a thread-local variable: it has no one address", "", {}};
    return found[0].in->remote(found[0].symbol->address);
  }
  return not_found(query, module, *selected, Want::data);
}

// ---- addresses
// ----------------------------------------------------------------------------------------------------------

// All that doesn't depend on symbols.
Site TargetSymbols::Impl::place(RemoteAddr address, const Mapping& mapping, const Instance* in) const {
  Site site;
  site.address = address;
  if (in) {
    site.module = in->name();
    site.module_path = in->module->path();
    site.file_offset = in->module->file_offset_of(in->elf(address)).value_or(0);
  } else if (!mapping.path.empty()) {
    site.module = base_name(mapping.path);
    site.module_path = mapping.path;
  }
  if (mapping.inode != 0) site.file_offset = mapping.file_offset + (address.value - mapping.start.value);
  return site;
}

Result<Site> TargetSymbols::Impl::site_at(RemoteAddr address) const {
  const Mapping* mapping = mapping_at(address);
  const std::string where = "address " + hex(address.value);
  if (!mapping)
    return Error{Reason::unmapped_address,
                 where + " is not mapped in process " + std::to_string(pid_),
                 "/proc/PID/maps shows what is",
                 {}};
  if (!mapping->executable)
    return Error{Reason::not_executable,
                 where + " is not executable in process " + std::to_string(pid_) +
                     (mapping->path.empty() ? "" : " (" + mapping->path + ")"),
                 "probes go on code; data can be read with @ADDR in a fetch argument",
                 {}};
  const Instance* in = instance_at(address);
  Site site = place(address, *mapping, in);
  if (!in || !ready(*in)) return site;
  const auto bounds = in->module->function_at(in->elf(address));
  site.between_functions = !bounds && !in->module->frames().empty();
  if (!bounds) return site;
  site.function_start = in->remote(bounds->start);
  site.function_size = bounds->size;
  site.offset = address.value - site.function_start.value;
  if (bounds->symbol) site.symbol = in->module->symbols().display(*bounds->symbol);
  return site;
}

std::optional<SymbolizedAddress> TargetSymbols::Impl::symbolize(RemoteAddr address) const {
  const Instance* in = instance_at(address);
  if (!in || !ready(*in)) return std::nullopt;
  const SymbolTable& table = in->module->symbols();
  const ElfAddr place = in->elf(address);
  const auto function = in->module->function_at(place);
  const Symbol* symbol = function && function->symbol ? function->symbol : table.covering(place, false);
  if (!symbol) return std::nullopt;
  return SymbolizedAddress{table.display(*symbol), place.value - symbol->address.value, std::string(in->name())};
}

// ---- lists
// ----------------------------------------------------------------------------------------------------------------

Result<std::vector<Function>> TargetSymbols::Impl::list_functions(std::string_view pattern, std::size_t limit) const {
  const auto [module, glob] = split_module(pattern);
  Result<std::vector<const Instance*>> selected = select(module);
  if (!selected) return std::move(selected).error();
  return functions_of(*selected, glob, limit);
}

std::vector<Function> TargetSymbols::Impl::functions(std::string_view glob, std::size_t limit) const {
  std::vector<const Instance*> all;
  for (const Instance& in : instances_) all.push_back(&in);
  return functions_of(all, glob, limit);
}

std::vector<Function> TargetSymbols::Impl::functions_of(std::span<const Instance* const> instances,
                                                        std::string_view glob, std::size_t limit) const {
  std::map<RemoteAddr, Found> found;
  if (glob.size() > names::kMaxGlob) return {};
  const auto add = [&](RemoteAddr address, const Found& f) {
    const Mapping* mapping = mapping_at(address);
    if (mapping && mapping->executable) found.try_emplace(address, f);
  };
  for (const Instance* in : instances) {
    for (const Found& f : matching(*in, glob.empty() ? "*" : glob)) {
      if (f.symbol->kind != SymbolKind::ifunc)
        add(in->remote(f.symbol->address), f);
      else
        for (const RemoteAddr a : implementations(*in, f.symbol->address)) add(a, f);
    }
    if (limit != 0 && found.size() >= limit) break;  // instances are in address order
  }
  std::vector<Function> list;
  std::size_t names = 0;  // bytes
  for (const auto& [address, f] : found) {
    if ((limit != 0 && list.size() >= limit) || names > kMostNames) break;
    list.push_back({f.in->module->symbols().display(*f.symbol), std::string(f.symbol->name()),
                    std::string(f.in->name()), address, f.symbol->size});
    names += list.back().name.size() + list.back().linkage_name.size();
  }
  return list;
}

}  // namespace probed::symbols
