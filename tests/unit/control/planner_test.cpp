// What can carry a probe, judged in this test's own process.
#include "daemon/control/planner.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "code.hpp"
#include "daemon/symbols/module_cache.hpp"

using namespace probed;
using namespace probed::control;

namespace {

const code::Bytes kBreakpoint(arch::native::kBreakpoint.begin(), arch::native::kBreakpoint.end());
const std::uint64_t kNopSize = code::kNop.size();

// A private executable page with given code; symbols are loaded after it exists.
struct Fixture {
  explicit Fixture(std::initializer_list<code::Bytes> code, int flags = MAP_PRIVATE) {
    page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, flags | MAP_ANONYMOUS, -1, 0);
    std::uint8_t* at = static_cast<std::uint8_t*>(page);
    for (const code::Bytes& piece : code) at = std::ranges::copy(piece, at).out;
    const std::uint8_t* const end = static_cast<std::uint8_t*>(page) + 4096;
    while (at < end) at = std::ranges::copy(code::kNop, at).out;
  }
  ~Fixture() { munmap(page, 4096); }
  Result<tracer::SitePlan> analyse(std::uint64_t offset, bool known_start = true) {
    auto symbols = symbols::TargetSymbols::load(getpid(), modules);
    REQUIRE(symbols.ok());
    Planner planner(getpid(), **symbols, &overlay);
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
  tracer::TextOverlay overlay;
};

}  // namespace

TEST_CASE("K2: a place in the middle of an instruction is refused, with the nearest ones named") {
  Fixture f{code::kFrame};
  for (const std::uint64_t start : code::kFrameStarts) CHECK(f.analyse(start).ok());
  for (const std::uint64_t middle : code::kFrameMiddles) {
    auto plan = f.analyse(middle);
    REQUIRE_FALSE(plan.ok());
    CHECK(plan.error().reason == Reason::not_instruction_boundary);
    CHECK(plan.error().hint.find(code::kBeforeMiddle) != std::string::npos);
    CHECK(plan.error().hint.find(code::kBehindMiddle) != std::string::npos);
  }
}

TEST_CASE("K2: where no function is known, an address that no instruction begins at is refused all the same") {
  Fixture f{code::kFrame};
  const auto page = reinterpret_cast<std::uint64_t>(f.page);
  for (std::uint64_t middle = 1; middle < arch::native::kInsnAlignment; ++middle) {
    auto plan = f.analyse(middle, false);
    REQUIRE_FALSE(plan.ok());
    CHECK(plan.error().reason == Reason::not_instruction_boundary);
    const std::string nearest = fmt::format("{:#x} and {:#x}", page, page + arch::native::kInsnAlignment);
    CHECK_MESSAGE(plan.error().hint.find(nearest) != std::string::npos, plan.error().hint);
  }
}

TEST_CASE("U7: a site that already holds a breakpoint instruction is refused") {
  Fixture f{code::kNop, kBreakpoint, code::kReturn};
  CHECK(f.refusal(kNopSize) == Reason::existing_breakpoint);
}

namespace {

// A private mapping of a file with given code.
struct FileFixture : Fixture {
  explicit FileFixture(std::initializer_list<code::Bytes> code) : Fixture(code) {
    char name[] = "/tmp/planner-test-XXXXXX";
    const int fd = mkstemp(name);
    REQUIRE(fd >= 0);
    unlink(name);
    REQUIRE(write(fd, page, 4096) == 4096);
    REQUIRE(mmap(page, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_FIXED, fd, 0) == page);
    close(fd);
  }
  void plant(std::uint64_t offset) { std::ranges::copy(kBreakpoint, static_cast<std::uint8_t*>(page) + offset); }
  Error refused(std::uint64_t offset) {
    auto plan = analyse(offset);
    REQUIRE_FALSE(plan.ok());
    CHECK(plan.error().reason == Reason::existing_breakpoint);
    return plan.error();
  }
};

}  // namespace

TEST_CASE("U7: a breakpoint that is not in the file was left behind; nobody is told to write over it") {
  FileFixture f{code::kOrdinary, kBreakpoint, code::kReturn};
  CHECK(f.refused(code::kOrdinary.size()).hint.find("the program's own") != std::string::npos);
  f.plant(0);
  const Error left = f.refused(0);
  const std::string was = code::kOrdinaryText;
  CHECK(left.message.find("does not have on disk (" + was +
                          " is there): a debugger has put it there, or a probed that was killed") != std::string::npos);
  CHECK(left.hint.find("`probed --recover`") != std::string::npos);
  CHECK(left.hint.find("gdb") == std::string::npos);  // nobody is told to write into a program's text
}

TEST_CASE("K9: the trampoline is refused as what it is even where its start can't be told") {
  Fixture f{code::kBeforeSignalReturn, code::kSignalReturn};
  CHECK(f.refusal(code::kBeforeSignalReturn.size()) == Reason::blacklisted);
}

TEST_CASE("K7: our own breakpoint is seen through to what it hides") {
  Fixture f{kBreakpoint, code::kReturn};
  tracer::Patch hidden;
  hidden.at = RemoteAddr{reinterpret_cast<std::uint64_t>(f.page)};
  hidden.size = static_cast<std::uint8_t>(kBreakpoint.size());
  std::copy_n(code::kOrdinary.begin(), kBreakpoint.size(), hidden.before.begin());
  std::ranges::copy(kBreakpoint, hidden.after.begin());
  f.overlay.add(hidden);
  auto plan = f.analyse(0);
  REQUIRE(plan.ok());
  CHECK(std::ranges::equal(plan->code(), code::kOrdinary));
}

TEST_CASE("U7: instructions that can't be probed are refused, each with its reason") {
  Fixture f{code::kNotProbed};
  CHECK(f.refusal(0) == Reason::unsupported_instruction);
  auto plan = f.analyse(0);
  CHECK(plan.error().message.find("can't be probed: ") != std::string::npos);
}

TEST_CASE("U7: in the middle of instructions that belong together, the first one behind them is named") {
  Fixture f{code::kSequence, code::kReturn};
  for (const std::uint64_t at : code::kInSequence) {
    CAPTURE(at);
    auto plan = f.analyse(at);
    REQUIRE_FALSE(plan.ok());
    CHECK(plan.error().reason == Reason::unsupported_instruction);
    const std::string first = fmt::format(" f+{:#x} ", code::kBehindSequence);
    CHECK_MESSAGE(plan.error().hint.find(first) != std::string::npos, plan.error().hint);
  }
}

TEST_CASE("U7: what is named instead isn't refused itself") {
  Fixture f{{code::kSequence.begin(), code::kSequence.begin() + code::kBehindSequence}, code::kSignalReturn};
  const std::string behind = fmt::format(" f+{:#x} ", code::kBehindSequence + code::kSignalReturn.size());
  for (const std::uint64_t at : code::kInSequence) {
    CAPTURE(at);
    auto plan = f.analyse(at);
    REQUIRE_FALSE(plan.ok());
    CHECK_MESSAGE(plan.error().hint.find(behind) != std::string::npos, plan.error().hint);
  }
}

TEST_CASE("K9: every instruction of the signal return trampoline is refused by name") {
  Fixture f{code::kNop, code::kSignalReturn};
  CHECK(f.analyse(0).ok());
  CHECK(f.refusal(kNopSize) == Reason::blacklisted);
  CHECK(f.refusal(kNopSize + code::kSignalReturnCall) == Reason::blacklisted);
}

TEST_CASE("data, shared text and unmapped addresses are refused") {
  Fixture data{code::kNop};
  mprotect(data.page, 4096, PROT_READ | PROT_WRITE);
  CHECK(data.refusal(0) == Reason::not_executable);
  Fixture shared({code::kNop}, MAP_SHARED);
  CHECK(shared.refusal(0) == Reason::unsupported_target);
  Fixture gone{code::kNop};
  mprotect(gone.page, 4096, PROT_NONE);
  CHECK(gone.refusal(0) == Reason::not_executable);
}
