#include "daemon/symbols/maps.hpp"

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

namespace probed::symbols {

TEST_CASE("every field of a maps line is read") {
  const auto maps =
      parse_maps("7f40faa83000-7f40fabd9000 r-xp 00026000 fe:1b 332835                     /usr/lib/libc.so.6\n");
  REQUIRE(maps.size() == 1);
  const Mapping& m = maps[0];
  CHECK(m.start == RemoteAddr{0x7f40faa83000});
  CHECK(m.end == RemoteAddr{0x7f40fabd9000});
  CHECK(m.readable);
  CHECK_FALSE(m.writable);
  CHECK(m.executable);
  CHECK_FALSE(m.shared);
  CHECK(m.file_offset == 0x26000);
  CHECK(m.dev_major == 0xfe);
  CHECK(m.dev_minor == 0x1b);
  CHECK(m.inode == 332835);
  CHECK(m.path == "/usr/lib/libc.so.6");
  CHECK_FALSE(m.deleted);
}

TEST_CASE("paths keep their blanks, lose their escapes and the mark of deletion") {
  struct Row {
    std::string text, path;
    bool deleted;
  };
  const Row rows[] = {
      {"1000-2000 r-xp 00000000 08:01 7 /opt/my app/lib foo.so", "/opt/my app/lib foo.so", false},
      {"1000-2000 r-xp 00000000 08:01 7 /tmp/new\\012line", "/tmp/new\nline", false},
      {"1000-2000 r-xp 00000000 08:01 7 /tmp/back\\slash\\1", "/tmp/back\\slash\\1", false},
      {"1000-2000 r-xp 00000000 08:01 7 /tmp/a (deleted)", "/tmp/a", true},
      {"1000-2000 r-xp 00000000 08:01 7 /tmp/a (deleted) (deleted)", "/tmp/a (deleted)", true},
      {"1000-2000 rw-s 00000000 00:01 7 /memfd:jit code (deleted)", "/memfd:jit code", true},
      {"1000-2000 rw-s 00000000 00:01 7 /SYSV00000000 (deleted)", "/SYSV00000000", true},
      {"1000-2000 r-xp 00000000 00:00 0 [vdso]", "[vdso]", false},
      {"1000-2000 rw-p 00000000 00:00 0 ", "", false},
      {"1000-2000 rw-p 00000000 00:00 0", "", false},
      {"1000-2000 rw-p 00000000 00:00 0 [anon:my heap]", "[anon:my heap]", false},
      {"ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]", "[vsyscall]", false},
  };
  for (const Row& row : rows) {
    CAPTURE(row.text);
    const auto maps = parse_maps(row.text);
    REQUIRE(maps.size() == 1);
    CHECK(maps[0].path == row.path);
    CHECK(maps[0].deleted == row.deleted);
  }
}

TEST_CASE("malformed lines are skipped, the others kept") {
  const auto maps = parse_maps(
      "\nnonsense\n2000-1000 r-xp 0 08:01 7 /backwards\n1000-2000 r-xp 0 08:01\n99999999999999999999-1 r-xp 0 0:0 0\n"
      "1000-2000 r-xp 00000000 08:01 7 /good");
  REQUIRE(maps.size() == 1);
  CHECK(maps[0].path == "/good");
}

TEST_CASE("the maps of a living process hold its own code") {
  const auto maps = read_maps(::getpid());
  REQUIRE(maps.ok());
  const RemoteAddr here{reinterpret_cast<std::uint64_t>(&parse_maps)};
  const auto it = std::find_if(maps->begin(), maps->end(), [&](const Mapping& m) { return m.contains(here); });
  REQUIRE(it != maps->end());
  CHECK(it->executable);
  CHECK(it->inode != 0);
}

TEST_CASE("the maps of no process are refused as such") {
  const auto maps = read_maps(0x7fffffff);
  REQUIRE_FALSE(maps.ok());
  CHECK(maps.error().reason == Reason::no_such_process);
}

}  // namespace probed::symbols
