// A target's memory: reads for fetch arguments, writes into its text.
//
// Writes go through /proc/PID/mem, which the kernel lets write read-only private mappings by copying the page for this
// process first (FOLL_FORCE, mm/gup.c): only this process sees them. The descriptor stays bound to the address space it
// was opened on, so after an exec a new one is needed and the old one simply reads nothing.
//
// When the daemon has run out of descriptors, process_vm_readv(2) and PTRACE_POKETEXT do: a child that a target forks
// must be cleaned in any case.
//
// Neither waits for a file system that the target has mapped something from: base/fault_in.hpp.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "daemon/base/fault_in.hpp"
#include "daemon/base/types.hpp"
#include "daemon/events/fetch.hpp"
#include "proto/base/fd.hpp"

namespace probed::tracer {

class TextPages;

inline constexpr std::uint64_t kPageSize = 4096;  // the unit we map in; also right where the kernel's pages are larger

class TargetMemory final : public events::MemoryReader {
 public:
  // Invalid (valid() false) when the process is gone or may not be accessed.
  static TargetMemory open(pid_t pid);
  bool valid() const { return fd_ || stopped_ != 0; }

  // All or nothing.
  bool read(RemoteAddr from, std::span<std::byte> to) override;
  std::ptrdiff_t read_string(RemoteAddr from, std::span<std::byte> to) override;
  bool read_vector(std::int32_t tid, unsigned index, std::uint64_t& low) override;
  bool read_thread_pointer(std::int32_t tid, std::uint64_t& pointer) override;
  // As many bytes as are readable from `from` on, up to to.size().
  std::size_t read_some(RemoteAddr from, std::span<std::byte> to) const;
  // What wasn't read just now may be there all the same: nobody answered who was to fetch it (base/fault_in.hpp).
  bool unanswered() const { return present_.unanswered(); }
  bool write(RemoteAddr to, std::span<const std::byte> from);
  // The same, whatever gather() says.
  bool write_at_once(RemoteAddr to, std::span<const std::byte> from);
  // The text of /proc/PID/maps; empty when it can't be read. That descriptor, too, stays with the address space it was
  // opened on (fs/proc/task_mmu.c, proc_maps_open): by its pid a vfork child that has just executed another program
  // would answer for its parent's memory.
  std::string maps_text() const;
  // Nobody has this memory any more: /proc/PID/mem then reads as empty, and fails where nothing is mapped
  // (fs/proc/base.c, mem_rw). The process may have ended before, if another shares the memory. False also when that
  // can't be known.
  bool has_ended() const;
  // From now on small reads and writes go there where it takes them; null: no longer.
  void gather(TextPages* pages) { pages_ = pages; }
  bool gathers() const { return pages_ != nullptr; }

 private:
  std::ptrdiff_t read_piece(RemoteAddr from, std::span<std::byte> to) const;
  std::ptrdiff_t write_piece(RemoteAddr to, std::span<const std::byte> from);

  UniqueFd fd_, maps_;
  PresentPages present_;
  pid_t task_ = 0;  // whose files these are
  TextPages* pages_ = nullptr;
  pid_t stopped_ = 0;  // there was no descriptor left: the thread to go through, which must stand still for a write
};

}  // namespace probed::tracer
