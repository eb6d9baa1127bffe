// The hit queue: records on their way from the tracer thread to the Asio thread of the same process.
//
// One producer, one consumer, a ring of bytes. No locks; no allocation after construction; a full queue refuses, never
// waits, so a slow consumer costs events (which the producer counts) and never holds up a target.
//
//   ring_   0            head % capacity            tail % capacity            capacity
//           |   free     | record | record | record |          free            |
//
//   record: RecordHeader, then header.size - sizeof(RecordHeader) packed bytes, then padding to the next multiple of 8.
//   A record never wraps. When it doesn't fit before the end of the ring, a word of 0 where its header.size would stand
//   says that the rest is padding. kMinCapacity makes sure that any record fits into an empty queue, wherever that
//   starts.
//
// head and tail count bytes since the beginning and only grow. Who writes what:
//   producer   tail_, its copy of head_, and ring bytes in [tail, head + capacity)
//   consumer   head_, its copy of tail_; reads ring bytes in [head, tail)
// Each sits on its own cache line, so that the threads only touch each other's when their copy says full or empty.
//
// Waking. The consumer says that it is going to sleep (prepare_to_sleep) and sleeps only when the queue is still empty
// then; the producer asks after pushing (take_wakeup) whether to ring. Both do so by an atomic exchange on asleep_. All
// exchanges on it have one order: either the producer's comes later, sees the flag and rings; or the consumer's comes
// later, synchronises with the producer's and sees its tail. So no record is left behind with nobody awake; a ring too
// many may happen.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "daemon/events/record.hpp"

namespace probed::events {

class HitQueue {
 public:
  static constexpr std::size_t kMinCapacity = 32 << 10;

  // capacity: bytes, a power of two, at least kMinCapacity.
  explicit HitQueue(std::size_t capacity);
  HitQueue(const HitQueue&) = delete;
  HitQueue& operator=(const HitQueue&) = delete;

  // ---- producer ----

  // Copies one record in; header.size is set on the way. packed: at most kMaxArgumentBytes. False: no room, nothing was
  // stored.
  bool push(const RecordHeader& header, std::span<const std::byte> packed);
  // Whether the consumer must be woken (ring the eventfd). Ask after one push or after a batch of them.
  bool take_wakeup();

  // ---- consumer ----

  // Where the queue ends now.
  std::uint64_t end() const;
  // Calls take(const RecordHeader&, std::span<const std::byte> packed) for at most max records, oldest first, of those
  // that were there when it ended at `end`; returns how many. What take gets is valid during the call only.
  template <class Take>
  std::size_t consume(Take&& take, std::size_t max, std::uint64_t end) {
    std::size_t taken = 0;
    RecordHeader header;
    std::span<const std::byte> packed;
    while (taken < max && consumer_.position != end && front(header, packed)) {
      take(std::as_const(header), packed);
      release(header.size);
      ++taken;
    }
    publish_head();
    return taken;
  }
  template <class Take>
  std::size_t consume(Take&& take, std::size_t max) {
    return consume(std::forward<Take>(take), max, end());
  }
  // True: the queue is empty and the next push's take_wakeup() will say so; sleep now. False: consume first.
  bool prepare_to_sleep();

 private:
  static constexpr std::size_t kCacheLine = 64;

  std::size_t index(std::uint64_t position) const { return static_cast<std::size_t>(position) & mask_; }
  bool make_room(std::size_t size);
  bool front(RecordHeader& header, std::span<const std::byte>& packed);
  void release(std::uint32_t size);
  void publish_head();

  const std::size_t mask_;
  const std::unique_ptr<std::byte[]> ring_;

  struct alignas(kCacheLine) Producer {
    std::atomic<std::uint64_t> tail{0};  // published; read by the consumer
    std::uint64_t position = 0;          // tail without the atomic
    std::uint64_t head_seen = 0;
  };
  struct alignas(kCacheLine) Consumer {
    std::atomic<std::uint64_t> head{0};  // published; read by the producer
    std::uint64_t position = 0;          // runs ahead of head within one consume()
    std::uint64_t tail_seen = 0;
  };
  Producer producer_;
  Consumer consumer_;
  alignas(kCacheLine) std::atomic<bool> asleep_{false};
};

}  // namespace probed::events
