// Where a breakpoint is after the program has moved its code, on pages of this test's own process.
#include "daemon/tracer/text/layout.hpp"

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "code.hpp"
#include "proto/base/fd.hpp"

using namespace probed;
using namespace probed::tracer;

namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kAt = 0x230;
constexpr std::size_t kBehind = kAt + arch::native::kBreakpointSize;  // the breakpoint
const code::Bytes& kCode = code::kSixteen;

// A page with kCode at kAt, its breakpoint planted; from a memfd or from no file.
struct Page {
  explicit Page(bool from_file) : fd(from_file ? memfd_create("layout", 0) : -1) {
    if (from_file) REQUIRE(ftruncate(fd.get(), kPage) == 0);
    const int flags = MAP_PRIVATE | (from_file ? 0 : MAP_ANONYMOUS);
    at = static_cast<std::uint8_t*>(mmap(nullptr, kPage, PROT_READ | PROT_WRITE | PROT_EXEC, flags, fd.get(), 0));
    std::memcpy(at + kAt, kCode.data(), kCode.size());
    plan.address = address();
    plan.insn.length = code::kFirstLength;
    std::ranges::copy(kCode, plan.bytes.begin());
    plan.context = static_cast<std::uint8_t>(kCode.size());
    plan.backing = layout().at(plan.address)->backing(plan.address);
    plant(kAt);
  }
  ~Page() { munmap(at, kPage); }
  static Layout layout() { return Layout::of(TargetMemory::open(getpid())); }
  RemoteAddr address() const { return {reinterpret_cast<std::uint64_t>(at) + kAt}; }
  void plant(std::size_t offset) { std::ranges::copy(arch::native::kBreakpoint, at + offset); }
  void move(int flags = 0) {
    void* to = mmap(nullptr, kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    at = static_cast<std::uint8_t*>(mremap(at, kPage, kPage, MREMAP_MAYMOVE | MREMAP_FIXED | flags, to));
    REQUIRE(at == to);
  }
  std::vector<Stray> strays() {
    const Imprint imprints[] = {{&plan, {}, {}}};
    return find_strays(TargetMemory::open(getpid()), layout(), imprints, [](RemoteAddr) { return false; });
  }

  UniqueFd fd;
  std::uint8_t* at;
  SitePlan plan;
};

}  // namespace

TEST_CASE("U6: a breakpoint in its own place is no stray, and its place is held") {
  for (const bool from_file : {true, false}) {
    Page page(from_file);
    CHECK(Page::layout().holds(page.plan));
    CHECK(holds_breakpoint(TargetMemory::open(getpid()), page.plan));
    CHECK(page.strays().empty());
  }
}

TEST_CASE("U6: a breakpoint that mremap took along is found where it is now") {
  for (const bool from_file : {true, false}) {
    CAPTURE(from_file);
    Page page(from_file);
    page.move();
    CHECK(!Page::layout().holds(page.plan));
    const auto strays = page.strays();
    REQUIRE(strays.size() == 1);
    CHECK(strays[0].plan.address == page.address());
    CHECK(strays[0].from == page.plan.address);
  }
}

TEST_CASE("U6: moved code of a file is found though it isn't executable now; other breakpoints in it don't hide it") {
  Page page(true);
  page.plant(kAt + code::kAnotherAt);
  page.move();
  REQUIRE(mprotect(page.at, kPage, PROT_READ) == 0);
  CHECK(page.strays().size() == 1);
}

// In a file's code its place tells most, and what is left of the instruction: nothing, where the breakpoint is as long.
TEST_CASE("U6: a breakpoint of the program's own, in other code at the same distance from its page, is left alone") {
  for (const bool from_file : {true, false}) {
    Page page(from_file);
    page.move();
    std::memset(page.at + kBehind, 0x90, kAt + kCode.size() - kBehind);
    CHECK(page.strays().size() == (from_file && code::kFirstLength == arch::native::kBreakpointSize));
  }
}

TEST_CASE("U6: memory of no file that was mapped anew with other code and a breakpoint doesn't hold our breakpoint") {
  Page page(false);
  std::memset(page.at + kBehind, 0xee, kAt + kCode.size() - kBehind);
  CHECK(Page::layout().holds(page.plan));
  CHECK(!holds_breakpoint(TargetMemory::open(getpid()), page.plan));
}

// None is behind the breakpoint where that is as long as an instruction.
TEST_CASE("U6: a rewritten operand doesn't hide our breakpoint") {
  for (const bool from_file : {true, false}) {
    Page page(from_file);
    std::memset(page.at + kBehind, 0x77, kAt + code::kFirstLength - kBehind);
    CHECK(holds_breakpoint(TargetMemory::open(getpid()), page.plan));
  }
}

TEST_CASE("U2: a place that is shared with other processes now is not the private one it was") {
  Page page(true);
  mmap(page.at, kPage, PROT_READ, MAP_SHARED | MAP_FIXED, page.fd.get(), 0);
  CHECK(!Page::layout().holds(page.plan));
}

TEST_CASE("U6: what can't be known counts as unchanged") {
  Page page(true);
  const SitePlan plan = page.plan;
  CHECK(Layout::unknown().holds(plan));
}
