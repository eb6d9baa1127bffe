// Numbers as text, against std::to_chars.
#include "daemon/events/digits.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace probed::events {
namespace {

template <class Number, class Put>
std::string text(Number value, Put&& put) {
  std::array<char, 2 * kLongestDigits> room;
  room.fill('#');
  char* const end = put(room.data(), value);
  REQUIRE(std::ranges::all_of(room.begin() + kLongestDigits, room.end(), [](char c) { return c == '#'; }));
  return {room.data(), end};
}

template <class Number>
std::string expected(Number value, int base) {
  std::array<char, 80> room;
  return {room.data(), std::to_chars(room.begin(), room.end(), value, base).ptr};
}

// Around every power of ten and two, the ends, and numbers of every length.
std::vector<std::uint64_t> numbers() {
  std::vector<std::uint64_t> all{0, UINT64_MAX, UINT64_MAX / 2, UINT64_MAX / 2 + 1};
  const auto around = [&](std::uint64_t value) {
    for (const std::uint64_t n : {value - 1, value, value + 1}) all.push_back(n);
  };
  for (std::uint64_t ten = 1; ten <= UINT64_MAX / 10; ten *= 10) around(ten), around(10 * ten);
  for (int bit = 0; bit < 64; ++bit) around(1ull << bit);
  std::mt19937_64 random(20261125);
  for (int i = 0; i < 10'000; ++i) all.push_back(random() >> i % 64);
  return all;
}

}  // namespace

TEST_CASE("decimal and hexadecimal numbers are written as std::to_chars writes them") {
  const auto decimal = [](char* at, auto value) { return put_number(at, value); };
  for (const std::uint64_t number : numbers()) {
    REQUIRE(text(number, decimal) == expected(number, 10));
    REQUIRE(text(static_cast<std::int64_t>(number), decimal) == expected(static_cast<std::int64_t>(number), 10));
    REQUIRE(text(number, put_hexadecimal) == expected(number, 16));
  }
}

TEST_CASE("the last eight digits keep their zeros") {
  for (const std::uint64_t number : numbers()) {
    const std::string all = "0000000" + expected(number, 10);
    REQUIRE(text(number % 100'000'000, put_8_digits) == all.substr(all.size() - 8));
  }
}

}  // namespace probed::events
