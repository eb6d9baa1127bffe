// One program, its symbols kept in each of the places where distributions keep them.
#include "support.hpp"

namespace probed::symbols::test {
namespace {

ModuleCache::Options with_debug_root() {
  ModuleCache::Options options;
  options.debug_roots = {fixtures() + "/debugroot"};
  return options;
}

// Private functions are in .symtab only, so finding one proves that a table of that kind was read.
void check_all_symbols(const char* program) {
  CAPTURE(program);
  const Running target(fixtures() + "/" + program);
  REQUIRE(target.ready());
  ModuleCache cache(with_debug_root());
  const auto symbols = load(target.pid(), cache);
  const Site hidden = only_site(*symbols, symbol("fixture_hidden"));
  CHECK(hidden.address == target.fact("fixture_hidden"));
  CHECK(hidden.function_start == hidden.address);
  CHECK(hidden.function_size > 0);
  CHECK(hidden.module == program);
  const Site first = only_site(*symbols, symbol("fixture_first"));
  CHECK(first.address == target.fact("fixture_first"));
  CHECK(value_of(symbols->resolve_data("fixture_counter")) == target.fact("fixture_counter"));
}

}  // namespace

TEST_CASE("symbols are found in the program itself, position-independent, fixed or static") {
  check_all_symbols("fixture_pie");
  check_all_symbols("fixture_nopie");
  check_all_symbols("fixture_static");
}

TEST_CASE("symbols are found in .gnu_debugdata") { check_all_symbols("fixture_mini"); }
TEST_CASE("symbols are found in a debug file known by build-id") { check_all_symbols("fixture_build-id"); }
TEST_CASE("symbols are found in a debug file known by debug link") { check_all_symbols("fixture_link"); }

TEST_CASE("a debug file whose checksum differs from the debug link's isn't used") {
  const Running target(fixtures() + "/fixture_bad-link");
  REQUIRE(target.ready());
  ModuleCache cache;
  const auto symbols = load(target.pid(), cache);
  CHECK(refusal(*symbols, symbol("fixture_hidden")).reason == Reason::no_such_symbol);
  CHECK(only_site(*symbols, symbol("fixture_first")).address == target.fact("fixture_first"));  // .dynsym has it
}

TEST_CASE("a stripped program still has the bounds of its functions, also without section headers") {
  for (const char* program : {"fixture_strip", "fixture_headless"}) {
    CAPTURE(program);
    const Running target(fixtures() + "/" + program);
    REQUIRE(target.ready());
    const Running whole(fixtures() + "/fixture_nopie");
    ModuleCache cache;
    const auto symbols = load(target.pid(), cache);
    CHECK(refusal(*symbols, symbol("fixture_hidden")).reason == Reason::no_such_symbol);
    // The same program unstripped says what is right; both are linked to fixed addresses.
    const auto known = load(whole.pid(), cache);
    for (const char* name : {"fixture_hidden", "fixture_first"}) {
      const Site right = only_site(*known, symbol(name));
      const Site inside = value_of(symbols->site_at(right.address + 1));
      CHECK(inside.function_start == right.address);
      CHECK(inside.function_size == right.function_size);
      CHECK(inside.offset == 1);
      CHECK(inside.symbol.empty());
      CHECK(inside.file_offset == right.file_offset + 1);
    }
  }
}

TEST_CASE("a program that was deleted while it runs keeps its symbols") {
  const std::string copy = fixtures() + "/fixture_deleted_copy";
  output_of("cp " + fixtures() + "/fixture_pie " + copy);
  const Running target(copy);
  REQUIRE(target.ready());
  ::unlink(copy.c_str());
  output_of("cp /bin/true " + copy);  // another program in its place
  ModuleCache cache;
  const auto symbols = load(target.pid(), cache);
  CHECK(only_site(*symbols, symbol("fixture_hidden")).address == target.fact("fixture_hidden"));
  CHECK(only_site(*symbols, symbol("fixture_hidden", 0, "fixture_deleted_copy")).address ==
        target.fact("fixture_hidden"));
  ::unlink(copy.c_str());
}

TEST_CASE("file offsets are the ones readelf shows") {
  for (const char* program : {"fixture_pie", "fixture_nopie"}) {
    CAPTURE(program);
    const std::string path = fixtures() + "/" + program;
    const Running target(path);
    REQUIRE(target.ready());
    unsigned long long value = 0;
    const std::string row = output_of("readelf -sW " + path + " | grep -m1 ' fixture_hidden\\|_ZL14fixture_hiddeni'");
    REQUIRE(std::sscanf(row.c_str(), " %*d: %llx", &value) == 1);
    struct Section {
      unsigned long long address = 0, offset = 0;
    };
    const auto section = [&](const std::string& name) {
      Section found;
      const std::string line =
          output_of("readelf -SW " + path + " | sed 's/^ *\\[ *[0-9]*\\]//' | grep ' \\" + name + " '");
      REQUIRE(std::sscanf(line.c_str(), " %*s PROGBITS %llx %llx", &found.address, &found.offset) == 2);
      return found;
    };
    const Section text = section(".text");
    const std::uint64_t offset = value - text.address + text.offset;

    ModuleCache cache;
    const auto symbols = load(target.pid(), cache);
    CHECK(only_site(*symbols, symbol("fixture_hidden")).file_offset == offset);
    const Site by_offset = only_site(*symbols, file_offset(program, offset));
    CHECK(by_offset.address == target.fact("fixture_hidden"));
    CHECK(by_offset.symbol == "fixture_hidden(int)");
    CHECK(only_site(*symbols, file_offset(path, offset)).address == by_offset.address);
    CHECK(refusal(*symbols, file_offset(program, section(".data").offset)).reason == Reason::not_executable);
    CHECK(refusal(*symbols, file_offset(program, 1ull << 40)).reason == Reason::unmapped_address);
    CHECK(refusal(*symbols, file_offset("libnothing", 0)).reason == Reason::no_such_module);
  }
}

}  // namespace probed::symbols::test
