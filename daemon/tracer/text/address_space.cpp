#include "daemon/tracer/text/address_space.hpp"

#include <fmt/format.h>
#include <sys/random.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "daemon/symbols/maps.hpp"
#include "daemon/tracer/text/edits.hpp"
#include "daemon/tracer/text/text_pages.hpp"
#include "proto/base/check.hpp"

namespace probed::tracer {
namespace {

namespace native = arch::native;

using InsnBytes = std::array<std::uint8_t, arch::kMaxInsnLength>;

// The instruction's bytes as they are in memory now, as many as can be read.
std::size_t read_insn(const TargetMemory& memory, const SitePlan& plan, InsnBytes& out) {
  return memory.read_some(plan.address, std::as_writable_bytes(std::span(out).first(plan.insn.length)));
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
  return !jump->island || stands(memory, *jump->island);
}

Imprint imprint_of(const SitePlan& plan, std::span<const Patch> patches) {
  Imprint imprint{&plan, {}, {}};
  if (!patches.empty()) imprint.head = patches[0];
  if (patches.size() > 1) imprint.island = patches[1];
  return imprint;
}
Imprint imprint_of(const Site& site) { return imprint_of(site.plan, patches_of(site.jump.get())); }

RemoteAddr find_syscall_insn(const TargetMemory& memory, const symbols::Mapping& mapping) {
  constexpr std::uint64_t kPiece = 64 * 1024;
  std::vector<std::byte> piece(kPiece);
  const std::span<const std::uint8_t> wanted(native::kSyscallInsn);
  for (RemoteAddr at = mapping.start; at < mapping.end; at = at + (kPiece - wanted.size() + 1)) {
    const std::size_t size = std::min<std::uint64_t>(kPiece, mapping.end.value - at.value);
    const std::size_t got = memory.read_some(at, std::span(piece).first(size));
    const auto end = piece.begin() + static_cast<std::ptrdiff_t>(got);
    for (auto from = piece.begin();; ++from) {
      from = std::search(from, end, std::as_bytes(wanted).begin(), std::as_bytes(wanted).end());
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
  landing().flush(memory_);
}

void AddressSpace::forget_site(RemoteAddr address, const Layout& layout) {
  const auto it = sites_.find(address);
  if (it == sites_.end()) return;
  set_armed(it->second, false, layout);
  landing().stage(address, address);  // the copy is about to become another instruction's
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
    for (const SitePlan& plan : plans) ledger_.take_out_breakpoint_again(plan, layout);
  }
  pages.reset();
  ledger_.settle();
  landing().flush(memory_);
}

void AddressSpace::keep_journal(std::unique_ptr<Journal> journal) {
  ledger_.keep_journal(std::move(journal));
  Journal* const kept = this->journal();
  if (!kept) return;
  for (const auto& [address, site] : in_order_)
    if (site->armed) kept->note_breakpoint(site->plan);
  for (const auto& [at, semaphore] : semaphores_) {
    if (semaphore.ours == 0) continue;
    kept->begin_semaphore(at, semaphore.backing, semaphore.ours, 0);
    kept->end_semaphore(at);
  }
}

bool AddressSpace::set_armed(Site& site, bool armed, const Layout& layout) {
  const bool done = write_armed(site, armed, layout);
  settle_semaphores(site, layout);
  return done;
}

bool AddressSpace::write_armed(Site& site, bool armed, const Layout& layout) {
  if (site.armed == armed) return true;
  if (!armed) {
    ledger_.note_former(site.plan);
    drop_jump(site, layout);
    misses_breakpoints_ |= !ledger_.take_out_breakpoint(site.plan, layout);
    site.armed = false;
    return true;
  }
  if (closed_ || !layout.holds(site.plan) || !holds_original(memory_, site.plan)) return false;
  copies_given_back_ = false;
  if (!ledger_.put_breakpoint(site.plan)) return false;
  site.armed = true;
  return true;
}

void AddressSpace::renew_site(Site& site, const SitePlan& plan, RemoteAddr slot) {
  PROBED_CHECK(site.plan.address == plan.address && !site.jump, "a site keeps its address");
  if (site.slot) xol_.retire(site.slot);
  if (site.armed) ledger_.replan_breakpoint(site.plan, plan);
  site.plan = plan;
  site.slot = slot;
  site.rewritten = true;
  site.flow.reset();
}

// ---- jumps ----------------------------------------------------------------------------------------------------------

bool AddressSpace::holds_around(const Site& site, std::span<const std::uint8_t> bytes) const {
  return bytes.size() >= kHeadSize && std::ranges::equal(head_of(bytes), head_of(std::span(site.plan.bytes))) &&
         holds_breakpoint(memory_, site.plan) && holds(memory_, site.plan.address + kHeadSize, tail_of(bytes));
}

bool AddressSpace::plan_jump(Site& site, Jump jump) {
  PROBED_CHECK(site.armed && !site.jump, "a jump takes the place of a breakpoint");
  if (!ledger_.announce_jump(site.plan, jump)) return false;
  site.jump = std::make_shared<Jump>(std::move(jump));
  return true;
}

bool AddressSpace::write_jump_tail(Site& site) {
  Jump& jump = *site.jump;
  if (!ledger_.write_island(site.plan, jump)) return false;
  if (jump.island) detours_->add_island(*jump.island, site.plan.address);
  jump.state = Jump::State::tail;
  return ledger_.write_tail(jump);
}

bool AddressSpace::write_jump_head(Site& site) {
  if (!ledger_.write_head(site.plan, *site.jump)) return false;
  site.jump->state = Jump::State::whole;
  return true;
}

void AddressSpace::drop_jump(Site& site, const Layout& layout) {
  if (!site.jump) return;
  const Jump& jump = *site.jump;
  if (jump.state != Jump::State::planned) {
    const bool told = !jump.island || stands(memory_, *jump.island);
    const bool sure = layout.known() && layout.holds(site.plan);
    const bool ours = layout.known() ? sure || is_copy(memory_, layout, imprint_of(site)) : told;
    misses_breakpoints_ |= !ours || !ledger_.take_out_jump(jump, sure);
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
    if (ledger_.take_out_jump_head(*jump)) out.push_back(site);
  }
  if (pages->flush()) return;
  for (const Site* site : out) ledger_.take_out_jump_tail(*site->jump);
  if (pages->flush()) return;
  pages.reset();
  for (Site* site : out) forget_jump(*site);
}

// Nothing of it is in the text any more.
void AddressSpace::forget_jump(Site& site) {
  const std::shared_ptr<Jump> jump = std::exchange(site.jump, nullptr);
  ledger_.forget_jump(site.plan, *jump, site.slot ? site.slot : site.plan.address);
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
  if (!ledger_.put_breakpoint(plan)) return false;
  entry_ = plan;
  return true;
}

void AddressSpace::remove_entry() {
  if (!entry_) return;
  ledger_.take_out_breakpoint(*entry_, Layout::unknown());
  ledger_.note_former(*entry_);
  entry_.reset();
}

void AddressSpace::close() {
  closed_ = true;
  remove_entry();
  if (sites_.empty() && ledger_.former().empty()) return;
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
  if (failed)
    for (const Site* site : armed) ledger_.take_out_breakpoint_again(site->plan, before);
  ledger_.settle();
  landing().flush(memory_);
  // Code that is being moved meanwhile either takes its breakpoint along, and is found now, or doesn't any more.
  constexpr int kMostMoves = 4;
  for (int i = 0; i < kMostMoves && heal_strays(Layout::of(memory_)) > 0; ++i) {
  }
}

void AddressSpace::take_out_islands() { round_done(detours_->begin_round()); }

void AddressSpace::take_out_islands_but(const std::set<RemoteAddr>& occupied) {
  for (const Patch& island : detours_->islands_to_restore(~0ull, occupied)) ledger_.take_out_island(island);
}

std::vector<std::pair<std::size_t, std::uint32_t>> AddressSpace::round_done(std::uint64_t number) {
  for (const Patch& island : detours_->islands_to_restore(number, {})) ledger_.take_out_island(island);
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
  if (!ledger_.ever_held(address)) return false;
  InsnBytes now{};
  const std::size_t got = memory_.read_some(address, std::as_writable_bytes(std::span(now)));
  const auto fits = [&](const Imprint& i) {
    return i.plan->address.value % kPageSize == address.value % kPageSize && looks_like(i, std::span(now).first(got));
  };
  return std::ranges::any_of(imprints(), fits);
}

std::vector<Imprint> AddressSpace::imprints() const {
  std::vector<Imprint> all;
  const auto& former = ledger_.former();
  all.reserve(sites_.size() + former.size());
  const auto note = [&](const SitePlan& plan, std::span<const Patch> patches) {
    all.push_back(imprint_of(plan, patches));
  };
  for (const auto& [address, site] : sites_) {
    const auto before = former.find(address);
    if (site.jump)
      note(site.plan, patches_of(site.jump.get()));
    else
      note(site.plan, before == former.end() ? std::span<const Patch>() : before->second.patches);
  }
  for (const auto& [address, place] : former)
    if (!sites_.contains(address)) note(place.plan, place.patches);
  return all;
}

const SitePlan* AddressSpace::plan_at(RemoteAddr address) const {
  if (const auto site = sites_.find(address); site != sites_.end()) return &site->second.plan;
  const auto former = ledger_.former().find(address);
  return former == ledger_.former().end() ? nullptr : &former->second.plan;
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
    if (!take_out_stray(memory_, stray)) continue;
    ++healed;
    ledger_.note_former(stray.plan);  // threads may have run into it before
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
    const auto former = ledger_.former().find(at);
    return armed(at) || (former != ledger_.former().end() && holds_breakpoint(memory_, former->second.plan));
  };
  if (entry_) take_out_trap(copy, *entry_, Layout::unknown());
  for (const auto& [address, site] : sites_)
    if (site.armed) note(site.plan, patches_of(site.jump.get()), keep_traps);
  for (const auto& [address, former] : ledger_.former()) {
    if (!armed(address) && of_program(address)) continue;
    if (!armed(address) || !former.patches.empty()) note(former.plan, former.patches, armed(address) && keep_traps);
  }
  for (const auto& [address, island] : detours_->islands())
    if (const SitePlan* plan = plan_at(island.site); !plan || layout.holds(*plan) || layout.may_hold_copy(*plan))
      stains.push_back({island.patch, false});
  std::ranges::sort(stains, {}, [](const Stain& s) { return s.patch.at; });
  wash(copy, stains);
  for (const Stray& stray : find_strays(copy, layout, imprints(), of_program)) take_out_stray(copy, stray);
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
    if (site.armed) clone->ledger_.note_standing(site.plan);
    site.jump.reset();
    site.queued = false;
  }
  clone->ledger_.inherit(ledger_);
  clone->returns_ = std::make_unique<ReturnStacks>(*returns_);
  clone->semaphores_ = semaphores_;
  clone->syscall_insn_ = syscall_insn_;
  // Whoever was away on a call is a thread of the parent's.
  for (const RemoteAddr pad : pads_used_) erase_call_pad(clone->memory_, pad, Erase::anyway);
  clone->scratch_ = scratch_;
  clone->xol_ = xol_;
  clone->xol_.forget_threads();
  clone->look_after_landing(layout);
  for (const auto& [address, site] : clone->in_order_)
    if (site->slot) clone->landing().stage(address, site->slot);
  clone->landing().flush(clone->memory_);
  clean(clone->memory_, layout, true);
  clean_semaphores(clone->memory_, layout, true);
  return clone;
}

void AddressSpace::look_after_landing(const Layout& layout) {
  const auto is_lost = [&](const XolAreas::Area& area) {
    return (area.base == landing().page() || area.base == landing().table().base) && !is_ours(area, layout);
  };
  if (landing().ready() && std::ranges::any_of(xol_.areas(), is_lost)) landing().lose();
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
  // Where it comes to have its own mask again, by us or by itself.
  for (const std::size_t place : {native::kAfterCall, native::kUnblocked}) {
    const RemoteAddr behind = pad.at + place;
    if (pad.at) landing().set(memory_, {native::breakpoint_address(behind.value)}, behind);
  }
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
  std::ranges::stable_partition(areas, [&](const XolAreas::Area& area) { return area.base != landing().page(); });
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
