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
#include <sys/mman.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "daemon/base/check.hpp"
#include "daemon/symbols/maps.hpp"
#include "daemon/tracer/engine.hpp"
#include "daemon/tracer/engine_remote.hpp"

namespace probed::tracer {
namespace {

namespace native = arch::native;

constexpr unsigned kHitsBefore = 256;       // as a breakpoint
constexpr std::size_t kMostAreas = 256;     // of one process
constexpr std::uint64_t kMostPages = 4096;  // that are tried for one site
constexpr const char* kNoRoom =
    "there is room for a punned jump only, and what is mapped where that would lead is in the way";
constexpr const char* kTooMany =
    "there is room for a punned jump only, and the process has as many of those as it may have";

struct Pages {
  RemoteAddr start;
  std::uint64_t size = 0;
};

std::uint64_t page_of(std::uint64_t address) { return address / kPageSize * kPageSize; }

// The first pages that are free and have room for a jump in the range.
std::optional<Pages> free_pages(std::span<const symbols::Mapping> maps, const arch::PunRange& range) {
  const std::uint64_t last = range.lowest + range.count - 1;  // where it can begin
  if (last < range.lowest || range.lowest > native::kHighestAddress) return std::nullopt;
  std::uint64_t tried = 0;
  for (std::uint64_t at = range.lowest; at <= last && tried < kMostPages; at = page_of(at) + kPageSize, ++tried) {
    const std::uint64_t start = page_of(at);
    const bool straddles = at + arch::kNearJumpSize > start + kPageSize;
    if (straddles && start + kPageSize <= last) continue;  // the next page is as good
    const Pages pages{RemoteAddr{start}, straddles ? 2 * kPageSize : kPageSize};
    if (is_hole(maps, pages.start, pages.size)) return pages;
  }
  return std::nullopt;
}

}  // namespace

// At a hit.
void Engine::want_pun(AddressSpace& space, Site& site) {
  if (site.pun != Site::Pun::possible || ++site.trapped < kHitsBefore) return;
  site.pun = Site::Pun::wanted;
  consider(space, site);
}

// Instead of a region that is refused: once it is wanted. Only where the daemon's environment allows it: a program that
// rewrites the bytes behind the site, which nobody probes, would jump to nowhere.
arch::RegionResult Engine::pun_instead(Site& site, const arch::RegionRequest& request,
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

arch::PunRange Engine::pun_range(const Site& site, const arch::RegionPlan& plan) {
  return native::pun_range(site.plan.address.value, site.flow->bytes(plan.site(), arch::kNearJumpSize),
                           plan.region.length);
}

// A site's turn comes again when there is memory for its pun, or isn't.
void Engine::ask_for_pun(AddressSpace& space, const Site& site, const arch::PunRange& range) {
  const auto map = [this, address = site.plan.address, range](AddressSpace& here, RemoteSyscalls& remote,
                                                              Process& process) -> const char* {
    const char* why = map_pun(here, remote, process, range);
    if (!why && !here.detours().room_for_pun(range)) why = kNoRoom;
    Site* const waiting = here.find(address);
    if (why && waiting) {
      waiting->pun = Site::Pun::failed;
      for (const ProgramPtr& program : waiting->programs) program->not_optimized = why;
    }
    return nullptr;  // of no concern to others
  };
  ask_to_map(space, map);
}

const char* Engine::map_pun(AddressSpace& space, RemoteSyscalls& remote, Process& process,
                            const arch::PunRange& range) {
  if (space.detours().pun_areas() >= kMostAreas) return kTooMany;
  const auto maps = symbols::read_maps(process.id.pid);
  const auto pages = maps ? free_pages(*maps, range) : std::nullopt;
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

// The second jump, to a detour of the same site that has been placed. False: it is out of reach, or can't be written.
bool Engine::place_pun(AddressSpace& space, RemoteAddr pun, RemoteAddr detour, const PlacedDetour& of) {
  const auto distance = static_cast<std::int64_t>(detour.value - (pun.value + arch::kNearJumpSize));
  if (distance != static_cast<std::int32_t>(distance)) return false;
  const auto jump = native::detour_jump(pun.value, detour.value);
  if (!space.memory().write(pun, std::as_bytes(std::span(jump)))) return false;
  PlacedDetour placed{of.site, arch::kNearJumpSize, arch::kNearJumpSize, {}, 0};
  placed.facts.points.push_back(of.facts.points.front());  // at a detour's very beginning
  space.detours().place_pun(pun, std::move(placed));
  return true;
}

}  // namespace probed::tracer
