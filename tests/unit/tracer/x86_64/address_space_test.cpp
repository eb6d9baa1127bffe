// AddressSpace on this process's own memory: what is written into a text depends on what is there, byte by byte.
#include "daemon/tracer/text/address_space.hpp"

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstring>

namespace probed::tracer {
namespace {

constexpr std::size_t kPage = 4096;

// A function whose first instructions are to become a jump, that jump, and what a program may put in their place.
constexpr std::array<std::uint8_t, 8> kFunction{0x8d, 0x44, 0x7f, 0x01, 0xc3, 0x90, 0x90, 0x90};
constexpr std::array<std::uint8_t, 5> kJump{0xe9, 0x11, 0x22, 0x33, 0x44};
constexpr std::array<std::uint8_t, 8> kOther{0xcc, 0x90, 0x6b, 0xc7, 0x07, 0xc3, 0x90, 0x90};
constexpr std::array<std::uint8_t, 5> kIslandJump{0xe9, 0x55, 0x66, 0x77, 0x00};
constexpr std::size_t kIsland = 64;  // bytes from the function to the padding

template <std::size_t N>
Patch patch(RemoteAddr at, const std::array<std::uint8_t, N>& before, const std::array<std::uint8_t, N>& after) {
  Patch made{at, static_cast<std::uint8_t>(N), {}, {}};
  std::ranges::copy(before, made.before.begin());
  std::ranges::copy(after, made.after.begin());
  return made;
}

// A page of code with one armed site at its start.
struct Text {
  Text() {
    void* const at = ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(at != MAP_FAILED);
    bytes = static_cast<std::uint8_t*>(at);
    std::memset(bytes, 0x90, kPage);
    put(kFunction);
    SitePlan plan;
    plan.address = here();
    plan.insn.length = 4;
    plan.context = kFunction.size();
    std::ranges::copy(kFunction, plan.bytes.begin());
    plan.backing.inode = 1;  // as code of a file: of that a breakpoint alone is known by its first byte
    site = &space.add_site(plan, RemoteAddr{});
    REQUIRE(space.set_armed(*site, true, Layout::unknown()));
    REQUIRE(bytes[0] == 0xcc);
  }
  ~Text() { ::munmap(bytes, kPage); }

  RemoteAddr here() const { return RemoteAddr{reinterpret_cast<std::uint64_t>(bytes)}; }
  void put(const std::array<std::uint8_t, 8>& code) { std::memcpy(bytes, code.data(), code.size()); }

  void plan_near_jump() {
    Jump jump;
    jump.head = patch(here(), {kFunction[0], kFunction[1], kFunction[2], kFunction[3], kFunction[4]}, kJump);
    REQUIRE(space.plan_jump(*site, jump));
  }
  void plan_short_jump() {
    Jump jump;
    jump.head = patch<2>(here(), {kFunction[0], kFunction[1]}, {0xeb, kIsland - 2});
    jump.island = patch<5>(here() + kIsland, {0x90, 0x90, 0x90, 0x90, 0x90}, kIslandJump);
    REQUIRE(space.plan_jump(*site, jump));
  }

  AddressSpace space{TargetMemory::open(::getpid())};
  std::uint8_t* bytes = nullptr;
  Site* site = nullptr;
};

}  // namespace

TEST_CASE("a jump is written in three steps, its first byte last") {
  Text text;
  text.plan_near_jump();
  CHECK(std::memcmp(text.bytes + 1, kFunction.data() + 1, 4) == 0);
  CHECK(text.space.write_jump_tail(*text.site));
  CHECK(text.bytes[0] == 0xcc);
  CHECK(std::memcmp(text.bytes + 1, kJump.data() + 1, 4) == 0);
  CHECK(text.space.write_jump_head(*text.site));
  CHECK(std::memcmp(text.bytes, kJump.data(), kJump.size()) == 0);
}

TEST_CASE("a breakpoint in code that has come in a jump's place is the program's, at each step") {
  const auto is_other = [](const Text& text) { return std::memcmp(text.bytes, kOther.data(), kOther.size()) == 0; };
  SUBCASE("before anything of the jump is there") {
    Text text;
    text.plan_near_jump();
    text.put(kOther);
    CHECK(!text.space.write_jump_tail(*text.site));
    CHECK(is_other(text));
  }
  SUBCASE("when all but the first byte has been written") {
    Text text;
    text.plan_near_jump();
    REQUIRE(text.space.write_jump_tail(*text.site));
    text.put(kOther);
    CHECK(!text.space.write_jump_head(*text.site));
    CHECK(is_other(text));
  }
  SUBCASE("a short jump's") {
    Text text;
    text.plan_short_jump();
    REQUIRE(text.space.write_jump_tail(*text.site));
    text.put(kOther);
    CHECK(!text.space.write_jump_head(*text.site));
    CHECK(is_other(text));
  }
}

TEST_CASE("no short jump is made to padding that has been written over since") {
  Text text;
  text.plan_short_jump();
  REQUIRE(text.space.write_jump_tail(*text.site));
  CHECK(std::memcmp(text.bytes + kIsland, kIslandJump.data(), kIslandJump.size()) == 0);
  text.bytes[kIsland] = 0xf4;
  CHECK(!text.space.write_jump_head(*text.site));
  CHECK(text.bytes[0] == 0xcc);
}

}  // namespace probed::tracer
