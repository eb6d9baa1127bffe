// Memory that is used for what strangers' files say, by the user for whom they are read. A file of a megabyte may
// unfold into gigabytes, and a user may have many files: so what one user's requests have unfolded has a bound
// together.
//
// Thread: a share may be used by several; whose it is that is being worked for, each thread has for itself. What is
// read when there is no room is as if it weren't there, and whoever gathers it asks refused() at the end whether it is
// whole (as with TimeLimit).
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>

namespace probed {

class MemoryShare {
 public:
  explicit MemoryShare(std::size_t most) : most_(most) {}  // bytes

  // False: then it would be more than it may be.
  bool take(std::size_t bytes) {
    if (used_.fetch_add(bytes) + bytes <= most_) return true;
    used_ -= bytes;
    return false;
  }
  void give_back(std::size_t bytes) { used_ -= bytes; }
  std::size_t used() const { return used_.load(); }

  // While it lives the calling thread works for that share's user; null: for nobody who has a bound.
  class Use {
   public:
    explicit Use(std::shared_ptr<MemoryShare> share)
        : before_(std::exchange(current_, std::move(share))), refused_before_(std::exchange(refused_, false)) {}
    ~Use() {
      current_ = std::move(before_);
      refused_ = refused_before_;
    }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    std::shared_ptr<MemoryShare> before_;
    bool refused_before_;
  };
  // Whether the calling thread has been refused any since its Use began.
  static bool refused() { return refused_; }

 private:
  friend class MemoryCharge;
  static inline thread_local std::shared_ptr<MemoryShare> current_;
  static inline thread_local bool refused_ = false;

  const std::size_t most_;
  std::atomic<std::size_t> used_{0};
};

// What one object takes, on the account of whoever is worked for when it first takes some.
class MemoryCharge {
 public:
  MemoryCharge() = default;
  MemoryCharge(MemoryCharge&& other) noexcept
      : share_(std::move(other.share_)), bytes_(std::exchange(other.bytes_, 0)) {}
  MemoryCharge& operator=(MemoryCharge&& other) noexcept {
    if (this == &other) return *this;
    reset();
    share_ = std::move(other.share_);
    bytes_ = std::exchange(other.bytes_, 0);
    return *this;
  }
  ~MemoryCharge() { reset(); }

  // So many bytes more. False: there is no room for them, and none have been taken.
  bool grow(std::size_t bytes) {
    if (!share_) share_ = MemoryShare::current_;
    if (!share_) return true;
    if (!share_->take(bytes)) return MemoryShare::refused_ = true, false;
    bytes_ += bytes;
    return true;
  }
  // Of what it has taken.
  void shrink(std::size_t bytes) {
    if (!share_) return;
    share_->give_back(bytes);
    bytes_ -= bytes;
  }
  void reset() {
    if (share_) share_->give_back(std::exchange(bytes_, 0));
    share_.reset();
  }

 private:
  std::shared_ptr<MemoryShare> share_;
  std::size_t bytes_ = 0;
};

// Room for one more in a vector that grows to twice its size; false: there is none. Both sizes are charged while it is
// copied.
template <class Vector>
bool make_room(Vector& vector, MemoryCharge& charge) {
  constexpr std::size_t kFirst = 16, kElement = sizeof(typename Vector::value_type);
  const std::size_t size = vector.capacity();
  if (vector.size() < size) return true;
  const std::size_t more = size == 0 ? kFirst : 2 * size;
  if (!charge.grow(more * kElement)) return false;
  vector.reserve(more);
  charge.shrink(size * kElement);
  return true;
}

}  // namespace probed
