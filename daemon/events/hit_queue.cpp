// The hit queue's two sides. The layout and the protocol are described in the header.
#include "daemon/events/hit_queue.hpp"

#include <bit>
#include <cstring>

#include "proto/base/check.hpp"

namespace probed::events {
namespace {

constexpr std::size_t kAlign = 8;
constexpr std::uint32_t kPadding = 0;  // no record has size 0

constexpr std::size_t aligned(std::size_t size) { return (size + kAlign - 1) & ~(kAlign - 1); }

static_assert(offsetof(RecordHeader, size) == 0, "the padding mark lies where a record's size does");
// Padding in front of a record is shorter than the record; so twice the longest always fits.
static_assert(2 * aligned(sizeof(RecordHeader) + kMaxArgumentBytes) <= HitQueue::kMinCapacity);

}  // namespace

HitQueue::HitQueue(std::size_t capacity) : mask_(capacity - 1), ring_(new std::byte[capacity]) {
  PROBED_CHECK(std::has_single_bit(capacity) && capacity >= kMinCapacity, "the queue's capacity is a power of two");
}

// Makes [position, position + size) free and contiguous, padding the ring's end when needed.
bool HitQueue::make_room(std::size_t size) {
  const std::size_t to_end = mask_ + 1 - index(producer_.position);
  const std::size_t needed = size <= to_end ? size : to_end + size;
  if (producer_.position + needed - producer_.head_seen > mask_ + 1) {
    // Acquire: pairs with publish_head(); the bytes given back are no longer being read.
    producer_.head_seen = consumer_.head.load(std::memory_order_acquire);
    if (producer_.position + needed - producer_.head_seen > mask_ + 1) return false;
  }
  if (size <= to_end) return true;
  std::memcpy(ring_.get() + index(producer_.position), &kPadding, sizeof kPadding);
  producer_.position += to_end;
  return true;
}

bool HitQueue::push(const RecordHeader& header, std::span<const std::byte> packed) {
  PROBED_CHECK(packed.size() <= kMaxArgumentBytes, "a record's arguments have a bounded size");
  const std::size_t size = sizeof header + packed.size();
  if (!make_room(aligned(size))) return false;
  RecordHeader sized = header;
  sized.size = static_cast<std::uint32_t>(size);
  std::byte* const at = ring_.get() + index(producer_.position);
  std::memcpy(at, &sized, sizeof sized);
  if (!packed.empty()) std::memcpy(at + sizeof sized, packed.data(), packed.size());
  producer_.position += aligned(size);
  // Release: pairs with the loads in front() and prepare_to_sleep(); the record is complete before it is seen.
  producer_.tail.store(producer_.position, std::memory_order_release);
  return true;
}

bool HitQueue::take_wakeup() {
  // Acquire-release: pairs with the exchange in prepare_to_sleep(); see the header.
  return asleep_.exchange(false, std::memory_order_acq_rel);
}

std::uint64_t HitQueue::end() const {
  // Acquire: pairs with the store in push().
  return producer_.tail.load(std::memory_order_acquire);
}

bool HitQueue::front(RecordHeader& header, std::span<const std::byte>& packed) {
  if (consumer_.position == consumer_.tail_seen) {
    // Acquire: pairs with the store in push().
    consumer_.tail_seen = producer_.tail.load(std::memory_order_acquire);
    if (consumer_.position == consumer_.tail_seen) return false;
  }
  std::uint32_t size;
  std::memcpy(&size, ring_.get() + index(consumer_.position), sizeof size);
  if (size == kPadding) consumer_.position += mask_ + 1 - index(consumer_.position);
  const std::byte* const at = ring_.get() + index(consumer_.position);
  std::memcpy(&header, at, sizeof header);
  packed = {at + sizeof header, header.size - sizeof header};
  return true;
}

void HitQueue::release(std::uint32_t size) { consumer_.position += aligned(size); }

void HitQueue::publish_head() {
  // Release: pairs with the load in make_room(); everything read is read before the room is given back.
  consumer_.head.store(consumer_.position, std::memory_order_release);
}

bool HitQueue::prepare_to_sleep() {
  // Acquire-release: pairs with the exchange in take_wakeup(); see the header.
  asleep_.exchange(true, std::memory_order_acq_rel);
  // Acquire: pairs with the store in push().
  if (producer_.tail.load(std::memory_order_acquire) == consumer_.position) return true;
  asleep_.exchange(false, std::memory_order_acq_rel);
  return false;
}

}  // namespace probed::events
