// Which memory of another process is there, and having the rest fetched by somebody who may wait for it.
//
// A page that a process has mapped from a file and not touched yet is read from its file system when another process
// reads it. A file system in user space (FUSE) answers when its server likes: never, if he means harm, and not as long
// as he stands still in a breakpoint of the very tracer that waits. Nothing ends that wait, not even SIGKILL
// (fs/fuse/dev.c, request_wait_answer), and an access by way of /proc/PID/mem keeps the process from changing its
// mappings meanwhile (mm/memory.c, __access_remote_vm). So who reads or writes a stranger's memory first looks whether
// its pages are there (/proc/PID/pagemap; those that are swapped out are nobody's but the kernel's), and has those that
// aren't touched by a small process that nothing depends on, by process_vm_readv(2), whose first try keeps nobody from
// anything while it waits (mm/filemap.c, maybe_unlock_mmap_for_io). What it doesn't fetch in time counts as unreadable,
// and it is killed.
//
// A page may go between the look and the access; what a breakpoint of ours has been written to doesn't, as that is
// memory of the process's own. And a process that means harm can have its memory locked for good, so that the look
// itself waits: visits.hpp, fetchers.hpp.
//
// Any thread.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace probed {

// Logs what the fetchers' parent has done meanwhile for somebody who waited in the kernel (visits.hpp), once.
void tell_of_what_was_done();

class PresentPages {
 public:
  // Of nothing: whatever is asked for is present.
  PresentPages();
  // pid: of the process, whose memory is `task`'s.
  PresentPages(pid_t pid, pid_t task);
  ~PresentPages();
  PresentPages(PresentPages&&) noexcept;
  PresentPages& operator=(PresentPages&&) noexcept;

  enum class For : std::uint8_t { reading, writing };
  // How many of these bytes, from the first on, can be read and written without waiting for a file system, or are in
  // no memory at all. Fetches what it can: microseconds, and kPatience at most (longer only where no processor is
  // free), once in kPause. A worker (TimeLimit), which reads what others will rely on, waits kPause out and tries
  // again, until kTries in a row had no answer. Memory of no file that is to be written (ours, mapped a moment ago)
  // counts whoever fetches, and on any kernel.
  std::size_t count(std::uint64_t at, std::size_t size, For what = For::reading) const;
  // What the calling thread didn't read just now may be there: nobody answered who was to fetch it.
  bool unanswered() const;

  static constexpr std::chrono::milliseconds kPatience{200}, kPause{1000};
  static constexpr int kTries = 2;

  // From now on there is a process that those who fetch come from as soon as it is needed. Without it nobody fetches,
  // and everything counts as present.
  static void want_fetchers();

 private:
  struct Process;
  std::unique_ptr<Process> process_;
};

}  // namespace probed
