// Relocated copies of aarch64 instructions, byte by byte. What they do when executed is native_test.cpp's.
#include "arch/aarch64/relocate.hpp"

#include <doctest/doctest.h>

#include <vector>

#include "arch/aarch64/decode.hpp"
#include "arch/aarch64/word.hpp"
#include "tests/arch/aarch64/rows.hpp"
#include "tests/arch/hex.hpp"

namespace probed::arch::aarch64 {
namespace {

using test::copy_rows;
using test::CopyRow;
using test::kOriginal;

RelocateResult move(std::uint32_t word, std::int64_t distance) {
  const auto bytes = word_bytes(word);
  return relocate(bytes, decode(bytes, kOriginal), kOriginal, kOriginal + static_cast<std::uint64_t>(distance));
}

std::vector<std::uint8_t> bytes_of(const CopyRow& row) {
  std::vector<std::uint8_t> bytes;
  for (const test::CopyLine& line : row.copy) {
    const auto word = word_bytes(line.word);
    bytes.insert(bytes.end(), word.begin(), word.end());
  }
  return bytes;
}

void check_points(const CopyRow& row, const Copy& copy) {
  REQUIRE(copy.point_count == row.points.size());
  for (std::size_t i = 0; i < row.points.size(); ++i) {
    const CopyPoint& point = copy.points[i];
    CAPTURE(i);
    CHECK(point.offset == row.points[i].offset);
    CHECK(static_cast<int>(point.meaning) == static_cast<int>(row.points[i].meaning));
    CHECK(point.original_pc == kOriginal + static_cast<std::uint64_t>(row.points[i].original));
    CHECK(point.undo_sp == row.points[i].undo_sp);
    CHECK_FALSE(point.fix_link);
  }
}

constexpr std::int64_t kReach = 1 << 27;

}  // namespace

TEST_CASE("aarch64 copies are the instructions that the table says") {
  for (const CopyRow& row : copy_rows()) {
    CAPTURE(row.original.assembly);
    CAPTURE(row.distance);
    const RelocateResult result = move(row.original.word, row.distance);
    REQUIRE(describe(result.refusal) == describe(Refusal::none));
    CHECK(test::to_hex(std::span(result.copy.code).first(result.copy.size)) == test::to_hex(bytes_of(row)));
    CHECK(result.copy.size <= copy_room(decode(word_bytes(row.original.word), kOriginal)));
    check_points(row, result.copy);
  }
}

TEST_CASE("aarch64 instructions that are refused are not moved") {
  for (const test::InsnRow& row : test::insn_rows()) {
    if (row.refusal == Refusal::none) continue;
    CAPTURE(row.assembly);
    CHECK(describe(move(row.word, 0x1000).refusal) == describe(row.refusal));
  }
}

TEST_CASE("an aarch64 copy that a branch doesn't reach is refused") {
  struct Row {
    std::uint32_t word;
    std::int64_t nearest, farthest;  // distances of copies that still reach
  };
  // The jump of the copy is its second word, and leads behind the original: as far as from original to copy.
  const Row rows[] = {
      {0x9100a820, -kReach + 4, kReach},       // add x0, x1, #42
      {0xd61f0000, -4 * kReach, 4 * kReach},   // br x0
      {0x14000001, -kReach + 8, kReach + 4},   // b . + 4
      {0x15ffffff, 0, 2 * kReach - 4},         // b . + 134217724
      {0xb4ffffe0, -kReach + 4, kReach - 12},  // cbz x0, . - 4: its last word leads in front of the original
  };
  for (const Row& row : rows) {
    CAPTURE(row.word);
    CHECK(describe(move(row.word, row.nearest).refusal) == describe(Refusal::none));
    CHECK(describe(move(row.word, row.farthest).refusal) == describe(Refusal::none));
    if (row.farthest == 4 * kReach) continue;
    CHECK(describe(move(row.word, row.nearest - 4).refusal) == describe(Refusal::out_of_range));
    CHECK(describe(move(row.word, row.farthest + 4).refusal) == describe(Refusal::out_of_range));
  }
}

TEST_CASE("an aarch64 call that needs x30 after it was written is left to the emulator") {
  for (const std::uint32_t word : {0xd63f03c0u, 0xd63f0fdfu, 0xd73f08beu}) {  // blr x30; blrabz x30; blraa x5, x30
    CAPTURE(word);
    CHECK(describe(move(word, 0x1000).refusal) == describe(Refusal::unsupported));
  }
}

TEST_CASE("data of an aarch64 copy are aligned wherever it lies") {
  for (const std::int64_t distance : {0x1000, 0x1004}) {
    const RelocateResult result = move(0xb0000003, distance);  // adrp x3, . + 4096
    REQUIRE(describe(result.refusal) == describe(Refusal::none));
    const std::uint64_t data = kOriginal + static_cast<std::uint64_t>(distance) + result.copy.size - 8;
    CHECK(data % 8 == 0);
    CHECK(load_word(std::span(result.copy.code).subspan(result.copy.size - 8u)) == kOriginal + 0x1000);
  }
}

}  // namespace probed::arch::aarch64
