// Descriptors for a moment, which there are always some of.
//
// Any thread. What /proc says of a thread decides what is done with it: one that is taken for dead, because no
// descriptor was left to look at it, would stand still for ever. So some are kept from the beginning, and lent when the
// process or the machine has no others (EMFILE, ENFILE).
#pragma once

namespace probed {

class Momentary {
 public:
  // Opens a file, O_CLOEXEC. When that fails, errno is open(2)'s.
  Momentary(const char* path, int flags);
  ~Momentary();
  Momentary(const Momentary&) = delete;
  Momentary& operator=(const Momentary&) = delete;

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  // Somebody else closes it, before this ends.
  int release();

  // Puts aside what is lent later. Before there are many descriptors; without it nothing is kept.
  static void keep_some();

 private:
  int fd_ = -1;
  bool lent_ = false;
};

}  // namespace probed
