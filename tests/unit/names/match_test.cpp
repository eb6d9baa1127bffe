#include "daemon/names/match.hpp"

#include <doctest/doctest.h>

#include <string>

namespace probed::names {

TEST_CASE("globs match as the shell's do") {
  struct Row {
    std::string pattern, text;
    bool match;
  };
  const Row rows[] = {
      {"*", "", true},
      {"*", "abc", true},
      {"a*", "abc", true},
      {"*c", "abc", true},
      {"a*c", "abc", true},
      {"a*b", "abc", false},
      {"?", "a", true},
      {"?", "", false},
      {"a?c", "abc", true},
      {"a?c", "ac", false},
      {"[a-c]x", "bx", true},
      {"[a-c]x", "dx", false},
      {"[!a-c]x", "dx", true},
      {"[^a-c]x", "ax", false},
      {"[]]", "]", true},
      {"[a-]", "-", true},
      {"a[", "a[", true},
      {"*a*a*a*b", "aaaaaaaaaaaaaaaa", false},
      {"**x", "yyx", true},
      {"str*n?py", "strncpy", true},
      {"str*n?py", "strcpy", false},
      {"str*c?y", "strncpy", true},
      {"foo", "foo", true},
      {"foo", "fooo", false},
  };
  for (const Row& row : rows) {
    CAPTURE(row.pattern);
    CAPTURE(row.text);
    CHECK(glob_match(row.pattern, row.text) == row.match);
  }
}

TEST_CASE("a module is known by its file name, and by its soname with less and less of the version") {
  CHECK(module_fit("libc.so.6", "libc.so.6") > module_fit("libc.so", "libc.so.6"));
  CHECK(module_fit("libc.so", "libc.so.6") > 0);
  CHECK(module_fit("libc", "libc.so.6") > 0);
  CHECK(module_fit("libc", "libc-2.31.so") > 0);
  CHECK(module_fit("libssl.so.1", "libssl.so.1.1") > 0);
  CHECK(module_fit("libpython3.11", "libpython3.11.so.1.0") > 0);
  CHECK(module_fit("redis-server", "redis-server") > 0);
  CHECK(module_fit("libc", "libcrypto.so.3") == 0);
  CHECK(module_fit("libc", "libc-client.so.1") == 0);
  CHECK(module_fit("lib", "libc.so.6") == 0);
  CHECK(module_fit("", "libc.so.6") == 0);
  CHECK(short_module_name("libc.so.6") == "libc");
  CHECK(short_module_name("libfoo.so") == "libfoo");
  CHECK(short_module_name("redis-server") == "redis-server");
  CHECK(short_module_name("a.sold") == "a.sold");
}

TEST_CASE("near names are found by slips, by case and by parts, nearest first, five at most") {
  NearNames near("procesCommand");
  for (const char* name : {"unrelated", "processCommandAndResetClient", "PROCESCOMMAND", "processCommand", "call"})
    near.consider(name);
  const auto best = near.best();
  REQUIRE(best.size() == 2);
  CHECK(best[0] == "PROCESCOMMAND");
  CHECK(best[1] == "processCommand");

  NearNames part("malloc");
  for (int i = 0; i < 20; ++i) part.consider("je_malloc_" + std::to_string(i));
  part.consider("mallox");
  CHECK(part.best().size() == 5);
  CHECK(part.best()[0] == "mallox");

  NearNames member("price");
  for (const char* name : {"fprice", "prices_of", "shop::Item::price", "Item::prize", "pricelist"})
    member.consider(name);
  CHECK(member.best()[0] == "shop::Item::price");
  CHECK(member.best()[2] == "fprice");
}

TEST_CASE("looking for near names ends even among very many long ones") {
  NearNames near(std::string(5000, 'x'));
  const std::string name(90, 'y');
  for (int i = 0; i < 1'000'000; ++i) near.consider(name);
  CHECK(near.best().empty());
}

}  // namespace probed::names
