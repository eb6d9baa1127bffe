// How much memory a process may have.
#include "daemon/base/memory_limit.hpp"

#include <doctest/doctest.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace probed {
namespace {

namespace fs = std::filesystem;

struct Hierarchy {
  Hierarchy() {
    char name[] = "/tmp/probed-groups-XXXXXX";
    REQUIRE(::mkdtemp(name));
    path = name;
  }
  ~Hierarchy() { fs::remove_all(path); }
  void write(const std::string& file, const std::string& text) const {
    fs::create_directories(fs::path(path + file).parent_path());
    std::ofstream(path + file) << text << "\n";
  }
  std::string path;
};

TEST_CASE("the least limit of a group and those above it counts, in both versions") {
  const Hierarchy h;
  h.write("/a/memory.max", "1000");
  h.write("/a/b/memory.max", "max");
  h.write("/a/b/c/memory.max", "5000");
  CHECK(group_memory_limit("0::/a/b/c\n", h.path) == 1000);
  CHECK(group_memory_limit("0::/a/b\n", h.path) == 1000);
  CHECK(group_memory_limit("0::/\n", h.path) == UINT64_MAX);
  h.write("/memory/x/memory.limit_in_bytes", "700");
  CHECK(group_memory_limit("9:cpu,memory:/x/y\n1:name=systemd:/a\n0::/a\n", h.path) == 700);
  CHECK(group_memory_limit("9:cpu:/x\n", h.path) == UINT64_MAX);
}

TEST_CASE("what is no list of groups limits nothing, and the machine always does") {
  const Hierarchy h;
  for (const char* text : {"", "\n", "0", "0:", "::", "memory", "0::/../..\n", "1:memory:\n"})
    CHECK(group_memory_limit(text, h.path) == UINT64_MAX);
  CHECK(memory_limit(::getpid()) < UINT64_MAX);
  CHECK(memory_limit(-1) < UINT64_MAX);
}

}  // namespace
}  // namespace probed
