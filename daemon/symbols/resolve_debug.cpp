// Lines and variables of a target, by its modules' debug information. See target_impl.hpp and daemon/dwarf/.
#include <algorithm>
#include <set>

#include "arch/arch.hpp"
#include "daemon/base/hex.hpp"
#include "daemon/dwarf/info.hpp"
#include "daemon/names/demangle.hpp"
#include "daemon/symbols/resolve.hpp"
#include "daemon/symbols/target_impl.hpp"

namespace probed::symbols {

namespace native = arch::native;

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

std::string TargetSymbols::Impl::unfit_debug_file(const Instance& in) const {
  const std::string why = debug_info(in) || in.vdso ? std::string() : in.module->unfit_debug_file();
  return why.empty() ? why : ": " + why;
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
        return Error{
            Reason::ambiguous_symbol,
            where.file + " means " + std::to_string(found.files.size()) + " files in " + std::string(in->name()),
            "say which one: " + found.files[0] + " or " + found.files[1],
            {}};
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
    return {Reason::no_such_symbol,
            where.file + " has no code at line " + std::to_string(where.line) + " or behind it",
            "probectl lines -p " + std::to_string(pid_) + " " + where.file + " lists those that have",
            {}};
  if (debug_info) {
    std::string hint = "write its name as the compiler saw it; a part of its path will do";
    if (const auto selected = select(location.module))
      for (const Instance* module : *selected)
        if (module->main && !this->debug_info(*module))
          hint = std::string(module->name()) + " itself has none" + unfit_debug_file(*module) + "; " + kGetDebugSymbols;
    return {Reason::no_such_symbol, "no source file " + where.file + " in the debug information of " + in, hint, {}};
  }
  std::string unfit;
  if (const auto selected = select(location.module))
    for (const Instance* module : *selected)
      if (unfit.empty()) unfit = unfit_debug_file(*module);
  return {Reason::unsupported,
          "no debug information in " + in + (unfit.empty() ? ": its source lines aren't known" : unfit),
          kGetDebugSymbols,
          {}};
}

Result<dwarf::Variables> TargetSymbols::Impl::variables_at(const Site& site) const {
  const RemoteAddr address = site.address;
  const Instance* in = instance_at(address);
  auto info = in ? debug_info(*in) : nullptr;
  if (!info) {
    return Error{Reason::unsupported,
                 "variables need debug information, and " +
                     (in ? std::string(in->name()) + " has none" : "the code at " + hex(address.value) + " has none") +
                     (in ? unfit_debug_file(*in) : ""),
                 kGetDebugSymbols,
                 {}};
  }
  dwarf::Outside outside;
  outside.object = [this](std::string_view name) -> std::optional<std::uint64_t> {
    const Result<RemoteAddr> found = resolve_data(name);
    return found ? std::optional(found->value) : std::nullopt;
  };
  outside.loaders_word = [this, in](std::uint64_t variable) -> std::optional<std::uint64_t> {
    const auto slot = ready(*in) ? in->module->slot_of_variable({variable}) : std::nullopt;
    return slot ? std::optional(in->remote(*slot).value) : std::nullopt;
  };
  outside.thread_block = [this, in] { return thread_block(*in); };
  outside.thread_object = [this, in](std::string_view name, std::uint64_t size, bool shared) {
    return thread_object(*in, name, size, shared);
  };
  if (site.usdt) outside.static_argument = [usdt = site.usdt](unsigned n) { return elf::usdt_number(*usdt, n); };
  return dwarf::Variables(std::move(info), in->elf(address).value, in->bias, std::move(outside), site.inlined);
}

// By the offset that the loader has written into the module, of the variables that are reserved with each thread; by
// the static linker's offset, of the main program; else through the thread's vector of blocks.
values::Placement TargetSymbols::Impl::thread_block(const Instance& in) const {
  using Step = values::PlaceStep::Code;
  using Kind = ThreadSlot::Kind;
  constexpr std::uint64_t kEntrySize = 16;  // bytes; glibc, sysdeps/generic/dl-dtv.h: dtv_t
  constexpr std::uint64_t kMostModules = 1u << 16;
  constexpr std::uint64_t kLowestAddress = 1u << 22;  // of what programs allocate; offsets are smaller
  values::Placement place;
  place.in_memory = true;
  place.steps.push_back({.code = Step::load_thread_pointer});
  const auto absent = [&](const char* why) { return place.absent = why, place; };
  if (!ready(in) || !in.module->main_thread_block())
    return absent("it is a thread-local variable, but its file reserves none");
  if (in.main) {
    place.offset = *in.module->main_thread_block();
    return place;
  }
  const auto word_at = [&](RemoteAddr where) {
    std::uint64_t word = 0;
    const bool known = read_memory(where, std::as_writable_bytes(std::span(&word, 1)));
    return known ? word : 0;
  };
  std::uint64_t number = 0;
  for (const ThreadSlot& slot : in.module->thread_slots()) {
    const std::uint64_t word = word_at(in.remote(slot.where));
    if (word == 0) continue;
    if (slot.kind == Kind::offset || (slot.kind == Kind::descriptor && word < kLowestAddress)) {
      place.offset = word - slot.addend;
      return place;
    }
    number = slot.kind == Kind::module_number ? word : word_at(RemoteAddr{word});
  }
  const bool is_glibc =
      std::ranges::none_of(instances_, [](const Instance& i) { return i.name().starts_with("ld-musl"); });
  if (number == 0 || number > kMostModules || !is_glibc)
    return absent("it is a thread-local variable of a library that doesn't say where it keeps them");
  place.steps.push_back({Step::dereference, 8, 0, native::kThreadVectorAt});
  place.steps.push_back({Step::dereference, 8, 0, number * kEntrySize});
  return place;
}

// The module's own comes first: it is what its code means unless it is preempted, which those of threads hardly ever
// are.
std::optional<values::Placement> TargetSymbols::Impl::thread_object(const Instance& in, std::string_view name,
                                                                    std::uint64_t size, bool shared) const {
  const auto place_in = [&](const Instance& owner, bool local) -> std::optional<values::Placement> {
    if (!ready(owner)) return std::nullopt;
    const Symbol* found = nullptr;
    for (const Symbol* s : owner.module->symbols().named(name)) {
      if (s->kind != SymbolKind::tls || s->size != size || (s->binding == Binding::local) != local) continue;
      if (found && found->address != s->address) return std::nullopt;
      found = s;
    }
    if (!found) return std::nullopt;
    values::Placement place = thread_block(owner);
    place.offset += found->address.value;
    return place;
  };
  auto place = shared ? place_in(in, false) : std::nullopt;
  for (std::size_t i = 0; !place && shared && i < instances_.size(); ++i)
    if (&instances_[i] != &in) place = place_in(instances_[i], false);
  return place ? std::move(place) : place_in(in, true);  // hidden ones are local, too
}

// Globs name one probe for each match; a plain name, which may mean several functions of that name, one for all.
Result<Places> TargetSymbols::Impl::resolve_functions_of_file(const lang::Location& location,
                                                              const lang::LineLocation& where) const {
  Result<std::vector<const Instance*>> selected = select(location.module);
  if (!selected) return std::move(selected).error();
  bool has_debug_info = false, file_known = false;
  Places places;
  places.by_glob = names::has_glob(where.file) || names::has_glob(where.function);
  if (where.file.size() + where.function.size() > names::kMaxGlob)
    return Error{
        Reason::bad_definition, "a glob may be " + std::to_string(names::kMaxGlob) + " bytes long at most", "", {}};
  for (const auto& stage : stages(*selected, location.module.empty())) {
    std::vector<Found> entered;
    for (const Instance* in : stage) {
      const auto info = debug_info(*in);
      if (!info) continue;
      has_debug_info = true;
      const dwarf::FileFunctions found = info->functions_of(where.file, where.function);
      file_known |= found.file_known;
      for (const dwarf::LinePlace& function : found.places) {
        Result<Site> site = site_at(in->remote({function.address}));
        if (!site && !places.by_glob) return std::move(site).error();
        if (!site) {
          places.left_out.push_back({function.function, in->remote({function.address}), std::move(site).error()});
          continue;
        }
        const auto bounds = in->module->function_at({function.address});
        if (bounds && bounds->symbol && bounds->symbol->address == ElfAddr{function.address})
          entered.push_back({in, bounds->symbol});
        places.sites.push_back(std::move(site).value());
      }
    }
    if (places.sites.empty()) continue;
    if (places.by_glob)
      note_inlined(places.sites.front(), entered);
    else if (places.sites.size() == 1 && entered.size() == 1)
      add_further_instances(places.sites, entered.front());
    return places;
  }
  if (!places.left_out.empty()) return std::move(places.left_out.front().why);
  if (!file_known) return no_such_line(location, where, false, has_debug_info);
  return Error{Reason::no_such_symbol,
               where.file + " has no function \"" + where.function + "\" with code of its own",
               "probectl lines -p " + std::to_string(pid_) + " " + where.file + " lists what it has",
               {}};
}

Result<Places> TargetSymbols::Impl::inlined_places(std::span<const Instance* const> selected,
                                                   const lang::SymbolLocation& where) const {
  Places places;
  for (const Instance* in : selected) {
    const auto info = debug_info(*in);
    if (!info) continue;
    const dwarf::DebugInfo::Inlined found = info->inlined(where.name);
    if (found.functions > 1)
      return Error{Reason::ambiguous_symbol,
                   where.name + " names " + std::to_string(found.functions) + " functions that exist only inlined",
                   "write the one that is meant with all its namespaces and classes, or, of overloads, a line of it: "
                   "FILE:LINE",
                   {}};
    for (const dwarf::LinePlace& inlined : found.places) {
      Result<Site> site = site_at(in->remote({inlined.address}));
      if (!site) continue;  // of an instance that the linker has dropped
      site->one_probe = where.name;
      site->instance = Site::Instance::inlined;
      site->inlined = inlined.function;
      places.sites.push_back(std::move(site).value());
    }
    if (!places.sites.empty()) break;
  }
  if (places.sites.empty()) return places;
  if (where.offset != 0)
    return Error{Reason::bad_definition,
                 where.name + " exists only inlined: it has no offsets",
                 "name it without an offset, or probe a line: FILE:LINE",
                 {}};
  places.sites.front().note = where.name + " exists only inlined, at " + std::to_string(places.sites.size()) +
                              (places.sites.size() == 1 ? " place" : " places, all of which are this probe");
  return places;
}

namespace {

// "a, b and c", "a, b, c and 4 more".
std::string listed(std::vector<std::string> names, std::size_t most) {
  const std::size_t more = names.size() - std::min(names.size(), most);
  names.resize(names.size() - more);
  std::string out = names.front();
  for (std::size_t i = 1; i < names.size(); ++i)
    out += (i + 1 == names.size() && more == 0 ? " and " : ", ") + names[i];
  return more == 0 ? out : out + " and " + std::to_string(more) + " more";
}

constexpr std::size_t kMostNamed = 3;

}  // namespace

std::string TargetSymbols::Impl::only_inlined(std::span<const Instance* const> selected, std::string_view glob) const {
  constexpr std::size_t kMostAsked = 100;
  for (const Instance* in : selected) {
    const auto info = in->main ? debug_info(*in) : nullptr;
    const auto names = info ? info->inlined_names(glob, kMostAsked) : std::vector<std::string>();
    if (!names.empty())
      return listed(names, kMostNamed) + (names.size() == 1 ? " exists" : " exist") +
             " only inlined, which a glob leaves out: a name without one finds " +
             (names.size() == 1 ? "it" : "each of them");
  }
  return "";
}

std::string TargetSymbols::Impl::libraries_note(std::span<const Instance* const> selected,
                                                std::string_view glob) const {
  const std::string inlined = only_inlined(selected, glob);
  return "no function of the program itself matches, so its libraries are looked through" +
         (inlined.empty() ? "" : "; " + inlined);
}

// The DWARF of all that a glob matches may take long: of many it isn't asked.
void TargetSymbols::Impl::note_inlined(Site& site, std::span<const Found> matches) const {
  constexpr std::size_t kMostAsked = 256;
  if (matches.size() > kMostAsked) return;
  std::vector<std::string> names;
  std::size_t inlined = 0;
  for (const Found& match : matches) {
    const auto info = match.symbol->kind == SymbolKind::function ? debug_info(*match.in) : nullptr;
    if (!info) continue;
    const auto further = info->further_instances(match.symbol->address.value, match.symbol->binding == Binding::weak);
    if (further.inlined.empty()) continue;
    inlined += further.inlined.size();
    names.push_back(further.name);
  }
  if (names.empty()) return;
  site.note = listed(names, kMostNamed) + (names.size() == 1 ? " is" : " are") + " inlined at " +
              std::to_string(inlined) + (inlined == 1 ? " place" : " places") +
              ", too, which a glob leaves out: a name without one takes them in";
}

void TargetSymbols::Impl::add_further_instances(std::vector<Site>& sites, const Found& found) const {
  const Symbol& symbol = *found.symbol;
  const auto info = symbol.kind == SymbolKind::function ? debug_info(*found.in) : nullptr;
  const auto further =
      info ? info->further_instances(symbol.address.value, symbol.binding == Binding::weak) : dwarf::FurtherInstances();
  const auto add = [&](std::uint64_t address, Site::Instance instance) {
    Result<Site> site = site_at(found.in->remote({address}));
    if (!site) return;  // of an instance that the linker has dropped
    site->instance = instance;
    if (instance == Site::Instance::inlined) site->inlined = further.name;
    sites.push_back(std::move(site).value());
  };
  // A constructor's two versions come from the same source, as does a piece that some of its places share: they aren't
  // copies of one another.
  std::string copies;
  std::size_t unknown = 0;
  for (const Symbol* copy : found.in->module->symbols().copies_of(symbol.name())) {
    if (std::ranges::find(further.copies, copy->address.value) != further.copies.end())
      add(copy->address.value, Site::Instance::copy);
    else if (copy->address != symbol.address && ++unknown <= kMostNamed)
      copies.append(copies.empty() ? "" : ", ").append(copy->name());
  }
  for (const std::uint64_t address : further.inlined) add(address, Site::Instance::inlined);
  if (unknown > kMostNamed) copies.append(", ...");
  if (unknown > 0)
    sites.front().note =
        "copies that the compiler may have made of it for some callers are probes of their own: " + copies;
}

Result<std::vector<dwarf::VisibleVariable>> TargetSymbols::Impl::list_variables(const lang::Location& location) const {
  Result<Places> found = places(location);
  if (!found) return std::move(found).error();
  auto variables = variables_at(found->sites.front());
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
  return no_such_line(location, {std::string(file), 1, {}}, false, has_debug_info);
}

}  // namespace probed::symbols
