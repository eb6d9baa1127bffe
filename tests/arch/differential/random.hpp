// A small fast generator (xoshiro256**, Blackman and Vigna), because the million-case run draws billions of numbers.
// Deterministic from the seed. One owner.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

namespace probed::test {

class Random {
 public:
  explicit Random(std::uint64_t seed) {
    for (std::uint64_t& word : state_) {  // splitmix64
      seed += 0x9e3779b97f4a7c15;
      std::uint64_t z = seed;
      z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
      z = (z ^ z >> 27) * 0x94d049bb133111eb;
      word = z ^ z >> 31;
    }
  }

  std::uint64_t word() {
    const std::uint64_t result = std::rotl(state_[1] * 5, 7) * 9;
    const std::uint64_t t = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= t;
    state_[3] = std::rotl(state_[3], 45);
    return result;
  }
  std::uint64_t below(std::uint64_t limit) { return word() % limit; }
  bool chance(unsigned percent) { return below(100) < percent; }
  std::uint8_t byte() { return static_cast<std::uint8_t>(word()); }
  template <typename T, std::size_t n>
  const T& pick(const T (&from)[n]) {
    return from[below(n)];
  }
  template <typename Container>
  const auto& pick(const Container& from) {
    return from[below(from.size())];
  }

 private:
  std::array<std::uint64_t, 4> state_{};
};

}  // namespace probed::test
