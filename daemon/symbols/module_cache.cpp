// See module_cache.hpp.
#include "daemon/symbols/module_cache.hpp"

namespace probed::symbols {

std::shared_ptr<Module> ModuleCache::find(const std::string& identity) {
  const std::lock_guard lock(mutex_);
  const auto it = by_identity_.find(identity);
  if (it == by_identity_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, it->second);
  return it->second->module;
}

std::shared_ptr<Module> ModuleCache::insert(const std::string& identity, std::shared_ptr<Module> module) {
  const std::lock_guard lock(mutex_);
  const auto [it, fresh] = by_identity_.try_emplace(identity);
  if (!fresh) return it->second->module;
  entries_.push_front({identity, std::move(module)});
  it->second = entries_.begin();
  std::shared_ptr<Module> kept = entries_.front().module;
  trim_locked();
  return kept;
}

void ModuleCache::trim() {
  const std::lock_guard lock(mutex_);
  trim_locked();
}

// A module grows when it is loaded, after it was put here; so sizes are summed up anew each time.
void ModuleCache::trim_locked() {
  std::size_t bytes = 0, count = 0;
  for (auto it = entries_.begin(); it != entries_.end();) {
    bytes += it->module->memory_bytes();
    ++count;
    const bool keep = count == 1 || (count <= options_.max_modules && bytes <= options_.max_bytes);
    if (keep) {
      ++it;
      continue;
    }
    by_identity_.erase(it->identity);
    it = entries_.erase(it);
  }
}

std::size_t ModuleCache::size() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

}  // namespace probed::symbols
