// From breakpoints to jumps, in the background.
//
// A site is armed as a breakpoint first, always; so failing here is never an error, only a reason that is shown. One
// address space at a time goes through a batch in small steps, between the stops that the tracer serves:
//
//   building   for each site a region is chosen (arch/region.hpp), its detour is generated and written. From then on
//   who
//              runs into the breakpoint goes on in the detour's tail instead of the slot: nobody new comes between the
//              first byte of the region and its end
//   looking    every thread is seen once outside of those places, and without a signal frame that leads there
//   syncing    the jumps' tails are written; then every thread that runs is made to go through the kernel once, so that
//              no processor has old bytes on their way (Intel SDM 3A 9.1.3, AMD APM 2 7.6.1: cross-modifying code)
//   naming     whoever reads the channel knows who records under which index
//   then       the jumps' first bytes are written
//
// The way back is immediate: the breakpoint over the jump's first byte, the original bytes behind it. Threads in the
// detour run on; its memory is used again after a round in which every thread was seen elsewhere.
#include <fmt/format.h>
#include <linux/memfd.h>
#include <spdlog/spdlog.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "daemon/base/check.hpp"
#include "daemon/symbols/maps.hpp"
#include "daemon/tracer/engine.hpp"
#include "daemon/tracer/engine_remote.hpp"
#include "daemon/tracer/interrupted_calls.hpp"
#include "daemon/tracer/text_pages.hpp"

namespace probed::tracer {
namespace {

namespace native = arch::native;
using namespace std::chrono_literals;
using ptrace::Outcome;
using Clock = Waiter::Clock;

constexpr auto kDelay = 5ms;            // more probes may be about to come
constexpr auto kBuildSlice = 1ms;       // of building before the tracer looks at stops again
constexpr auto kRoundPatience = 500ms;  // for threads that don't stop
constexpr auto kLookAgain = 5ms;
constexpr auto kAnswerAfter = 10ms;
constexpr auto kPinnedAgain = 1s;
constexpr std::size_t kBatch = 8192;       // sites
constexpr std::size_t kLooksAtATime = 64;  // threads
constexpr unsigned kMaxHoleAttempts = 32;
constexpr std::size_t kLargeBatch = 64;  // sites from which on text is read and written by the page
constexpr auto kLayoutAge = 50ms;        // while a batch is built
constexpr const char* kChangedByProgram = "its code was changed by the program";
constexpr const char* kOtherCode = "its code is not what its file has there";
constexpr std::uint64_t kBytesForSite = 96;   // of code, as long as there are few to tell by
constexpr std::uint64_t kRuntimeCode = 1536;  // of the routines in front of it
constexpr std::uint64_t kMostCode = 1 << 20, kLeastCode = 16 << 10;

std::uint64_t round_up(std::uint64_t value, std::uint64_t to) { return (value + to - 1) / to * to; }

// A channel for so many probes: with few of them room for many threads and long rings, with very many little of either.
events::ChannelOptions channel_for(std::size_t probes) {
  constexpr std::size_t kSmallRing = 128 << 10;
  constexpr std::size_t kOthers = 64 << 10;  // tables of threads, and rounding
  events::ChannelOptions options;
  options.probes = static_cast<unsigned>(std::max<std::size_t>(1024, probes + probes / 16));
  options.bytes = 16 << 20;
  if (options.probes <= 4096) return options;
  options.lanes = 1;
  const std::size_t all_lanes = options.lanes + 1;
  const std::size_t for_each_probe =
      sizeof(std::uint8_t) + sizeof(std::uint64_t) + all_lanes * arch::channel::kCounterSize;
  const std::size_t ring = kSmallRing + events::ChannelLayout::kRingSlack;
  options.bytes = options.probes * for_each_probe + all_lanes * ring + kOthers;
  return options;
}

// Bytes of code that a site takes, going by those that there are.
std::uint64_t bytes_for_site(const DetourSpace& detours) {
  constexpr std::size_t kEnough = 64;
  std::uint64_t used = 0;
  for (const CodeArea& area : detours.areas()) used += area.used - area.runtime_size;
  const std::size_t count = detours.detours().size();
  return count < kEnough ? kBytesForSite : (used + count - 1) / count;
}

std::uint64_t distance(RemoteAddr a, RemoteAddr b) { return a > b ? a.value - b.value : b.value - a.value; }

Patch make_patch(RemoteAddr at, std::span<const std::uint8_t> before, std::span<const std::uint8_t> after) {
  PROBED_CHECK(before.size() == after.size() && after.size() <= Patch::kMaxSize, "a jump has at most 5 bytes");
  Patch patch{at, static_cast<std::uint8_t>(after.size()), {}, {}};
  std::ranges::copy(before, patch.before.begin());
  std::ranges::copy(after, patch.after.begin());
  return patch;
}

// The address of an empty text somewhere in the target, for a name.
RemoteAddr empty_text(TargetMemory& memory, std::span<const symbols::Mapping> maps) {
  std::array<char, 64> start{};
  for (const symbols::Mapping& m : maps) {
    if (!m.readable || !memory.read(m.start, std::as_writable_bytes(std::span(start)))) continue;
    if (const auto nul = std::ranges::find(start, '\0'); nul != start.end())
      return m.start + static_cast<std::uint64_t>(nul - start.begin());
  }
  return {};
}

// Whether a thread with this stack pointer has left the frame that had the other one: a handler that ended with a jump.
bool has_left(std::span<const symbols::Mapping> maps, std::uint64_t frame, std::uint64_t sp) {
  const auto same = [=](const symbols::Mapping& m) { return m.contains(RemoteAddr{frame}) && m.contains(RemoteAddr{sp}); };
  return sp > frame && std::ranges::any_of(maps, same);
}

bool ignores_traps(const Process& process) {
  const auto& action = process.actions.of(SIGTRAP).known;
  return action && disposition_of(*action) == Disposition::ignored;
}

}  // namespace

// ---- what waits -----------------------------------------------------------------------------------------------------

void Engine::wake_optimiser(AddressSpace& space, Clock::duration in) {
  Optimisation& work = space.optimisation();
  work.at = std::min(work.at, Clock::now() + in);
}

// Whether a jump may lead there; if not, and `say`, its programs know why.
bool Engine::eligible(const AddressSpace& space, const Site& site, bool say) {
  const char* why = nullptr;
  for (const ProgramPtr& program : site.programs) {
    if (program->force_step) why = "it is to be stepped";
    if (program->limit) why = "it ends after a number of hits, which the breakpoint counts exactly";
    if (!program->detour) why = program->no_detour.c_str();
  }
  if (!why && space.optimisation().refused) why = space.optimisation().refused;
  if (!why && site.why_not) why = site.why_not;
  if (!why && !site.flow) why = "nothing is known of the code around it";
  if (!why) return true;
  if (say)
    for (const ProgramPtr& program : site.programs) program->not_optimized = why;
  return false;
}

void Engine::consider(AddressSpace& space, Site& site) {
  if (!optimize_ || !site.armed || site.jump || site.queued || !site.flow) return;
  if (!eligible(space, site, true)) return;
  site.queued = true;
  space.optimisation().queue.push_back(site.plan.address);
  wake_optimiser(space, kDelay);
}

void Engine::know_code(pid_t pid, std::uint32_t execs, std::span<const SiteCode> code) {
  const Process* process = find_process(pid);
  if (!process || process->execs != execs || process->detaching) return;
  for (const SiteCode& known : code) {
    Site* site = process->space->find(known.site);
    if (!site) continue;
    site->flow = known.flow;
    site->bias = known.bias;
    site->why_not = site->rewritten ? "the program rewrites its code" : known.why_not;
    if (!site->flow || site->why_not) eligible(*process->space, *site, true);
    consider(*process->space, *site);
  }
}

void Engine::set_optimize(bool optimize) {
  optimize_ = optimize;
  for (auto& [pid, process] : processes_) {
    if (!process->space || process->detaching) continue;
    AddressSpace& space = *process->space;
    for (const auto& [address, site] : space.sites_in_order()) {
      if (!optimize) space.drop_jump(*site);
      consider(space, *site);
    }
    heal_if_moved(space);
    wake_optimiser(space, kDelay);
  }
}

void Engine::refresh_modes(std::span<const ProbeId> ids) {
  for (const ProbeId id : ids) {
    const auto it = programs_.find(number(id));
    if (it == programs_.end()) continue;
    for (auto& [pid, process] : processes_)
      if (process->space) process->space->detours().refresh_mode(*it->second, armed_);
  }
}

void Engine::give_up(AddressSpace& space, RemoteAddr address, const char* why, Clock::duration again) {
  Site* site = space.find(address);
  if (!site) return;
  for (const ProgramPtr& program : site->programs) program->not_optimized = why;
  if (again == Clock::duration()) return;
  space.optimisation().later.emplace_back(Clock::now() + again, address);
  wake_optimiser(space, again);
}

// Nothing is optimised in this address space any more.
bool Engine::refuse_all(AddressSpace& space, const char* why) {
  Optimisation& work = space.optimisation();
  work.refused = why;
  for (const auto& [address, site] : space.sites_in_order()) {
    site->queued = false;
    space.drop_jump(*site);
    eligible(space, *site, true);
  }
  heal_if_moved(space);
  work.queue.clear();
  work.batch.clear();
  work.later.clear();
  work.built.clear();
  work.phase = Phase::idle;
  wake_optimiser(space, kDelay);
  return false;
}

Process* Engine::anybody_in(const AddressSpace& space) {
  for (auto& [pid, process] : processes_)
    if (process->space.get() == &space && !process->detaching && !process->threads.empty()) return process.get();
  return nullptr;
}

// ---- steps ----------------------------------------------------------------------------------------------------------

// Goes on with whatever can be gone on with now; sets when to come back.
void Engine::optimise(AddressSpace& space) {
  Optimisation& work = space.optimisation();
  work.at = Clock::time_point::max();
  if (!anybody_in(space)) return;
  answer_waiting(space, 0);
  meet_the_rest(space);
  if (work.round) go_on_with_round(space);
  const bool waits = work.round && work.round_waited_for >= work.round->number;
  switch (work.phase) {
    case Phase::idle:
      if (start_batch(space) || work.round) return;
      if (space.detours().awaits_round() || !work.after_round.empty()) start_round(space, false);
      return;
    case Phase::mapping: return;
    case Phase::building: return build_some(space);
    case Phase::looking: return waits ? void() : write_tails(space);
    case Phase::syncing:
      if (waits) return;
      work.phase = Phase::naming;
      [[fallthrough]];
    case Phase::naming:
      if (work.names_known == work.names_sent) write_heads(space);
      return;
  }
}

bool Engine::start_batch(AddressSpace& space) {
  Optimisation& work = space.optimisation();
  const auto now = Clock::now();
  std::erase_if(work.later, [&](const auto& entry) {
    if (entry.first > now) return work.at = std::min(work.at, entry.first), false;
    if (Site* site = space.find(entry.second)) consider(space, *site);
    return true;
  });
  work.batch.clear();
  work.built.clear();
  work.places = {};
  work.next = 0;
  work.layout.reset();
  while (!work.queue.empty() && work.batch.size() < kBatch) {
    Site* site = space.find(work.queue.front());
    work.queue.pop_front();
    if (!site || !std::exchange(site->queued, false)) continue;
    if (!optimize_ || !site->armed || site->jump || !eligible(space, *site, true)) continue;
    work.batch.push_back(site->plan.address);
  }
  if (work.batch.empty()) return false;
  for (const auto& [pid, process] : processes_)
    if (process->space.get() == &space && ignores_traps(*process))
      return refuse_all(space, "the process ignores SIGTRAP: a signal could not be kept out of a detour");
  // In this order neighbours know of each other, and memory near one is near the next.
  std::ranges::sort(work.batch);
  work.phase = Phase::building;
  work.at = now;
  return true;
}

// ---- building -------------------------------------------------------------------------------------------------------

void Engine::build_some(AddressSpace& space) {
  Optimisation& work = space.optimisation();
  const auto began = Clock::now(), until = began + kBuildSlice;
  const std::size_t built_before = work.built.size();
  std::vector<Listener::Tap> taps;
  bool more = true;
  std::optional<TextPages> pages;
  if (work.batch.size() - work.next >= kLargeBatch) {
    if (!work.layout || began - work.layout_read > kLayoutAge)
      work.layout = Layout::of(space.memory()), work.layout_read = began;
    if (work.layout->known()) pages.emplace(space.memory(), work.layout->mappings());
  }
  for (; work.next < work.batch.size() && more && work.phase == Phase::building; ++work.next) {
    Site* site = space.find(work.batch[work.next]);
    if (!site || !site->armed || site->jump || !eligible(space, *site, true)) continue;
    if (!build_one(space, *site, taps)) break;
    more = Clock::now() < until;
  }
  const bool failed = pages && pages->flush();
  pages.reset();
  if (failed) take_back(space, built_before);
  if (!taps.empty()) {
    const Line& line = space.detours().lines()[work.line];
    listener_.taps_added(line.feed, std::move(taps), anybody_in(space)->id.pid, ++work.names_sent);
  }
  if (work.phase != Phase::building) return;
  work.at = Clock::now();
  if (work.next < work.batch.size()) return;
  work.phase = Phase::looking;
  start_round(space, true);
}

// Jumps whose texts, or detours, aren't what they were taken for: these, and those that were made after them.
void Engine::take_back(AddressSpace& space, std::size_t from) {
  Optimisation& work = space.optimisation();
  from = std::min(from, work.built.size());
  for (std::size_t i = from; i < work.built.size(); ++i) {
    Site* site = space.find(work.built[i].site);
    if (!site || !site->jump || site->jump->detour != work.built[i].detour) continue;
    space.drop_jump(*site);
    give_up(space, work.built[i].site, kChangedByProgram, kPinnedAgain);
  }
  work.built.resize(from);
  heal_if_moved(space);
}

// What stands around a site, in the file's addresses: RegionRequest::taken.
static std::vector<arch::CodeRange> taken_around(const AddressSpace& space, const Site& site) {
  std::vector<arch::CodeRange> taken;
  const auto add = [&](RemoteAddr begin, std::uint64_t size) {
    taken.push_back({begin.value - site.bias, begin.value - site.bias + size});
  };
  const RemoteAddr here = site.plan.address;
  // Another site may plan an island between the two of us that is within its reach and within ours.
  constexpr std::uint64_t kReach = 2 * arch::kRegionReach;
  const RemoteAddr low = here - std::min(here.value, kReach), high = here + kReach;
  const auto& sites = space.sites_in_order();
  for (auto it = sites.lower_bound(low); it != sites.end() && it->first <= high; ++it) {
    if (it->first == here) continue;
    add(it->first, 1);
    const Jump* jump = it->second->jump.get();
    if (!jump) continue;
    add(jump->head.at, jump->head.size);
    if (jump->island) add(jump->island->at, jump->island->size);
  }
  // Those that are about to be taken out are no site's any more.
  const auto& islands = space.detours().islands();
  for (auto it = islands.lower_bound(low.value); it != islands.end() && it->first <= high.value; ++it)
    add(RemoteAddr{it->first}, it->second.patch.size);
  std::ranges::sort(taken, {}, &arch::CodeRange::begin);
  return taken;
}

// An index for each of a site's programs. False: the channel has none left.
bool Engine::connect_taps(AddressSpace& space, Site& site, std::vector<arch::CapturedProbe>& probes,
                          std::vector<Listener::Tap>& taps) {
  DetourSpace& detours = space.detours();
  Optimisation& work = space.optimisation();
  for (const ProgramPtr& program : site.programs) {
    auto tap = detours.tap_of(program->id);
    if (!tap) {
      const auto index = detours.add_tap(work.line, program);
      if (!index) return false;
      tap = {work.line, *index};
      taps.push_back({*index, program});
    }
    // All of a site's programs record into one channel: theirs when they have one.
    if (tap->line != work.line) return false;
    probes.push_back({tap->index, &program->detour->capture});
  }
  return true;
}

// False: memory has been asked for; the site's turn comes again.
bool Engine::build_one(AddressSpace& space, Site& site, std::vector<Listener::Tap>& taps) {
  Optimisation& work = space.optimisation();
  DetourSpace& detours = space.detours();
  const RemoteAddr address = site.plan.address;
  const auto taken = taken_around(space, site);
  const arch::RegionRequest region_request{address.value - site.bias, taken, true, false};
  arch::RegionResult region = native::plan_region(*site.flow, region_request);
  if (!region) {
    give_up(space, address, arch::describe(region.refusal).sentence.data(), {});
    return true;
  }
  arch::Displaced& displaced = region.plan.region;
  for (arch::Insn& insn : std::span(displaced.insns).first(displaced.count))
    if (insn.target) *insn.target += site.bias;

  const std::size_t left = work.batch.size() - work.next;
  // The line: its own programs', else any with room, else a new one.
  std::optional<std::size_t> line;
  for (const ProgramPtr& program : site.programs)
    if (const auto tap = detours.tap_of(program->id)) line = tap->line;
  const auto has_room = [](const Line& l) {
    return !l.free.empty() || l.taps.size() < l.feed->channel->layout().probes;
  };
  if (!line)
    for (std::size_t i = detours.lines().size(); i-- > 0 && !line;)
      if (has_room(detours.lines()[i])) line = i;
  if (!line) return ask_for_memory(space, true, address, left + work.queue.size()), false;
  if (work.line != *line && !taps.empty()) {
    // Taps are announced line by line.
    listener_.taps_added(detours.lines()[work.line].feed, std::exchange(taps, {}), anybody_in(space)->id.pid,
                         ++work.names_sent);
  }
  work.line = *line;

  const auto fits = [&](const CodeArea& area) {
    return area.line == *line && distance(area.base, address) < kSlotReach &&
           distance(area.base + area.size, address) < kSlotReach;
  };
  std::vector<arch::CapturedProbe> probes;
  if (!connect_taps(space, site, probes, taps)) {
    give_up(space, address, "its channel has no room for another probe", kPinnedAgain);
    return true;
  }
  const auto bytes = site.flow->bytes(address.value - site.bias, displaced.length);
  if (!space.holds_around(site, bytes)) {
    give_up(space, address, kOtherCode, {});
    return true;
  }
  arch::DetourRequest request{address.value, bytes, displaced.all(), 0, probes};
  CodeArea* room = nullptr;
  std::uint32_t space_for = 0;
  for (CodeArea& area : detours.areas()) {
    if (!fits(area)) continue;
    request.address = round_up((area.base + area.used).value, native::kDetourAlignment);
    const arch::DetourResult result = native::build_detour(request, area.runtime, detour_);
    if (!result) {
      give_up(space, address,
              (result.refusal == arch::DetourRefusal::relocation ? arch::describe(result.relocation)
                                                                 : arch::describe(result.refusal))
                  .data(),
              {});
      return true;
    }
    const auto size = static_cast<std::uint32_t>(detour_.code.size());
    if (const auto used = detours.reuse(area, size + 2 * native::kDetourAlignment)) {
      // Elsewhere the code may be some bytes longer or shorter.
      request.address = used->address.value;
      space_for = used->size;
      PROBED_CHECK(native::build_detour(request, area.runtime, detour_), "what was built can be built elsewhere");
      PROBED_CHECK(detour_.code.size() <= space_for, "a detour's size hardly depends on its place");
      room = &area;
      break;
    }
    space_for = static_cast<std::uint32_t>(round_up(size, native::kDetourAlignment));
    if (request.address + space_for > area.base.value + area.size) continue;
    area.used = request.address + space_for - area.base.value;
    room = &area;
    break;
  }
  if (!room) return ask_for_memory(space, false, address, left), false;

  const RemoteAddr at{request.address};
  if (!space.memory().write(at, std::as_bytes(std::span(detour_.code)))) {
    give_up(space, address, "generated code can't be written", kPinnedAgain);
    return true;
  }
  PlacedDetour placed{address, static_cast<std::uint32_t>(detour_.code.size()), space_for, detour_, 0};
  placed.facts.code = {};
  detours.place(at, std::move(placed));
  look_for_loads_at_ = std::min(look_for_loads_at_, Waiter::Clock::now() + 1s);

  Jump jump;
  jump.detour = at;
  jump.tail = at + detour_.tail_begin;
  jump.region = {address.value, address.value + displaced.length};
  for (const std::uint64_t place : region.plan.interior()) jump.interior.push_back(RemoteAddr{place + site.bias});
  const auto near_from = region.plan.form == arch::JumpForm::near ? address.value : region.plan.island + site.bias;
  const auto near_jump = native::detour_jump(near_from, at.value);
  const auto original = [&](std::uint64_t from, std::size_t size) { return site.flow->bytes(from - site.bias, size); };
  if (region.plan.form == arch::JumpForm::near) {
    jump.head = make_patch(address, original(address.value, near_jump.size()), near_jump);
  } else {
    const auto hop = native::short_jump(address.value, near_from);
    jump.head = make_patch(address, original(address.value, hop.size()), hop);
    jump.island = make_patch(RemoteAddr{near_from}, original(near_from, near_jump.size()), near_jump);
  }
  if (!space.plan_jump(site, jump)) {
    detours.retire(at);
    give_up(space, address, kOtherCode, {});
    return true;
  }
  for (const RemoteAddr place : jump.interior) work.places.add(place, address);
  work.built.push_back({address, at});
  return true;
}

// ---- memory ---------------------------------------------------------------------------------------------------------

void Engine::ask_for_memory(AddressSpace& space, bool line, RemoteAddr near, std::size_t sites) {
  Optimisation& work = space.optimisation();
  Process* process = anybody_in(space);
  if (!process) return;
  work.phase = Phase::mapping;
  const std::weak_ptr<AddressSpace> weak = process->space;
  const auto map = [this, weak, line, near, sites](Tracee& tracee) {
    const auto alive = weak.lock();
    if (!alive || tracee.process->space != alive) return;
    AddressSpace& here = *alive;
    const char* why = "the thread that was to map memory has gone";
    const bool back = with_remote_calls(tracee, here, [&](RemoteSyscalls& remote) {
      Process& owner = *tracee.process;
      why = line ? map_line(here, remote, owner, sites) : map_code(here, remote, owner, near, sites);
      if (remote.refusal()) why = remote.refusal();
    });
    if (here.optimisation().phase != Phase::mapping) return;
    if (back && why) return void(refuse_all(here, why));
    here.optimisation().phase = Phase::building;
    wake_optimiser(here, 0s);
    if (back) meet(tracee);
  };
  const auto fail = [this, weak](const Error&) {
    const auto alive = weak.lock();
    if (!alive || alive->optimisation().phase != Phase::mapping) return;
    alive->optimisation().phase = Phase::building;
    wake_optimiser(*alive, kPinnedAgain);
  };
  request_job(*process, Job{map, fail, {}});
}

// Makes a memfd in the target, takes it over, and maps it in both. Null: done; else why not.
const char* Engine::map_line(AddressSpace& space, RemoteSyscalls& remote, Process& process, std::size_t sites) {
  static constexpr const char* kNoChannel = "no channel could be made in the target";
  const auto maps = symbols::read_maps(process.id.pid);
  const RemoteAddr name = maps ? empty_text(space.memory(), *maps) : RemoteAddr{};
  if (!name) return kNoChannel;
  const auto remote_fd = remote.call(SYS_memfd_create, {name.value, MFD_CLOEXEC | MFD_ALLOW_SEALING, 0, 0, 0, 0});
  if (!remote_fd) return "the thread that was to make a channel has gone";
  if (*remote_fd < 0) return kNoChannel;
  const auto fd_number = static_cast<std::uint64_t>(*remote_fd);
  const auto close_it = [&] { remote.call(SYS_close, {fd_number, 0, 0, 0, 0, 0}); };
  const UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, process.id.pid, 0)));
  UniqueFd memfd(pidfd ? static_cast<int>(syscall(SYS_pidfd_getfd, pidfd.get(), static_cast<int>(fd_number), 0)) : -1);
  if (!memfd) return close_it(), "its memory can't be shared: pidfd_getfd() is not possible (Linux 5.6)";
  auto channel = events::Channel::adopt(std::move(memfd), channel_for(sites));
  if (!channel) {
    spdlog::warn("process {}: {}", process.id.pid, channel.error().message);
    return close_it(), kNoChannel;
  }
  const std::uint64_t size = (*channel)->layout().size;
  const auto at = remote.call(SYS_mmap, {0, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd_number, 0});
  close_it();
  if (!at) return "the thread that was to map a channel has gone";
  if (*at < 0 && *at > -4096) return "no room for a channel in the target (see its ulimit -v)";
  const RemoteAddr base{static_cast<std::uint64_t>(*at)};
  (*channel)->set_base(base);
  space.xol().add_data(base, round_up(size, kPageSize), true);
  auto feed = std::make_shared<events::Feed>(std::move(*channel), process.id.pid);
  listener_.feed_opened(feed);
  space.detours().lines().push_back({std::move(feed), base, size, {}, {}, {}});
  return nullptr;
}

const char* Engine::map_code(AddressSpace& space, RemoteSyscalls& remote, Process& process, RemoteAddr near,
                             std::size_t sites) {
  Optimisation& work = space.optimisation();
  const auto maps = symbols::read_maps(process.id.pid);
  if (!maps) return "its maps can't be read";
  const std::uint64_t wanted = kRuntimeCode + sites * bytes_for_site(space.detours());
  const std::uint64_t size = round_up(std::clamp(wanted, kLeastCode, kMostCode), kPageSize);
  for (unsigned attempt = 0; attempt < kMaxHoleAttempts; ++attempt) {
    const auto hole = choose_hole(*maps, near, size, attempt);
    if (!hole) return "there is no room for generated code within reach";
    const auto at = remote.call(SYS_mmap, {hole->value, size, PROT_READ | PROT_EXEC,
                                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, ~0ULL, 0});
    if (!at) return "the thread that was to map memory for code has gone";
    if (*at > 0 && *at != static_cast<std::int64_t>(hole->value)) {
      remote.call(SYS_munmap, {static_cast<std::uint64_t>(*at), size, 0, 0, 0, 0});  // Linux < 4.17: a mere hint
      continue;
    }
    if (*at == -EEXIST) continue;
    if (*at < 0) return "the target may not map memory for generated code (see its ulimit -v)";
    space.xol().add_data(*hole, size, false);
    work.layout.reset();
    const auto runtime =
        native::build_runtime(hole->value, space.detours().lines()[work.line].feed->channel->places(), features_);
    if (runtime.refusal != arch::DetourRefusal::none) return arch::describe(runtime.refusal).data();
    if (!space.memory().write(*hole, std::as_bytes(std::span(runtime.code)))) return "generated code can't be written";
    space.detours().areas().push_back(
        {*hole, size, runtime.code.size(), work.line, runtime.code.size(), runtime.runtime, runtime.fixups, {}});
    return nullptr;
  }
  return "there is no room for generated code within reach";
}

// ---- writing --------------------------------------------------------------------------------------------------------

// Text by the page, for many sites; nothing for a few.
static std::optional<TextPages> pages_for(AddressSpace& space, const Layout& layout, std::size_t sites) {
  if (sites < kLargeBatch || !layout.known()) return std::nullopt;
  return std::optional<TextPages>(std::in_place, space.memory(), layout.mappings());
}

void Engine::write_tails(AddressSpace& space) {
  Optimisation& work = space.optimisation();
  const Layout layout = Layout::of(space.memory());
  auto pages = pages_for(space, layout, work.built.size());
  std::erase_if(work.built, [&](const Optimisation::Job& job) {
    Site* site = space.find(job.site);
    if (!site || !site->jump || site->jump->detour != job.detour) return true;
    if (layout.holds(site->plan) && space.write_jump_tail(*site)) return false;
    space.drop_jump(*site, layout);
    give_up(space, job.site, kChangedByProgram, {});
    return true;
  });
  const bool failed = pages && pages->flush();
  pages.reset();
  if (failed) take_back(space, 0);
  work.phase = Phase::syncing;
  start_round(space, false);
}

void Engine::write_heads(AddressSpace& space) {
  Optimisation& work = space.optimisation();
  const Layout layout = Layout::of(space.memory());
  auto pages = pages_for(space, layout, work.built.size());
  for (const Optimisation::Job& job : work.built) {
    Site* site = space.find(job.site);
    if (!site || !site->jump || site->jump->detour != job.detour) continue;
    for (const ProgramPtr& program : site->programs) space.detours().refresh_mode(*program, armed_);
    if (!layout.holds(site->plan) || !space.write_jump_head(*site)) {
      space.drop_jump(*site, layout);
      give_up(space, job.site, kChangedByProgram, {});
      continue;
    }
    for (const ProgramPtr& program : site->programs) {
      program->optimized = true;
      program->not_optimized = nullptr;
    }
  }
  const bool failed = pages && pages->flush();
  pages.reset();
  if (failed) take_back(space, 0);
  work.built.clear();
  work.batch.clear();
  work.phase = Phase::idle;
  meet_soon(space);
  wake_optimiser(space, 0s);
}

// ---- rounds ---------------------------------------------------------------------------------------------------------

void Engine::start_round(AddressSpace& space, bool scan) {
  Optimisation& work = space.optimisation();
  Round round;
  round.number = space.detours().begin_round();
  round.scan = scan && !work.places.empty();
  round.deadline = Clock::now() + kRoundPatience;
  for (const auto& [tid, tracee] : tracees_)
    if (tracee.process && tracee.process->space.get() == &space) round.to_look_at.push_back(tid);
  if (round.scan)
    if (auto maps = symbols::read_maps(anybody_in(space)->id.pid)) round.maps = std::move(maps).value();
  work.round_waited_for = round.number;
  work.round = std::move(round);
  work.at = Clock::now();
}

// Whether a thread that stands there doesn't hold the round up. What its stack refers to is noted.
bool Engine::passes(AddressSpace& space, const Tracee& tracee, std::uint64_t pc, std::uint64_t sp) {
  Optimisation& work = space.optimisation();
  Round& round = *work.round;
  const RemoteAddr at{pc};
  if (work.places.site_of(pc) || space.detours().in_code(at) || space.detours().site_of_island(at)) return false;
  RemoteAddr base;
  if (const Slot* slot = space.xol().find(at, base)) {
    const Site* site = space.find(slot->original);
    if (!site || site->jump) return false;
  }
  if (round.scan) {
    const bool main = tracee.tid == tracee.process->id.pid;
    scan_stack(work.places, round.maps, space.memory(), sp, tracee.thread_pointer, main, round.pinned);
    // Who is to come back to a probed instruction that has been counted already would be counted again by a jump.
    for (const Rehit& rehit : tracee.rehits) {
      const Site* site = space.find(rehit.site);
      if (site && site->jump && !has_left(round.maps, rehit.regs.sp(), sp)) round.pinned.insert(rehit.site);
    }
  }
  return true;
}

void Engine::look_at(AddressSpace& space, pid_t tid) {
  Round& round = *space.optimisation().round;
  const auto it = tracees_.find(tid);
  if (it == tracees_.end() || it->second.process->space.get() != &space) return;
  Tracee& tracee = it->second;
  const bool unknown = tracee.lanes.size() < space.detours().lines().size();
  const Glance seen = glance(tid);
  if (seen.kind == Glance::Kind::gone) return;
  // A thread that waits is left alone, unless nobody knows yet which it is and being asked does it no harm.
  const bool ask = seen.kind == Glance::Kind::running || (unknown && interruption_cost(tid) <= 1);
  if (!ask || tracee.state != Tracee::State::running) {
    if (seen.kind == Glance::Kind::running) return round.to_look_at.push_back(tid);
    if (!passes(space, tracee, seen.pc, seen.sp)) return round.to_look_at.push_back(tid);
    // Between the first look and the end of the scan it must not have run.
    const Glance after = glance(tid);
    if (after.kind != Glance::Kind::blocked || after.times_scheduled != seen.times_scheduled)
      round.to_look_at.push_back(tid);
    return;
  }
  tracee.interrupted_at = Clock::now();
  if (ptrace::interrupt(tid) == Outcome::ok) round.awaited.insert(tid);
}

void Engine::go_on_with_round(AddressSpace& space) {
  Optimisation& work = space.optimisation();
  for (std::size_t n = std::min(work.round->to_look_at.size(), kLooksAtATime); n > 0; --n) {
    const pid_t tid = work.round->to_look_at.front();
    work.round->to_look_at.pop_front();
    look_at(space, tid);
  }
  const auto now = Clock::now();
  if (work.round->to_look_at.empty() && work.round->awaited.empty()) return round_is_over(space);
  if (now >= work.round->deadline) {
    // Somebody can't be seen: nothing is written, nothing is given back.
    work.round.reset();
    for (const Optimisation::Job& job : work.built) {
      Site* site = space.find(job.site);
      if (!site || !site->jump || site->jump->detour != job.detour) continue;
      space.drop_jump(*site);
      give_up(space, job.site, "a thread could not be seen outside of it in time", kPinnedAgain);
    }
    work.built.clear();
    if (work.phase == Phase::looking || work.phase == Phase::syncing) work.phase = Phase::idle;
    answer_waiting(space, ~0ull);
    return wake_optimiser(space, kPinnedAgain);
  }
  wake_optimiser(space, work.round->to_look_at.empty() ? Clock::duration(kLookAgain) : Clock::duration(0s));
}

void Engine::round_is_over(AddressSpace& space) {
  Optimisation& work = space.optimisation();
  const Round round = std::move(*work.round);
  work.round.reset();
  for (const RemoteAddr address : round.pinned) {
    Site* site = space.find(address);
    if (!site || !site->jump || site->jump->state != Jump::State::planned) continue;
    space.drop_jump(*site);
    give_up(space, address, "a thread's stack refers to the middle of what the jump would replace", kPinnedAgain);
  }
  const pid_t pid = anybody_in(space)->id.pid;
  std::unordered_map<std::size_t, std::vector<std::uint32_t>> unused;
  for (const auto& [line, index] : space.round_done(round.number)) unused[line].push_back(index);
  for (auto& [line, indices] : unused)
    listener_.taps_unused(space.detours().lines()[line].feed, std::move(indices), pid);
  answer_waiting(space, round.number);
  wake_optimiser(space, 0s);
}

// Those who wait for a round that is over, and those who have waited long enough.
void Engine::answer_waiting(AddressSpace& space, std::uint64_t over) {
  Optimisation& work = space.optimisation();
  const auto now = Clock::now();
  std::vector<std::function<void()>> answers;
  std::erase_if(work.after_round, [&](Optimisation::Waiting& waiting) {
    if (waiting.round > over && now < waiting.until) return work.at = std::min(work.at, waiting.until), false;
    answers.push_back(std::move(waiting.done));
    return true;
  });
  for (const auto& answer : answers) answer();
}

// ---- the feeds' readers ---------------------------------------------------------------------------------------------

void Engine::names_known(pid_t pid, std::uint64_t ticket) {
  Process* process = find_process(pid);
  if (!process || !process->space) return;
  Optimisation& work = process->space->optimisation();
  work.names_known = std::max(work.names_known, ticket);
  wake_optimiser(*process->space, 0s);
}

void Engine::indices_free(pid_t pid, const events::FeedPtr& feed, std::span<const std::uint32_t> indices) {
  Process* process = find_process(pid);
  if (!process || !process->space) return;
  DetourSpace& detours = process->space->detours();
  for (std::size_t i = 0; i < detours.lines().size(); ++i)
    if (detours.lines()[i].feed == feed)
      for (const std::uint32_t index : indices) detours.free_index(i, index);
}

void Engine::close_feeds(AddressSpace& space) {
  // The space itself may be kept for a while, for copies of it that turn up late; their channels are gone.
  for (const Line& line : std::exchange(space.detours().lines(), {})) listener_.feed_closed(line.feed);
  answer_waiting(space, ~0ull);
}

// Calls `done` when every thread of these processes has been outside of detours since now; or a little later in any
// case: with more busy threads than processors it may take long until each has been seen.
void Engine::when_unused(std::vector<Process*> touched, std::function<void()> done) {
  auto left = std::make_shared<std::size_t>(touched.size());
  auto shared = std::make_shared<std::function<void()>>(std::move(done));
  if (touched.empty()) return (*shared)();
  for (Process* process : touched) {
    Optimisation& work = process->space->optimisation();
    work.after_round.push_back(
        {process->space->detours().rounds_begun() + 1, Clock::now() + kAnswerAfter, [left, shared] {
           if (--*left == 0) (*shared)();
         }});
    wake_optimiser(*process->space, 0s);
  }
}

}  // namespace probed::tracer
