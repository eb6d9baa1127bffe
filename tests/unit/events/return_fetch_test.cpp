// A return probe's arguments: which belong to the entry, which to the exit, and how they come together.
#include "daemon/events/return_fetch.hpp"

#include <doctest/doctest.h>

#include <array>
#include <string>

#include "tests/unit/lang/support.hpp"

namespace probed::events {
namespace {

using test::FakeMemory;
using test::Packed;
using test::Registers;

struct Call {
  Registers at_entry{}, at_exit{};
  FakeMemory memory;
  values::CommonFields common{100, 101, 3, "worker"};

  std::vector<std::byte> run(const std::string& text) {
    auto fetch = ReturnFetch::compile(test::parse_args(text, true), {});
    REQUIRE(fetch.ok());
    std::array<std::byte, kMaxArgumentBytes> kept{}, scratch{}, out{};
    test::set_argument(at_entry, 1, 0x1000);
    test::set_argument(at_entry, 2, 5);
    memory.put_string(0x1000, "before");
    const std::size_t size = fetch->entry().run(at_entry, memory, common, kept);
    memory.put_string(0x1000, "after");
    const std::size_t used = fetch->run_exit(at_exit, memory, common, std::span(kept).first(size), scratch, out);
    return {out.begin(), out.begin() + static_cast<std::ptrdiff_t>(used)};
  }
};

bool same(const std::vector<std::byte>& bytes, const Packed& expected) {
  const std::span<const std::byte> other = expected;
  return std::ranges::equal(bytes, other);
}

}  // namespace

TEST_CASE_FIXTURE(Call, "$argN is the entry's, what it points to is the exit's, in the order of the definition") {
  CHECK(
      same(run("+0($arg1):string n=$arg2 $entry(+0($arg1)):string"), Packed().text("after").number(5).text("before")));
}

TEST_CASE_FIXTURE(Call, "after a tail call there is no value, and all else") {
  common.tail_call = true;
  CHECK(same(run("$retval $arg2 +0($retval) $comm"), Packed().null().number(5).null().text("worker")));
}

TEST_CASE_FIXTURE(Call, "what could not be read at the entry is null at the exit") {
  CHECK(same(run("+0($entry(+0x5000($arg1))) $entry(+0x5000($arg1)) $arg2"), Packed().null().null().number(5)));
}

TEST_CASE("$entry is a return probe's, and takes one argument") {
  CHECK(test::parse_args("$entry($arg1)", false).empty());
  CHECK(test::parse_args("$entry($arg1", true).empty());
  CHECK(test::parse_args("$entry($retval)", true).empty());
  CHECK(test::parse_args("$entry($entry($arg1))", true).empty());
  CHECK(test::parse_args("$entry($arg1):string", true).empty());
  CHECK_FALSE(test::parse_args("x=$entry(+8(%di)):string", true).empty());
}

}  // namespace probed::events
