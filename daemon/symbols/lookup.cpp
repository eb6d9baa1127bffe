// Finds modules and symbols by what people call them, and says what else they could have meant. See target_impl.hpp.
#include <sys/stat.h>

#include <algorithm>
#include <set>

#include "daemon/base/hex.hpp"
#include "daemon/base/out_of_descriptors.hpp"
#include "daemon/dwarf/info.hpp"
#include "daemon/lang/definition.hpp"
#include "daemon/names/demangle.hpp"
#include "daemon/names/match.hpp"
#include "daemon/symbols/target_files.hpp"
#include "daemon/symbols/target_impl.hpp"

namespace probed::symbols {
namespace {

constexpr std::size_t kMaxListed = 10;
constexpr std::size_t kMaxShown = 1000;     // bytes of a name that is suggested
constexpr std::size_t kMaxCompared = 1000;  // candidates, when looking for names that tell them apart

// all: how many there are, of which `names` has the first ones.
std::string join(const std::vector<std::string>& names, std::size_t all) {
  std::string text;
  for (std::size_t i = 0; i < names.size() && i < kMaxListed; ++i) text += (i ? ", " : "") + names[i];
  if (all > kMaxListed) text += ", and " + std::to_string(all - kMaxListed) + " more";
  return text;
}
std::string join(const std::vector<std::string>& names) { return join(names, names.size()); }

// The name as a definition can write it: MODULE:0xFILEOFFSET.
std::string by_offset(const Found& f) {
  const auto offset = f.in->module->file_offset_of(f.symbol->address);
  const std::string module(names::short_module_name(f.in->name()));
  return offset ? module + ":" + hex(*offset) : hex(f.in->remote(f.symbol->address).value);
}

std::string versioned(const Found& f) {
  const SymbolTable::Version& v = f.in->module->symbols().version(*f.symbol);
  const std::string name(f.symbol->name());
  return v.name.empty() ? name : name + (v.hidden ? "@" : "@@") + v.name;
}

bool wanted_kind(const Symbol& s, bool code) { return code ? s.code() : s.kind != SymbolKind::ifunc; }

// What the linker would bind an unversioned name to: the default version, else whatever there is.
void keep_version(std::vector<Found>& found, std::string_view version) {
  const auto hidden = [](const Found& f) { return f.in->module->symbols().version(*f.symbol).hidden; };
  const auto other = [&](const Found& f) { return f.in->module->symbols().version(*f.symbol).name != version; };
  if (!version.empty()) return void(std::erase_if(found, other));
  if (!std::all_of(found.begin(), found.end(), hidden)) std::erase_if(found, hidden);
}

// An exported name means that one, not some file's private function that happens to be called the same.
void keep_exported(std::vector<Found>& found) {
  const auto local = [](const Found& f) { return f.symbol->binding == Binding::local; };
  if (!std::all_of(found.begin(), found.end(), local)) std::erase_if(found, local);
}

void drop_aliases(std::vector<Found>& found) {
  std::set<RemoteAddr> seen;
  std::erase_if(found, [&](const Found& f) { return !seen.insert(f.in->remote(f.symbol->address)).second; });
}

// At least half of what linkers give, in lower case as file(1) shows it: no library is called so.
bool is_build_id(std::string_view text) {
  return text.size() >= 16 && text.find_first_not_of("0123456789abcdef") == text.npos;
}

// Whether a name that isn't mangled itself could be a readable one: then "*" and "[" may belong to it.
bool maybe_readable(std::string_view name) {
  return name.find("::") != std::string_view::npos || name.find_first_of("(<") != std::string_view::npos ||
         name.find("operator") != std::string_view::npos || names::has_abi_tag(name);
}

}  // namespace

// ---- modules
// ----------------------------------------------------------------------------------------------------------

int TargetSymbols::Impl::fit(const Instance& in, std::string_view wanted) const {
  const std::string& path = in.module->path();
  if (wanted.find('/') != std::string_view::npos) {
    if (path == wanted) return 6;
    // ./lib/libfoo.so for /opt/app/lib/libfoo.so
    const std::string_view tail = wanted.starts_with("./") ? wanted.substr(1) : wanted;
    return !wanted.starts_with('/') && tail.starts_with('/') && path.ends_with(tail) ? 5 : 0;
  }
  if (is_build_id(wanted) && elf::to_hex(in.module->build_id()).starts_with(wanted)) return 6;
  int best = std::max(names::module_fit(wanted, base_name(path)), names::module_fit(wanted, in.module->soname()));
  if (in.vdso && wanted == "vdso") best = 4;
  // Debian's redis-server is a symbolic link to redis-check-rdb: maps knows the latter, people the former.
  if (in.main)
    for (const std::string& name : program_names_) best = std::max(best, name == wanted ? 4 : 0);
  return best;
}

Result<std::vector<const Instance*>> TargetSymbols::Impl::select(std::string_view module) const {
  std::vector<const Instance*> chosen;
  int best = 1;
  for (const Instance& in : instances_) {
    const int how = module.empty() ? 1 : fit(in, module);
    if (how > best) chosen.clear();
    best = std::max(best, how);
    if (how == best) chosen.push_back(&in);
  }
  if (!chosen.empty()) return chosen;
  for (const Failure& f : failures_)
    if (f.path == module || names::module_fit(module, base_name(f.path)) > 0) return f.error;
  // The path may lead to the file by another way: /lib is a symbolic link to /usr/lib.
  struct stat st {};
  const Opened file = module.starts_with('/') ? files_->open(std::string(module)) : Opened();
  if (file && ::fstat(file.fd.get(), &st) == 0)
    for (const Instance& in : instances_)
      if (!in.vdso && in.device == st.st_dev && in.inode == st.st_ino) chosen.push_back(&in);
  if (chosen.empty()) return no_such_module(module);
  return chosen;
}

Error TargetSymbols::Impl::no_such_module(std::string_view module) const {
  if (out_of_descriptors()) return no_descriptors(pid_);
  std::vector<std::string> names;
  for (const Instance& in : instances_)
    if (std::string name(in.name()); std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  // What may have been meant comes first, should there be more than a hint has room for.
  names::NearNames near(module);
  for (const std::string& name : names) near.consider(names::short_module_name(name));
  const std::vector<std::string> meant = near.best();
  std::ranges::stable_partition(names, [&](const std::string& name) {
    return std::ranges::find(meant, names::short_module_name(name)) != meant.end();
  });
  const std::string what = module.empty() ? "process " + std::to_string(pid_) + " has no readable module"
                                          : "process " + std::to_string(pid_) + " has no module " + std::string(module);
  // PROVIDER:NAME looks alike, unless it is the name of a file.
  const bool is_file = module.find_first_of("./") != module.npos;
  const std::string advice = is_file
                                 ? "; a probe that is added with --pending waits for one that is loaded later"
                                 : "; probectl functions --usdt -p " + std::to_string(pid_) + " lists static probes";
  return {Reason::no_such_module, what, names.empty() ? "" : "loaded are " + join(names) + advice, {}};
}

std::vector<std::vector<const Instance*>> TargetSymbols::Impl::stages(std::span<const Instance* const> selected,
                                                                      bool any_module) const {
  if (!any_module) return {{selected.begin(), selected.end()}};
  std::vector<std::vector<const Instance*>> stages(3);
  for (const Instance* in : selected) stages[in->main ? 0 : in->vdso ? 2 : 1].push_back(in);
  return stages;
}

// ---- symbols
// ----------------------------------------------------------------------------------------------------------

std::vector<Found> TargetSymbols::Impl::exact(const Instance& in, const NameQuery& query, Want want) const {
  std::vector<Found> found;
  for (const Symbol* s : in.module->symbols().named(query.name))
    if (wanted_kind(*s, want == Want::code)) found.push_back({&in, s});
  keep_version(found, query.version);
  return found;
}

// foo.constprop.0 and the like, when the compiler has left no foo. Pieces of a function (.part, .cold) won't do: they
// aren't where it is entered.
std::vector<Found> TargetSymbols::Impl::clones(const Instance& in, const NameQuery& query, Want want) const {
  std::vector<Found> found;
  if (want != Want::code || !query.version.empty() || query.name.empty()) return found;
  for (const Symbol* s : in.module->symbols().copies_of(query.name)) found.push_back({&in, s});
  return found;
}

std::vector<Found> TargetSymbols::Impl::readable(const Instance& in, const NameQuery& query, Want want) const {
  return readable_ones(in, in.module->symbols().demangled(query.text), want);
}

std::vector<Found> TargetSymbols::Impl::loosely(const Instance& in, const NameQuery& query, Want want) const {
  return readable_ones(in, in.module->symbols().demangled_loosely(query.text), want);
}

std::vector<Found> TargetSymbols::Impl::unnamed(const Instance& in, const NameQuery& query, Want want) const {
  return readable_ones(in, in.module->symbols().demangled_unnamed(query.text), want);
}

std::vector<Found> TargetSymbols::Impl::readable_ones(const Instance& in, const std::vector<const Symbol*>& symbols,
                                                      Want want) const {
  std::vector<Found> found;
  for (const Symbol* s : symbols)
    if (wanted_kind(*s, want == Want::code) && !names::is_fragment(s->name())) found.push_back({&in, s});
  // A clone beside its original is the original's business.
  const std::vector<Found> all = found;
  std::erase_if(found, [&](const Found& f) {
    const std::string_view base = names::without_clone_suffix(f.symbol->name());
    return base != f.symbol->name() &&
           std::any_of(all.begin(), all.end(), [&](const Found& o) { return o.symbol->name() == base; });
  });
  return found;
}

std::vector<Found> TargetSymbols::Impl::literal(std::span<const Instance* const> stage, const NameQuery& query,
                                                Want want) const {
  std::vector<Found> found;
  if (names::has_glob(query.text) && !maybe_readable(query.text)) return found;
  for (const auto kind : {&Impl::exact, &Impl::clones, &Impl::readable, &Impl::loosely, &Impl::unnamed}) {
    for (const Instance* in : stage) {
      if (!ready(*in)) continue;
      const std::vector<Found> here = (this->*kind)(*in, query, want);
      found.insert(found.end(), here.begin(), here.end());
    }
    // Readable names may stand for several overloads, of which none may be dropped in silence.
    if (kind == &Impl::exact || kind == &Impl::clones) keep_exported(found);
    if (!found.empty()) break;
  }
  drop_aliases(found);
  return found;
}

std::vector<Found> TargetSymbols::Impl::matching(const Instance& in, std::string_view glob) const {
  if (!ready(in)) return {};
  const SymbolTable& table = in.module->symbols();
  const bool fragments = glob.find(".cold") != std::string_view::npos;
  std::set<ElfAddr> resolvers;
  for (const Symbol& s : table.all())
    if (s.kind == SymbolKind::ifunc) resolvers.insert(s.address);
  const auto matches = [&](const Symbol& s) {
    if (names::glob_match(glob, s.name())) return true;
    if (!names::is_mangled(s.name())) return false;
    const std::string_view name = table.readable(s);
    if (name.empty()) return false;
    const std::string_view plain = names::split_name(name).name;
    if (names::glob_match(glob, name) || names::glob_match(glob, plain)) return true;
    return names::has_abi_tag(plain) &&
           (glob == name || glob == plain || names::glob_match(glob, names::without_abi_tags(plain)));
  };
  std::vector<Found> found;
  for (const Symbol& s : table.all()) {
    if (!s.listed() || (!fragments && s.name().find(".cold") != std::string_view::npos)) continue;
    if (!found.empty() && found.back().symbol->address == s.address) continue;  // an alias of one that matched
    const bool resolver = s.kind != SymbolKind::ifunc && resolvers.contains(s.address);
    if (!resolver && matches(s)) found.push_back({&in, &s});
  }
  return found;
}

bool TargetSymbols::Impl::has_longer_names(std::span<const Instance* const> stage, const NameQuery& query) const {
  const names::NameParts typed = names::split_name(query.name);
  for (const Instance* in : stage) {
    if (!ready(*in)) continue;
    const SymbolTable& table = in->module->symbols();
    const auto is_one = [&](const Symbol& s) {
      if (!wanted_kind(s, true) || !names::is_mangled(s.name())) return false;
      const names::NameParts parts = names::split_name(table.readable(s));
      return names::leaves_out_scopes(typed.name, parts.name) || names::leaves_out_scopes(typed.name, parts.bare);
    };
    if (std::ranges::any_of(table.all(), is_one)) return true;
  }
  return false;
}

// C++ and Rust functions that the name stands for with parts of theirs left out (names::is_short_for()).
std::vector<Found> TargetSymbols::Impl::with_longer_names(std::span<const Instance* const> stage,
                                                          const NameQuery& query) const {
  const names::NameParts typed = names::split_name(query.text);
  std::string_view last = typed.bare.substr(std::min(typed.bare.rfind(':') + 1, typed.bare.size()));
  if (last.starts_with('~')) last.remove_prefix(1);
  const bool is_spelled = lang::is_identifier(last);  // so it stands in the mangled name
  std::vector<Found> found;
  for (const Instance* in : stage) {
    if (!ready(*in) || last.empty()) continue;
    const SymbolTable& table = in->module->symbols();
    std::vector<const Symbol*> meant;
    for (const Symbol& s : table.all()) {
      if (!s.code() || !names::is_mangled(s.name())) continue;
      if (is_spelled && s.name().find(last) == s.name().npos) continue;
      // The index of all readable names takes long to make, of a large program; few have the last part.
      const std::string readable = is_spelled ? names::demangle(s.name()) : std::string(table.readable(s));
      if (names::is_short_for(typed, names::split_name(readable))) meant.push_back(&s);
    }
    const std::vector<Found> here = readable_ones(*in, meant, Want::code);
    found.insert(found.end(), here.begin(), here.end());
  }
  drop_aliases(found);
  return found;
}

// Of a library's function that was found first, though the program's may have been meant.
void TargetSymbols::Impl::note_own_ones(Site& site, std::span<const Found> found) const {
  if (found.empty()) return;
  const std::vector<std::string> names = candidate_names(found);
  site.note += (site.note.empty() ? "" : "; ") + std::string("it is the one of ") + site.module + "; the program has " +
               join(names, found.size());
}

// ---- what went wrong
// ----------------------------------------------------------------------------------------------------

Error TargetSymbols::Impl::not_found(const NameQuery& query, std::string_view module,
                                     std::span<const Instance* const> asked, Want want) const {
  const names::NameParts typed = names::split_name(query.name);
  names::NearNames near(typed.name);
  std::vector<std::string> same_name;  // overloads, and those whose inline namespaces weren't written
  const auto consider_readable = [&](std::string_view display) {
    const names::NameParts parts = names::split_name(display);
    near.consider(names::without_unnamed(parts.name));
    if (same_name.size() > kMaxListed || display.size() > kMaxShown || parts.full == parts.name) return;
    for (const std::string_view name : {parts.name, parts.bare})
      if ((name == typed.name && typed.full != typed.name) || names::leaves_out_scopes(typed.name, name))
        return void(same_name.push_back(names::as_one_word(display)));
  };
  for (const Instance* in : asked) {
    if (!ready(*in)) continue;
    for (const Symbol& s : in->module->symbols().all()) {
      if (!wanted_kind(s, want == Want::code)) continue;
      const std::string_view display =
          names::is_mangled(s.name()) ? in->module->symbols().readable(s) : std::string_view();
      if (display.empty())
        near.consider(s.name());
      else
        consider_readable(display);
    }
  }
  std::ranges::sort(same_name);
  same_name.erase(std::ranges::unique(same_name).begin(), same_name.end());
  const bool glob = names::has_glob(query.text);
  const std::string what = glob ? "no function matches " + std::string(query.text)
                                : (want == Want::code ? "no function " : "no symbol ") + std::string(query.text);
  const std::string where =
      module.empty() ? " in process " + std::to_string(pid_) : " in module " + std::string(module);
  std::vector<std::string> names = same_name.empty() ? near.best() : same_name;
  if (names.empty() && !module.empty()) names = in_other_modules(typed.name, asked, want);
  const std::string list = want == Want::code
                               ? "probectl functions -p " + std::to_string(pid_) + " lists what can be probed"
                               : "nm and nm -D list a module's symbols";
  std::string hint = names.empty() ? list : "did you mean " + join(names) + "?";
  if (const std::string why = stripped(asked); want == Want::code && !why.empty())
    hint = names.empty() ? why : why + "; or " + hint;
  if (module.empty() && !glob) hint += "; with --pending a probe waits for a library that isn't loaded yet";
  const auto unreadable = std::find_if(asked.begin(), asked.end(), [&](const Instance* in) { return !ready(*in); });
  if (unreadable != asked.end()) hint += "; " + (*unreadable)->module->path() + " can't be read any more";
  return {Reason::no_such_symbol, what + where, hint, {}};
}

// As MODULE:NAME, what comes nearest to a name that the module which was asked for doesn't have: in the program, and in
// what somebody has looked into before.
std::vector<std::string> TargetSymbols::Impl::in_other_modules(std::string_view name,
                                                               std::span<const Instance* const> asked,
                                                               Want want) const {
  names::NearNames near(name);
  const auto each_other = [&](const auto& take) {
    for (const Instance& in : instances_) {
      if (std::ranges::find(asked, &in) != asked.end() || in.vdso || !(in.main ? ready(in) : in.module->is_loaded()))
        continue;
      for (const Symbol& s : in.module->symbols().all())
        if (wanted_kind(s, want == Want::code) && !names::is_mangled(s.name())) take(in, s.name());
    }
  };
  each_other([&](const Instance&, std::string_view symbol) { near.consider(symbol); });
  const std::vector<std::string> best = near.best();
  std::vector<std::string> found(best.size());
  each_other([&](const Instance& in, std::string_view symbol) {
    const auto at = std::ranges::find(best, symbol);
    if (at == best.end()) return;
    std::string& text = found[static_cast<std::size_t>(at - best.begin())];
    if (text.empty()) text = std::string(names::short_module_name(in.name())) + ":" + *at;
  });
  return found;
}

bool TargetSymbols::Impl::knows_function(std::string_view name) const {
  const auto has_it = [&](const Symbol& s) { return wanted_kind(s, true) && s.name() == name; };
  return std::ranges::any_of(instances_, [&](const Instance& in) {
    return !in.vdso && (in.main ? ready(in) : in.module->is_loaded()) &&
           std::ranges::any_of(in.module->symbols().all(), has_it);
  });
}

// Without a MODULE it is the main program that people mean.
std::string TargetSymbols::Impl::stripped(std::span<const Instance* const> asked) const {
  const auto meant =
      std::find_if(asked.begin(), asked.end(), [&](const Instance* in) { return asked.size() == 1 || in->main; });
  if (meant == asked.end() || (*meant)->vdso || !ready(**meant)) return "";
  // What a linker leaves in .symtab has local functions; .dynsym has none.
  const auto symbols = (*meant)->module->symbols().all();
  if (std::any_of(symbols.begin(), symbols.end(),
                  [](const Symbol& s) { return s.code() && s.binding == Binding::local; }))
    return "";
  const std::string name((*meant)->name());
  const bool none = std::none_of(symbols.begin(), symbols.end(), [](const Symbol& s) { return s.code(); });
  return name + " is stripped: " + (none ? "none of its functions has a name" : "only what it exports has a name") +
         unfit_debug_file(**meant) + "; install its debug symbols, or probe " +
         std::string(names::short_module_name(name)) + ":0xFILEOFFSET";
}

std::vector<std::string> TargetSymbols::Impl::candidate_names(std::span<const Found> found) const {
  using Notation = std::string (*)(const Found&);
  static const Notation as_read = [](const Found& f) {
    const std::string text = names::demangle(f.symbol->name());
    return text.empty() ? std::string(f.symbol->name())
                        : names::as_one_word(text);  // finds the function's only clone, too
  };
  const Notation linkage = [](const Found& f) { return std::string(f.symbol->name()); };
  const Notation module_readable = [](const Found& f) {
    return std::string(names::short_module_name(f.in->name())) + ":" + as_read(f);
  };
  const Notation by_address = [](const Found& f) { return hex(f.in->remote(f.symbol->address).value); };
  const bool one_module =
      std::all_of(found.begin(), found.end(), [&](const Found& f) { return f.in->module == found[0].in->module; });
  std::vector<std::string> names;
  if (found.size() > kMaxCompared) {
    for (const Found& f : found.first(kMaxListed)) names.push_back(one_module ? by_offset(f) : by_address(f));
    return names;
  }
  // The first of these notations in which all candidates differ.
  const auto tells_apart = [&](const auto& notation) {
    names.clear();
    for (const Found& f : found)
      if (names.emplace_back(notation(f)).empty()) return false;
    return std::set(names.begin(), names.end()).size() == names.size();
  };
  const auto file_wide = [this](const Found& f) { return by_file(f); };
  if (one_module && (tells_apart(as_read) || tells_apart(linkage))) return names;
  if (one_module && found.size() <= kMaxListed && tells_apart(file_wide)) return names;
  const auto notations = one_module ? std::vector<Notation>{versioned, by_offset, by_address}
                                    : std::vector<Notation>{module_readable, by_offset, by_address};
  for (const auto notation : notations)
    if (tells_apart(notation)) break;
  return names;
}

// With as much of the file's path as it takes to be the only one. Empty: there is no such, or too many have been asked
// for.
std::string TargetSymbols::Impl::by_file(const Found& found) const {
  if (file_notations_left_.fetch_sub(1, std::memory_order_relaxed) <= 0) return "";
  const auto info = found.symbol->code() && ready(*found.in) ? debug_info(*found.in) : nullptr;
  const std::string file = info ? info->file_of(found.symbol->address.value) : std::string();
  const std::string readable = names::demangle(found.symbol->name());
  const std::string name(readable.empty() ? names::without_clone_suffix(found.symbol->name())
                                          : names::split_name(readable).name);
  if (name.find_first_of(" (<*?[") != name.npos) return "";
  const std::string module = found.in->main ? "" : std::string(names::short_module_name(found.in->name())) + ":";
  for (std::size_t at = file.size(); at != file.npos && at > 0;) {
    at = file.rfind('/', at - 1);
    const std::string end = file.substr(at == file.npos ? 0 : at + 1);
    const dwarf::FileFunctions there = info->functions_of(end, name);
    if (there.places.size() == 1 && there.places[0].address == found.symbol->address.value)
      return module + end + ":" + name;
  }
  return "";
}

Error TargetSymbols::Impl::ambiguous(const NameQuery& query, std::span<const Found> found) const {
  const std::string count = std::to_string(found.size());
  return {Reason::ambiguous_symbol,
          std::string(query.text) + " names " + count + " places in process " + std::to_string(pid_),
          "say which one: " + join(candidate_names(found), found.size()),
          {}};
}

Error TargetSymbols::Impl::undetermined_ifunc(const Found& found) const {
  const auto plain = [](std::string_view name) {
    return name.substr(std::min(name.find_first_not_of('_'), name.size()));
  };
  const std::string stem = std::string(plain(found.symbol->name())) + "_";
  std::vector<std::string> names;
  for (const Symbol& s : found.in->module->symbols().all())
    if (s.kind == SymbolKind::function && s.address != found.symbol->address && plain(s.name()).starts_with(stem))
      names.push_back(std::string(names::short_module_name(found.in->name())) + ":" + std::string(s.name()));
  const std::string name(found.symbol->name());
  return {Reason::ambiguous_symbol,
          name + " is chosen among several implementations when the program starts (IFUNC), and nothing in process " +
              std::to_string(pid_) + " tells which one was",
          names.empty()
              ? "install the debug symbols of " + std::string(found.in->name()) + " to see its implementations"
              : "name the implementation: " + join(names),
          {}};
}

}  // namespace probed::symbols
