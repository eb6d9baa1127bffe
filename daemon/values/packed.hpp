// Walking packed arguments. Bounds-checked: a cut-off record reads as nulls.
//
// The layout: the arguments in the order of the fetch program's, without padding.
//   status: u8      0 = unreadable (null), 1 = present
//   integer types, symbol:  8 bytes, sign- or zero-extended to 64 bits   (absent when status is 0)
//   string types:           u16 length, then that many bytes, no terminator
//   arrays:                 u16 count, then each element packed as above (with its own status)
//
// Pure; no allocation. Used by filters on the tracer thread and by the encoder on the Asio thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include "daemon/values/type.hpp"

namespace probed::values {

class PackedReader {
 public:
  explicit PackedReader(std::span<const std::byte> packed) : rest_(packed) {}

  // The status byte. False: null, nothing follows.
  bool present() { return get<std::uint8_t>() != 0; }
  std::uint64_t value() { return get<std::uint64_t>(); }
  std::uint16_t count() { return get<std::uint16_t>(); }
  std::string_view string() {
    const std::size_t length = std::min<std::size_t>(get<std::uint16_t>(), rest_.size());
    const std::string_view text(reinterpret_cast<const char*>(rest_.data()), length);
    rest_ = rest_.subspan(length);
    return text;
  }

  void skip(const Type& type) {
    if (!present()) return;
    if (!type.array) return skip_element(type);
    for (std::uint16_t n = count(); n > 0 && !rest_.empty(); --n)
      if (present()) skip_element(type);
  }

  std::span<const std::byte> rest() const { return rest_; }

 private:
  template <class T>
  T get() {
    T value{};
    if (rest_.size() < sizeof value) return rest_ = {}, value;
    std::memcpy(&value, rest_.data(), sizeof value);
    rest_ = rest_.subspan(sizeof value);
    return value;
  }
  void skip_element(const Type& type) {
    if (is_string(type.base))
      string();
    else
      value();
  }

  std::span<const std::byte> rest_;
};

}  // namespace probed::values
