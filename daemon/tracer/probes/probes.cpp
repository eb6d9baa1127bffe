// Commands on probes: add, remove, enable, the global switch.
//
// A batch is all or none. It may have to wait for a thread to map memory for it; until it is committed nothing of it
// can be seen, and whatever fails takes all of it back.
#include "daemon/tracer/probes/probes.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "daemon/base/process.hpp"
#include "daemon/symbols/maps.hpp"
#include "daemon/tracer/family/remote_calls.hpp"
#include "daemon/tracer/kernel/interrupted_calls.hpp"
#include "daemon/tracer/rooms.hpp"
#include "daemon/tracer/stops.hpp"
#include "daemon/tracer/text/text_pages.hpp"
#include "proto/base/check.hpp"

namespace probed::tracer {
namespace {

namespace native = arch::native;

constexpr const char* kCallFailed = "the thread that was to map it has gone, or could not make the call";
constexpr unsigned kMaxGrowth = 64;                        // areas one batch may ask for
constexpr unsigned kMaxHoleAttempts = 32;                  // places tried for one area
constexpr unsigned kMaxIslandWaits = 8;                    // rounds that a batch waits for
constexpr unsigned kMostTries = 3;                         // to write a breakpoint into a library that comes and goes
constexpr auto kIslandPatience = std::chrono::seconds(1);  // for one of them

// What is emulated while somebody traces needs a copy to be stepped, or for when nobody traces (landing.hpp), if it can
// have one.
bool needs_slot(const SiteRequest& request) {
  const SitePlan& plan = request.plan;
  if (!plan.insn.emulable) return true;
  if (!native::kHasLanding && !request.program->force_step) return false;
  const std::uint64_t anywhere = plan.address.value;
  return native::relocate(plan.code(), plan.insn, anywhere, anywhere).refusal != arch::Refusal::unsupported;
}

// Its detours' loads may fault: what can't be absent is read from registers and from the stack.
bool may_follow_bad_pointers(const SiteRequest& request) {
  const auto& plan = request.program->detour;
  return plan && std::ranges::any_of(plan->capture.layout.items, &arch::CaptureItem::can_be_absent);
}

Error no_room(pid_t pid, RemoteAddr near, const char* why) {
  return Error{Reason::out_of_memory,
               fmt::format("process {}: no memory could be mapped near {:#x} for relocated instructions: {}", pid,
                           near.value, why),
               "see the target's limits (ulimit -v, vm.max_map_count) and its seccomp or SELinux policy",
               {}};
}

// The thread itself may make no call for us.
Error no_call(pid_t pid, const char* why) {
  return Error{Reason::unsupported_target,
               fmt::format("process {}: no memory could be mapped for relocated instructions: the thread that was to "
                           "make the call can't: {}",
                           pid, why),
               "",
               {}};
}

Error unwritable(RemoteAddr address) {
  return Error{Reason::unsupported_target,
               fmt::format("the text at {:#x} can't be written", address.value),
               "a mapping shared with other processes or sealed against writing can't be probed",
               {}};
}

// Text that could not be written because its library was just being unloaded has gone, though one loaded again may be
// there by now. Whoever waits for the code learns the difference.
Error why_not_written(AddressSpace& space, const SitePlan& plan) {
  auto there = space.verify(plan, Layout::of(space.memory()));
  return there ? unwritable(plan.address) : std::move(there).error();
}

Error in_use(RemoteAddr address) {
  return Error{Reason::timed_out,
               fmt::format("at {:#x} there was the second half of another probe's jump, and not every thread could be "
                           "seen outside of it in time",
                           address.value),
               "try again; is the process frozen (docker pause, cgroup.freeze)?",
               {}};
}

// `process`: null, or it is being let go.
Error not_attached(const Process* process, pid_t pid) {
  if (!process) return process::no_longer_there(pid);
  return Error{Reason::not_attached, fmt::format("process {} is being let go at this moment", pid), "try again", {}};
}

// Whether this thread, which stands in a stop of ours (0: none does), has left a call for it that the kernel doesn't
// make again by itself.
bool stands_in_lost_call(pid_t tid) {
  ptrace::Registers regs;
  if (tid == 0 || !native::kRegistersTellCall || ptrace::get_registers(tid, regs) != ptrace::Outcome::ok) return false;
  return native::in_syscall(regs) && may_be_made_again(native::syscall_number(regs));
}

// What can't be probed whatever the instruction is.
Result<void> check_places(AddressSpace& space, std::span<const SiteRequest> requests) {
  for (const SiteRequest& request : requests) {
    const std::uint64_t address = request.plan.address.value;
    if (space.optimisation().other_code.contains(request.plan.address))
      return Error{Reason::unsupported_instruction,
                   fmt::format("address {:#x}: {}", address, kIsOtherCode),
                   "leave it out, or probe the 64-bit code that goes there",
                   {}};
    if (!space.xol().contains(request.plan.address)) continue;
    // A library that was unloaded since it was looked at leaves room, where our memory may be now.
    std::array<std::uint8_t, arch::kMaxInsnLength> now{};
    const auto code = request.plan.code();
    const auto there = std::span(now).first(code.size());
    if (!space.memory().read(request.plan.address, std::as_writable_bytes(there)) || !std::ranges::equal(there, code))
      return Error{Reason::unmapped_address,
                   fmt::format("address {:#x} was unmapped meanwhile", address),
                   "try again, or use --pending, which waits for it",
                   {}};
    return Error{Reason::blacklisted,
                 fmt::format("address {:#x} is in the code that probed itself has injected", address),
                 "probe the program's own instruction",
                 {}};
  }
  return {};
}

}  // namespace

struct Probes::Batch {
  pid_t pid = 0;
  std::uint32_t execs = 0;
  std::vector<SiteRequest> requests;
  Done done;
  std::unordered_map<RemoteAddr, RemoteAddr> slots;  // allocated for new sites, not yet published
  std::vector<RemoteAddr> new_sites;                 // published by commit, so far
  std::vector<RemoteAddr> disturbed;                 // sites that have lost their jumps to it
  unsigned growth = 0, island_waits = 0;
  bool actions_learned = false, landing_prepared = false, let_go = false;
};

void Probes::add(pid_t pid, std::uint32_t execs, std::vector<SiteRequest> requests, Done done) {
  auto batch = std::make_shared<Batch>();
  batch->pid = pid;
  batch->execs = execs;
  batch->requests = std::move(requests);
  batch->done = std::move(done);
  batch->slots.reserve(batch->requests.size());
  batch->new_sites.reserve(batch->requests.size());
  continue_batch(std::move(batch));
}

void Probes::continue_batch(std::shared_ptr<Batch> batch) {
  Process* process = targets_.find_process(batch->pid);
  if (!process || process->detaching()) return batch->done(not_attached(process, batch->pid));
  if (process->execs != batch->execs) return batch->done(process::no_longer_there(batch->pid));
  rooms_.actions.begin_journal(*process);
  process->actions.with_faults |= std::ranges::any_of(batch->requests, may_follow_bad_pointers);
  if (!std::exchange(batch->actions_learned, true) && rooms_.actions.must_learn_actions(*process))
    return learn_actions_first(std::move(batch));
  if (!std::exchange(batch->landing_prepared, true) && rooms_.actions.lacks_landing(*process, batch->requests.size()))
    return prepare_landing_first(std::move(batch));
  rooms_.code_changes.forget_lost_code(*process);
  if (auto fit = check_places(*process->space, batch->requests); !fit) {
    roll_back(*batch);
    return batch->done(std::move(fit).error());
  }
  auto lacking = place_sites(*batch);
  if (!lacking) {
    roll_back(*batch);
    return batch->done(std::move(lacking).error());
  }
  if (*lacking) {
    const RemoteAddr near = **lacking;
    const auto in_reach = [&](const SiteRequest& r) {
      return std::max(r.plan.address, near) - std::min(r.plan.address, near) <
                 static_cast<std::int64_t>(kSlotReach / 2) &&
             !batch->slots.contains(r.plan.address) && needs_slot(r);
    };
    std::uint64_t bytes = 0;
    for (const SiteRequest& request : batch->requests)
      if (in_reach(request)) bytes += slot_size(native::copy_room(request.plan.insn));
    return grow_xol(batch, near, bytes);
  }
  if (batch->requests.size() >= TextPages::kLargeBatch && process->runs_jobs != 0 &&
      !std::exchange(batch->let_go, true) && !stands_in_lost_call(process->runs_jobs))
    return go_on_without_thread(std::move(batch));
  if (const auto island = clear_islands(*batch)) return wait_for_islands(std::move(batch), *island);
  if (auto committed = commit_batch(*batch); !committed) {
    roll_back(*batch);
    return batch->done(std::move(committed).error());
  }
  rooms_.masks.note_armed(*process);
  answer(batch);
  // Jumps will need memory: mapped now, where another stop might cost a sleeper its call.
  process = targets_.find_process(batch->pid);
  if (!process || process->detaching() || !rooms_.optimize || !stands_in_lost_call(process->runs_jobs)) return;
  AddressSpace& space = *process->space;
  const Optimisation& work = space.optimisation();
  const auto may_jump = [](const SiteRequest& r) { return r.program->detour && !r.program->limit; };
  if (work.phase == Optimisation::Phase::idle && !work.refused && space.detours().lines().empty() &&
      std::ranges::any_of(batch->requests, may_jump))
    rooms_.jump_memory.ask_for_memory(space, true, batch->requests.front().plan.address, batch->requests.size());
}

// The thread that has mapped memory for it needn't stand still while thousands of copies are made.
void Probes::go_on_without_thread(std::shared_ptr<Batch> batch) {
  AddressSpace& space = *targets_.find_process(batch->pid)->space;
  const auto now = Waiter::Clock::now();
  space.optimisation().after_hot.push_back({now, now, [this, batch] { continue_batch(batch); }});
  rooms_.optimiser.wake_optimiser(space, std::chrono::seconds(0));
  waiter_.wake();
}

// When all is in place. Of a large batch what is hit all the time has its jumps by then: the answer keeps threads busy
// that are needed for them.
void Probes::answer(const std::shared_ptr<Batch>& batch) {
  const auto limited = [](const SiteRequest& request) { return request.program->limit != nullptr; };
  Process* process = targets_.find_process(batch->pid);
  if (!process || batch->requests.size() < TextPages::kLargeBatch || std::ranges::any_of(batch->requests, limited))
    return batch->done({});
  rooms_.optimiser.when_fast({process}, [this, batch] {
    const Process* now = targets_.find_process(batch->pid);
    if (!now || now->detaching()) return batch->done(not_attached(now, batch->pid));
    batch->done(now->execs == batch->execs ? Result<void>() : process::no_longer_there(batch->pid));
  });
}

// Finds a slot for every new site that needs one. The address that lacks one, if an area has to be mapped first.
Result<std::optional<RemoteAddr>> Probes::place_sites(Batch& batch) {
  AddressSpace& space = *targets_.find_process(batch.pid)->space;
  for (const SiteRequest& request : batch.requests) {
    const RemoteAddr address = request.plan.address;
    if (space.find(address)) continue;
    if (const Site* other = space.overlapping(request.plan))
      return Error{Reason::not_instruction_boundary,
                   fmt::format("the instruction at {:#x} overlaps the probed one at {:#x}", address.value,
                               other->plan.address.value),
                   "only one of two such readings of the same bytes can be right; remove the other probe first",
                   {}};
    if (batch.slots.contains(address) || !needs_slot(request)) continue;
    const auto slot = space.xol().allocate(address, slot_size(native::copy_room(request.plan.insn)));
    if (!slot) return std::optional(address);
    batch.slots.emplace(address, *slot);
  }
  return std::optional<RemoteAddr>();
}

// A second jump in the bytes of a new place is taken out, once nobody can be on the way to it any more: the first place
// that has to wait for that.
std::optional<RemoteAddr> Probes::clear_islands(Batch& batch) {
  AddressSpace& space = *targets_.find_process(batch.pid)->space;
  const auto& islands = space.detours().islands();
  std::optional<RemoteAddr> occupied;
  for (const SiteRequest& request : batch.requests) {
    const std::uint64_t begin = request.plan.address.value, end = begin + request.plan.insn.length;
    auto it = islands.lower_bound(begin - std::min<std::uint64_t>(begin, Patch::kMaxSize));
    for (; it != islands.end() && it->first < end; ++it) {
      if (it->first + it->second.patch.size <= begin) continue;
      occupied = request.plan.address;
      Site* const owner = space.find(it->second.site);
      if (it->second.retired != 0 || !owner) continue;
      space.drop_jump(*owner);
      batch.disturbed.push_back(owner->plan.address);
    }
  }
  return occupied;
}

void Probes::wait_for_islands(std::shared_ptr<Batch> batch, RemoteAddr at) {
  AddressSpace& space = *targets_.find_process(batch->pid)->space;
  if (++batch->island_waits > kMaxIslandWaits) {
    roll_back(*batch);
    return batch->done(in_use(at));
  }
  const std::uint64_t round = space.detours().rounds_begun() + 1;
  const auto go_on = [this, batch] { continue_batch(batch); };
  space.optimisation().after_round.push_back({round, Waiter::Clock::now() + kIslandPatience, go_on});
  rooms_.optimiser.wake_optimiser(space, std::chrono::seconds(0));
}

// A jump that covers a new place, or that knows nothing of its new program, makes room at once.
void Probes::drop_jumps_in_the_way(Batch& batch, AddressSpace& space) {
  for (const SiteRequest& request : batch.requests) {
    for (Site* other : space.hindered_by(request.plan.address)) {
      space.drop_jump(*other);
      batch.disturbed.push_back(other->plan.address);
    }
    Site* const site = space.find(request.plan.address);
    if (!site || !site->jump) continue;
    space.drop_jump(*site);
    batch.disturbed.push_back(request.plan.address);
  }
}

// The copy of the instruction that a new site displaces, in the slot that was chosen for it.
static Result<void> fill_slot(AddressSpace& space, pid_t pid, const SitePlan& plan, RemoteAddr slot) {
  const arch::RelocateResult relocated = native::relocate(plan.code(), plan.insn, plan.address.value, slot.value);
  if (relocated.refusal != arch::Refusal::none)
    return Error{Reason::unsupported_instruction,
                 fmt::format("the instruction at {:#x} can't be moved: {}", plan.address.value,
                             arch::describe(relocated.refusal)),
                 "",
                 {}};
  const std::span<const std::uint8_t> code(relocated.copy.code.data(), relocated.copy.size);
  if (!space.memory().write(slot, std::as_bytes(code))) return no_room(pid, slot, "the mapped page can't be written");
  PROBED_CHECK(code.size() <= native::copy_room(plan.insn), "a copy fits the slot that was chosen for it");
  space.xol().publish(slot, Slot{plan.address, plan.insn, relocated.copy, 0, false});
  return {};
}

// The site of a request, a new one unless it is there. Not armed yet.
Result<Site*> Probes::site_for(Batch& batch, AddressSpace& space, const SitePlan& plan, const Layout& layout) {
  if (Site* const there = space.find(plan.address)) return there;
  if (auto same = space.verify(plan, layout); !same) return std::move(same).error();
  RemoteAddr slot;
  if (const auto placed = batch.slots.find(plan.address); placed != batch.slots.end()) {
    slot = placed->second;
    if (auto filled = fill_slot(space, batch.pid, plan, slot); !filled) return std::move(filled).error();
    batch.slots.erase(placed);
  }
  Site* const site = &space.add_site(plan, slot);
  batch.new_sites.push_back(plan.address);
  return site;
}

Result<void> Probes::commit_batch(Batch& batch) {
  AddressSpace& space = *targets_.find_process(batch.pid)->space;
  const Layout layout = Layout::of(space.memory());
  drop_jumps_in_the_way(batch, space);
  rooms_.code_changes.heal_if_moved(space);
  for (const auto& [address, slot] : batch.slots) space.landing().stage(address, slot);
  space.landing().flush(space.memory());
  std::optional<TextPages> pages;
  if (batch.requests.size() >= TextPages::kLargeBatch && layout.known())
    pages.emplace(space.memory(), layout.mappings());
  const auto flush = [&]() -> Result<void> {
    const auto failed = pages ? pages->flush() : std::nullopt;
    if (!failed) return {};
    const auto is_there = [&](const SiteRequest& r) {
      return r.plan.address.value / kPageSize == failed->value / kPageSize;
    };
    const auto request = std::ranges::find_if(batch.requests, is_there);
    return request == batch.requests.end() ? unwritable(*failed) : why_not_written(space, request->plan);
  };
  for (const SiteRequest& request : batch.requests) {
    auto site = site_for(batch, space, request.plan, layout);
    if (!site) return std::move(site).error();
    (*site)->programs.push_back(request.program);
    request.program->site = request.plan.address;
    targets_.programs.emplace(number(request.program->id), request.program);
    if (request.code) rooms_.optimiser.learn_code(space, **site, *request.code);
  }
  for (const RemoteAddr address : batch.disturbed)
    if (Site* site = space.find(address)) rooms_.optimiser.consider(space, *site);
  if (auto written = flush(); !written) return written;
  // Armed last: what fails above has never fired.
  for (const SiteRequest& request : batch.requests) {
    Site& site = *space.find(request.plan.address);
    // Unloaded and loaded again in between, it is there, and could not be written.
    unsigned tries = 1;
    for (bool armed = update_arming(space, site, layout); !armed; ++tries) {
      Error why = why_not_written(space, site.plan);
      if (why.reason != Reason::unsupported_target || tries == kMostTries) return why;
      armed = update_arming(space, site, Layout::of(space.memory()));
    }
  }
  return flush();
}

void Probes::roll_back(Batch& batch) {
  Process* process = targets_.find_process(batch.pid);
  if (!process || !process->space) return;
  AddressSpace& space = *process->space;
  const Layout layout = Layout::of(space.memory());
  for (const SiteRequest& request : batch.requests) {
    Site* site = space.find(request.plan.address);
    if (site && std::erase(site->programs, request.program) > 0 && !site->programs.empty())
      update_arming(space, *site, layout);
    targets_.programs.erase(number(request.program->id));
  }
  for (const RemoteAddr address : batch.new_sites) space.remove_site(address, layout);
  for (const auto& [address, slot] : batch.slots) space.xol().release(slot);
  for (const RemoteAddr address : batch.disturbed)
    if (Site* site = space.find(address)) rooms_.optimiser.consider(space, *site);
  batch.new_sites.clear();
  batch.slots.clear();
}

// What a hit may reset has to be known before the first one.
void Probes::learn_actions_first(std::shared_ptr<Batch> batch) {
  const auto learn = [this, batch](Tracee& tracee) {
    rooms_.actions.learn_actions(tracee);
    continue_batch(batch);
  };
  const auto fail = [this, batch](Error error) {
    roll_back(*batch);
    batch->done(std::move(error));
  };
  rooms_.jobs.request_job(*targets_.find_process(batch->pid), Job{.run = learn, .fail = fail, .somebody_waits = true});
}

// Where threads go on without us is to be there before the first of them can be sent there.
void Probes::prepare_landing_first(std::shared_ptr<Batch> batch) {
  const auto prepare = [this, batch](Tracee& tracee) {
    rooms_.actions.prepare_landing(tracee, batch->requests.size());
    continue_batch(batch);
  };
  const auto fail = [this, batch](Error error) {
    roll_back(*batch);
    batch->done(std::move(error));
  };
  rooms_.jobs.request_job(*targets_.find_process(batch->pid),
                          Job{.run = prepare, .fail = fail, .somebody_waits = true});
}

// Maps an area with room for `bytes` of slots near an address, then goes on with the batch.
void Probes::grow_xol(std::shared_ptr<Batch> batch, RemoteAddr near, std::uint64_t bytes) {
  const std::uint64_t size = round_up(std::max(bytes, kSlotSize) + Mark::kSize, kPageSize);
  const auto fail = [this, batch](Error error) {
    roll_back(*batch);
    batch->done(std::move(error));
  };
  if (++batch->growth > kMaxGrowth) return fail(no_room(batch->pid, near, "too many separate areas are needed"));
  const auto map_area = [this, batch, near, size, fail](Tracee& tracee) {
    AddressSpace& space = *tracee.process->space;
    auto maps = symbols::read_maps(batch->pid);
    if (!maps) return fail(maps.error());
    const char* why = "there is no gap within reach";
    const char* refused = nullptr;
    bool mapped = false;
    const std::uint64_t room = stack_room(batch->pid);
    const auto try_holes = [&](RemoteSyscalls& remote) {
      for (unsigned attempt = 0; attempt < kMaxHoleAttempts && !mapped; ++attempt) {
        const auto hole = choose_hole(*maps, near, size, attempt, room);
        if (!hole) return;
        const auto at = remote.call(SYS_mmap, {hole->value, size, PROT_READ | PROT_EXEC,
                                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, ~0ULL, 0});
        if (!at) return void((remote.refusal() ? refused : why) = remote.refusal() ? remote.refusal() : kCallFailed);
        if (*at == static_cast<std::int64_t>(hole->value)) {
          const Mark mark = AddressSpace::mark(0);
          space.xol().add_area(*hole, size, mark);
          mapped = space.memory().write(*hole, std::as_bytes(std::span(mark.bytes)));
          if (!mapped) return void(why = "the mapped page can't be written");
        } else if (*at > 0) {
          remote.call(SYS_munmap, {static_cast<std::uint64_t>(*at), size, 0, 0, 0, 0});  // Linux < 4.17: a mere hint
        } else if (*at != -EEXIST) {
          return void(why = std::strerror(static_cast<int>(-*at)));
        }
      }
    };
    const bool alive = rooms_.jobs.with_remote_calls(tracee, space, try_holes);
    if (!alive && tracee.away())
      return fail(Error{Reason::timed_out,
                        fmt::format("process {}: the thread that was to map memory has not come back", batch->pid),
                        "is it frozen (docker pause, cgroup.freeze)? try again when it runs",
                        {}});
    if (!alive) return fail(process::no_longer_there(batch->pid));
    if (refused) return fail(no_call(batch->pid, refused));
    if (!mapped) return fail(no_room(batch->pid, near, why));
    continue_batch(batch);
  };
  rooms_.jobs.request_job(*targets_.find_process(batch->pid),
                          Job{.run = map_area, .fail = fail, .somebody_waits = true});
}

bool Probes::update_arming(AddressSpace& space, Site& site, const Layout& layout) {
  const bool done = space.set_armed(site, rooms_.armed && site.wanted(), layout);
  for (const ProgramPtr& program : site.programs) space.detours().refresh_mode(*program, rooms_.armed);
  rooms_.optimiser.consider(space, site);
  if (space.detours().awaits_round()) rooms_.optimiser.wake_optimiser(space, std::chrono::milliseconds(5));
  return done;
}

void Probes::remove(std::span<const ProbeId> ids, std::function<void()> done) {
  std::vector<ProgramPtr> programs;
  for (const ProbeId id : ids) {
    const auto it = targets_.programs.find(number(id));
    if (it == targets_.programs.end()) continue;
    programs.push_back(it->second);
    programs.back()->enabled = false;
    rooms_.calls.forget_calls(*programs.back());
    targets_.programs.erase(it);
  }
  std::vector<Process*> recording;
  for (Process* process : programs.empty() ? std::vector<Process*>() : targets_.one_for_each_space()) {
    AddressSpace& space = *process->space;
    std::optional<Layout> layout;
    std::vector<RemoteAddr> unused;
    for (const ProgramPtr& program : programs) {
      const RemoteAddr address = program->site;
      Site* site = space.find(address);
      if (!site || std::erase(site->programs, program) == 0) continue;
      if (!layout) layout = Layout::of(space.memory());
      if (space.detours().tap_of(program->id)) {
        space.detours().drop_tap(program->id);
        if (std::ranges::find(recording, process) == recording.end()) recording.push_back(process);
      }
      if (site->programs.empty()) {
        unused.push_back(address);
        continue;
      }
      space.drop_jump(*site, *layout);
      update_arming(space, *site, *layout);
    }
    if (!layout) continue;
    space.remove_sites(unused, *layout);
    for (const RemoteAddr address : unused) reconsider_around(space, address);
    if (space.detours().awaits_round()) rooms_.optimiser.wake_optimiser(space, std::chrono::milliseconds(5));
    rooms_.code_changes.heal_if_moved(space);
    rooms_.code_changes.plan_giving_back(*process);
  }
  if (done) rooms_.rounds.when_unused(std::move(recording), std::move(done));
}

void Probes::reconsider_around(AddressSpace& space, RemoteAddr address) {
  const auto& sites = space.sites_in_order();
  auto it = sites.lower_bound(address - std::min(address.value, arch::kRegionReach));
  for (; it != sites.end() && it->first <= address + arch::kRegionReach; ++it)
    rooms_.optimiser.consider(space, *it->second);
}

// Why a site that is wanted couldn't be armed, for each of its programs that wants it.
void Probes::not_armed(AddressSpace& space, const Site& site, std::vector<NotArmed>& failed) {
  const Error error = why_not_written(space, site.plan);
  for (const ProgramPtr& program : site.programs)
    if (program->enabled && std::ranges::find(failed, program->id, &NotArmed::id) == failed.end())
      failed.push_back({program->id, error});
}

void Probes::set_enabled(std::span<const ProbeId> ids, bool enabled,
                         std::function<void(const std::vector<NotArmed>&)> done) {
  std::vector<NotArmed> failed;
  std::vector<ProgramPtr> programs;
  for (const ProbeId id : ids) {
    const auto it = targets_.programs.find(number(id));
    if (it == targets_.programs.end()) continue;
    it->second->enabled = enabled;
    if (!enabled) rooms_.calls.forget_calls(*it->second);
    programs.push_back(it->second);
  }
  std::vector<Process*> recording;
  for (Process* process : programs.empty() ? std::vector<Process*>() : targets_.one_for_each_space()) {
    AddressSpace& space = *process->space;
    std::optional<Layout> layout;
    std::optional<TextPages> pages;
    std::vector<Site*> changed;
    std::vector<RemoteAddr> lost;
    const auto failed_before = std::ssize(failed);
    for (const ProgramPtr& program : programs) {
      Site* site = space.find(program->site);
      if (!site || std::ranges::find(site->programs, program) == site->programs.end()) continue;
      if (!layout) {
        layout = Layout::of(space.memory());
        if (enabled && programs.size() >= TextPages::kLargeBatch && layout->known())
          pages.emplace(space.memory(), layout->mappings());
      }
      changed.push_back(site);
      const bool records = !enabled && space.detours().tap_of(program->id).has_value();
      if (records && std::ranges::find(recording, process) == recording.end()) recording.push_back(process);
      // The next calls are known by another number.
      if (!enabled && program->returns) space.drop_jump(*site, *layout);
      if (update_arming(space, *site, *layout)) continue;
      not_armed(space, *site, failed);
      lost.push_back(program->site);
    }
    if (!layout) continue;
    if (pages && pages->flush()) {
      // The program has changed its text at this very moment: one after the other, then.
      pages.reset();
      lost.clear();
      failed.erase(failed.begin() + failed_before, failed.end());
      for (Site* site : changed) {
        space.set_armed(*site, false, *layout);
        if (update_arming(space, *site, *layout)) continue;
        not_armed(space, *site, failed);
        lost.push_back(site->plan.address);
      }
    }
    pages.reset();
    space.landing().flush(space.memory());
    rooms_.code_changes.drop_sites(space, lost, *layout);
    rooms_.code_changes.heal_if_moved(*process->space);
  }
  auto answer = [done = std::move(done), failed = std::move(failed)] { done(failed); };
  // What has a limit stays a breakpoint, and its end is told of after this.
  const auto limited = [](const ProgramPtr& program) { return program->limit != nullptr; };
  if (enabled && programs.size() >= TextPages::kLargeBatch && std::ranges::none_of(programs, limited))
    return rooms_.optimiser.when_fast(targets_.one_for_each_space(), std::move(answer));
  rooms_.rounds.when_unused(std::move(recording), std::move(answer));
}

std::vector<NotArmed> Probes::set_armed(bool armed) {
  rooms_.armed = armed;
  for (const auto& [id, program] : targets_.programs)
    if (!armed) rooms_.calls.forget_calls(*program);
  std::vector<NotArmed> failed;
  for (Process* process : targets_.one_for_each_space()) {
    AddressSpace& space = *process->space;
    if (!armed) space.returns().forget_all();
    if (space.sites().empty()) continue;
    const Layout layout = Layout::of(space.memory());
    std::vector<RemoteAddr> lost;
    for (const auto& [address, site] : space.sites_in_order()) {
      if (update_arming(space, *site, layout)) continue;
      not_armed(space, *site, failed);
      lost.push_back(address);
    }
    rooms_.code_changes.drop_sites(space, lost, layout);
    rooms_.code_changes.heal_if_moved(space);
  }
  return failed;
}

}  // namespace probed::tracer
