// Punned jumps: where the code around a site leaves no room for a jump of five bytes, and the site is hit often.
//
// Only bytes of the site's own instruction are written; the rest of the jump's distance are the bytes that follow,
// which are read and stay (arch/region.hpp). So nothing has to be known of what leads there, but where the jump leads
// to is nearly fixed: one address for an instruction of one byte, 256 for one of two. A page is mapped there, if
// nothing is in the way, and holds a second jump, to the detour. The idea is known from binary rewriters ("instruction
// punning").
//
// Such a page is a mapping of its own, so there are few of them: a site has to have been hit many times as a
// breakpoint.
#include "daemon/tracer/jumps/puns.hpp"

#include <sys/mman.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cstdlib>

#include "daemon/symbols/maps.hpp"
#include "daemon/tracer/rooms.hpp"

namespace probed::tracer {
namespace {

namespace native = arch::native;

constexpr unsigned kHitsBefore = 256;       // as a breakpoint
constexpr std::size_t kMostAreas = 64;      // of one process: each costs a fork(2) some 20 us
constexpr std::uint64_t kMostPages = 4096;  // that are tried for one site
constexpr const char* kNoRoom =
    "there is room for a punned jump only, and what is mapped where that would lead is in the way";
constexpr const char* kTooMany =
    "there is room for a punned jump only, and the process has as many of those as it may have";
constexpr const char* kChangedBehind = "the program changes what is behind it, which a punned jump takes as it is";

struct Pages {
  RemoteAddr start;
  std::uint64_t size = 0;
};

std::uint64_t page_of(std::uint64_t address) { return address / kPageSize * kPageSize; }

const CodeArea* area_at(const DetourSpace& detours, RemoteAddr at) {
  const auto& areas = detours.areas();
  const auto found = std::ranges::find_if(areas, [&](const CodeArea& area) { return area.contains(at); });
  return found == areas.end() ? nullptr : &*found;
}

bool is_for_puns(const DetourSpace& detours, const symbols::Mapping& mapping) {
  for (RemoteAddr at = mapping.start; at < mapping.end;) {
    const CodeArea* area = area_at(detours, at);
    if (!area || area->line != CodeArea::kNoLine) return false;
    at = area->base + area->size;
  }
  return true;
}

// The first pages that are free and have room for a jump in the range. Others for puns may be next to them.
std::optional<Pages> free_pages(std::vector<symbols::Mapping> maps, const DetourSpace& detours,
                                const arch::PunRange& range) {
  std::erase_if(maps, [&](const symbols::Mapping& mapping) { return is_for_puns(detours, mapping); });
  const std::uint64_t last = range.lowest + range.count - 1;  // where it can begin
  if (last < range.lowest || range.lowest > native::kHighestAddress) return std::nullopt;
  std::uint64_t tried = 0;
  for (std::uint64_t at = range.lowest; at <= last && tried < kMostPages; at = page_of(at) + kPageSize, ++tried) {
    const std::uint64_t start = page_of(at);
    const bool straddles = at + arch::kNearJumpSize > start + kPageSize;
    if (straddles && start + kPageSize <= last) continue;  // the next page is as good
    const Pages pages{RemoteAddr{start}, straddles ? 2 * kPageSize : kPageSize};
    const RemoteAddr last_byte = pages.start + (pages.size - 1);
    if (area_at(detours, pages.start) || area_at(detours, last_byte)) continue;
    if (is_hole(maps, pages.start, pages.size)) return pages;
  }
  return std::nullopt;
}

}  // namespace

void Puns::want_pun(AddressSpace& space, Site& site) {
  if (site.pun != Site::Pun::possible || ++site.trapped < kHitsBefore) return;
  site.pun = Site::Pun::wanted;
  rooms_.optimiser.consider(space, site);
}

// Only where the daemon's environment allows it: a program that rewrites the bytes behind the site, which nobody
// probes, would jump to nowhere.
arch::RegionResult Puns::pun_instead(Site& site, const arch::RegionRequest& request,
                                     const arch::RegionResult& refused) {
  static const bool allowed = std::getenv("PROBED_PUNNED_JUMPS") != nullptr;
  if (!allowed || site.pun == Site::Pun::failed) return refused;
  const arch::RegionResult pun = native::plan_pun(*site.flow, request);
  if (!pun) {
    site.pun = Site::Pun::no;
    return refused;
  }
  if (site.pun == Site::Pun::wanted) return pun;
  site.pun = Site::Pun::possible;
  site.trapped = 0;
  return refused;
}

arch::PunRange Puns::pun_range(const Site& site, const arch::RegionPlan& plan) {
  return native::pun_range(site.plan.address.value, site.flow->bytes(plan.site(), arch::kNearJumpSize),
                           plan.region.length);
}

void Puns::no_pun(Site& site, const char* why) {
  site.pun = Site::Pun::failed;
  site.why_no_pun = why;
}

void Puns::ask_for_pun(AddressSpace& space, const Site& site, const arch::PunRange& range) {
  const auto map = [address = site.plan.address, range](AddressSpace& here, RemoteSyscalls& remote,
                                                        Process& process) -> const char* {
    const char* why = map_pun(here, remote, process, range);
    if (remote.refusal()) why = remote.refusal();
    if (!why && !here.detours().room_for_pun(range)) why = kNoRoom;
    Site* const waiting = here.find(address);
    if (why && waiting) no_pun(*waiting, why);
    return nullptr;  // of no concern to others
  };
  rooms_.jump_memory.ask_to_map(space, map);
}

// One where no jump leads any more. False: there is none.
bool Puns::unmap_unused(AddressSpace& space, RemoteSyscalls& remote) {
  auto& areas = space.detours().areas();
  const auto unused = std::ranges::find_if(
      areas, [](const CodeArea& area) { return area.line == CodeArea::kNoLine && area.puns.size() == 1; });
  if (unused == areas.end()) return false;
  const XolAreas::Area* area = space.xol().area_of(unused->base);
  if (!area || !space.is_ours(*area, Layout::of(space.memory()))) return false;
  if (remote.call(SYS_munmap, {unused->base.value, unused->size, 0, 0, 0, 0}) != 0) return false;
  space.xol().forget_area(unused->base);
  areas.erase(unused);
  return true;
}

const char* Puns::map_pun(AddressSpace& space, RemoteSyscalls& remote, Process& process, const arch::PunRange& range) {
  if (space.detours().pun_areas() >= kMostAreas && !unmap_unused(space, remote)) return kTooMany;
  auto maps = symbols::read_maps(process.id.pid);
  const auto pages = maps ? free_pages(std::move(*maps), space.detours(), range) : std::nullopt;
  if (!pages) return kNoRoom;
  const auto at = remote.call(SYS_mmap, {pages->start.value, pages->size, PROT_READ | PROT_EXEC,
                                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, ~0ULL, 0});
  if (!at) return "the thread that was to map memory for code has gone";
  if (*at > 0 && *at != static_cast<std::int64_t>(pages->start.value)) {
    remote.call(SYS_munmap, {static_cast<std::uint64_t>(*at), pages->size, 0, 0, 0, 0});  // Linux < 4.17: a mere hint
    return kNoRoom;
  }
  if (*at < 0) return kNoRoom;
  space.optimisation().layout.reset();
  // In the half of the first page where the pun isn't, if there is but one place for it.
  const bool in_front = range.lowest >= pages->start.value + kPageSize / 2;
  const Mark mark = AddressSpace::mark(in_front ? 0 : kPageSize - Mark::kSize);
  CodeArea area{pages->start, pages->size, 0, CodeArea::kNoLine, 0, {}, {}, {}};
  area.puns.emplace(pages->start.value + mark.offset, Mark::kSize);
  space.xol().add_data(pages->start, pages->size, false, XolAreas::Access::code, mark);
  if (!space.memory().write(pages->start + mark.offset, std::as_bytes(std::span(mark.bytes)))) return kNoRoom;
  space.detours().areas().push_back(std::move(area));
  return nullptr;
}

bool Puns::place_pun(AddressSpace& space, RemoteAddr pun, RemoteAddr detour, const PlacedDetour& of) {
  const auto distance = static_cast<std::int64_t>(detour.value - (pun.value + arch::kNearJumpSize));
  if (distance != static_cast<std::int32_t>(distance)) return false;
  const auto jump = native::detour_jump(pun.value, detour.value);
  const XolAreas::Area* area = space.xol().area_of(pun);
  if (!area || !space.is_ours(*area, Layout::unknown())) return false;
  if (!space.memory().write(pun, std::as_bytes(std::span(jump)))) return false;
  PlacedDetour placed{of.site, arch::kNearJumpSize, arch::kNearJumpSize, {}, 0};
  placed.facts.points.push_back(of.facts.points.front());  // at a detour's very beginning
  space.detours().place_pun(pun, std::move(placed));
  return true;
}

void Puns::give_up_astray(AddressSpace& space, Site& site, RemoteAddr leads_to) {
  site.led_astray = leads_to;
  space.drop_jump(site);
  no_pun(site, kChangedBehind);
  rooms_.optimiser.give_up(space, site.plan.address, kChangedBehind, {});
  rooms_.optimiser.wake_optimiser(space, {});
}

std::optional<Act> Puns::come_back_from_astray(Tracee& tracee, int signal, ptrace::Registers& regs) {
  AddressSpace& space = *tracee.process->space;
  const RemoteAddr pc{regs.pc()};
  Site* site = space.astray_to(pc);
  if (!site) return std::nullopt;
  const AfterTrap after = rooms_.actions.mend_after_trap(tracee, regs, signal, false);
  if (!after.alive) return Act::away();
  if (after.program_first) return std::nullopt;
  if (site->jump) give_up_astray(space, *site, pc);
  regs.set_pc(site->plan.address.value);
  ptrace::set_registers(tracee.tid, regs);
  return Act::go_on("back from where a punned jump led when its bytes had changed", after.signal);
}

}  // namespace probed::tracer
