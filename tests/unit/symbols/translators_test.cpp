#include "daemon/symbols/translators.hpp"

#include <doctest/doctest.h>

namespace probed::symbols {
namespace {

using What = Translator::What;

Mapping code_of(std::string path) {
  Mapping mapping;
  mapping.executable = mapping.readable = true;
  mapping.inode = 1;
  mapping.path = std::move(path);
  return mapping;
}

TEST_CASE("programs that translate others are known by their files, and nothing else is taken for one") {
  struct Row {
    const char *exe, *mapped, *name;  // name null: an ordinary program
    What what;
  };
  const Row rows[] = {
      {"/usr/libexec/valgrind/memcheck-amd64-linux", "", "valgrind", What::own_process},
      {"/usr/lib/valgrind/none-arm64-linux (deleted)", "", "valgrind", What::own_process},
      {"/usr/bin/valgrind", "", nullptr, {}},
      {"/opt/app-linux", "", nullptr, {}},
      {"/usr/bin/qemu-x86_64", "", "qemu-x86_64", What::other_program},
      {"/usr/bin/qemu-aarch64-static", "", "qemu-aarch64-static", What::other_program},
      {"/usr/bin/qemu-system-x86_64", "", nullptr, {}},
      {"/usr/bin/qemu-img", "", nullptr, {}},
      {"/usr/local/bin/box64", "", "box64", What::other_program},
      {"/bin/app", "/opt/pin/intel64/bin/pinbin", "Pin", What::own_process},
      {"/bin/app", "/opt/dr/lib64/release/libdynamorio.so.11.3", "DynamoRIO", What::own_process},
      {"/bin/app", "/memfd:frida-agent-64.so", "Frida", What::some_threads},
      {"/bin/app", "/usr/lib/libc.so.6", nullptr, {}},
  };
  for (const Row& row : rows) {
    CAPTURE(row.exe);
    CAPTURE(row.mapped);
    const Mapping mapped[] = {code_of(row.mapped)};
    const auto found = translator_in(row.exe, mapped);
    REQUIRE(found.has_value() == (row.name != nullptr));
    if (!found) continue;
    CHECK(found->name == row.name);
    CHECK((found->what == row.what));
  }
}

TEST_CASE("what is executed as a translation only is everything but the translator's own files") {
  const Translator valgrind = *translator_in("/usr/libexec/valgrind/memcheck-amd64-linux", {});
  CHECK_FALSE(valgrind.translates(code_of("/usr/libexec/valgrind/memcheck-amd64-linux")));
  CHECK(valgrind.translates(code_of("/usr/libexec/valgrind/vgpreload_core-amd64-linux.so")));
  CHECK(valgrind.translates(code_of("/usr/lib/libc.so.6")));
  const Mapping loaded[] = {code_of("/opt/dr/lib64/release/libdynamorio.so")};
  const Translator dynamorio = *translator_in("/bin/app", loaded);
  CHECK(dynamorio.translates(code_of("/bin/app")));
  CHECK_FALSE(dynamorio.translates(loaded[0]));
  const Translator qemu = *translator_in("/usr/bin/qemu-arm", {});
  CHECK_FALSE(qemu.translates(code_of("/usr/bin/qemu-arm")));
}

}  // namespace
}  // namespace probed::symbols
