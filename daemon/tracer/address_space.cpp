#include "daemon/tracer/address_space.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "daemon/base/check.hpp"
#include "daemon/base/process.hpp"
#include "daemon/symbols/maps.hpp"

namespace probed::tracer {
namespace {

namespace native = arch::native;
using InsnBytes = std::array<std::uint8_t, arch::kMaxInsnLength>;

std::span<const std::byte> as_bytes(std::span<const std::uint8_t> s) { return std::as_bytes(s); }

// The instruction's bytes as they are in memory now, as many as can be read.
std::size_t read_insn(const TargetMemory& memory, const SitePlan& plan, InsnBytes& out) {
  return memory.read_some(plan.address, std::as_writable_bytes(std::span(out).first(plan.insn.length)));
}

bool holds_original(const TargetMemory& memory, const SitePlan& plan) {
  InsnBytes now{};
  return read_insn(memory, plan, now) == plan.insn.length &&
         std::ranges::equal(plan.code(), std::span(now).first(plan.insn.length));
}

// Whether a breakpoint instruction is there. What follows it is the program's to change (an inline cache, say).
bool holds_breakpoint(const TargetMemory& memory, const SitePlan& plan) {
  std::array<std::uint8_t, native::kBreakpointSize> now{};
  return memory.read_some(plan.address, std::as_writable_bytes(std::span(now))) == now.size() &&
         std::ranges::equal(now, native::kBreakpoint);
}

// Takes our breakpoint out of a memory that holds it.
void restore(TargetMemory& memory, const SitePlan& plan) {
  if (holds_breakpoint(memory, plan)) memory.write(plan.address, as_bytes(plan.code()).first(native::kBreakpointSize));
}

// The file behind a mapping, through the target's own view of it: it may be deleted, or in another mount namespace.
class FileOfMapping {
 public:
  explicit FileOfMapping(pid_t pid) : pid_(process::task_with_memory(pid)) {}

  // Whether the page of memory holds just what the file has there.
  bool has(const symbols::Mapping& mapping, RemoteAddr page, const TargetMemory& memory) {
    if (opened_ != mapping.start) {
      opened_ = mapping.start;
      fd_.reset(
          ::open(fmt::format("/proc/{}/map_files/{:x}-{:x}", pid_, mapping.start.value, mapping.end.value).c_str(),
                 O_RDONLY | O_CLOEXEC));
    }
    std::array<std::byte, kPageSize> mapped{}, stored{};
    const auto offset = static_cast<off_t>(mapping.file_offset + (page.value - mapping.start.value));
    // The file's last page may be short; the kernel maps the rest as zeros.
    return fd_ && pread(fd_.get(), stored.data(), stored.size(), offset) > 0 &&
           memory.read_some(page, mapped) == mapped.size() && mapped == stored;
  }

 private:
  pid_t pid_;
  RemoteAddr opened_;
  UniqueFd fd_;
};

RemoteAddr find_syscall_insn(const TargetMemory& memory, const symbols::Mapping& mapping) {
  constexpr std::uint64_t kPiece = 64 * 1024;
  std::vector<std::byte> piece(kPiece);
  const std::span<const std::uint8_t> wanted(native::kSyscallInsn);
  for (RemoteAddr at = mapping.start; at < mapping.end; at = at + (kPiece - wanted.size() + 1)) {
    const std::size_t size = std::min<std::uint64_t>(kPiece, mapping.end.value - at.value);
    const std::size_t got = memory.read_some(at, std::span(piece).first(size));
    const auto end = piece.begin() + static_cast<std::ptrdiff_t>(got);
    const auto hit = std::search(piece.begin(), end, as_bytes(wanted).begin(), as_bytes(wanted).end());
    if (hit != end) return at + static_cast<std::uint64_t>(hit - piece.begin());
  }
  return {};
}

}  // namespace

bool Site::wanted() const {
  return std::any_of(programs.begin(), programs.end(), [](const ProgramPtr& p) { return p->enabled; });
}

Site* AddressSpace::find(RemoteAddr address) {
  const auto it = sites_.find(address);
  return it == sites_.end() ? nullptr : &it->second;
}

const Site* AddressSpace::overlapping(const SitePlan& plan) const {
  constexpr auto kReach = static_cast<std::int64_t>(arch::kMaxInsnLength);
  for (std::int64_t offset = 1 - kReach; offset < plan.insn.length; ++offset) {
    const RemoteAddr at = plan.address + static_cast<std::uint64_t>(offset);
    const auto it = offset == 0 ? sites_.end() : sites_.find(at);
    if (it == sites_.end()) continue;
    if (offset > 0 || -offset < it->second.plan.insn.length) return &it->second;
  }
  return nullptr;
}

Result<void> AddressSpace::verify(const SitePlan& plan) const {
  InsnBytes now{};
  if (read_insn(memory_, plan, now) != plan.insn.length)
    return Error{
        Reason::unmapped_address, fmt::format("address {:#x} is no longer mapped", plan.address.value), "", {}};
  if (std::ranges::equal(plan.code(), std::span(now).first(plan.insn.length))) return {};
  if (native::is_breakpoint(now))
    return Error{Reason::existing_breakpoint,
                 fmt::format("address {:#x} holds a breakpoint instruction that is not ours", plan.address.value),
                 "remove the debugger's breakpoint first",
                 {}};
  return Error{Reason::target_gone,
               fmt::format("the code at {:#x} changed while it was being analysed", plan.address.value),
               "try again; code that a program rewrites at run time can't be probed",
               {}};
}

Site& AddressSpace::add_site(const SitePlan& plan, RemoteAddr slot) {
  const auto [it, added] = sites_.try_emplace(plan.address);
  PROBED_CHECK(added, "one site an address");
  it->second.plan = plan;
  it->second.slot = slot;
  return it->second;
}

void AddressSpace::remove_site(RemoteAddr address) {
  const auto it = sites_.find(address);
  if (it == sites_.end()) return;
  set_armed(it->second, false);
  if (it->second.slot) xol_.retire(it->second.slot);
  sites_.erase(it);
}

bool AddressSpace::set_armed(Site& site, bool armed) {
  if (site.armed == armed) return true;
  if (!armed) {
    restore(memory_, site.plan);
    removed_.insert_or_assign(site.plan.address, site.plan);
    site.armed = false;
    return true;
  }
  if (closed_ || !holds_original(memory_, site.plan)) return false;
  const std::span<const std::uint8_t> trap(native::kBreakpoint);
  if (!memory_.write(site.plan.address, as_bytes(trap)) || !holds_breakpoint(memory_, site.plan)) return false;
  site.armed = true;
  return true;
}

bool AddressSpace::plant_entry(const SitePlan& plan) {
  if (!memory_.write(plan.address, as_bytes(std::span<const std::uint8_t>(native::kBreakpoint)))) return false;
  entry_ = plan;
  return true;
}

void AddressSpace::remove_entry() {
  if (!entry_) return;
  restore(memory_, *entry_);
  removed_.insert_or_assign(entry_->address, *entry_);
  entry_.reset();
}

void AddressSpace::close() {
  closed_ = true;
  remove_entry();
  for (auto& [address, site] : sites_) set_armed(site, false);
}

void AddressSpace::clean_copy(TargetMemory& copy) const {
  if (entry_) restore(copy, *entry_);
  for (const auto& [address, site] : sites_)
    if (site.armed) restore(copy, site.plan);
  clean_removed(copy);
}

// What was taken out between the fork and now. A breakpoint that is still in the parent's text is the program's own.
void AddressSpace::clean_removed(TargetMemory& copy) const {
  for (const auto& [address, plan] : removed_) {
    const auto site = sites_.find(address);
    if ((site == sites_.end() || !site->second.armed) && !holds_breakpoint(memory_, plan)) restore(copy, plan);
  }
}

std::shared_ptr<AddressSpace> AddressSpace::clone_for(TargetMemory child) const {
  auto clone = std::make_shared<AddressSpace>(std::move(child));
  clone->sites_ = sites_;
  clone->removed_ = removed_;
  clone->syscall_insn_ = syscall_insn_;
  clone->scratch_ = scratch_;
  clone->xol_ = xol_;
  clone->xol_.forget_threads();
  if (entry_) restore(clone->memory_, *entry_);
  clean_removed(clone->memory_);
  return clone;
}

std::vector<AddressSpace::PageRange> AddressSpace::superfluous_copies(pid_t pid) const {
  std::set<RemoteAddr> pages;
  const auto note = [&](const SitePlan& plan) { pages.insert({plan.address.value / kPageSize * kPageSize}); };
  for (const auto& [address, site] : sites_) note(site.plan);
  for (const auto& [address, plan] : removed_) note(plan);
  auto maps = symbols::read_maps(pid);
  std::vector<PageRange> ranges;
  if (!maps) return ranges;
  FileOfMapping file(pid);
  for (const RemoteAddr page : pages) {
    const auto mapping = std::ranges::find_if(*maps, [&](const symbols::Mapping& m) { return m.contains(page); });
    if (mapping == maps->end() || mapping->writable || mapping->shared || mapping->inode == 0) continue;
    if (!file.has(*mapping, page, memory_)) continue;
    if (!ranges.empty() && ranges.back().start + ranges.back().size == page)
      ranges.back().size += kPageSize;
    else
      ranges.push_back({page, kPageSize});
  }
  return ranges;
}

RemoteAddr AddressSpace::syscall_insn(pid_t pid) {
  // The place may have been unmapped, or hold a breakpoint, since it was found.
  std::array<std::uint8_t, std::size(native::kSyscallInsn)> now{};
  if (syscall_insn_ && memory_.read_some(syscall_insn_, std::as_writable_bytes(std::span(now))) == now.size() &&
      std::ranges::equal(now, native::kSyscallInsn))
    return syscall_insn_;
  syscall_insn_ = {};
  auto maps = symbols::read_maps(pid);
  if (!maps) return {};
  const auto rank = [](const symbols::Mapping& m) { return m.path == "[vdso]" ? 0 : 1; };
  std::ranges::stable_sort(*maps, {}, rank);
  for (const symbols::Mapping& m : *maps) {
    if (!m.executable || m.path == "[vsyscall]") continue;
    if ((syscall_insn_ = find_syscall_insn(memory_, m))) break;
  }
  return syscall_insn_;
}

}  // namespace probed::tracer
