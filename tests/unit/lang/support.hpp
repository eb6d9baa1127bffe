// What the tests of the language and the data path share: a target that is only a table of bytes.
#pragma once

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "daemon/events/fetch.hpp"
#include "daemon/events/record.hpp"
#include "daemon/lang/definition.hpp"
#include "daemon/values/packed.hpp"

namespace probed::test {

// Readable bytes by address; everything else is unmapped.
class FakeMemory : public events::MemoryReader {
 public:
  void put(std::uint64_t at, const void* bytes, std::size_t size) {
    for (std::size_t i = 0; i < size; ++i) bytes_[at + i] = static_cast<const std::byte*>(bytes)[i];
  }
  template <class T>
  void put_value(std::uint64_t at, T value) {
    put(at, &value, sizeof value);
  }
  void put_string(std::uint64_t at, std::string_view text) {
    put(at, text.data(), text.size());
    put_value(at + text.size(), '\0');
  }

  bool read(RemoteAddr from, std::span<std::byte> to) override {
    ++reads;
    for (std::size_t i = 0; i < to.size(); ++i) {
      const auto found = bytes_.find(from.value + i);
      if (found == bytes_.end()) return false;
      to[i] = found->second;
    }
    return true;
  }
  std::ptrdiff_t read_string(RemoteAddr from, std::span<std::byte> to) override {
    for (std::size_t i = 0; i < to.size(); ++i) {
      const auto found = bytes_.find(from.value + i);
      if (found == bytes_.end()) return -1;
      if (found->second == std::byte{0}) return static_cast<std::ptrdiff_t>(i);
      to[i] = found->second;
    }
    return static_cast<std::ptrdiff_t>(to.size());
  }

  int reads = 0;

 private:
  std::map<std::uint64_t, std::byte> bytes_;
};

using Registers = arch::native::Registers;

inline void set_argument(Registers& regs, unsigned number, std::uint64_t value) {
  std::memcpy(reinterpret_cast<std::byte*>(&regs) + arch::native::argument_place(number).offset, &value, sizeof value);
}

// The first argument's register by name, whichever architecture this is.
inline std::string first_register() { return arch::native::register_offset("di") ? "%di" : "%x0"; }

inline std::vector<lang::FetchArg> parse_args(const std::string& text, bool is_return = false) {
  auto parsed = lang::parse_definition((is_return ? "r:t/e f " : "p:t/e f ") + text);
  if (!parsed) return {};
  return parsed->args;
}

// ---- packed values ----

class Packed {
 public:
  Packed& null() { return byte(0); }
  Packed& number(std::uint64_t value) { return byte(1).raw(&value, sizeof value); }
  Packed& text(std::string_view text) {
    const auto length = static_cast<std::uint16_t>(text.size());
    return byte(1).raw(&length, sizeof length).raw(text.data(), text.size());
  }
  Packed& array(std::uint16_t count) { return byte(1).raw(&count, sizeof count); }

  operator std::span<const std::byte>() const { return bytes_; }
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  Packed& byte(unsigned value) {
    bytes_.push_back(static_cast<std::byte>(value));
    return *this;
  }
  Packed& raw(const void* from, std::size_t size) {
    const auto* bytes = static_cast<const std::byte*>(from);
    bytes_.insert(bytes_.end(), bytes, bytes + size);
    return *this;
  }

  std::vector<std::byte> bytes_;
};

}  // namespace probed::test
