// From breakpoints to jumps, in the background.
//
// A site is armed as a breakpoint first, always; so failing here is never an error, only a reason that is shown. One
// address space at a time goes through a batch in small steps, between the stops that the tracer serves:
//
//   building   for each site a region is chosen (arch/region.hpp), its detour is generated and written. From then on
//              who runs into the breakpoint goes on in the detour's tail instead of the slot: nobody new comes between
//              the first byte of the region and its end
//   looking    every thread is seen once outside of those places, and without a signal frame that leads there
//   syncing    the jumps' tails are written; then every thread that runs is made to go through the kernel once, so that
//              no processor has old bytes on their way (Intel SDM 3A 9.1.3, AMD APM 2 7.6.1: cross-modifying code; Arm
//              ARM B2.2.5: what was written to be executed takes a context synchronization event to be so for sure)
//   naming     whoever reads the channel knows who records under which index
//   then       the jumps' first bytes are written: as many as the breakpoint has
//
// Which sites are hit all the time is seen at their breakpoints: what is hit some times while it waits is the next
// batch, whatever else waits, and a batch that is being built makes room for it. So a function that a program runs
// through all the time is a breakpoint for some milliseconds, however many others are probed together with it.
//
// The way back is immediate: the breakpoint over the jump's first byte, the original bytes behind it. Threads in the
// detour run on; its memory is used again after a round in which every thread was seen elsewhere.
#include "daemon/tracer/jumps/optimiser.hpp"

#include <algorithm>

#include "daemon/tracer/rooms.hpp"
#include "daemon/tracer/text/text_pages.hpp"
#include "proto/base/check.hpp"

namespace probed::tracer {
namespace {

namespace native = arch::native;
using namespace std::chrono_literals;
using Clock = Waiter::Clock;

constexpr auto kDelay = 5ms;       // more probes may be about to come
constexpr auto kBuildSlice = 1ms;  // of building before the tracer looks at stops again
constexpr auto kPinnedAgain = 1s;
constexpr std::size_t kBatch = 8192, kFirstBatch = 512;  // sites
constexpr std::size_t kHotBatch = 256;
constexpr unsigned kHotHits = 4;      // while it waits
constexpr auto kHotDelay = 2ms;       // more may be about to be found
constexpr auto kHotLook = 10ms;       // until nobody seems to be hot
constexpr auto kHotPatience = 200ms;  // of those who wait for their jumps
constexpr auto kLayoutAge = 50ms;     // while a batch is built
constexpr const char* kChangedByProgram = "its code was changed by the program";
constexpr auto kPunAgain = 50ms;
constexpr const char* kPunInUse = "where its punned jump would lead threads may still be";
constexpr const char* kOtherCode = "its code is not what its file has there";
constexpr const char* kAwaitsHit =
    "nothing says that it is 64-bit code (no unwind table covers it, and it is below 4 GiB): its first hit will";
constexpr const char* kBothCodes =
    "the process executes 32-bit code, and nothing says that this isn't (no unwind table covers it)";

std::uint64_t distance(RemoteAddr a, RemoteAddr b) { return a > b ? a.value - b.value : b.value - a.value; }

Patch make_patch(RemoteAddr at, std::span<const std::uint8_t> before, std::span<const std::uint8_t> after) {
  PROBED_CHECK(before.size() == after.size() && after.size() <= Patch::kMaxSize,
               "a jump and what stays in front of it have at most 8 bytes");
  Patch patch{at, static_cast<std::uint8_t>(after.size()), {}, {}};
  std::ranges::copy(before, patch.before.begin());
  std::ranges::copy(after, patch.after.begin());
  return patch;
}

bool ignores_traps(const Process& process) {
  const auto& action = process.actions.of(SIGTRAP).known;
  return action && disposition_of(*action) == Disposition::ignored;
}

}  // namespace

// ---- what waits -----------------------------------------------------------------------------------------------------

void Optimiser::wake_optimiser(AddressSpace& space, Clock::duration in) {
  Optimisation& work = space.optimisation();
  work.at = std::min(work.at, Clock::now() + in);
}

// Why this program can be in no jump, nor can its neighbours be; null: it can. One without a detour knows by itself
// why.
static const char* keeps_breakpoint(const ProbeProgram& program) {
  if (!program.detour) return "";
  if (program.limit) return "it ends after a number of hits, which the breakpoint counts exactly";
  return program.force_step ? "it is to be stepped" : nullptr;
}

// No program keeps a reason that another one owns.
bool Optimiser::eligible(const AddressSpace& space, const Site& site) {
  const char* why = nullptr;
  if (!site.flow) why = "nothing is known of the code around it";
  if (site.why_not) why = site.why_not;
  if (site.may_be_other_code && !site.executed) why = kAwaitsHit;
  if (site.may_be_other_code && space.optimisation().has_other_code) why = kBothCodes;
  if (space.optimisation().refused) why = space.optimisation().refused;
  const auto keeps = [](const ProgramPtr& program) { return keeps_breakpoint(*program) != nullptr; };
  if (std::ranges::any_of(site.programs, keeps)) why = "another probe at the same place keeps the breakpoint there";
  if (!why) return true;
  for (const ProgramPtr& program : site.programs) {
    const char* own = keeps_breakpoint(*program);
    program->not_optimized = !program->detour ? nullptr : (own ? own : why);
  }
  return false;
}

// Asked at every step on the way to a jump: since the last one jumps may have been switched off, or the site disarmed.
bool Optimiser::wants_jump(const AddressSpace& space, const Site& site) {
  return rooms_.optimize && site.armed && !site.jump && Clock::now() >= site.no_jump_before && eligible(space, site);
}

void Optimiser::consider(AddressSpace& space, Site& site) {
  if (site.queued || !site.flow || !wants_jump(space, site)) return;
  site.queued = true;
  site.trapped_waiting = 0;
  space.optimisation().queue.push_back(site.plan.address);
  wake_optimiser(space, kDelay);
}

// Without a jump it is hit again and again, and costs its program a stop each time.
void Optimiser::note_waiting(AddressSpace& space, Site& site) {
  // One whose jump was given up is no candidate before its time (give_up()).
  if (!site.queued || site.trapped_waiting == kHotHits || ++site.trapped_waiting < kHotHits) return;
  Optimisation& work = space.optimisation();
  if (work.hot.empty()) {
    work.hot_since = Clock::now();
    wake_optimiser(space, kHotDelay);
    waiter_.wake();  // a deadline that a stop sets is else looked at by the tick only
  }
  work.hot.push_back(site.plan.address);
}

void Optimiser::when_fast(std::vector<Process*> touched, std::function<void()> done) {
  std::erase_if(touched, [](const Process* process) {
    return process->space->optimisation().refused || process->space->optimisation().queue.empty();
  });
  if (touched.empty() || !rooms_.optimize) return done();
  auto left = std::make_shared<std::size_t>(touched.size());
  auto shared = std::make_shared<std::function<void()>>(std::move(done));
  const auto now = Clock::now();
  for (Process* process : touched) {
    process->space->optimisation().after_hot.push_back({now + kHotLook, now + kHotPatience, [left, shared] {
                                                          if (--*left == 0) (*shared)();
                                                        }});
    // Hits that it has kept waiting tell first what is hot.
    if (Optimisation& work = process->space->optimisation(); work.phase == Phase::idle) work.at = now + kHotDelay;
  }
}

void Optimiser::answer_fast(AddressSpace& space, bool all) {
  Optimisation& work = space.optimisation();
  const auto now = Clock::now();
  const bool hot = !work.hot.empty() || (work.phase != Phase::idle && work.batch_is_hot);
  std::vector<std::function<void()>> answers;
  std::erase_if(work.after_hot, [&](Optimisation::WaitingForJumps& waiting) {
    const bool waits = now < waiting.from || (hot && now < waiting.until);
    if (waits && !all) return work.at = std::min(work.at, std::max(waiting.from, now + kHotDelay)), false;
    answers.push_back(std::move(waiting.done));
    return true;
  });
  for (const auto& answer : answers) answer();
}

void Optimiser::learn_code(AddressSpace& space, Site& site, const SiteCode& known) {
  site.flow = known.flow;
  site.bias = known.bias;
  site.may_be_other_code = known.site.value < native::kOtherCodeBelow && !known.in_frame;
  site.why_not = site.rewritten ? "the program rewrites its code" : known.why_not;
  if (!site.flow || site.why_not || site.may_be_other_code) eligible(space, site);
}

void Optimiser::know_code(pid_t pid, std::uint32_t execs, std::span<const SiteCode> code) {
  const Process* process = targets_.find_process(pid);
  if (!process || process->execs != execs || process->detaching()) return;
  for (const SiteCode& known : code) {
    Site* site = process->space->find(known.site);
    if (!site) continue;
    learn_code(*process->space, *site, known);
    consider(*process->space, *site);
  }
}

void Optimiser::set_optimize(bool optimize) {
  rooms_.optimize = optimize;
  for (auto& [pid, process] : targets_.processes) {
    if (!process->space || process->detaching()) continue;
    AddressSpace& space = *process->space;
    for (const auto& [address, site] : space.sites_in_order()) {
      if (!optimize) space.drop_jump(*site);
      consider(space, *site);
    }
    rooms_.code_changes.heal_if_moved(space);
    wake_optimiser(space, kDelay);
  }
}

void Optimiser::refresh_modes(std::span<const ProbeId> ids) {
  for (const ProbeId id : ids) {
    const auto it = targets_.programs.find(number(id));
    if (it == targets_.programs.end()) continue;
    for (auto& [pid, process] : targets_.processes)
      if (process->space) process->space->detours().refresh_mode(*it->second, rooms_.armed);
  }
}

void Optimiser::give_up(AddressSpace& space, RemoteAddr address, const char* why, Clock::duration again) {
  Site* site = space.find(address);
  if (!site) return;
  for (const ProgramPtr& program : site->programs) program->not_optimized = why;
  if (again == Clock::duration()) return;
  space.optimisation().later.emplace_back(Clock::now() + again, address);
  wake_optimiser(space, again);
}

void Optimiser::refuse_all(AddressSpace& space, const char* why) {
  Optimisation& work = space.optimisation();
  work.refused = why;
  for (const auto& [address, site] : space.sites_in_order()) {
    site->queued = false;
    space.drop_jump(*site);
    eligible(space, *site);
  }
  rooms_.code_changes.heal_if_moved(space);
  work.queue.clear();
  work.hot.clear();
  work.batch.clear();
  work.later.clear();
  work.built.clear();
  work.phase = Phase::idle;
  wake_optimiser(space, kDelay);
}

// A jump in 32-bit code would be a jump to 64-bit code, which that can't tell.
void Optimiser::note_other_code(AddressSpace& space) {
  if (std::exchange(space.optimisation().has_other_code, true)) return;
  for (const auto& [address, site] : space.sites_in_order()) {
    if (!site->may_be_other_code) continue;
    space.drop_jump(*site);
    eligible(space, *site);
  }
  rooms_.code_changes.heal_if_moved(space);
  wake_optimiser(space, kDelay);
}

// ---- steps ----------------------------------------------------------------------------------------------------------

void Optimiser::optimise(AddressSpace& space) {
  Optimisation& work = space.optimisation();
  work.at = Clock::time_point::max();
  if (!targets_.anybody_in(space)) return;
  rooms_.rounds.answer_waiting(space, 0);
  rooms_.lanes.meet_the_rest(space);
  if (work.round) rooms_.rounds.go_on_with_round(space);
  const bool waits = work.round && work.round_waited_for >= work.round->number;
  switch (work.phase) {
    case Phase::idle:
      if (start_batch(space) || work.round) return;
      if (space.detours().awaits_round() || !work.after_round.empty()) rooms_.rounds.start_round(space, false);
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

// What is hot, or else some of what waits: few at first, so that what turns out to be hot needn't wait for many.
void Optimiser::gather_batch(AddressSpace& space) {
  Optimisation& work = space.optimisation();
  work.batch_is_hot = false;
  for (; !work.hot.empty() && work.batch.size() < kHotBatch; work.hot.pop_front()) {
    Site* site = space.find(work.hot.front());
    if (!site || !wants_jump(space, *site)) continue;
    site->queued = false;
    work.batch.push_back(site->plan.address);
    work.batch_is_hot = true;
  }
  work.hot_since = Clock::now();
  if (work.batch_is_hot) return;
  work.portion = std::clamp(2 * work.portion, kFirstBatch, kBatch);
  while (!work.queue.empty() && work.batch.size() < work.portion) {
    Site* site = space.find(work.queue.front());
    work.queue.pop_front();
    if (!site || !std::exchange(site->queued, false)) continue;
    if (!wants_jump(space, *site)) continue;
    work.batch.push_back(site->plan.address);
  }
  if (work.queue.empty()) work.portion = 0;
}

// Of a batch that is being built: what is hot comes first.
void Optimiser::put_off_rest(AddressSpace& space) {
  Optimisation& work = space.optimisation();
  for (std::size_t i = work.batch.size(); i-- > work.next;) {
    Site* site = space.find(work.batch[i]);
    if (!site || site->queued || !wants_jump(space, *site)) continue;
    site->queued = true;
    work.queue.push_front(work.batch[i]);
  }
  work.batch.resize(work.next);
  work.portion = 0;
}

bool Optimiser::start_batch(AddressSpace& space) {
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
  gather_batch(space);
  if (work.batch.empty()) return false;
  for (const auto& [pid, process] : targets_.processes)
    if (process->space.get() == &space && ignores_traps(*process)) {
      refuse_all(space, "the process ignores SIGTRAP: a signal could not be kept out of a detour");
      return false;
    }
  // In this order neighbours know of each other, and memory near one is near the next.
  std::ranges::sort(work.batch);
  work.phase = Phase::building;
  work.at = now;
  return true;
}

// ---- building -------------------------------------------------------------------------------------------------------

void Optimiser::build_some(AddressSpace& space) {
  Optimisation& work = space.optimisation();
  const auto began = Clock::now(), until = began + kBuildSlice;
  const std::size_t built_before = work.built.size();
  std::vector<Listener::Tap> taps;
  bool more = true;
  std::optional<TextPages> pages;
  if (const Process* process = targets_.anybody_in(space); process && work.next == 0)
    rooms_.code_changes.forget_lost_code(*process);
  if (work.phase != Phase::building) return;
  if (!work.batch_is_hot && !work.hot.empty() && began >= work.hot_since + kHotDelay) put_off_rest(space);
  if (work.batch.size() - work.next >= TextPages::kLargeBatch) {
    if (!work.layout || began - work.layout_read > kLayoutAge)
      work.layout = Layout::of(space.memory()), work.layout_read = began;
    if (work.layout->known()) pages.emplace(space.memory(), work.layout->mappings());
  }
  for (; work.next < work.batch.size() && more && work.phase == Phase::building; ++work.next) {
    Site* site = space.find(work.batch[work.next]);
    if (!site || !wants_jump(space, *site)) continue;
    if (!build_one(space, *site, taps)) break;
    more = Clock::now() < until;
  }
  const bool failed = pages && pages->flush();
  pages.reset();
  if (failed) take_back(space, built_before);
  space.landing().flush(space.memory());
  if (!taps.empty()) {
    const Line& line = space.detours().lines()[work.line];
    listener_.taps_added(line.feed, std::move(taps), targets_.anybody_in(space)->id.pid, ++work.names_sent);
  }
  if (work.phase != Phase::building) return;
  work.at = Clock::now();
  if (work.next < work.batch.size()) return;
  if (work.built.empty()) return void(work.phase = Phase::idle);
  work.phase = Phase::looking;
  rooms_.rounds.start_round(space, true);
}

// Jumps whose texts, or detours, aren't what they were taken for: these, and those that were made after them.
void Optimiser::take_back(AddressSpace& space, std::size_t from) {
  Optimisation& work = space.optimisation();
  from = std::min(from, work.built.size());
  for (std::size_t i = from; i < work.built.size(); ++i) {
    Site* site = space.find(work.built[i].site);
    if (!site || !site->jump || site->jump->detour != work.built[i].detour) continue;
    space.drop_jump(*site);
    give_up(space, work.built[i].site, kChangedByProgram, kPinnedAgain);
  }
  work.built.resize(from);
  rooms_.code_changes.heal_if_moved(space);
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
    // All of its instruction: a second jump behind the breakpoint would not be what the site was made for.
    add(it->first, it->second->plan.insn.length);
    const Jump* jump = it->second->jump.get();
    if (!jump) continue;
    add(jump->head.at, jump->head.size);
    if (jump->island) add(jump->island->at, jump->island->size);
    if (jump->borrowed) add(jump->borrowed->at, jump->borrowed->size);
  }
  // Those that are about to be taken out are no site's any more.
  const auto& islands = space.detours().islands();
  for (auto it = islands.lower_bound(low.value); it != islands.end() && it->first <= high.value; ++it)
    add(RemoteAddr{it->first}, it->second.patch.size);
  std::ranges::sort(taken, {}, &arch::CodeRange::begin);
  return taken;
}

// An index for each of a site's programs. False: the channel has none left.
bool Optimiser::connect_taps(AddressSpace& space, Site& site, std::vector<arch::CapturedProbe>& probes,
                             std::vector<Listener::Tap>& taps) {
  DetourSpace& detours = space.detours();
  Optimisation& work = space.optimisation();
  for (const ProgramPtr& program : site.programs) {
    const ProbeId recorder = recorder_of(*program);
    auto tap = detours.tap_of(recorder);
    if (!tap) {
      const auto known = targets_.programs.find(number(recorder));
      const auto index = known == targets_.programs.end() ? std::nullopt : detours.add_tap(work.line, known->second);
      if (!index) return false;
      tap = {work.line, *index};
      taps.push_back({*index, known->second});
    }
    // All of a site's programs record into one channel: theirs when they have one.
    if (tap->line != work.line) return false;
    probes.push_back({.index = tap->index, .plan = &program->detour->capture});
    if (program->returns && !describe_call(*program, probes.back())) return false;
  }
  return true;
}

// What a detour has to know of a return probe's place. False: calls have no numbers left.
bool Optimiser::describe_call(const ProbeProgram& program, arch::CapturedProbe& probe) {
  const auto tag = rooms_.calls.tag_of_calls(program.returns);
  if (!tag) return false;
  const bool is_entry = program.role == ProbeProgram::Role::entry;
  probe.role = is_entry ? arch::CapturedProbe::Role::entry : arch::CapturedProbe::Role::exit;
  probe.tag = *tag;
  probe.loops = program.returns->loops_to_entry;
  if (is_entry) return true;
  probe.tail_call = program.exit.kind != arch::ExitKind::ret;
  probe.condition = program.exit.condition;
  return true;
}

// What a jump replaces, with branch targets as they are in this process, and the second jump of a punned one.
struct Optimiser::JumpPlan {
  arch::RegionPlan region;
  std::optional<RemoteAddr> pun;
};

Optimiser::Turn Optimiser::choose_region(AddressSpace& space, Site& site, JumpPlan& plan) {
  const RemoteAddr address = site.plan.address;
  const auto taken = taken_around(space, site);
  const arch::RegionRequest request{address.value - site.bias, taken, true};
  arch::RegionResult region = native::plan_region(*site.flow, request);
  if (!region) region = rooms_.puns.pun_instead(site, request, region);
  if (!region) {
    give_up(space, address, site.why_no_pun ? site.why_no_pun : arch::describe(region.refusal).sentence.data(), {});
    return Turn::over;
  }
  if (region.plan.form == arch::JumpForm::punned) {
    const DetourSpace& detours = space.detours();
    const arch::PunRange range = rooms_.puns.pun_range(site, region.plan);
    plan.pun = detours.room_for_pun(range);
    if (!plan.pun && detours.awaits_pun(range)) return give_up(space, address, kPunInUse, kPunAgain), Turn::over;
    if (!plan.pun) return rooms_.puns.ask_for_pun(space, site, range), Turn::waits;
  }
  plan.region = region.plan;
  arch::Displaced& displaced = plan.region.region;
  for (arch::Insn& insn : std::span(displaced.insns).first(displaced.count))
    if (insn.target) *insn.target += site.bias;
  return Turn::goes_on;
}

// The line that it records into: its own programs', else any with room. nullopt: all are full.
std::optional<std::size_t> Optimiser::line_for(const DetourSpace& detours, const Site& site) {
  std::optional<std::size_t> line;
  for (const ProgramPtr& program : site.programs)
    if (const auto tap = detours.tap_of(recorder_of(*program))) line = tap->line;
  const auto has_room = [](const Line& l) {
    return !l.free.empty() || l.taps.size() < l.feed->channel->layout().probes;
  };
  for (std::size_t i = detours.lines().size(); i-- > 0 && !line;)
    if (has_room(detours.lines()[i])) line = i;
  return line;
}

// Where a detour is built, in an area of its line that the site reaches.
struct Optimiser::DetourRoom {
  CodeArea* area = nullptr;
  RemoteAddr at;
  std::uint32_t size = 0;  // from there on; given back as a whole
};

// Builds it into detour_, for the first area with room. `request`: but for its address.
Optimiser::Turn Optimiser::build_detour(AddressSpace& space, arch::DetourRequest request, DetourRoom& room) {
  const RemoteAddr site{request.site};
  DetourSpace& detours = space.detours();
  const std::size_t line = space.optimisation().line;
  const auto fits = [&](const CodeArea& area) {
    return area.line == line && distance(area.base, site) < kSlotReach &&
           distance(area.base + area.size, site) < kSlotReach;
  };
  for (CodeArea& area : detours.areas()) {
    if (!fits(area)) continue;
    const std::uint64_t fresh = round_up((area.base + area.used).value, native::kDetourAlignment);
    const auto build_at = [&](std::uint64_t address) {
      request.address = address;
      return native::build_detour(request, area.runtime, detour_);
    };
    if (const arch::DetourResult result = build_at(fresh); !result) {
      const auto& why = result.refusal == arch::DetourRefusal::relocation ? arch::describe(result.relocation)
                                                                          : arch::describe(result.refusal);
      give_up(space, site, why.data(), {});
      return Turn::over;
    }
    const auto size = static_cast<std::uint32_t>(detour_.code.size());
    // Elsewhere the code may be some bytes longer or shorter.
    const auto build_in = [&](const DetourSpace::Room& used) {
      PROBED_CHECK(build_at(used.address.value), "what was built can be built elsewhere");
      return detour_.code.size() <= used.size;
    };
    if (const auto used = DetourSpace::reuse(area, size, build_in)) {
      room = {&area, used->address, used->size};
      return Turn::goes_on;
    }
    if (request.address != fresh) PROBED_CHECK(build_at(fresh), "what was built is built there again");
    const auto taken = static_cast<std::uint32_t>(round_up(size, native::kDetourAlignment));
    if (fresh + taken > area.base.value + area.size) continue;
    area.used = fresh + taken - area.base.value;
    room = {&area, RemoteAddr{fresh}, taken};
    return Turn::goes_on;
  }
  rooms_.jump_memory.ask_for_memory(space, false, site, left_to_build(space));
  return Turn::waits;
}

// What is to be written for it. `at`: its detour.
Jump Optimiser::make_jump(const Site& site, const JumpPlan& plan, RemoteAddr at) const {
  const RemoteAddr address = site.plan.address;
  const std::size_t displaced = plan.region.region.length;
  Jump jump;
  jump.detour = at;
  jump.tail = at + detour_.tail_begin;
  jump.region = {address.value, address.value + displaced};
  const auto original = [&](std::uint64_t from, std::size_t size) { return site.flow->bytes(from - site.bias, size); };
  const std::size_t pad = plan.region.pad_size;
  const auto near_from =
      plan.region.form == arch::JumpForm::island ? plan.region.island + site.bias : address.value + pad;
  const auto near_jump = native::detour_jump(near_from, plan.pun ? plan.pun->value : at.value);
  if (plan.pun) {
    const auto now = original(address.value, near_jump.size());
    const std::span<const std::uint8_t> wanted(near_jump);
    PROBED_CHECK(std::ranges::equal(wanted.subspan(displaced), now.subspan(displaced)),
                 "a pun leads where the bytes behind it say");
    jump.pun = *plan.pun;
    jump.head = make_patch(address, now.first(displaced), wanted.first(displaced));
    jump.borrowed = make_patch(address + displaced, now.subspan(displaced), now.subspan(displaced));
  } else if (plan.region.form == arch::JumpForm::near) {
    const auto now = original(address.value, pad + near_jump.size());
    std::vector<std::uint8_t> wanted(now.begin(), now.begin() + static_cast<std::ptrdiff_t>(pad));
    wanted.insert(wanted.end(), near_jump.begin(), near_jump.end());
    jump.head = make_patch(address, now, wanted);
  } else {
    const auto hop = native::short_jump(address.value, near_from);
    jump.head = make_patch(address, original(address.value, hop.size()), hop);
    jump.island = make_patch(RemoteAddr{near_from}, original(near_from, near_jump.size()), near_jump);
  }
  return jump;
}

// Sites that are to be built still.
std::size_t Optimiser::left_to_build(const AddressSpace& space) {
  const Optimisation& work = space.optimisation();
  return work.batch.size() - work.next + work.queue.size();
}

// False: memory has been asked for; the site's turn comes again.
bool Optimiser::build_one(AddressSpace& space, Site& site, std::vector<Listener::Tap>& taps) {
  Optimisation& work = space.optimisation();
  DetourSpace& detours = space.detours();
  const RemoteAddr address = site.plan.address;
  const auto refused = [&](const char* why, Waiter::Clock::duration again) {
    give_up(space, address, why, again);
    return true;
  };
  JumpPlan plan;
  if (const Turn turn = choose_region(space, site, plan); turn != Turn::goes_on) return turn == Turn::over;

  const auto line = line_for(detours, site);
  if (!line) return rooms_.jump_memory.ask_for_memory(space, true, address, left_to_build(space)), false;
  if (work.line != *line && !taps.empty()) {
    // Taps are announced line by line.
    listener_.taps_added(detours.lines()[work.line].feed, std::exchange(taps, {}), targets_.anybody_in(space)->id.pid,
                         ++work.names_sent);
  }
  work.line = *line;

  std::vector<arch::CapturedProbe> probes;
  if (!connect_taps(space, site, probes, taps))
    return refused("its channel has no room for another probe", kPinnedAgain);
  const arch::Displaced& displaced = plan.region.region;
  const auto bytes = site.flow->bytes(address.value - site.bias, displaced.length);
  if (!space.holds_around(site, bytes)) return refused(kOtherCode, {});
  DetourRoom room;
  const Turn turn = build_detour(space, {address.value, bytes, displaced.all(), 0, probes}, room);
  if (turn != Turn::goes_on) return turn == Turn::over;

  if (!space.memory().write(room.at, std::as_bytes(std::span(detour_.code)))) {
    room.area->free.emplace(room.size, room.at);
    return refused("generated code can't be written", kPinnedAgain);
  }
  PlacedDetour placed{address, static_cast<std::uint32_t>(detour_.code.size()), room.size, detour_, 0};
  placed.facts.code = {};
  if (plan.pun && !rooms_.puns.place_pun(space, *plan.pun, room.at, placed)) {
    room.area->free.emplace(room.size, room.at);
    rooms_.puns.no_pun(site, arch::describe(arch::RegionRefusal::no_island).sentence.data());
    return refused(site.why_no_pun, {});
  }
  detours.place(room.at, std::move(placed));
  rooms_.detour_threads.will_look_for_loads(Waiter::Clock::now() + 1s);

  if (!space.plan_jump(site, make_jump(site, plan, room.at))) {
    detours.retire(room.at);
    if (plan.pun) detours.retire(*plan.pun);
    return refused(kOtherCode, {});
  }
  for (const std::uint64_t place : plan.region.interior()) work.places.add(RemoteAddr{place + site.bias}, address);
  // A handler of one of its faults may still be at work, and skip the instruction then.
  if (site.set_backs > 0) work.places.add(address, address);
  work.built.push_back({address, room.at});
  return true;
}

// ---- writing --------------------------------------------------------------------------------------------------------

// Text by the page, for many sites; nothing for a few.
static std::optional<TextPages> pages_for(AddressSpace& space, const Layout& layout, std::size_t sites) {
  if (sites < TextPages::kLargeBatch || !layout.known()) return std::nullopt;
  return std::optional<TextPages>(std::in_place, space.memory(), layout.mappings());
}

void Optimiser::write_tails(AddressSpace& space) {
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
  space.landing().flush(space.memory());
  work.phase = Phase::syncing;
  rooms_.rounds.start_round(space, false);
}

void Optimiser::write_heads(AddressSpace& space) {
  Optimisation& work = space.optimisation();
  const Layout layout = Layout::of(space.memory());
  auto pages = pages_for(space, layout, work.built.size());
  for (const Optimisation::Job& job : work.built) {
    Site* site = space.find(job.site);
    if (!site || !site->jump || site->jump->detour != job.detour) continue;
    for (const ProgramPtr& program : site->programs) space.detours().refresh_mode(*program, rooms_.armed);
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
  space.landing().flush(space.memory());
  work.built.clear();
  work.batch.clear();
  work.phase = Phase::idle;
  rooms_.lanes.meet_soon(space);
  wake_optimiser(space, 0s);
}

}  // namespace probed::tracer
