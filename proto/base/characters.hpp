// Characters of names, without a locale.
#pragma once

namespace probed {

constexpr bool is_digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace probed
