// TextLedger on this process's own memory: the text, and what journal and overlay say of it, step by step.
#include "daemon/tracer/text/ledger.hpp"

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "daemon/base/process.hpp"
#include "daemon/tracer/text/edits.hpp"
#include "daemon/tracer/text/text_pages.hpp"

namespace probed::tracer {
namespace {

constexpr std::size_t kPage = 4096, kSite = 16, kJump = 5;
constexpr unsigned char kNop = 0x90, kTrap = 0xcc;

// A page of nops, a directory with a journal, and a ledger.
class Text {
 public:
  Text() {
    void* const at = ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(at != MAP_FAILED);
    bytes = static_cast<unsigned char*>(at);
    std::memset(bytes, kNop, kPage);
    REQUIRE(::mprotect(bytes, kPage, PROT_READ | PROT_EXEC) == 0);
    REQUIRE(::mkdtemp(directory.data()));
    const auto id = process::target_id(::getpid());
    REQUIRE(id);
    ledger.keep_journal(Journal::create(directory, *id));
    REQUIRE(ledger.journal());
  }
  ~Text() {
    ledger.drop_journal();
    std::filesystem::remove_all(directory);
    ::munmap(bytes, kPage);
  }

  RemoteAddr at(std::size_t offset) const { return {reinterpret_cast<std::uint64_t>(bytes) + offset}; }
  SitePlan plan(std::size_t offset) const {
    SitePlan made;
    made.address = at(offset);
    made.insn.length = 1;
    made.bytes.fill(kNop);
    made.context = 8;
    return made;
  }
  Jump jump(std::size_t offset) const {
    Jump made;
    made.head = {at(offset), kJump, {}, {0xe9, 1, 2, 3, 4}};
    made.head.before.fill(kNop);
    return made;
  }
  // The program's own code there, by what the overlay makes of the text.
  bool reads_as_nops() const {
    const TextOverlay::Reading reading(*ledger.overlay());
    std::vector<std::uint8_t> seen(bytes, bytes + kPage);
    reading.undo(seen, at(0));
    return std::ranges::all_of(seen, [](std::uint8_t byte) { return byte == kNop; });
  }
  std::string code(std::size_t offset) const { return {reinterpret_cast<const char*>(bytes) + offset, kJump}; }
  std::optional<JournalRecord> record(JournalRecord::Kind kind) const {
    const auto found = find_journals(directory);
    REQUIRE(found.size() == 1);
    const auto record = std::ranges::find(found[0].records, kind, &JournalRecord::kind);
    return record == found[0].records.end() ? std::nullopt : std::optional(*record);
  }
  bool said_to_stand() const {
    const auto breakpoint = record(JournalRecord::Kind::breakpoint);
    return breakpoint && breakpoint->in_text;
  }
  std::vector<symbols::Mapping> maps() const {
    auto maps = symbols::read_maps(::getpid());
    REQUIRE(maps);
    return *maps;
  }

  unsigned char* bytes = nullptr;
  std::string directory = "/tmp/probed-ledger-XXXXXX";
  TargetMemory memory = TargetMemory::open(::getpid());
  TextLedger ledger{memory};
};

}  // namespace

TEST_CASE("ledger: a breakpoint is known while it stands, and remembered afterwards") {
  Text text;
  const SitePlan plan = text.plan(kSite);
  CHECK(!text.ledger.ever_held(plan.address));
  REQUIRE(text.ledger.put_breakpoint(plan));
  CHECK(text.bytes[kSite] == kTrap);
  CHECK(text.said_to_stand());
  CHECK(text.reads_as_nops());
  CHECK(text.ledger.take_out_breakpoint(plan, Layout::unknown()));
  text.ledger.note_former(plan);
  CHECK(text.bytes[kSite] == kNop);
  CHECK(!text.said_to_stand());
  CHECK(text.ledger.overlay()->size() == 0);
  CHECK(text.ledger.ever_held(plan.address));
  CHECK(text.ledger.former().contains(plan.address));
}

TEST_CASE("ledger: what the program has written over a breakpoint stays") {
  Text text;
  const SitePlan plan = text.plan(kSite);
  REQUIRE(text.ledger.put_breakpoint(plan));
  const std::byte other{0x55};
  REQUIRE(text.memory.write(plan.address, std::span(&other, 1)));
  CHECK(!text.ledger.take_out_breakpoint(plan, Layout::unknown()));
  CHECK(text.bytes[kSite] == 0x55);
  CHECK(!text.said_to_stand());
}

TEST_CASE("ledger: while pages are gathered, what is taken out is known until it has gone") {
  Text text;
  const SitePlan plan = text.plan(kSite);
  REQUIRE(text.ledger.put_breakpoint(plan));
  {
    TextPages pages(text.memory, text.maps());
    REQUIRE(text.ledger.take_out_breakpoint(plan, Layout::unknown()));
    text.ledger.settle();
    CHECK(text.bytes[kSite] == kTrap);
    CHECK(text.said_to_stand());
    CHECK(text.reads_as_nops());
    CHECK_FALSE(pages.flush());
  }
  CHECK(text.bytes[kSite] == kNop);
  text.ledger.settle();
  CHECK(!text.said_to_stand());
  CHECK(text.ledger.overlay()->size() == 0);
}

TEST_CASE("ledger: a breakpoint that goes and comes while pages are gathered stands") {
  Text text;
  const SitePlan plan = text.plan(kSite);
  REQUIRE(text.ledger.put_breakpoint(plan));
  {
    TextPages pages(text.memory, text.maps());
    REQUIRE(text.ledger.take_out_breakpoint(plan, Layout::unknown()));
    REQUIRE(text.ledger.put_breakpoint(plan));
    CHECK_FALSE(pages.flush());
  }
  text.ledger.settle();
  CHECK(text.bytes[kSite] == kTrap);
  CHECK(text.said_to_stand());
  CHECK(text.reads_as_nops());
}

TEST_CASE("ledger: a jump is announced, then written behind its breakpoint, its head last") {
  Text text;
  const SitePlan plan = text.plan(kSite);
  Jump jump = text.jump(kSite);
  REQUIRE(text.ledger.put_breakpoint(plan));
  REQUIRE(text.ledger.announce_jump(plan, jump));
  CHECK(text.record(JournalRecord::Kind::patch));
  CHECK(text.code(kSite) == "\xcc\x90\x90\x90\x90");
  REQUIRE(text.ledger.write_island(plan, jump));
  jump.state = Jump::State::tail;
  REQUIRE(text.ledger.write_tail(jump));
  CHECK(text.code(kSite) == "\xcc\x01\x02\x03\x04");
  CHECK(text.reads_as_nops());
  REQUIRE(text.ledger.write_head(plan, jump));
  jump.state = Jump::State::whole;
  CHECK(text.code(kSite) == "\xe9\x01\x02\x03\x04");
  CHECK(text.reads_as_nops());
  CHECK(take_out_jump(text.memory, jump.head, true, true));
  CHECK(text.code(kSite) == "\xcc\x90\x90\x90\x90");
  text.ledger.forget_jump(plan, jump, plan.address);
  CHECK(text.reads_as_nops());
  REQUIRE(text.ledger.former().contains(plan.address));
  CHECK(text.ledger.former().at(plan.address).patches.size() == 1);
  CHECK(text.ledger.take_out_breakpoint(plan, Layout::unknown()));
  CHECK(text.ledger.overlay()->size() == 0);
}

TEST_CASE("ledger: a jump is neither announced nor finished where the program has written") {
  Text text;
  const SitePlan plan = text.plan(kSite);
  const Jump jump = text.jump(kSite);
  const std::byte other{0x55};
  REQUIRE(text.ledger.put_breakpoint(plan));
  REQUIRE(text.memory.write(text.at(kSite + 2), std::span(&other, 1)));
  CHECK(!text.ledger.announce_jump(plan, jump));
  const std::byte nop{kNop};
  REQUIRE(text.memory.write(text.at(kSite + 2), std::span(&nop, 1)));
  REQUIRE(text.ledger.announce_jump(plan, jump));
  REQUIRE(text.ledger.write_tail(jump));
  REQUIRE(text.memory.write(text.at(kSite + 2), std::span(&other, 1)));
  CHECK(!text.ledger.write_head(plan, jump));
  CHECK(text.code(kSite) == "\xcc\x01\x55\x03\x04");
}

TEST_CASE("ledger: an island is written before the jump that leads there, and outlives it") {
  Text text;
  const SitePlan plan = text.plan(kSite);
  Jump jump = text.jump(kSite);
  jump.island = Patch{text.at(200), kJump, {}, {0xe9, 5, 6, 7, 8}};
  jump.island->before.fill(kNop);
  REQUIRE(text.ledger.put_breakpoint(plan));
  REQUIRE(text.ledger.announce_jump(plan, jump));
  REQUIRE(text.ledger.write_island(plan, jump));
  CHECK(text.code(200) == "\xe9\x05\x06\x07\x08");
  CHECK(text.reads_as_nops());
  jump.state = Jump::State::tail;
  text.ledger.forget_jump(plan, jump, plan.address);
  CHECK(text.reads_as_nops());
  text.ledger.take_out_island(*jump.island);
  CHECK(text.code(200) == "\x90\x90\x90\x90\x90");
}

}  // namespace probed::tracer
