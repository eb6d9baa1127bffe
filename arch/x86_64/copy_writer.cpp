// Byte-level assembling for the relocator.
#include "arch/x86_64/copy_writer.hpp"

#include <cstring>

#include "proto/base/check.hpp"

namespace probed::arch::x86_64 {
namespace {

constexpr std::size_t kNearJumpSize = 5;
constexpr std::size_t kFarJumpSize = 6;

// x86's byte order, whatever the host's.
template <typename T>
void store(std::uint8_t* to, T value) {
  for (std::size_t i = 0; i < sizeof value; ++i) to[i] = static_cast<std::uint8_t>(value >> (8 * i));
}

}  // namespace

std::optional<std::int32_t> displacement(std::uint64_t end, std::uint64_t to) {
  const auto distance = static_cast<std::int64_t>(to - end);
  const auto narrow = static_cast<std::int32_t>(distance);
  if (narrow != distance) return std::nullopt;
  return narrow;
}

void CopyWriter::bytes(std::span<const std::uint8_t> data) {
  PROBED_CHECK(copy_.size + data.size() <= kMaxCopySize, "every copy fits kMaxCopySize");
  std::memcpy(copy_.code.data() + copy_.size, data.data(), data.size());
  copy_.size = static_cast<std::uint8_t>(copy_.size + data.size());
}

void CopyWriter::dword(std::uint32_t value) {
  std::uint8_t raw[4];
  store(raw, value);
  bytes(raw);
}

void CopyWriter::qword(std::uint64_t value) {
  std::uint8_t raw[8];
  store(raw, value);
  bytes(raw);
}

void CopyWriter::point(const CopyPoint& point) {
  PROBED_CHECK(copy_.point_count < copy_.points.size(), "no copy has more than six boundaries");
  CopyPoint& slot = copy_.points[copy_.point_count++];
  slot = point;
  slot.offset = copy_.size;
}

void CopyWriter::with_word(std::initializer_list<std::uint8_t> opcode, std::uint64_t value) {
  PROBED_CHECK(word_count_ < words_.size(), "no copy needs more than three words");
  bytes(opcode);
  words_[word_count_++] = {copy_.size, value};
  dword(0);
}

void CopyWriter::jump(std::uint64_t target) {
  if (const auto near = displacement(here() + kNearJumpSize, target)) {
    bytes({0xe9});
    dword(static_cast<std::uint32_t>(*near));
    return;
  }
  with_word({0xff, 0x25}, target);  // jmp [rip+disp32]
}

std::size_t CopyWriter::jump_size(std::size_t offset, std::uint64_t target) const {
  return displacement(base_ + offset + kNearJumpSize, target) ? kNearJumpSize : kFarJumpSize;
}

Copy CopyWriter::finish() {
  if (word_count_ != 0)
    while (here() % 8 != 0) bytes({0xcc});  // never executed
  for (std::size_t i = 0; i < word_count_; ++i) {
    const Word& word = words_[i];
    store(copy_.code.data() + word.displacement_at,
          static_cast<std::uint32_t>(copy_.size - (word.displacement_at + 4u)));
    qword(word.value);
  }
  return copy_;
}

}  // namespace probed::arch::x86_64
