#include "daemon/base/memory_share.hpp"

#include <doctest/doctest.h>

#include <vector>

namespace probed {

TEST_CASE("a share has as much as it may have, for all objects together, and gets back what they give") {
  const auto share = std::make_shared<MemoryShare>(100);
  MemoryCharge outlives;
  {
    const MemoryShare::Use use(share);
    MemoryCharge one, two;
    CHECK(one.grow(60));
    CHECK_FALSE(MemoryShare::refused());
    CHECK_FALSE(two.grow(41));
    CHECK(MemoryShare::refused());
    CHECK(two.grow(40));
    one.shrink(10);
    CHECK(share->used() == 90);
    two.reset();
    CHECK(share->used() == 50);
    outlives = std::move(one);
  }
  CHECK(share->used() == 50);
  CHECK_FALSE(MemoryShare::refused());
  // Whoever is worked for now, this object's account stays.
  CHECK(outlives.grow(50));
  CHECK_FALSE(outlives.grow(1));
  outlives.reset();
  CHECK(share->used() == 0);
}

TEST_CASE("without a share there is no bound") {
  const MemoryShare::Use use(nullptr);
  MemoryCharge charge;
  CHECK(charge.grow(~std::size_t{0} / 2));
  CHECK_FALSE(MemoryShare::refused());
}

TEST_CASE("a vector that has no room left for a larger copy of itself stays as it is") {
  const auto share = std::make_shared<MemoryShare>(16 * sizeof(int) + 32 * sizeof(int));
  const MemoryShare::Use use(share);
  MemoryCharge charge;
  std::vector<int> numbers;
  while (make_room(numbers, charge)) numbers.push_back(static_cast<int>(numbers.size()));
  CHECK(numbers.size() == 32);
  CHECK(numbers.back() == 31);
  CHECK(share->used() == 32 * sizeof(int));
  CHECK(MemoryShare::refused());
}

}  // namespace probed
