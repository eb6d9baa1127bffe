// Who is in a stranger's memory just now, told in memory that the fetchers' parent (fetchers.hpp) shares: it sees who
// doesn't come back.
//
// Whatever reads or writes a process's memory, or asks for its mappings, takes that process's lock of them
// (mm->mmap_lock), and a process may make it be held for good: a page fault that is repeated waits for its file system
// with the lock (mm/filemap.c, maybe_unlock_mmap_for_io: only the first try goes without), and behind a thread that
// wants to change the mappings then everybody waits, also who only reads. Nothing ends that but the file system.
//
// Any thread.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstdint>

#include "proto/base/fd.hpp"

namespace probed {

struct VisitBoard {
  struct alignas(64) Slot {
    std::atomic<std::uint32_t> turn{0};  // odd: taken, by a visitor that is inside
    std::atomic<pid_t> task{0};          // whose memory it is
    std::atomic<pid_t> visitor{0};       // the thread
  };
  static constexpr std::size_t kSlots = 64;  // of visits at a time; who finds none free isn't watched

  std::array<Slot, kSlots> slots;
  std::atomic<std::uint32_t> strangers{0};  // processes whose memory may be visited
  // What was done for visitors that didn't come back: how often, for the memory of which process, and which connection
  // of which user's was ended; -1: none could be.
  std::atomic<std::uint32_t> done{0};
  std::atomic<pid_t> done_for{0};
  std::atomic<std::int64_t> ended{-1};
  std::atomic<std::uint32_t> ended_of{0};
};

// Anonymous memory of that size in a descriptor; none: there can't be one.
UniqueFd make_visit_board();
// nullptr: it can't be mapped. Never unmapped.
VisitBoard* map_visit_board(int fd);

// The one that this process's visits are told in; nullptr: nobody watches.
VisitBoard* visit_board();
void set_visit_board(VisitBoard* board);

class Visit {
 public:
  explicit Visit(pid_t task);
  ~Visit() {
    if (!slot_) return;
    slot_->visitor.store(0, std::memory_order_relaxed);  // who has it next isn't taken for this one
    slot_->turn.fetch_add(1, std::memory_order_release);
  }
  Visit(const Visit&) = delete;
  Visit& operator=(const Visit&) = delete;

 private:
  VisitBoard::Slot* slot_ = nullptr;
};

}  // namespace probed
