// See visits.hpp.
#include "daemon/base/visits.hpp"

#include <sys/mman.h>
#include <unistd.h>

namespace probed {
namespace {

std::atomic<VisitBoard*> board{nullptr};

VisitBoard::Slot* slot_of_this_thread(VisitBoard& all) {
  thread_local VisitBoard::Slot* const slot = [&all]() -> VisitBoard::Slot* {
    const std::uint32_t number = all.next_slot.fetch_add(1, std::memory_order_relaxed);
    if (number >= VisitBoard::kSlots) return nullptr;
    all.slots[number].visitor = ::gettid();
    return &all.slots[number];
  }();
  return slot;
}

}  // namespace

UniqueFd make_visit_board() {
  UniqueFd fd(::memfd_create("probed-visits", MFD_CLOEXEC));
  if (fd && ::ftruncate(fd.get(), sizeof(VisitBoard)) != 0) fd.reset();
  return fd;
}

VisitBoard* map_visit_board(int fd) {
  static_assert(std::atomic<std::uint32_t>::is_always_lock_free);
  void* const at = ::mmap(nullptr, sizeof(VisitBoard), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return at == MAP_FAILED ? nullptr : static_cast<VisitBoard*>(at);  // zeros are its beginning
}

VisitBoard* visit_board() { return board.load(std::memory_order_acquire); }
void set_visit_board(VisitBoard* to) { board.store(to, std::memory_order_release); }

Visit::Visit(pid_t task) {
  VisitBoard* const all = visit_board();
  if (!all) return;
  VisitBoard::Slot* const slot = slot_of_this_thread(*all);
  // One within another is the outer one's.
  if (!slot || (slot->turn.load(std::memory_order_relaxed) & 1) != 0) return;
  slot_ = slot;
  slot_->task.store(task, std::memory_order_relaxed);
  turn_ = slot_->turn.load(std::memory_order_relaxed) + 1;
  slot_->turn.store(turn_, std::memory_order_release);
}

}  // namespace probed
