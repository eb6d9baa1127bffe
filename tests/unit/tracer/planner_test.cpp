// What can carry a probe, judged in this test's own process.
#include "daemon/control/planner.hpp"

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "daemon/symbols/module_cache.hpp"

using namespace probed;
using namespace probed::control;

namespace {

// A private executable page with given code; symbols are loaded after it exists.
struct Fixture {
  explicit Fixture(std::initializer_list<std::uint8_t> code, int flags = MAP_PRIVATE) {
    page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, flags | MAP_ANONYMOUS, -1, 0);
    std::memset(page, 0x90, 4096);
    std::uint8_t* at = static_cast<std::uint8_t*>(page);
    for (const std::uint8_t byte : code) *at++ = byte;
  }
  ~Fixture() { munmap(page, 4096); }
  Result<tracer::SitePlan> analyse(std::uint64_t offset, bool known_start = true) {
    auto symbols = symbols::TargetSymbols::load(getpid(), modules);
    REQUIRE(symbols.ok());
    Planner planner(getpid(), **symbols, known, nullptr);
    symbols::Site site;
    site.address = RemoteAddr{reinterpret_cast<std::uint64_t>(page)} + offset;
    site.symbol = "f";
    site.offset = offset;
    if (known_start) site.function_start = site.address - offset;
    return planner.analyse(site);
  }
  Reason refusal(std::uint64_t offset) {
    auto plan = analyse(offset);
    REQUIRE_FALSE(plan.ok());
    return plan.error().reason;
  }
  void* page;
  symbols::ModuleCache modules;
  KnownPlans known;
};

}  // namespace

TEST_CASE("K2: a place in the middle of an instruction is refused, with the nearest ones named") {
  Fixture f{0x55, 0x48, 0x89, 0xe5, 0xc3};  // push %rbp; mov %rsp,%rbp; ret
  CHECK(f.analyse(0).ok());
  CHECK(f.analyse(1).ok());
  CHECK(f.analyse(4).ok());
  for (const std::uint64_t middle : {2, 3}) {
    auto plan = f.analyse(middle);
    REQUIRE_FALSE(plan.ok());
    CHECK(plan.error().reason == Reason::not_instruction_boundary);
    CHECK(plan.error().hint.find("f+0x1") != std::string::npos);
    CHECK(plan.error().hint.find("f+0x4") != std::string::npos);
  }
}

TEST_CASE("U7: a site that already holds a breakpoint instruction is refused") {
  Fixture f{0x90, 0xcc, 0xc3};
  CHECK(f.refusal(1) == Reason::existing_breakpoint);
}

namespace {

// A private mapping of a file with given code.
struct FileFixture : Fixture {
  explicit FileFixture(std::initializer_list<std::uint8_t> code) : Fixture(code) {
    char name[] = "/tmp/planner-test-XXXXXX";
    const int fd = mkstemp(name);
    REQUIRE(fd >= 0);
    unlink(name);
    REQUIRE(write(fd, page, 4096) == 4096);
    REQUIRE(mmap(page, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_FIXED, fd, 0) == page);
    close(fd);
  }
  void poke(std::uint64_t offset, std::uint8_t byte) { static_cast<std::uint8_t*>(page)[offset] = byte; }
  Error refused(std::uint64_t offset) {
    auto plan = analyse(offset);
    REQUIRE_FALSE(plan.ok());
    CHECK(plan.error().reason == Reason::existing_breakpoint);
    return plan.error();
  }
};

}  // namespace

TEST_CASE("U7: a breakpoint that is not in the file was left behind, and what belongs there is told") {
  FileFixture f{0x55, 0xcc, 0xc3};
  CHECK(f.refused(1).hint.find("the program's own") != std::string::npos);
  f.poke(0, 0xcc);
  const Error left = f.refused(0);
  CHECK(left.message.find("does not have on disk (0x55 is there): a probed that was killed") != std::string::npos);
  CHECK(left.hint.find("={0x55}'") != std::string::npos);
}

TEST_CASE("K9: the trampoline is refused as what it is even where its start can't be told") {
  Fixture f{0x66, 0x48, 0xc7, 0xc0, 0x0f, 0x00, 0x00, 0x00, 0x0f, 0x05};  // the prefix belongs to another function
  CHECK(f.refusal(1) == Reason::blacklisted);
}

TEST_CASE("K7: our own breakpoint is seen through to what it hides") {
  Fixture f{0xcc, 0xc3};
  tracer::SitePlan hidden;
  hidden.address = RemoteAddr{reinterpret_cast<std::uint64_t>(f.page)};
  hidden.insn.length = 1;
  hidden.bytes[0] = 0x55;
  f.known.emplace(hidden.address, hidden);
  auto plan = f.analyse(0);
  REQUIRE(plan.ok());
  CHECK(plan->bytes[0] == 0x55);
}

TEST_CASE("U7: instructions that can't be probed are refused, each with its reason") {
  Fixture f{0xf4, 0xcf};  // hlt; iret
  CHECK(f.refusal(0) == Reason::unsupported_instruction);
  auto plan = f.analyse(0);
  CHECK(plan.error().message.find("can't be probed: ") != std::string::npos);
}

TEST_CASE("K9: every instruction of the signal return trampoline is refused by name") {
  Fixture f{0x90, 0x48, 0xc7, 0xc0, 0x0f, 0x00, 0x00, 0x00, 0x0f, 0x05};
  CHECK(f.analyse(0).ok());
  CHECK(f.refusal(1) == Reason::blacklisted);
  CHECK(f.refusal(8) == Reason::blacklisted);
}

TEST_CASE("data, shared text and unmapped addresses are refused") {
  Fixture data{0x90};
  mprotect(data.page, 4096, PROT_READ | PROT_WRITE);
  CHECK(data.refusal(0) == Reason::not_executable);
  Fixture shared({0x90}, MAP_SHARED);
  CHECK(shared.refusal(0) == Reason::unsupported_target);
  Fixture gone{0x90};
  mprotect(gone.page, 4096, PROT_NONE);
  CHECK(gone.refusal(0) == Reason::not_executable);
}
