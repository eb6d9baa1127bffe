// Which pages of text are copies of a target's own for nothing: their bytes are the file's again.
//
// Owning thread: the tracer thread.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <set>
#include <vector>

#include "daemon/base/mounts.hpp"
#include "daemon/base/process.hpp"
#include "daemon/base/visits.hpp"
#include "daemon/symbols/maps.hpp"
#include "daemon/tracer/text/address_space.hpp"

namespace probed::tracer {
namespace {

// The file behind a mapping, through the target's own view of it: it may be deleted, or in another mount namespace.
class FileOfMapping {
 public:
  explicit FileOfMapping(pid_t pid) : pid_(process::task_with_memory(pid)), mounts_(pid_) {}

  // Whether the page of memory holds just what the file has there.
  bool has(const symbols::Mapping& mapping, RemoteAddr page, const TargetMemory& memory) {
    if (opened_ != mapping.start) {
      opened_ = mapping.start;
      const auto link = fmt::format("/proc/{}/map_files/{:x}-{:x}", pid_, mapping.start.value, mapping.end.value);
      const Visit visit(pid_);
      fd_ = open_link(link, mounts_).fd;  // the tracer waits for no file system in user space
    }
    std::array<std::byte, kPageSize> mapped{}, stored{};
    const auto offset = static_cast<off_t>(mapping.file_offset + (page.value - mapping.start.value));
    // The file's last page may be short; the kernel maps the rest as zeros.
    return fd_ && pread(fd_.get(), stored.data(), stored.size(), offset) > 0 &&
           memory.read_some(page, mapped) == mapped.size() && mapped == stored;
  }

 private:
  pid_t pid_;
  Mounts mounts_;
  RemoteAddr opened_;
  UniqueFd fd_;
};

}  // namespace

std::vector<AddressSpace::PageRange> AddressSpace::superfluous_copies(pid_t pid, const Layout& layout) const {
  std::set<RemoteAddr> pages;
  const auto note = [&](const SitePlan& plan) { pages.insert({plan.address.value / kPageSize * kPageSize}); };
  for (const auto& [address, site] : sites_) note(site.plan);
  for (const auto& [address, former] : ledger_.former()) {
    note(former.plan);
    for (const Patch& patch : former.patches)
      for (const RemoteAddr byte : {patch.at, patch.at + (patch.size - 1u)})
        pages.insert({byte.value / kPageSize * kPageSize});
  }
  std::vector<PageRange> ranges;
  FileOfMapping file(pid);
  for (const RemoteAddr page : pages) {
    const symbols::Mapping* mapping = layout.at(page);
    if (!mapping || mapping->writable || mapping->shared || mapping->inode == 0) continue;
    if (!file.has(*mapping, page, memory_)) continue;
    if (!ranges.empty() && ranges.back().start + ranges.back().size == page)
      ranges.back().size += kPageSize;
    else
      ranges.push_back({page, kPageSize});
  }
  return ranges;
}

}  // namespace probed::tracer
