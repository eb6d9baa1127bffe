#include "daemon/tracer/kernel/memory.hpp"

#include <fcntl.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "arch/arch.hpp"
#include "daemon/base/file.hpp"
#include "daemon/base/process.hpp"
#include "daemon/base/visits.hpp"
#include "daemon/tracer/kernel/ptrace.hpp"
#include "daemon/tracer/text/text_pages.hpp"

namespace probed::tracer {
namespace {

constexpr std::uint64_t kChunk = 256;  // strings are read in aligned pieces, which never straddle a page

// pread's offset is signed; the kernel's upper half is no user memory anyway.
bool addressable(RemoteAddr a, std::size_t size) { return a.value <= static_cast<std::uint64_t>(INT64_MAX) - size; }

}  // namespace

TargetMemory TargetMemory::open(pid_t pid) {
  TargetMemory memory;
  const pid_t task = process::task_with_memory(pid);
  const Visit visit(task);
  memory.task_ = task;
  memory.fd_.reset(::open(("/proc/" + std::to_string(task) + "/mem").c_str(), O_RDWR | O_CLOEXEC));
  const int why = errno;
  if (memory.fd_) memory.present_ = PresentPages(pid, task);
  memory.maps_.reset(::open(("/proc/" + std::to_string(task) + "/maps").c_str(), O_RDONLY | O_CLOEXEC));
  errno = why;
  if (!memory.fd_ && (errno == EMFILE || errno == ENFILE)) memory.stopped_ = task;
  return memory;
}

bool TargetMemory::read_vector(std::int32_t tid, unsigned index, std::uint64_t& low) {
  return ptrace::get_vector_register(tid, index, low) == ptrace::Outcome::ok;
}

bool TargetMemory::read_thread_pointer(std::int32_t tid, std::uint64_t& pointer) {
  pointer = ptrace::thread_pointer(tid, {});
  return pointer != 0;
}

std::string TargetMemory::maps_text() const {
  std::string text;
  const Visit visit(task_);
  if (maps_) read_whole(maps_.get(), text);
  return text;
}

bool TargetMemory::has_ended() const {
  char first = 0;
  const Visit visit(task_);
  return fd_ && pread(fd_.get(), &first, 1, 0) == 0;
}

std::ptrdiff_t TargetMemory::read_piece(RemoteAddr from, std::span<std::byte> to) const {
  if (fd_) {
    const std::size_t size = present_.count(from.value, to.size());
    const Visit visit(task_);
    return pread(fd_.get(), to.data(), size, static_cast<off_t>(from.value));
  }
  const Visit visit(stopped_);
  const iovec local{to.data(), to.size()}, remote{reinterpret_cast<void*>(from.value), to.size()};
  return process_vm_readv(stopped_, &local, 1, &remote, 1, 0);
}

std::ptrdiff_t TargetMemory::write_piece(RemoteAddr to, std::span<const std::byte> from) {
  if (fd_) {
    const std::size_t size = present_.count(to.value, from.size(), PresentPages::For::writing);
    const Visit visit(task_);
    return pwrite(fd_.get(), from.data(), size, static_cast<off_t>(to.value));
  }
  // A word at a time, never beyond the aligned word: the next page may not be mapped.
  const std::uint64_t aligned = to.value / sizeof(long) * sizeof(long), skip = to.value - aligned;
  const std::size_t size = std::min(from.size(), sizeof(long) - static_cast<std::size_t>(skip));
  std::uint64_t word = 0;
  const Visit visit(stopped_);
  if (ptrace::peek_word(stopped_, aligned, word) != ptrace::Outcome::ok) return -1;
  std::memcpy(reinterpret_cast<std::byte*>(&word) + skip, from.data(), size);
  if (ptrace::poke_word(stopped_, aligned, word) != ptrace::Outcome::ok) return -1;
  return static_cast<std::ptrdiff_t>(size);
}

std::size_t TargetMemory::read_some(RemoteAddr from, std::span<std::byte> to) const {
  from.value = arch::native::without_tag(from.value);  // the kernel takes none here
  if (!addressable(from, to.size())) return 0;
  if (pages_ && to.size() <= TextPages::kSmall && pages_->read(from, to)) return to.size();
  std::size_t done = 0;
  while (done < to.size()) {
    const std::ptrdiff_t n = read_piece(from + done, to.subspan(done));
    if (n <= 0) {
      if (n < 0 && errno == EINTR) continue;
      break;
    }
    done += static_cast<std::size_t>(n);
  }
  return done;
}

bool TargetMemory::read(RemoteAddr from, std::span<std::byte> to) { return read_some(from, to) == to.size(); }

std::ptrdiff_t TargetMemory::read_string(RemoteAddr from, std::span<std::byte> to) {
  std::size_t done = 0;
  while (done < to.size()) {
    const RemoteAddr at = from + done;
    const std::size_t want = std::min<std::size_t>(to.size() - done, kChunk - at.value % kChunk);
    const std::span<std::byte> piece = to.subspan(done, want);
    if (!read(at, piece)) return -1;
    const auto nul = std::find(piece.begin(), piece.end(), std::byte{0});
    done += static_cast<std::size_t>(nul - piece.begin());
    if (nul != piece.end()) break;
  }
  return static_cast<std::ptrdiff_t>(done);
}

bool TargetMemory::write(RemoteAddr to, std::span<const std::byte> from) {
  if (pages_ && addressable(to, from.size()) && pages_->write(to, from)) return true;
  return write_at_once(to, from);
}

bool TargetMemory::write_at_once(RemoteAddr to, std::span<const std::byte> from) {
  if (!addressable(to, from.size())) return false;
  std::size_t done = 0;
  while (done < from.size()) {
    const std::ptrdiff_t n = write_piece(to + done, from.subspan(done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    done += static_cast<std::size_t>(n);
  }
  return true;
}

}  // namespace probed::tracer
