// Walking packed arguments (the layout is in record.hpp). Bounds-checked: a cut-off record reads as nulls.
//
// Pure; no allocation. Used by filters on the tracer thread and by the encoder on the Asio thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include "daemon/lang/definition.hpp"

namespace probed::events {

constexpr bool is_string(lang::BaseType type) {
  return type == lang::BaseType::string || type == lang::BaseType::ustring;
}
// Printed as a signed number: s8 to s64.
constexpr bool is_signed(lang::BaseType type) { return type >= lang::BaseType::s8 && type <= lang::BaseType::s64; }
constexpr bool is_hexadecimal(lang::BaseType type) { return type >= lang::BaseType::x8 && type <= lang::BaseType::x64; }
constexpr bool is_floating(lang::BaseType type) { return type == lang::BaseType::f32 || type == lang::BaseType::f64; }
// Bytes a value of this type takes in the target's memory; strings have none.
constexpr std::uint8_t size_of(lang::BaseType type) {
  using lang::BaseType;
  switch (type) {
    case BaseType::u8:
    case BaseType::s8:
    case BaseType::x8:
    case BaseType::boolean:
    case BaseType::chr: return 1;
    case BaseType::u16:
    case BaseType::s16:
    case BaseType::x16: return 2;
    case BaseType::u32:
    case BaseType::s32:
    case BaseType::f32:
    case BaseType::x32: return 4;
    default: return 8;
  }
}

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

  void skip(const lang::Type& type) {
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
  void skip_element(const lang::Type& type) {
    if (is_string(type.base))
      string();
    else
      value();
  }

  std::span<const std::byte> rest_;
};

}  // namespace probed::events
