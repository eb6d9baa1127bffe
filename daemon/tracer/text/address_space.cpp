#include "daemon/tracer/text/address_space.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/random.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "daemon/base/mounts.hpp"
#include "daemon/base/process.hpp"
#include "daemon/base/visits.hpp"
#include "daemon/symbols/maps.hpp"
#include "daemon/tracer/text/text_pages.hpp"
#include "proto/base/check.hpp"

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

// Takes our breakpoint out of a memory that holds it. False: it isn't there. What is mapped there now may be something
// else, with a breakpoint instruction of its own (linkers fill gaps with them).
bool restore(TargetMemory& memory, const SitePlan& plan, const Layout& layout) {
  if (!layout.holds(plan) && !is_copy(memory, layout, {&plan, {}, {}})) return false;
  if (!holds_breakpoint(memory, plan)) return false;
  return memory.write(plan.address, as_bytes(plan.code()).first(native::kBreakpointSize));
}

bool holds(const TargetMemory& memory, RemoteAddr at, std::span<const std::uint8_t> bytes) {
  std::array<std::uint8_t, 64> now{};
  PROBED_CHECK(bytes.size() <= now.size(), "regions are short");
  const auto room = std::span(now).first(bytes.size());
  return memory.read_some(at, std::as_writable_bytes(room)) == bytes.size() && std::ranges::equal(room, bytes);
}

struct Stain {
  Patch patch;
  bool keep_trap = false;
};

// stains: ascending. The memory stands still.
void wash(TargetMemory& copy, std::span<const Stain> stains) {
  constexpr std::uint64_t kStretch = 64 * kPageSize;
  std::vector<std::uint8_t> text;
  for (std::size_t i = 0; i < stains.size();) {
    const RemoteAddr start = stains[i].patch.at;
    std::size_t end = i;
    while (end < stains.size() && stains[end].patch.at < start + kStretch &&
           (end == i || stains[end].patch.at < stains[end - 1].patch.at + kPageSize))
      ++end;
    text.resize(stains[end - 1].patch.at.value - start.value + Patch::kMaxSize);
    const std::size_t got = copy.read_some(start, std::as_writable_bytes(std::span(text)));
    std::size_t changed_from = text.size(), changed_to = 0;
    const auto flush = [&] {
      if (changed_from < changed_to)
        copy.write(start + changed_from, as_bytes(std::span(text)).subspan(changed_from, changed_to - changed_from));
      changed_from = text.size();
      changed_to = 0;
    };
    for (; i < end; ++i) {
      const Patch& patch = stains[i].patch;
      const std::size_t at = patch.at.value - start.value;
      if (at + patch.size > got) continue;
      if (at > changed_to + kPageSize) flush();
      if (!settle(std::span(text).subspan(at, patch.size), patch, stains[i].keep_trap)) continue;
      changed_from = std::min(changed_from, at);
      changed_to = std::max(changed_to, at + patch.size);
    }
    flush();
  }
}

std::vector<Patch> patches_of(const Jump* jump) {
  if (!jump) return {};
  std::vector<Patch> patches{jump->head};
  if (jump->island) patches.push_back(*jump->island);
  return patches;
}

// Looks at many places in the order of their addresses: a read for each would cost more than all the rest.
class Window {
 public:
  explicit Window(const TargetMemory& memory) : memory_(memory), bytes_(kSize) {}

  // size: at most a page. Fewer bytes when the rest can't be read.
  std::span<const std::uint8_t> at(RemoteAddr at, std::size_t size) {
    if (at < start_ || at + size > start_ + got_) {
      start_ = at;
      got_ = memory_.read_some(at, std::as_writable_bytes(std::span(bytes_)));
    }
    const std::size_t offset = at.value - start_.value;
    return std::span(bytes_).subspan(offset, std::min(size, got_ - offset));
  }

 private:
  static constexpr std::size_t kSize = 64 * 1024;

  const TargetMemory& memory_;
  std::vector<std::uint8_t> bytes_;
  RemoteAddr start_;
  std::size_t got_ = 0;
};

// What its breakpoint makes of the text.
Patch trap_patch(const SitePlan& plan) {
  Patch trap{plan.address, static_cast<std::uint8_t>(native::kBreakpointSize), {}, {}};
  std::copy_n(plan.bytes.begin(), native::kBreakpointSize, trap.before.begin());
  std::ranges::copy(native::kBreakpoint, trap.after.begin());
  return trap;
}

// Of another byte of what a plan was made from.
symbols::Backing backing_of(const SitePlan& plan, RemoteAddr at) {
  symbols::Backing backing = plan.backing;
  if (backing.from_file()) backing.offset += at.value - plan.address.value;
  return backing;
}

bool keeps_borrowed(const TargetMemory& memory, const Jump& jump) {
  return !jump.borrowed || holds(memory, jump.borrowed->at, after(*jump.borrowed));
}

// Of a jump what the breakpoint has stood on, and what is behind that.
constexpr std::size_t kHead = native::kBreakpointSize;
template <class Bytes>
auto head_of(const Bytes& bytes) {
  return bytes.first(kHead);
}
template <class Bytes>
auto tail_of(const Bytes& bytes) {
  return bytes.subspan(kHead);
}

// Whether what an armed site has put into the text is still there.
bool stands(Window& window, const TargetMemory& memory, const Site& site) {
  const Jump* jump = site.jump && site.jump->state != Jump::State::planned ? site.jump.get() : nullptr;
  if (!jump) {
    const auto now = window.at(site.plan.address, native::kBreakpointSize);
    return now.size() == native::kBreakpointSize && native::is_breakpoint(now) &&
           (site.plan.backing.from_file() || holds_breakpoint(memory, site.plan));
  }
  const auto now = window.at(jump->head.at, jump->head.size);
  if (now.size() != jump->head.size || !std::ranges::equal(tail_of(now), tail_of(after(jump->head)))) return false;
  if (jump->state != Jump::State::whole && !native::is_breakpoint(now)) return false;
  if (jump->state == Jump::State::whole && !std::ranges::equal(head_of(now), head_of(after(jump->head)))) return false;
  return !jump->island || holds(memory, jump->island->at, after(*jump->island));
}

// The breakpoint over a jump's head, the original bytes behind it. False: the jump isn't there as it was written.
// `sure`: whatever is there, it is the code that the jump was made for.
bool take_out(TargetMemory& memory, const Jump& jump, bool sure) {
  std::array<std::uint8_t, Patch::kMaxSize> bytes{};
  const auto now = std::span(bytes).first(jump.head.size);
  if (memory.read_some(jump.head.at, std::as_writable_bytes(now)) != now.size()) return false;
  const auto written = after(jump.head);
  const bool head = jump.state == Jump::State::whole && std::ranges::equal(head_of(now), head_of(written));
  const bool tail = std::ranges::equal(tail_of(now), tail_of(written));
  // A jump whose distance the program has written over leads nowhere: nobody may run into it any more.
  if (head && (tail || sure)) memory.write(jump.head.at, as_bytes(std::span<const std::uint8_t>(native::kBreakpoint)));
  if (!tail || (!head && !native::is_breakpoint(now))) return false;
  memory.write(jump.head.at + kHead, tail_of(as_bytes(before(jump.head))));
  return true;
}

Imprint imprint_of(const SitePlan& plan, std::span<const Patch> patches) {
  Imprint imprint{&plan, {}, {}};
  if (!patches.empty()) imprint.head = patches[0];
  if (patches.size() > 1) imprint.island = patches[1];
  return imprint;
}
Imprint imprint_of(const Site& site) { return imprint_of(site.plan, patches_of(site.jump.get())); }

// Takes what the program has moved out of where it is now. Whoever runs it meanwhile has the breakpoint first.
bool restore(TargetMemory& memory, const Stray& stray) {
  constexpr std::size_t kTrap = native::kBreakpointSize;
  if (stray.head && holds(memory, stray.head->at + kTrap, after(*stray.head).subspan(kTrap))) {
    memory.write(stray.head->at, as_bytes(std::span<const std::uint8_t>(native::kBreakpoint)));
    memory.write(stray.head->at + kTrap, as_bytes(before(*stray.head)).subspan(kTrap));
  }
  if (stray.island && holds(memory, stray.island->at, after(*stray.island)))
    memory.write(stray.island->at, as_bytes(before(*stray.island)));
  return memory.write(stray.plan.address, as_bytes(stray.plan.code()).first(kTrap));
}

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

RemoteAddr find_syscall_insn(const TargetMemory& memory, const symbols::Mapping& mapping) {
  constexpr std::uint64_t kPiece = 64 * 1024;
  std::vector<std::byte> piece(kPiece);
  const std::span<const std::uint8_t> wanted(native::kSyscallInsn);
  for (RemoteAddr at = mapping.start; at < mapping.end; at = at + (kPiece - wanted.size() + 1)) {
    const std::size_t size = std::min<std::uint64_t>(kPiece, mapping.end.value - at.value);
    const std::size_t got = memory.read_some(at, std::span(piece).first(size));
    const auto end = piece.begin() + static_cast<std::ptrdiff_t>(got);
    for (auto from = piece.begin();; ++from) {
      from = std::search(from, end, as_bytes(wanted).begin(), as_bytes(wanted).end());
      if (from == end) break;
      const RemoteAddr hit = at + static_cast<std::uint64_t>(from - piece.begin());
      if (hit.value % native::kInsnAlignment == 0) return hit;
    }
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

bool AddressSpace::is_ours(const XolAreas::Area& area, const Layout& layout) const {
  if (!is_mapped(area, layout)) return false;
  if (!area.mark) return true;
  std::array<std::uint8_t, Mark::kSize> now{};
  const auto bytes = std::as_writable_bytes(std::span(now));
  return memory_.read_some(area.base + area.mark->offset, bytes) == bytes.size() && now == area.mark->bytes;
}

// A number that no program has by chance.
Mark AddressSpace::mark(std::uint64_t offset) {
  static const auto bytes = [] {
    std::array<std::uint8_t, Mark::kSize> drawn{};
    [[maybe_unused]] const ssize_t n = ::getrandom(drawn.data(), drawn.size(), 0);  // never short for so few
    return drawn;
  }();
  return {offset, bytes};
}

Mark AddressSpace::mark_of(std::span<const std::uint8_t> code) {
  Mark mark;
  std::ranges::copy(code.first(std::min(code.size(), Mark::kSize)), mark.bytes.begin());
  return mark;
}

Result<void> AddressSpace::verify(const SitePlan& plan, const Layout& layout) const {
  InsnBytes now{};
  if (read_insn(memory_, plan, now) != plan.insn.length || !layout.holds(plan))
    return Error{Reason::unmapped_address,
                 fmt::format("the code at {:#x} has gone: it was unmapped, or something else was mapped in its place",
                             plan.address.value),
                 "enable the probe when its code is loaded again, or add it with \"pending\"",
                 {}};
  if (std::ranges::equal(plan.code(), std::span(now).first(plan.insn.length))) return {};
  if (native::is_breakpoint(now))
    return Error{Reason::existing_breakpoint,
                 fmt::format("address {:#x} holds a breakpoint instruction that is not ours", plan.address.value),
                 "remove the debugger's breakpoint first",
                 {}};
  return Error{
      Reason::target_gone,
      fmt::format("the code at {:#x} changed since it was analysed: the program rewrites it", plan.address.value),
      "try again; or probe a place that the program doesn't rewrite",
      {}};
}

Site& AddressSpace::add_site(const SitePlan& plan, RemoteAddr slot) {
  const auto [it, added] = sites_.try_emplace(plan.address);
  PROBED_CHECK(added, "one site an address");
  it->second.plan = plan;
  it->second.slot = slot;
  in_order_.emplace(plan.address, &it->second);
  return it->second;
}

void AddressSpace::remove_site(RemoteAddr address, const Layout& layout) {
  forget_site(address, layout);
  landing_.flush(memory_);
}

void AddressSpace::forget_site(RemoteAddr address, const Layout& layout) {
  const auto it = sites_.find(address);
  if (it == sites_.end()) return;
  set_armed(it->second, false, layout);
  landing_.stage(address, address);  // the copy is about to become another instruction's
  if (it->second.slot) xol_.retire(it->second.slot);
  in_order_.erase(address);
  sites_.erase(it);
}

void AddressSpace::remove_sites(std::span<const RemoteAddr> addresses, const Layout& layout) {
  std::vector<SitePlan> plans;
  std::vector<Site*> found;
  std::optional<TextPages> pages;
  if (layout.known() && addresses.size() >= TextPages::kLargeBatch) {
    for (const RemoteAddr address : addresses)
      if (Site* site = find(address); site && site->armed) found.push_back(site), plans.push_back(site->plan);
    take_out_jumps(found, layout);
    // Those that are only planned, or half written, by themselves: in an order of their own, too.
    for (Site* site : found) drop_jump(*site, layout);
    pages.emplace(memory_, layout.mappings());
  }
  for (const RemoteAddr address : addresses) forget_site(address, layout);
  if (pages && pages->flush()) {
    // The program has changed its text at this very moment: one after the other, then.
    pages.reset();
    for (const SitePlan& plan : plans) restore(memory_, plan, layout);
  }
  pages.reset();
  for (const SitePlan& plan : plans)
    if (journal_) journal_->note_taken_out(plan.address);
  settle_overlay();
  landing_.flush(memory_);
}

// While the text is gathered by the page, nothing is in it yet, or out of it.
void AddressSpace::forget_patch(const Patch& patch) {
  if (memory_.gathers()) return taken_out_.push_back(patch);
  overlay_->remove(patch);
}

void AddressSpace::settle_overlay() {
  if (memory_.gathers()) return;
  for (const Patch& patch : taken_out_) overlay_->remove(patch);
  taken_out_.clear();
}

void AddressSpace::keep_journal(std::unique_ptr<Journal> journal) {
  journal_ = std::move(journal);
  if (!journal_) return;
  for (const auto& [address, site] : in_order_)
    if (site->armed) journal_->note_breakpoint(site->plan);
  for (const auto& [at, semaphore] : semaphores_) {
    if (semaphore.ours == 0) continue;
    journal_->begin_semaphore(at, semaphore.backing, semaphore.ours, 0);
    journal_->end_semaphore(at);
  }
}

void AddressSpace::drop_journal() {
  if (journal_) journal_->remove();
  journal_.reset();
}

bool AddressSpace::set_armed(Site& site, bool armed, const Layout& layout) {
  const bool done = write_armed(site, armed, layout);
  settle_semaphores(site, layout);
  return done;
}

bool AddressSpace::write_armed(Site& site, bool armed, const Layout& layout) {
  if (site.armed == armed) return true;
  if (!armed) {
    note_removed(site.plan);
    drop_jump(site, layout);
    misses_breakpoints_ |= !restore(memory_, site.plan, layout);
    if (journal_ && !memory_.gathers()) journal_->note_taken_out(site.plan.address);
    forget_patch(trap_patch(site.plan));
    site.armed = false;
    return true;
  }
  if (closed_ || !layout.holds(site.plan) || !holds_original(memory_, site.plan)) return false;
  copies_given_back_ = false;
  if (journal_) journal_->note_breakpoint(site.plan);
  settle_overlay();
  overlay_->add(trap_patch(site.plan));
  const std::span<const std::uint8_t> trap(native::kBreakpoint);
  if (!memory_.write(site.plan.address, as_bytes(trap)) || !holds_breakpoint(memory_, site.plan)) {
    forget_patch(trap_patch(site.plan));
    return false;
  }
  places_in_page_.set(site.plan.address.value % kPageSize);
  site.armed = true;
  return true;
}

void AddressSpace::renew_site(Site& site, const SitePlan& plan, RemoteAddr slot) {
  PROBED_CHECK(site.plan.address == plan.address && !site.jump, "a site keeps its address");
  if (site.slot) xol_.retire(site.slot);
  if (journal_ && site.armed) journal_->note_breakpoint(plan);
  if (site.armed) {
    overlay_->add(trap_patch(plan));
    forget_patch(trap_patch(site.plan));
  }
  site.plan = plan;
  site.slot = slot;
  site.rewritten = true;
  site.flow.reset();
}

void AddressSpace::note_removed(const SitePlan& plan, std::vector<Patch> patches) {
  Removed& removed = removed_[plan.address];
  removed.plan = plan;
  if (!patches.empty()) removed.patches = std::move(patches);
  places_in_page_.set(plan.address.value % kPageSize);
}

// ---- jumps ----------------------------------------------------------------------------------------------------------
//
// While its head is a breakpoint, no thread comes in by the front door, and those that run into it go on in the
// detour; so the bytes behind it may be written once no thread is, or can come back, between them (quiesce.hpp).
// Nothing is ever half overwritten for a processor that is about to execute it: it sees the breakpoint with old or new
// bytes behind, or, after every thread has been through the kernel once more, the whole jump.

bool AddressSpace::holds_around(const Site& site, std::span<const std::uint8_t> bytes) const {
  return bytes.size() >= kHead && std::ranges::equal(head_of(bytes), std::span(site.plan.bytes).first(kHead)) &&
         holds_breakpoint(memory_, site.plan) && holds(memory_, site.plan.address + kHead, tail_of(bytes));
}

bool AddressSpace::plan_jump(Site& site, Jump jump) {
  PROBED_CHECK(site.armed && !site.jump, "a jump takes the place of a breakpoint");
  const auto tail = tail_of(before(jump.head));
  if (!holds_breakpoint(memory_, site.plan) || !holds(memory_, jump.head.at + kHead, tail)) return false;
  if (jump.island && !holds(memory_, jump.island->at, before(*jump.island))) return false;
  if (!keeps_borrowed(memory_, jump)) return false;
  for (const Patch& patch : patches_of(&jump)) {
    overlay_->add(patch);
    if (journal_) journal_->note_patch(patch, backing_of(site.plan, patch.at));
  }
  landing_.set(memory_, site.plan.address, jump.tail);  // the copy ends where the jump's bytes will be
  site.jump = std::make_shared<Jump>(std::move(jump));
  return true;
}

void AddressSpace::add_call_trap(RemoteAddr trap, RemoteAddr done) {
  landing_.set(memory_, trap, done);
  if (!journal_ || trap.value == 0) return;
  SitePlan plan;
  plan.address = trap;
  plan.insn.length = native::kBreakpointSize;
  std::ranges::copy(native::kNop, plan.bytes.begin());
  plan.context = native::kBreakpointSize;
  journal_->note_breakpoint(plan);
}

bool AddressSpace::write_jump_tail(Site& site) {
  Jump& jump = *site.jump;
  const auto old = tail_of(before(jump.head));
  if (!holds_breakpoint(memory_, site.plan) || !holds(memory_, jump.head.at + kHead, old)) return false;
  if (jump.island) {
    if (!holds(memory_, jump.island->at, before(*jump.island))) return false;
    if (!memory_.write(jump.island->at, as_bytes(after(*jump.island)))) return false;
    detours_->add_island(*jump.island, site.plan.address);
  }
  jump.state = Jump::State::tail;
  return memory_.write(jump.head.at + kHead, tail_of(as_bytes(after(jump.head))));
}

bool AddressSpace::write_jump_head(Site& site) {
  Jump& jump = *site.jump;
  // A breakpoint alone isn't ours: the program may have put other code there since, with one of its own in that place.
  if (!holds_breakpoint(memory_, site.plan) || !holds(memory_, jump.head.at + kHead, tail_of(after(jump.head))))
    return false;
  if (jump.island && !holds(memory_, jump.island->at, after(*jump.island))) return false;
  if (!keeps_borrowed(memory_, jump)) return false;
  if (!memory_.write(jump.head.at, head_of(as_bytes(after(jump.head))))) return false;
  jump.state = Jump::State::whole;
  return true;
}

void AddressSpace::drop_jump(Site& site, const Layout& layout) {
  if (!site.jump) return;
  const Jump& jump = *site.jump;
  if (jump.state != Jump::State::planned) {
    const bool told = !jump.island || holds(memory_, jump.island->at, after(*jump.island));
    const bool sure = layout.known() && layout.holds(site.plan);
    const bool ours = layout.known() ? sure || is_copy(memory_, layout, imprint_of(site)) : told;
    misses_breakpoints_ |= !ours || !take_out(memory_, jump, sure);
  }
  forget_jump(site);
}

// The same for many jumps that are as they were written, a step for all of them and then the next one: in all of them
// the breakpoint stands before the first byte behind it changes. What isn't as it should be is left to drop_jump().
void AddressSpace::take_out_jumps(std::span<Site* const> sites, const Layout& layout) {
  std::vector<Site*> out;
  std::optional<TextPages> pages(std::in_place, memory_, layout.mappings());
  for (Site* site : sites) {
    const Jump* jump = site->jump.get();
    if (!jump || jump->state != Jump::State::whole || !layout.holds(site->plan)) continue;
    if (!holds(memory_, jump->head.at, after(jump->head))) continue;
    if (memory_.write(jump->head.at, as_bytes(std::span<const std::uint8_t>(native::kBreakpoint)))) out.push_back(site);
  }
  if (pages->flush()) return;
  for (const Site* site : out) {
    const Patch& head = site->jump->head;
    memory_.write(head.at + native::kBreakpointSize, as_bytes(before(head)).subspan(native::kBreakpointSize));
  }
  if (pages->flush()) return;
  pages.reset();
  for (Site* site : out) forget_jump(*site);
}

// Nothing of it is in the text any more.
void AddressSpace::forget_jump(Site& site) {
  const std::shared_ptr<Jump> jump = std::exchange(site.jump, nullptr);
  forget_patch(jump->head);
  if (jump->island && jump->state == Jump::State::planned) forget_patch(*jump->island);
  // A child that was forked before may still have it.
  if (jump->state != Jump::State::planned) note_removed(site.plan, patches_of(jump.get()));
  landing_.set(memory_, site.plan.address, site.slot ? site.slot : site.plan.address);
  for (const ProgramPtr& program : site.programs) program->optimized.store(false, std::memory_order_relaxed);
  detours_->retire(jump->detour);
  if (jump->pun) detours_->retire(jump->pun);
  // A thread may be between the short jump and the island's: that stays until a round has seen nobody there.
  if (jump->island && jump->state != Jump::State::planned) detours_->retire_island(jump->island->at);
}

std::optional<RemoteAddr> AddressSpace::moved_jump_to(RemoteAddr pc) const {
  for (const auto& [address, site] : sites_) {
    if (!site.jump || site.jump->state != Jump::State::whole) continue;
    const RemoteAddr leads_to = site.jump->pun ? site.jump->pun : site.jump->detour;
    const std::uint64_t moved = pc.value - leads_to.value;
    if (moved == 0 || moved % kPageSize != 0) continue;
    if (holds(memory_, address + moved, after(site.jump->head))) return address + moved;
  }
  return std::nullopt;
}

std::optional<RemoteAddr> AddressSpace::astray(const Site& site) const {
  if (!site.jump || !site.jump->pun || site.jump->state != Jump::State::whole) return std::nullopt;
  std::array<std::uint8_t, arch::kNearJumpSize> now{};
  if (memory_.read_some(site.plan.address, std::as_writable_bytes(std::span(now))) != now.size()) return std::nullopt;
  const auto head = after(site.jump->head);
  if (!std::equal(head.begin(), head.end(), now.begin())) return std::nullopt;
  const auto target = native::decode(now, site.plan.address.value).target;
  return target && *target != site.jump->pun.value ? std::optional(RemoteAddr{*target}) : std::nullopt;
}

Site* AddressSpace::astray_to(RemoteAddr pc) {
  const auto it = std::ranges::find_if(sites_, [&](const auto& entry) {
    const Site& site = entry.second;
    return (site.led_astray && site.led_astray == pc) || astray(site) == pc;
  });
  return it == sites_.end() ? nullptr : &it->second;
}

std::vector<Site*> AddressSpace::hindered_by(RemoteAddr address) {
  std::vector<Site*> found;
  auto it = in_order_.lower_bound(address - std::min(address.value, arch::kRegionReach));
  for (; it != in_order_.end() && it->first <= address + arch::kRegionReach; ++it)
    if (it->first != address && it->second->jump && it->second->jump->hinders(address)) found.push_back(it->second);
  return found;
}

bool AddressSpace::plant_entry(const SitePlan& plan) {
  if (journal_) journal_->note_breakpoint(plan);
  overlay_->add(trap_patch(plan));
  if (!memory_.write(plan.address, as_bytes(std::span<const std::uint8_t>(native::kBreakpoint)))) {
    overlay_->remove(trap_patch(plan));
    return false;
  }
  entry_ = plan;
  return true;
}

void AddressSpace::remove_entry() {
  if (!entry_) return;
  restore(memory_, *entry_, Layout::unknown());
  if (journal_) journal_->note_taken_out(entry_->address);
  overlay_->remove(trap_patch(*entry_));
  note_removed(*entry_);
  entry_.reset();
}

void AddressSpace::close() {
  closed_ = true;
  remove_entry();
  if (sites_.empty() && removed_.empty()) return;
  const Layout before = Layout::of(memory_);
  std::vector<Site*> armed;
  for (const auto& [address, site] : in_order_)
    if (site->armed) armed.push_back(site);
  std::optional<TextPages> pages;
  if (before.known() && armed.size() >= TextPages::kLargeBatch) {
    take_out_jumps(armed, before);
    for (Site* site : armed) drop_jump(*site, before);
    pages.emplace(memory_, before.mappings());
  }
  for (Site* site : armed) set_armed(*site, false, before);
  const bool failed = pages && pages->flush();
  pages.reset();
  settle_overlay();
  landing_.flush(memory_);
  if (failed)
    for (const Site* site : armed) restore(memory_, site->plan, before);
  // Code that is being moved meanwhile either takes its breakpoint along, and is found now, or doesn't any more.
  constexpr int kMostMoves = 4;
  for (int i = 0; i < kMostMoves && heal_strays(Layout::of(memory_)) > 0; ++i) {
  }
}

void AddressSpace::take_out_island(const Patch& island) {
  if (holds(memory_, island.at, after(island))) memory_.write(island.at, as_bytes(before(island)));
  forget_patch(island);
}

void AddressSpace::take_out_islands() { round_done(detours_->begin_round()); }

void AddressSpace::take_out_islands_but(const std::set<RemoteAddr>& occupied) {
  for (const Patch& island : detours_->islands_to_restore(~0ull, occupied)) take_out_island(island);
}

std::vector<std::pair<std::size_t, std::uint32_t>> AddressSpace::round_done(std::uint64_t number) {
  for (const Patch& island : detours_->islands_to_restore(number, {})) take_out_island(island);
  return detours_->round_done(number);
}

// ---- code that goes away or moves -----------------------------------------------------------------------------------

std::vector<RemoteAddr> AddressSpace::lost_sites(const Layout& layout) const {
  std::vector<RemoteAddr> lost;
  Window window(memory_);
  const auto has_code = [&](const Site& site) {
    return layout.holds(site.plan) || (site.armed && is_copy(memory_, layout, imprint_of(site)));
  };
  for (const auto& [address, site] : in_order_)
    if (!has_code(*site) || (site->armed && !stands(window, memory_, *site))) lost.push_back(address);
  return lost;
}

bool AddressSpace::could_be_stray(RemoteAddr address) const {
  if (!places_in_page_[address.value % kPageSize]) return false;
  InsnBytes now{};
  const std::size_t got = memory_.read_some(address, std::as_writable_bytes(std::span(now)));
  const auto fits = [&](const Imprint& i) {
    return i.plan->address.value % kPageSize == address.value % kPageSize && looks_like(i, std::span(now).first(got));
  };
  return std::ranges::any_of(imprints(), fits);
}

std::vector<Imprint> AddressSpace::imprints() const {
  std::vector<Imprint> all;
  all.reserve(sites_.size() + removed_.size());
  const auto note = [&](const SitePlan& plan, std::span<const Patch> patches) {
    all.push_back(imprint_of(plan, patches));
  };
  for (const auto& [address, site] : sites_) {
    const auto removed = removed_.find(address);
    if (site.jump)
      note(site.plan, patches_of(site.jump.get()));
    else
      note(site.plan, removed == removed_.end() ? std::span<const Patch>() : removed->second.patches);
  }
  for (const auto& [address, removed] : removed_)
    if (!sites_.contains(address)) note(removed.plan, removed.patches);
  return all;
}

const SitePlan* AddressSpace::plan_at(RemoteAddr address) const {
  if (const auto site = sites_.find(address); site != sites_.end()) return &site->second.plan;
  const auto removed = removed_.find(address);
  return removed == removed_.end() ? nullptr : &removed->second.plan;
}

std::size_t AddressSpace::heal_strays(const Layout& layout) {
  const auto ours = [&](RemoteAddr at) {
    const auto site = sites_.find(at);
    return (entry_ && entry_->address == at) ||
           (site != sites_.end() && site->second.armed && layout.holds(site->second.plan));
  };
  const std::vector<Stray> strays = find_strays(memory_, layout, imprints(), ours);
  std::size_t healed = 0;
  for (const Stray& stray : strays) {
    if (!restore(memory_, stray)) continue;
    ++healed;
    note_removed(stray.plan);  // threads may have run into it before
  }
  misses_breakpoints_ = false;
  return healed;
}

// ---- copies ---------------------------------------------------------------------------------------------------------

// In a copy of this memory that nobody runs in: every place that may hold something of ours, in the order of addresses,
// a stretch of text at a time; and what had been moved before. `keep_traps`: the breakpoints of the sites that are
// armed stay.
void AddressSpace::clean(TargetMemory& copy, const Layout& layout, bool keep_traps) const {
  std::vector<Stain> stains;
  const auto note = [&](const SitePlan& plan, std::vector<Patch> patches, bool keep) {
    const bool same = layout.holds(plan) && (plan.backing.from_file() || holds_breakpoint(copy, plan));
    if (!same && !is_copy(copy, layout, imprint_of(plan, patches))) return;
    patches.push_back(trap_patch(plan));
    // No breakpoint was where a second jump is.
    for (const Patch& patch : patches) stains.push_back({patch, keep && patch.at == plan.address});
  };
  const auto armed = [this](RemoteAddr at) {
    const auto site = sites_.find(at);
    return (entry_ && entry_->address == at) || (site != sites_.end() && site->second.armed);
  };
  // What was taken out or moved between the fork and now is ours. A breakpoint that is still in the parent's text,
  // where a site was, is the program's own.
  const auto of_program = [&](RemoteAddr at) {
    const auto removed = removed_.find(at);
    return armed(at) || (removed != removed_.end() && holds_breakpoint(memory_, removed->second.plan));
  };
  if (entry_) restore(copy, *entry_, Layout::unknown());
  for (const auto& [address, site] : sites_)
    if (site.armed) note(site.plan, patches_of(site.jump.get()), keep_traps);
  for (const auto& [address, removed] : removed_) {
    if (!armed(address) && of_program(address)) continue;
    if (!armed(address) || !removed.patches.empty()) note(removed.plan, removed.patches, armed(address) && keep_traps);
  }
  for (const auto& [address, island] : detours_->islands())
    if (const SitePlan* plan = plan_at(island.site); !plan || layout.holds(*plan) || layout.may_hold_copy(*plan))
      stains.push_back({island.patch, false});
  std::ranges::sort(stains, {}, [](const Stain& s) { return s.patch.at; });
  wash(copy, stains);
  for (const Stray& stray : find_strays(copy, layout, imprints(), of_program)) restore(copy, stray);
}

void AddressSpace::clean_copy(TargetMemory& copy, const Layout& layout) const {
  clean(copy, layout, false);
  clean_semaphores(copy, layout, false);
  // Whoever was away on a call is a thread of the parent's.
  for (const RemoteAddr pad : pads_used_) erase_call_pad(copy, pad, Erase::anyway);
}

std::shared_ptr<AddressSpace> AddressSpace::clone_for(TargetMemory child, const Layout& layout) const {
  auto clone = std::make_shared<AddressSpace>(std::move(child));
  clone->sites_ = sites_;
  for (auto& [address, site] : clone->sites_) {
    clone->in_order_.emplace(address, &site);
    if (site.armed) clone->overlay_->add(trap_patch(site.plan));
    site.jump.reset();
    site.queued = false;
  }
  clone->removed_ = removed_;
  clone->returns_ = std::make_unique<ReturnStacks>(*returns_);
  clone->semaphores_ = semaphores_;
  clone->places_in_page_ = places_in_page_;
  clone->syscall_insn_ = syscall_insn_;
  // Whoever was away on a call is a thread of the parent's.
  for (const RemoteAddr pad : pads_used_) erase_call_pad(clone->memory_, pad, Erase::anyway);
  clone->scratch_ = scratch_;
  clone->xol_ = xol_;
  clone->xol_.forget_threads();
  clone->landing_ = landing_;
  clone->look_after_landing(layout);
  for (const auto& [address, site] : clone->in_order_)
    if (site->slot) clone->landing_.stage(address, site->slot);
  clone->landing_.flush(clone->memory_);
  clean(clone->memory_, layout, true);
  clean_semaphores(clone->memory_, layout, true);
  return clone;
}

void AddressSpace::look_after_landing(const Layout& layout) {
  const auto is_lost = [&](const XolAreas::Area& area) {
    return (area.base == landing_.page() || area.base == landing_.table().base) && !is_ours(area, layout);
  };
  if (landing_.ready() && std::ranges::any_of(xol_.areas(), is_lost)) landing_.lose();
}

std::vector<AddressSpace::PageRange> AddressSpace::superfluous_copies(pid_t pid, const Layout& layout) const {
  std::set<RemoteAddr> pages;
  const auto note = [&](const SitePlan& plan) { pages.insert({plan.address.value / kPageSize * kPageSize}); };
  for (const auto& [address, site] : sites_) note(site.plan);
  for (const auto& [address, removed] : removed_) {
    note(removed.plan);
    for (const Patch& patch : removed.patches)
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

// The pad that was found before, as long as its memory is there and nobody is on his way back through it.
CallPad AddressSpace::call_pad(pid_t pid) {
  arch::CallPadHead head;
  const auto bytes = std::as_writable_bytes(std::span(&head, 1));
  const bool known = call_pad_ && memory_.read_some(call_pad_ + native::kCallPadData, bytes) == bytes.size() &&
                     head.mark == arch::CallPadHead::kMark && head.busy == 0;
  CallPad pad = known ? CallPad{&memory_, call_pad_, {}} : find_call_pad(memory_, pid);
  call_pad_ = pad.at;
  if (pad.at) pads_used_.insert(pad.at);
  const RemoteAddr unblocked = pad.at + native::kUnblocked;
  if (pad.at) landing_.set(memory_, {native::breakpoint_address(unblocked.value)}, unblocked);
  if (!pad.at) pad.plain_call = syscall_insn(pid);
  return pad;
}

void AddressSpace::erase_call_pads(bool others) {
  for (const RemoteAddr pad : pads_used_) erase_call_pad(memory_, pad, Erase::free);
  if (pads_left_ && !others)
    for (const RemoteAddr pad : *pads_left_) erase_call_pad(memory_, pad, Erase::anyway);
  call_pad_ = {};
  pads_used_.clear();
  pads_left_.reset();
}

void AddressSpace::keep_pads_of(pid_t pid, pid_t tid, const native::Registers& regs) {
  const RemoteAddr pc{regs.pc()};
  const auto stands_in = [pc](RemoteAddr pad) { return in_call_pad(pad, pc); };
  std::erase_if(pads_used_, stands_in);
  if (!pads_left_) {
    pads_left_ = call_pads(memory_, pid);
    for (const RemoteAddr pad : pads_used_) pads_left_->erase(pad);
  }
  if (pads_left_->empty()) return;
  std::erase_if(*pads_left_, stands_in);
  const auto maps = symbols::read_maps(pid);
  if (!maps) return pads_left_->clear();
  for (const RemoteAddr pad : pads_in_stack(memory_, *maps, *pads_left_, pid, tid, regs)) pads_left_->erase(pad);
}

std::vector<XolAreas::Area> AddressSpace::areas_to_unmap() const {
  std::vector<XolAreas::Area> areas(xol_.areas().begin(), xol_.areas().end());
  std::ranges::stable_partition(areas, [&](const XolAreas::Area& area) { return area.base != landing_.page(); });
  return areas;
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
