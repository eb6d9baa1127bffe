// Word-level assembling for the relocator.
#include "arch/aarch64/copy_writer.hpp"

#include <algorithm>

#include "arch/aarch64/word.hpp"
#include "proto/base/check.hpp"

namespace probed::arch::aarch64 {
namespace {

constexpr std::uint64_t kBranchReach = 1ULL << 27;
constexpr std::uint32_t kBranch = 0x14000000, kLoadLiteral = 0x58000000;
constexpr unsigned kWordSize = 8;

void store_word(std::uint8_t* to, std::uint32_t word) { std::ranges::copy(word_bytes(word), to); }

}  // namespace

std::uint32_t branch_between(std::uint64_t from, std::uint64_t to) {
  const std::uint64_t distance = to - from;
  if (distance + kBranchReach >= 2 * kBranchReach || distance % kInsnSize != 0) return 0;
  return kBranch | field(static_cast<std::uint32_t>(distance), 2, 26);
}

void CopyWriter::word(std::uint32_t insn) {
  PROBED_CHECK(copy_.size + kInsnSize <= kMaxCopySize, "every copy fits kMaxCopySize");
  store_word(copy_.code.data() + copy_.size, insn);
  copy_.size += kInsnSize;
}

void CopyWriter::load(unsigned reg, std::uint64_t value) {
  PROBED_CHECK(word_count_ < words_.size(), "no copy loads more than two words");
  words_[word_count_++] = {copy_.size, value};
  word(kLoadLiteral | reg);
}

void CopyWriter::jump(std::uint64_t target) {
  const std::uint32_t insn = branch_between(here(), target);
  out_of_reach_ |= insn == 0;
  word(insn);
}

void CopyWriter::point(const CopyPoint& point) {
  PROBED_CHECK(copy_.point_count < copy_.points.size(), "no copy has more than six boundaries");
  CopyPoint& slot = copy_.points[copy_.point_count++];
  slot = point;
  slot.offset = copy_.size;
}

Copy CopyWriter::finish() {
  if (word_count_ != 0 && here() % kWordSize != 0) word(0);  // udf, never executed
  for (const Word& data : std::span(words_).first(word_count_)) {
    const auto insns = static_cast<std::uint32_t>(copy_.size - data.load_at) / std::uint32_t{kInsnSize};
    std::uint8_t* const insn = copy_.code.data() + data.load_at;
    store_word(insn, load_word(std::span(insn, kInsnSize)) | insns << 5);
    word(static_cast<std::uint32_t>(data.value));
    word(static_cast<std::uint32_t>(data.value >> 32));
  }
  return copy_;
}

}  // namespace probed::arch::aarch64
