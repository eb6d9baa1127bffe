// Walks over bytes that a stranger wrote: whoever reads past the end gets zeros, and good() is false from then on.
//
// Pure. The bytes outlive the cursor. Little-endian, as the machines we run on.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace probed::dwarf {

using Bytes = std::span<const std::byte>;

class Cursor {
 public:
  explicit Cursor(Bytes bytes, std::uint64_t at = 0) : bytes_(bytes) { seek(at); }

  bool good() const { return good_; }
  void fail() { good_ = false; }
  std::uint64_t at() const { return at_; }
  std::uint64_t left() const { return good_ ? bytes_.size() - at_ : 0; }
  void seek(std::uint64_t to) {
    good_ = good_ && to <= bytes_.size();
    if (good_) at_ = to;
  }
  void skip(std::uint64_t n) {
    good_ = good_ && n <= bytes_.size() - at_;
    if (good_) at_ += n;
  }

  template <class T>
  T take() {
    T value{};
    good_ = good_ && sizeof value <= bytes_.size() - at_;
    if (!good_) return value;
    std::memcpy(&value, bytes_.data() + at_, sizeof value);
    at_ += sizeof value;
    return value;
  }
  // An unsigned number of 1 to 8 bytes.
  std::uint64_t number(unsigned size) {
    std::uint64_t value = 0;
    good_ = good_ && size <= sizeof value && size <= bytes_.size() - at_;
    if (!good_) return 0;
    std::memcpy(&value, bytes_.data() + at_, size);
    at_ += size;
    return value;
  }
  std::uint64_t uleb() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; good_; shift += 7) {
      const auto byte = take<std::uint8_t>();
      if (shift < 64) value |= std::uint64_t{byte & 0x7fu} << shift;
      if (!(byte & 0x80)) return value;
      if (shift > 140) fail();  // nobody pads a number so far
    }
    return 0;
  }
  std::int64_t sleb() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; good_; shift += 7) {
      const auto byte = take<std::uint8_t>();
      if (shift < 64) value |= std::uint64_t{byte & 0x7fu} << shift;
      if (!(byte & 0x80)) {
        if ((byte & 0x40) && shift + 7 < 64) value |= ~0ull << (shift + 7);
        return static_cast<std::int64_t>(value);
      }
      if (shift > 140) fail();
    }
    return 0;
  }
  Bytes block(std::uint64_t size) {
    good_ = good_ && size <= bytes_.size() - at_;
    if (!good_) return {};
    const Bytes taken = bytes_.subspan(at_, size);
    at_ += size;
    return taken;
  }
  // Up to a zero byte, which is walked over.
  std::string_view string() {
    if (!good_ || at_ == bytes_.size()) return fail(), std::string_view();  // an empty span has no address
    const auto* start = reinterpret_cast<const char*>(bytes_.data()) + at_;
    const auto* end = static_cast<const char*>(std::memchr(start, 0, bytes_.size() - at_));
    if (end == nullptr) return fail(), std::string_view();
    at_ += static_cast<std::uint64_t>(end - start) + 1;
    return {start, static_cast<std::size_t>(end - start)};
  }

 private:
  Bytes bytes_;
  std::uint64_t at_ = 0;
  bool good_ = true;
};

// The text at an offset of a string section; empty when there is none.
inline std::string_view string_at(Bytes section, std::uint64_t offset) { return Cursor(section, offset).string(); }

}  // namespace probed::dwarf
