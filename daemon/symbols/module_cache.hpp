// Modules shared between targets and between snapshots of one target.
//
// Thread: any. The lock guards the table only; files are read outside of it, each module under a lock of its own.
// Dropping a module from the cache doesn't end it: snapshots hold what they use.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "daemon/symbols/elf.hpp"

namespace probed::symbols {

class ModuleCache {
 public:
  struct Options {
    std::vector<std::string> debug_roots = {"/usr/lib/debug"};  // absolute, inside each target's own root
    FetchById fetch;                                            // null: no servers are asked
    std::size_t max_modules = 512;
    std::size_t max_bytes = 512u << 20;
  };
  ModuleCache() : ModuleCache(Options()) {}
  explicit ModuleCache(Options options) : options_(std::move(options)) {}

  const Options& options() const { return options_; }

  // By file_identity(); null: not there. Counts as a use.
  std::shared_ptr<Module> find(const std::string& identity);
  // Returns the module to use: the one given, or the one another thread put there meanwhile. Drops the modules least
  // recently used while there are too many.
  std::shared_ptr<Module> insert(const std::string& identity, std::shared_ptr<Module> module);

  std::size_t size() const;
  // Drops what is too much: modules grow after they have been put here.
  void trim();

 private:
  struct Entry {
    std::string identity;
    std::shared_ptr<Module> module;
  };
  void trim_locked();

  const Options options_;
  mutable std::mutex mutex_;
  std::list<Entry> entries_;  // most recently used first
  std::unordered_map<std::string, std::list<Entry>::iterator> by_identity_;
};

}  // namespace probed::symbols
