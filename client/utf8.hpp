// UTF-8, as far as the client needs it: take one character from bytes that may be anything, and write one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace probed::client::utf8 {

inline constexpr std::uint32_t kReplacement = 0xfffd;

struct Character {
  std::uint32_t code = 0;
  std::size_t length = 1;  // bytes; 1 when not valid
  bool valid = false;
};

// The first character of `bytes` (not empty). Overlong forms, surrogates and anything above U+10FFFF are not valid.
Character decode(std::string_view bytes);

void append(std::string& out, std::uint32_t code);

}  // namespace probed::client::utf8
