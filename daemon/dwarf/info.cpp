// See info.hpp.
#include "daemon/dwarf/info.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "daemon/dwarf/entry_arguments.hpp"
#include "daemon/names/demangle.hpp"
#include "daemon/names/match.hpp"

namespace probed::dwarf {
namespace {

constexpr unsigned kMaxScopes = 64;

bool is_scope(std::uint16_t t) { return t == TAG_lexical_block || t == TAG_inlined_subroutine; }
bool is_namespace(std::uint16_t t) {
  return t == TAG_namespace || t == TAG_structure_type || t == TAG_class_type || t == TAG_union_type;
}
bool is_outermost(std::uint16_t t) {
  return t == TAG_compile_unit || t == TAG_partial_unit || t == TAG_namespace || t == TAG_skeleton_unit;
}

bool by_place(Die a, Die b) { return a.unit == b.unit ? a.index < b.index : std::less<const Unit*>()(a.unit, b.unit); }

std::string_view linkage_name_of(Die die) {
  const Die linked = holder_of(die, AT_linkage_name);
  return linked ? text_of(linked, *attribute(linked, AT_linkage_name)) : std::string_view();
}

}  // namespace

std::string qualified_name(Die die) {
  std::string name(name_of(die));
  Die outer = parent_of(origin(die));
  for (unsigned i = 0; outer && i < kMaxScopes && is_namespace(tag(outer)); ++i, outer = parent_of(outer)) {
    const std::string_view part = name_of(outer);
    const char* unnamed = tag(outer) == TAG_namespace ? "(anonymous namespace)" : "(anonymous)";
    name.insert(0, std::string(part.empty() ? unnamed : part) + "::");
  }
  return name;
}

std::shared_ptr<const DebugInfo> DebugInfo::read(const elf::Image& image, const elf::Image* debug,
                                                 const elf::Image* alternate, const SplitFiles& split) {
  auto sections = Sections::read(debug ? *debug : image, false);
  if (!sections) return nullptr;
  std::unique_ptr<File> other;
  if (alternate)
    if (auto more = Sections::read(*alternate, false)) other = std::make_unique<File>(*std::move(more), nullptr);
  std::shared_ptr<DebugInfo> info(new DebugInfo);
  if (!other) info->lacking_ = split.supplement;
  info->file_ = std::make_unique<File>(*std::move(sections), std::move(other));
  if (split.open) info->attach_split(split);
  // A debug file has no .eh_frame: it is loaded, so it stays behind.
  if (const Elf64_Shdr* section = image.section(".eh_frame"); section && section->sh_type != SHT_NOBITS) {
    info->eh_frame_ = read_section(image, ".eh_frame", Sections::kMaxBytes).value_or(std::vector<std::byte>());
    info->eh_frame_address_ = section->sh_addr;
  }
  return info;
}

// ---- split files ----

namespace {

std::string split_name(const Unit& unit) {
  for (const std::uint16_t name : {AT_dwo_name, AT_GNU_dwo_name})
    if (const auto value = unit.attribute(0, name)) return std::string(text_of(unit.root(), *value));
  return {};
}

// What a skeleton and what it stands for have in common.
std::optional<std::uint64_t> split_id(const Unit& unit) {
  if (unit.version() >= 5) return unit.signature();
  const auto value = unit.attribute(0, AT_GNU_dwo_id);
  return value ? std::optional(value->number) : std::nullopt;
}

std::string folder_of(std::string_view path) { return std::string(path.substr(0, path.rfind('/') + 1)); }

// Where the compiler has put it, and beside the program.
std::vector<std::string> split_paths(const Unit& unit, const std::string& name, const std::string& program) {
  const auto value = unit.attribute(0, AT_comp_dir);
  const std::string compiled_in(value ? text_of(unit.root(), *value) : std::string_view());
  std::vector<std::string> paths{name.starts_with('/') ? name : compiled_in + "/" + name};
  if (!name.starts_with('/')) paths.push_back(folder_of(program) + name);
  paths.push_back(folder_of(program) + name.substr(name.rfind('/') + 1));
  return paths;
}

const Unit* unit_with_id(const File& file, std::uint64_t id) {
  for (const auto& unit : file.units())
    if (!unit->is_type_unit() && split_id(*unit) == id) return unit.get();
  return nullptr;
}

}  // namespace

void DebugInfo::attach_split(const SplitFiles& split) {
  constexpr std::size_t kMostFiles = 1u << 14, kMostTried = 1u << 16;
  std::uint64_t bytes = 0;
  std::size_t tried = 0;
  std::string unfit;  // what is wrong with a file of the right name
  const auto open = [&](const std::string& path) -> std::unique_ptr<File> {
    if (++tried > kMostTried || split_.size() >= kMostFiles || bytes > Sections::kMaxBytes) return nullptr;
    const auto image = split.open(path, unfit);
    auto sections = image ? Sections::read(*image, true) : std::nullopt;
    if (!sections) return nullptr;
    bytes += sections->memory_bytes();
    return std::make_unique<File>(*std::move(sections), nullptr, true);
  };
  const File* package = nullptr;
  std::string unfit_package;
  bool asked_for_package = false;
  for (const auto& unit : file_->units()) {
    const std::string name = unit->is_type_unit() ? std::string() : split_name(*unit);
    const auto id = name.empty() ? std::nullopt : split_id(*unit);
    if (!id) continue;
    if (!std::exchange(asked_for_package, true))
      if (auto file = open(split.program + ".dwp")) package = split_.emplace_back(std::move(file)).get();
    if (!package && unfit_package.empty()) unfit_package = unfit;
    unfit = package ? split.program + ".dwp is damaged, or of another build" : unfit_package;
    const Unit* found = package ? unit_with_id(*package, *id) : nullptr;
    for (const std::string& path : split_paths(*unit, name, split.program)) {
      if (found) break;
      auto file = open(path);
      found = file ? unit_with_id(*file, *id) : nullptr;
      if (found) split_.push_back(std::move(file));
    }
    if (found) {
      found->set_skeleton(*unit);
      whole_.emplace(unit.get(), found);
    } else {
      missing_.emplace(unit.get(), name + (unfit.empty() ? ", which can't be found" : "; but " + unfit));
    }
  }
}

std::string DebugInfo::lacking() const {
  if (lacking_.empty()) return {};
  return "a part of the debug information is in " + lacking_ +
         ", which can't be found, may not be read, is damaged, or of another build: names and types that stand there "
         "aren't known";
}

std::string DebugInfo::lacking_at(std::uint64_t address) const {
  const std::lock_guard lock(mutex_);
  const std::string missing = missing_split(address);
  return missing.empty() ? lacking() : "the debug information of this place is in " + missing;
}

const Unit& DebugInfo::whole(const Unit& unit) const {
  const auto known = whole_.find(&unit);
  return known == whole_.end() ? unit : *known->second;
}

template <class F>
void DebugInfo::each_unit(F&& call) const {
  for (const auto& skeleton : file_->units()) {
    if (skeleton->is_type_unit()) continue;
    const Unit& unit = whole(*skeleton);
    const bool was_parsed = unit.is_parsed();
    call(unit);
    if (!was_parsed) unit.forget_entries();
  }
}

std::string DebugInfo::missing_split(std::uint64_t address) const {
  const Unit* unit = unit_at(address);
  const auto missing = missing_.find(unit);
  return missing == missing_.end() ? std::string() : missing->second;
}

// ---- units and functions ----

const Unit* DebugInfo::unit_at(std::uint64_t address) const {
  if (!have_units_) {
    have_units_ = true;
    for (const auto& unit : file_->units()) {
      if (unit->is_type_unit()) continue;
      for (const AddressInterval& code : intervals_of(unit->root())) units_.push_back({code, unit.get()});
    }
    std::ranges::sort(units_, {}, [](const UnitInterval& u) { return u.code.begin; });
  }
  const auto after = std::ranges::upper_bound(units_, address, {}, [](const UnitInterval& u) { return u.code.begin; });
  // Units don't overlap, but for damaged ones.
  for (auto it = after; it != units_.begin() && after - it < 8;)
    if ((--it)->code.contains(address)) return &whole(*it->unit);
  return nullptr;
}

const std::vector<DebugInfo::FunctionInterval>& DebugInfo::functions_of(const Unit& unit) const {
  const auto [known, fresh] = functions_.try_emplace(&unit);
  if (!fresh) return known->second;
  std::vector<FunctionInterval>& out = known->second;
  for (std::uint32_t i = 0; i < unit.entries().size(); ++i) {
    if (unit.tag_of(i) != TAG_subprogram) continue;
    for (const AddressInterval& code : intervals_of({&unit, i})) out.push_back({code, i});
  }
  std::ranges::sort(out, {}, [](const FunctionInterval& f) { return f.code.begin; });
  return out;
}

std::optional<Scope> DebugInfo::scope_at(std::uint64_t address) const {
  const Unit* unit = unit_at(address);
  if (!unit) return std::nullopt;
  const auto& functions = functions_of(*unit);
  const auto after =
      std::ranges::upper_bound(functions, address, {}, [](const FunctionInterval& f) { return f.code.begin; });
  Scope scope;
  for (auto it = after; it != functions.begin() && after - it < 8 && !scope.function;)
    if ((--it)->code.contains(address)) scope.function = {unit, it->index};
  if (!scope.function) return std::nullopt;
  scope.blocks.push_back(scope.function);
  for (Die at = scope.function; at && scope.blocks.size() < kMaxScopes;) {
    Die inner;
    each_child(at, [&](Die child) {
      if (is_scope(tag(child)) && covers(child, address)) inner = child;
      return !inner;
    });
    if (inner) scope.blocks.push_back(inner);
    at = inner;
  }
  std::ranges::reverse(scope.blocks);
  return scope;
}

const DebugInfo::EntryArguments& DebugInfo::entry_arguments(Die function) const {
  if (!(entry_arguments_.function == function))
    entry_arguments_ = {function, parameters_of(function), arguments_at_entry(function)};
  return entry_arguments_;
}

void DebugInfo::find_globals() const {
  if (std::exchange(have_globals_, true)) return;
  each_unit([&](const Unit& unit) {
    for (std::uint32_t i = 0; i < unit.entries().size(); ++i) {
      const Die die{&unit, i};
      if (unit.tag_of(i) != TAG_variable || !is_outermost(tag(parent_of(die)))) continue;
      if (!attribute(die, AT_location) && !attribute(die, AT_const_value)) {
        if (!attribute(die, AT_declaration)) ++placeless_[std::string(name_of(die))];
        continue;
      }
      if (const Die from = origin(die); from != die) completed_.try_emplace({from.unit, from.index}, die);
      globals_[std::string(name_of(die))].push_back(die);
    }
  });
}

Die DebugInfo::completed(Die declared) const {
  const Die from = origin(declared);
  if (!is_outermost(tag(parent_of(from)))) return {};
  find_globals();
  const auto found = completed_.find({from.unit, from.index});
  return found == completed_.end() ? Die{} : found->second;
}

const std::vector<Die>& DebugInfo::globals(std::string_view last) const {
  static const std::vector<Die> kNone;
  find_globals();
  const auto found = globals_.find(std::string(last));
  return found == globals_.end() ? kNone : found->second;
}

unsigned DebugInfo::placeless_globals(std::string_view last) const {
  find_globals();
  const auto found = placeless_.find(std::string(last));
  return found == placeless_.end() ? 0 : found->second;
}

// ---- types by name ----

namespace {

// "unsigned long int", "long unsigned int" and "unsigned long" are one.
std::string plain_type_name(std::string_view name) {
  std::vector<std::string_view> words;
  for (std::size_t at = 0; at < name.size();) {
    const std::size_t end = std::min(name.find(' ', at), name.size());
    const std::string_view word = name.substr(at, end - at);
    at = end + 1;
    if (word == "struct" || word == "class" || word == "union" || word == "enum") continue;
    if (!word.empty() && word != "const" && word != "volatile") words.push_back(word);
  }
  constexpr std::string_view kNumbers[] = {"unsigned", "signed", "long", "short", "int", "char"};
  const auto is_number = [&](std::string_view w) { return std::ranges::find(kNumbers, w) != std::end(kNumbers); };
  if (words.size() > 1 && std::ranges::all_of(words, is_number)) {
    const bool has_char = std::ranges::find(words, "char") != words.end();
    std::erase(words, "int");
    if (!has_char) std::erase(words, "signed");
    if (words.empty()) words.push_back("int");
    std::ranges::sort(words);
  } else if (words.size() == 1 && (words[0] == "signed")) {
    words[0] = "int";
  }
  std::string out;
  for (const std::string_view word : words) out.append(out.empty() ? "" : " ").append(word);
  return out;
}

bool names_type(std::uint16_t t) {
  return t == TAG_structure_type || t == TAG_class_type || t == TAG_union_type || t == TAG_enumeration_type ||
         t == TAG_typedef || t == TAG_base_type;
}

std::string_view last_name(std::string_view name) {
  const std::size_t scopes = name.substr(0, name.find('<')).rfind("::");
  return scopes == name.npos ? name : name.substr(scopes + 2);
}

// Whether what is called `full` is what a user means by `name`.
bool fits_qualified(const std::string& full, std::string_view name) {
  if (full == name || full.ends_with("::" + std::string(name))) return true;
  const std::string named = names::without_unnamed(full);
  return named != full && fits_qualified(named, names::without_unnamed(name));
}

}  // namespace

void DebugInfo::find_types() const {
  if (std::exchange(have_types_, true)) return;
  const auto look_at = [&](const Unit& unit) {
    for (std::uint32_t i = 0; i < unit.entries().size(); ++i) {
      const Die die{&unit, i};
      if (!names_type(unit.tag_of(i)) || attribute(die, AT_declaration)) continue;
      if (const std::string_view name = name_of(die); !name.empty()) {
        auto& all = types_[plain_type_name(name)];
        if (all.size() < 64) all.push_back(die);
      }
    }
  };
  each_unit(look_at);
  for (const auto& unit : file_->units())
    if (unit->is_type_unit()) look_at(*unit);
}

Die DebugInfo::type_defined_as(Die declared) const {
  find_types();
  const auto known = types_.find(plain_type_name(name_of(declared)));
  if (known == types_.end()) return {};
  const std::string name = qualified_name(declared);
  Die found;
  for (const Die die : known->second) {
    if (tag(die) != tag(declared) || qualified_name(die) != name) continue;
    if (found && number_of(die, AT_byte_size) != number_of(found, AT_byte_size)) return {};
    if (!found) found = die;
  }
  return found;
}

Die DebugInfo::type_named(std::string_view text, const Unit* near) const {
  find_types();
  const bool is_tagged = text.starts_with("struct ") || text.starts_with("union ") || text.starts_with("class ") ||
                         text.starts_with("enum ");
  const std::string name = plain_type_name(text);
  const auto found = types_.find(std::string(last_name(name)));
  if (found == types_.end()) return {};
  Die best;
  for (const Die die : found->second) {
    if (is_tagged && tag(die) == TAG_typedef) continue;
    const bool is_qualified = name.find("::") != name.npos && tag(die) != TAG_base_type;
    if (is_qualified && !fits_qualified(qualified_name(die), name)) continue;
    if (!best || (die.unit == near && best.unit != near)) best = die;
  }
  return best;
}

// ---- functions by file, and inlined ones ----

FileFunctions DebugInfo::functions_of(std::string_view file, std::string_view function) const {
  const std::lock_guard lock(mutex_);
  FileFunctions out;
  const WantedFile wanted(file);
  std::unordered_map<const Unit*, std::vector<bool>> fits;  // by number of the unit's files
  const auto fitting = [&](const Unit& unit) -> const std::vector<bool>& {
    const auto [known, fresh] = fits.try_emplace(&unit);
    if (fresh)
      for (const std::string& name : read_line_table(unit, false).files) known->second.push_back(wanted.is(name));
    return known->second;
  };
  each_unit([&](const Unit& unit) {
    const std::vector<bool>& own = fitting(unit);
    const bool may_hold = std::ranges::find(own, true) != own.end();
    out.file_known |= may_hold;
    if (!may_hold) return;
    for (std::uint32_t i = 0; i < unit.entries().size(); ++i) {
      const Die die{&unit, i};
      if (unit.tag_of(i) != TAG_subprogram) continue;
      const auto entry = low_pc(die);
      const Die written = holder_of(die, AT_decl_file);
      if (!entry || intervals_of(die).empty() || !written) continue;
      const auto number = attribute(written, AT_decl_file)->number;
      const std::vector<bool>& files = fitting(*written.unit);
      if (number >= files.size() || !files[number]) continue;
      const std::string name = qualified_name(die);
      if (!names::glob_match(function, name) && !names::glob_match(function, name_of(die)) &&
          !fits_qualified(name, function))
        continue;
      out.places.push_back({*entry, 0, name});
    }
  });
  std::ranges::sort(out.places, {}, &LinePlace::address);
  const auto same = std::ranges::unique(out.places, {}, &LinePlace::address);
  out.places.erase(same.begin(), same.end());
  return out;
}

void DebugInfo::find_inlined() const {
  constexpr std::size_t kMostInstances = 4096;  // of one function
  if (std::exchange(have_inlined_, true)) return;
  each_unit([&](const Unit& unit) {
    for (std::uint32_t i = 0; i < unit.entries().size(); ++i) {
      const Die die{&unit, i};
      if (unit.tag_of(i) != TAG_inlined_subroutine || (!attribute(die, AT_low_pc) && !attribute(die, AT_ranges)))
        continue;
      const auto add = [&](std::string_view key) {
        if (key.empty()) return;
        auto& all = inlined_[std::string(key)];
        if (all.size() < kMostInstances) all.push_back(die);
      };
      add(name_of(die));
      add(linkage_name_of(die));
    }
  });
}

// A constructor's versions are of one declaration; overloads aren't.
DebugInfo::Inlined DebugInfo::inlined(std::string_view name) const {
  const std::lock_guard lock(mutex_);
  find_inlined();
  // Written with its parameters, C++ has overloads, which names alone don't tell apart: none is taken for another.
  const auto found = inlined_.find(std::string(last_name(name)));
  Inlined out;
  if (found == inlined_.end()) return out;
  std::set<std::tuple<std::string, std::uint64_t, std::uint64_t>> functions;
  const auto declared = [](Die die, std::uint16_t at) {
    const Die holder = holder_of(die, at);
    return holder ? attribute(holder, at)->number : 0;
  };
  for (const Die die : found->second) {
    std::string qualified = qualified_name(die);
    if (name.find("::") != name.npos && !fits_qualified(qualified, name)) continue;
    const auto entry = low_pc(die);
    if (!entry || intervals_of(die).empty()) continue;
    functions.emplace(qualified, declared(die, AT_decl_line), declared(die, AT_decl_column));
    out.places.push_back({*entry, 0, std::move(qualified)});
  }
  out.functions = functions.size();
  std::ranges::sort(out.places, {}, &LinePlace::address);
  const auto same = std::ranges::unique(out.places, {}, &LinePlace::address);
  out.places.erase(same.begin(), same.end());
  return out;
}

std::vector<std::string> DebugInfo::inlined_names(std::string_view glob, std::size_t most) const {
  const std::lock_guard lock(mutex_);
  find_inlined();
  std::set<std::string> names;
  for (const auto& [key, dies] : inlined_) {
    for (const Die die : dies) {
      if (names.size() >= most) return {names.begin(), names.end()};
      if (intervals_of(die).empty()) continue;
      std::string qualified = qualified_name(die);
      if (names::glob_match(glob, qualified) || names::glob_match(glob, key)) names.insert(std::move(qualified));
    }
  }
  return {names.begin(), names.end()};
}

const std::vector<DebugInfo::UnitInstance>& DebugInfo::instances_of(const Unit& unit) const {
  const auto [known, fresh] = instances_.try_emplace(&unit);
  if (!fresh) return known->second;
  for (std::uint32_t i = 0; i < unit.entries().size(); ++i) {
    const Die die{&unit, i};
    if (unit.tag_of(i) != TAG_subprogram && unit.tag_of(i) != TAG_inlined_subroutine) continue;
    if (const Die source = abstract_instance(die); source != die) known->second.push_back({source, die});
  }
  std::ranges::sort(known->second, by_place, &UnitInstance::source);
  return known->second;
}

// Whether an inlined instance of a function is no call of it, but a piece: GCC splits functions (-fpartial-inlining),
// and inlines the second half, which is of the same source, into the first again where it has no other callers. Nobody
// has written that call: it has the place that the function is declared at, where a call of the function by itself
// isn't. A function of one line has both in that line; compilers that don't tell columns (-gno-column-info) leave them
// indistinguishable then.
bool DebugInfo::is_own_half(Die inlined, Die source) const {
  const auto at = low_pc(inlined);
  const auto scope = at ? scope_at(*at) : std::nullopt;
  if (!scope) return false;
  auto outer = std::ranges::find(scope->blocks, inlined);
  if (outer == scope->blocks.end()) return false;
  while (++outer != scope->blocks.end() && tag(*outer) == TAG_lexical_block) {
  }
  if (outer == scope->blocks.end() || abstract_instance(*outer) != source) return false;
  const auto is_same = [&](std::uint16_t of_call, std::uint16_t of_declaration) {
    const auto called = attribute(inlined, of_call);
    const Die declared = holder_of(source, of_declaration);
    return !called || (declared && attribute(declared, of_declaration)->number == called->number);
  };
  return is_same(AT_call_line, AT_decl_line) && is_same(AT_call_column, AT_decl_column);
}

FurtherInstances DebugInfo::further_instances(std::uint64_t entry, bool everywhere) const {
  const std::lock_guard lock(mutex_);
  FurtherInstances out;
  const auto scope = scope_at(entry);
  if (!scope || low_pc(scope->function) != entry) return out;
  const Die function = scope->function;
  const Die source = abstract_instance(function);
  out.name = qualified_name(function);
  const auto add = [&](std::vector<std::uint64_t>& to, Die die) {
    const auto at = low_pc(die);
    if (!at || *at == entry || intervals_of(die).empty()) return;
    if (&to != &out.inlined || !is_own_half(die, source)) to.push_back(*at);
  };
  for (const auto& [made_from, die] :
       std::ranges::equal_range(instances_of(*function.unit), source, by_place, &UnitInstance::source))
    add(tag(die) == TAG_subprogram ? out.copies : out.inlined, die);
  if (everywhere || source.unit != function.unit) {
    find_inlined();
    const std::string_view linked = linkage_name_of(function);
    const auto others = inlined_.find(std::string(linked.empty() ? name_of(function) : linked));
    if (others != inlined_.end())
      for (const Die die : others->second)
        if (!linked.empty() || abstract_instance(die) == source) add(out.inlined, die);
  }
  for (auto* addresses : {&out.copies, &out.inlined}) {
    std::ranges::sort(*addresses);
    const auto same = std::ranges::unique(*addresses);
    addresses->erase(same.begin(), same.end());
  }
  return out;
}

namespace {

constexpr std::size_t kMapNode = 4 * sizeof(void*);  // what a map has of its own for each element, about

// By name; a name and what it stands for is taken for one that needs no more than most do.
std::size_t bytes_by_name(const auto& map) {
  constexpr std::size_t kContents = 48;
  return map.size() * (kMapNode + sizeof *map.begin() + kContents);
}

std::size_t bytes_by_unit(const auto& map) {
  std::size_t sum = 0;
  for (const auto& [unit, all] : map) sum += kMapNode + sizeof unit + sizeof all + all.capacity() * sizeof all[0];
  return sum;
}

}  // namespace

bool DebugInfo::was_refused_memory() const {
  const auto lacks = [](const File& file) {
    return !file.is_whole() || (file.alternate() && !file.alternate()->is_whole());
  };
  return lacks(*file_) || std::ranges::any_of(split_, [&](const auto& file) { return lacks(*file); });
}

std::size_t DebugInfo::memory_bytes() const {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return 0;
  std::size_t sum = file_->memory_bytes() + eh_frame_.capacity();
  for (const auto& file : split_) sum += file->memory_bytes();
  for (const auto* names : {&inlined_, &types_, &globals_}) sum += bytes_by_name(*names);
  return sum + bytes_by_name(outer_names_of_types_) + bytes_by_unit(functions_) + bytes_by_unit(instances_) +
         units_.capacity() * sizeof(UnitInterval);
}

}  // namespace probed::dwarf
