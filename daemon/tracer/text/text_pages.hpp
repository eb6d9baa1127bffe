// Text as a large batch of probes sees it: read by the page, written by the page at the end.
//
// A breakpoint by itself costs five system calls, of which each takes about a microsecond: 50,000 of them hold the
// tracer, and every thread that runs into the first ones, up for a third of a second. While a TextPages lives, reads
// and writes of its TargetMemory in quiet mappings go to copies of the pages; flush() writes those that have changed.
//
// Quiet: private and not writable by the program, so that what is read stays true. flush() reads every page again just
// before it writes it, and writes nothing when the program has changed it all the same (mprotect(2), and back).
// A jump must not be written or taken out by one flush(): that is done in an order of its own, with one for each step.
//
// Tracer thread. Invariant: without flush() the memory is as it was.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "daemon/base/types.hpp"
#include "daemon/symbols/maps.hpp"

namespace probed::tracer {

class TargetMemory;

class TextPages {
 public:
  static constexpr std::size_t kSmall = 64;       // bytes of the reads it is for; others go to the memory itself
  static constexpr std::size_t kLargeBatch = 64;  // sites from which on it is worth while

  // maps: of the process whose memory it is, as they are now.
  TextPages(TargetMemory& memory, std::span<const symbols::Mapping> maps);
  ~TextPages();
  TextPages(const TextPages&) = delete;
  TextPages& operator=(const TextPages&) = delete;

  // False: not in quiet mappings, or not readable; nothing was done. read(): at most kSmall bytes.
  bool read(RemoteAddr from, std::span<std::byte> to);
  bool write(RemoteAddr to, std::span<const std::byte> from);

  // Writes what has been written here, and reads it back. Not empty: where that failed; what stands there then, and
  // behind it, is unknown. Nothing is kept: what is read next is read anew.
  std::optional<RemoteAddr> flush();

 private:
  static constexpr std::size_t kPage = 4096, kRun = 16;  // bytes; pages read or written at a time
  using Bytes = std::array<std::byte, kPage>;
  struct Page {
    Bytes before, now;
    bool dirty = false;
  };

  Page* page(std::uint64_t number);
  bool load(std::uint64_t number);
  bool write_run(std::span<const std::uint64_t> numbers);
  template <class Each>
  bool each_piece(RemoteAddr at, std::size_t size, Each&& each);

  TargetMemory& memory_;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> quiet_;  // numbers of pages, [first, second), ascending
  std::unordered_map<std::uint64_t, std::unique_ptr<Page>> pages_;
  std::uint64_t last_number_ = 0;
  Page* last_ = nullptr;  // the page asked for last
};

}  // namespace probed::tracer
