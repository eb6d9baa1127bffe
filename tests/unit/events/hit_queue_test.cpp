// The hit queue: order, fullness, wrapping, waking; and two threads at it.
#include "daemon/events/hit_queue.hpp"

#include <doctest/doctest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cstring>
#include <thread>
#include <vector>

namespace probed::events {
namespace {

RecordHeader header(std::uint64_t time) {
  RecordHeader h;
  h.time = time;
  h.pid = 7;
  return h;
}

// Record n has n % 700 bytes, all of them derived from n.
std::vector<std::byte> payload(std::uint64_t n) {
  return std::vector<std::byte>(n % 700, static_cast<std::byte>(n * 37));
}

bool is_payload(std::uint64_t n, std::span<const std::byte> packed) {
  if (packed.size() != n % 700) return false;
  for (const std::byte b : packed)
    if (b != static_cast<std::byte>(n * 37)) return false;
  return true;
}

}  // namespace

TEST_CASE("records come out as they went in") {
  HitQueue queue(HitQueue::kMinCapacity);
  for (std::uint64_t n = 0; n < 10; ++n) REQUIRE(queue.push(header(n), payload(n)));
  std::uint64_t expected = 0;
  const auto taken = queue.consume(
      [&](const RecordHeader& h, std::span<const std::byte> packed) {
        CHECK(h.time == expected);
        CHECK(h.pid == 7);
        CHECK(h.size == sizeof h + expected % 700);
        CHECK(is_payload(expected, packed));
        ++expected;
      },
      100);
  CHECK(taken == 10);
  CHECK(queue.consume([](const RecordHeader&, std::span<const std::byte>) {}, 100) == 0);
}

TEST_CASE("consume stops at its maximum") {
  HitQueue queue(HitQueue::kMinCapacity);
  for (std::uint64_t n = 0; n < 10; ++n) REQUIRE(queue.push(header(n), {}));
  std::uint64_t sum = 0;
  const auto add = [&](const RecordHeader& h, std::span<const std::byte>) { sum += h.time; };
  CHECK(queue.consume(add, 0) == 0);
  CHECK(queue.consume(add, 3) == 3);
  CHECK(sum == 0 + 1 + 2);
  CHECK(queue.consume(add, 100) == 7);
  CHECK(sum == 45);
}

TEST_CASE("consume leaves what has come meanwhile") {
  HitQueue queue(HitQueue::kMinCapacity);
  std::uint64_t next = 200, expected = next;  // long ones, that go once round the ring
  const auto push = [&] { return queue.push(header(next), payload(next)) && ++next > 0; };
  const auto take = [&](const RecordHeader& h, std::span<const std::byte>) {
    CHECK(h.time == expected++);
    CHECK(push());
    CHECK(push());
  };
  CHECK(push());
  for (const std::size_t there : {1, 2, 4, 8, 16}) CHECK(queue.consume(take, 100) == there);
  const std::uint64_t end = queue.end();
  CHECK(push());
  for (std::size_t left = 32; left > 0; left -= 4) CHECK(queue.consume(take, 4, end) == 4);
  CHECK(queue.consume(take, 4, end) == 0);
}

TEST_CASE("a full queue refuses and loses nothing of what it has") {
  HitQueue queue(HitQueue::kMinCapacity);
  std::uint64_t pushed = 0;
  while (queue.push(header(pushed), payload(pushed))) ++pushed;
  CHECK(pushed > 50);
  CHECK_FALSE(queue.push(header(pushed), payload(pushed)));
  std::uint64_t expected = 0;
  CHECK(queue.consume(
            [&](const RecordHeader& h, std::span<const std::byte> p) {
              CHECK((h.time == expected && is_payload(expected, p)));
              ++expected;
            },
            1) == 1);
  for (int i = 0; i < 3; ++i) queue.consume([&](const RecordHeader&, std::span<const std::byte>) { ++expected; }, 30);
  CHECK(queue.push(header(pushed), payload(pushed)));
}

TEST_CASE("the longest record fits into an empty queue, wherever it starts") {
  const std::vector<std::byte> longest(kMaxArgumentBytes, std::byte{0x5a});
  for (std::size_t shift = 0; shift < HitQueue::kMinCapacity; shift += 56 * 8) {
    HitQueue queue(HitQueue::kMinCapacity);
    const auto ignore = [](const RecordHeader&, std::span<const std::byte>) {};
    for (std::size_t at = 0; at < shift; at += 56) {
      REQUIRE(queue.push(header(0), {}));
      queue.consume(ignore, 1);
    }
    REQUIRE(queue.push(header(1), longest));
    std::size_t size = 0;
    queue.consume([&](const RecordHeader&, std::span<const std::byte> p) { size = p.size(); }, 1);
    CHECK(size == longest.size());
  }
}

TEST_CASE("the consumer may sleep only when there is nothing, and is then woken once") {
  HitQueue queue(HitQueue::kMinCapacity);
  CHECK_FALSE(queue.take_wakeup());
  REQUIRE(queue.push(header(0), {}));
  CHECK_FALSE(queue.take_wakeup());       // it is awake
  CHECK_FALSE(queue.prepare_to_sleep());  // there is something
  queue.consume([](const RecordHeader&, std::span<const std::byte>) {}, 10);
  CHECK(queue.prepare_to_sleep());
  REQUIRE(queue.push(header(1), {}));
  CHECK(queue.take_wakeup());
  CHECK_FALSE(queue.take_wakeup());
}

TEST_CASE("two threads: every accepted record arrives once, in order, whole; nobody sleeps over one") {
  constexpr std::uint64_t kRecords = 300000;
  HitQueue queue(64 << 10);
  const int bell = eventfd(0, EFD_CLOEXEC);
  REQUIRE(bell >= 0);
  std::uint64_t lost = 0, rings = 0;

  std::thread producer([&] {
    std::vector<std::byte> bytes;
    for (std::uint64_t n = 0; n < kRecords; ++n) {
      bytes = payload(n);
      while (!queue.push(header(n), bytes)) {
        ++lost;
        std::this_thread::yield();
      }
      if (n % 3 != 0 && n + 1 != kRecords) continue;  // batches of up to three
      if (!queue.take_wakeup()) continue;
      ++rings;
      const std::uint64_t one = 1;
      CHECK(::write(bell, &one, sizeof one) == sizeof one);
    }
  });

  std::uint64_t expected = 0, wrong = 0;
  while (expected < kRecords) {
    const auto taken = queue.consume(
        [&](const RecordHeader& h, std::span<const std::byte> packed) {
          if (h.time != expected || !is_payload(expected, packed)) ++wrong;
          ++expected;
        },
        64);
    if (taken > 0 || !queue.prepare_to_sleep()) continue;
    std::uint64_t count = 0;
    REQUIRE(::read(bell, &count, sizeof count) == sizeof count);  // blocks: a missed wake-up hangs here
  }
  producer.join();
  ::close(bell);
  CHECK(wrong == 0);
  CHECK(expected == kRecords);
  MESSAGE("refused ", lost, ", rang ", rings);
}

}  // namespace probed::events
