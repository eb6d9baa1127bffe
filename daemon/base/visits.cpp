// See visits.hpp.
#include "daemon/base/visits.hpp"

#include <sys/mman.h>
#include <unistd.h>

namespace probed {
namespace {

std::atomic<VisitBoard*> board{nullptr};

pid_t this_thread() {
  thread_local const pid_t id = ::gettid();
  return id;
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

// A thread that ends gives back what it had: it begins where it was last time, and takes the first that is free.
Visit::Visit(pid_t task) {
  thread_local std::size_t last = 0;
  VisitBoard* const all = visit_board();
  if (!all) return;
  for (std::size_t tries = 0; tries < VisitBoard::kSlots; ++tries) {
    VisitBoard::Slot& slot = all->slots[(last + tries) % VisitBoard::kSlots];
    std::uint32_t turn = slot.turn.load(std::memory_order_relaxed);
    if ((turn & 1) != 0) {
      if (slot.visitor.load(std::memory_order_relaxed) == this_thread()) return;  // within another one, which counts
      continue;
    }
    if (!slot.turn.compare_exchange_strong(turn, turn + 1, std::memory_order_acquire)) continue;
    slot.task.store(task, std::memory_order_relaxed);
    slot.visitor.store(this_thread(), std::memory_order_relaxed);
    slot_ = &slot;
    last = (last + tries) % VisitBoard::kSlots;
    return;
  }
}

}  // namespace probed
