// Where the sandbox has what, and which addresses a case may touch: only what is the same in every run of the case, and
// nothing of the test process. Pure.
#pragma once

#include <cstdint>

#include "tests/arch/differential/sandbox.hpp"

namespace probed::test {

struct Places {
  std::uint64_t original, landing, data, stack;

  explicit Places(const Sandbox& sandbox)
      : original(sandbox.original()), landing(sandbox.landing()), data(sandbox.data()), stack(sandbox.stack()) {}
  explicit constexpr Places(std::uint64_t base)
      : original(base + 0x800), landing(base + 0x20000), data(base + 0x30000), stack(base + 0x40000) {}

  // An address of the sandbox where nothing is mapped.
  std::uint64_t hole() const { return landing + 0x8000; }

  // A data access of up to a page may begin there. Not in the code pages: they hold different bytes in every run.
  bool may_access(std::uint64_t address) const {
    return (address >= landing - 0x8000 && address < stack + 0x10000) || never_mapped(address);
  }
  // Control may go there.
  bool may_execute(std::uint64_t address) const {
    return (address >= landing && address < data - kPage) || never_mapped(address);
  }

 private:
  // Below vm.mmap_min_addr, not canonical, or the kernel's but for the vsyscall page.
  static bool never_mapped(std::uint64_t address) {
    constexpr std::uint64_t kLowest = 0x10000, kUserEnd = 0x7fff'ffff'f000, kVsyscall = 0xffff'ffff'ff60'0000;
    constexpr std::uint64_t kMargin = 0x10000;
    if (address < kLowest - kPage) return true;
    if (address < kUserEnd + kMargin) return false;
    return address < kVsyscall - kMargin || (address > kVsyscall + kMargin && address < ~std::uint64_t{0} - kMargin);
  }
};

}  // namespace probed::test
