// Which implementation of an IFUNC the target's loader has chosen, read from where the loader has stored it. Never runs
// a resolver. See target_impl.hpp.
#include <algorithm>
#include <cstring>

#include "daemon/symbols/target_impl.hpp"

namespace probed::symbols {

std::vector<RemoteAddr> TargetSymbols::Impl::implementations(const Instance& in, ElfAddr resolver) const {
  const RemoteAddr key = in.remote(resolver);
  {
    const std::lock_guard lock(ifunc_mutex_);
    if (const auto known = ifuncs_.find(key); known != ifuncs_.end()) return known->second;
  }
  std::vector<RemoteAddr> found = find_implementations(in, resolver);
  // A process that has only begun hasn't got its slots filled: unknown isn't kept.
  if (found.empty()) return found;
  const std::lock_guard lock(ifunc_mutex_);
  return ifuncs_.emplace(key, std::move(found)).first->second;
}

std::vector<RemoteAddr> TargetSymbols::Impl::find_implementations(const Instance& in, ElfAddr resolver) const {
  std::vector<RemoteAddr> found;
  const auto look = [&](const Instance& holder, const LoaderSlot& slot) {
    const auto value = implementation_in_slot(holder, slot, in, resolver);
    if (value && std::find(found.begin(), found.end(), *value) == found.end()) found.push_back(*value);
  };
  // The module's own calls go through IRELATIVE slots, which name the resolver itself.
  if (ready(in))
    for (const LoaderSlot& slot : in.module->loader_slots())
      if (slot.symbol.empty() && slot.resolver == resolver) look(in, slot);
  if (!found.empty()) return found;
  std::vector<std::string_view> names;
  for (const Symbol& s : in.module->symbols().all())
    if (s.kind == SymbolKind::ifunc && s.address == resolver) names.push_back(s.name());
  for (const Instance& other : instances_) {
    if (!ready(other)) continue;
    for (const LoaderSlot& slot : other.module->loader_slots())
      if (std::find(names.begin(), names.end(), slot.symbol) != names.end()) look(other, slot);
  }
  std::sort(found.begin(), found.end());
  return found;
}

// What a slot holds is only taken when it is the start of a function of the IFUNC's own module or of the vdso: a slot
// that isn't bound yet points into a PLT, one that another module's symbol has won points to that module.
std::optional<RemoteAddr> TargetSymbols::Impl::implementation_in_slot(const Instance& holder, const LoaderSlot& slot,
                                                                      const Instance& in, ElfAddr resolver) const {
  std::uint64_t word = 0;
  if (!read_memory(holder.remote(slot.where), std::as_writable_bytes(std::span(&word, 1)))) return std::nullopt;
  const RemoteAddr value{word};
  const Mapping* mapping = mapping_at(value);
  const Instance* there = instance_at(value);
  if (!mapping || !mapping->executable || !there || (there != &in && !there->vdso)) return std::nullopt;
  if (value == in.remote(resolver) || !there->module->function_begins_at(there->elf(value))) return std::nullopt;
  return value;
}

}  // namespace probed::symbols
