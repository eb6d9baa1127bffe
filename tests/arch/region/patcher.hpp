// Puts jumps into a library that is loaded into the test's own process: as many as find room, each to a detour that
// counts. One at a time, as it owns a Rig; no other thread may run.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "arch/region.hpp"
#include "tests/arch/detour/rig.hpp"

namespace probed::test {

struct PatchCounts {
  unsigned near = 0, island = 0, refused = 0;
};

class Patcher {
 public:
  // path: of the file that is loaded at `bias`. Aborts when it can't be read.
  Patcher(const std::string& path, std::uint64_t bias);

  // One of `every` instructions, picked at random, and at most `most`.
  PatchCounts patch(unsigned seed, unsigned every, unsigned most);
  // How often the probes were hit, but for the first some ten thousand, whose records nobody takes.
  std::uint64_t hits();

 private:
  bool try_site(std::uint64_t site, PatchCounts& counts);
  std::uint64_t detour_for(const arch::Displaced& code);
  void write(std::uint64_t address, std::span<const std::uint8_t> bytes);
  void apply();
  std::vector<arch::CodeRange> taken_near(std::uint64_t site) const;
  void take(const arch::RegionPlan& plan);

  struct Write {
    std::uint64_t address;
    std::vector<std::uint8_t> bytes;
  };

  std::uint64_t bias_;
  std::shared_ptr<const arch::CodeFlow> flow_;
  std::unique_ptr<Rig> rig_;
  events::DetourPlan plan_;
  std::uint64_t next_ = 0, end_ = 0;    // of the room for detours
  std::vector<arch::CodeRange> taken_;  // ascending
  std::vector<Write> writes_;           // in order
};

}  // namespace probed::test
