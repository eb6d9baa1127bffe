// What the optimiser has mapped in a target, and its life: channels, areas of generated code, indices in channels.
//
// Owning thread: the tracer thread. A thread of the target maps it, by remote system calls at its next stop; until then
// the optimiser is in phase mapping. Both are taken out, or forgotten, with all that has been injected (XolAreas).
#include "daemon/tracer/jumps/jump_memory.hpp"

#include <fmt/format.h>
#include <linux/memfd.h>
#include <spdlog/spdlog.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "daemon/base/memory_limit.hpp"
#include "daemon/symbols/maps.hpp"
#include "daemon/tracer/family/remote_calls.hpp"
#include "daemon/tracer/rooms.hpp"

namespace probed::tracer {
namespace {

namespace native = arch::native;
using namespace std::chrono_literals;

constexpr unsigned kMaxHoleAttempts = 32;
constexpr std::uint64_t kBytesForSite = 96;   // of code, as long as there are few to tell by
constexpr std::uint64_t kRuntimeCode = 2560;  // of the routines in front of it
constexpr std::uint64_t kMostCode = 1 << 20, kLeastCode = 16 << 10;
constexpr Waiter::Clock::duration kMapAgain = 1s, kMapAgainMost = 32s;  // each twice the one before
// Of one thread: 8 MiB hold 170,000 records of two arguments, what the fastest stream writes in some milliseconds: the
// reader, when it has found nothing for a while, looks every four only, and may have to wait for a processor.
constexpr std::size_t kLongRing = 8 << 20, kShortRing = 1 << 20;

// A channel for so many probes: with few of them there is room for many threads, with very many for one and the rest.
// What isn't used takes no memory; a ring goes round through all of its pages.
events::ChannelOptions channel_for(std::size_t probes, std::size_t ring_size) {
  constexpr std::size_t kFew = 4096;
  constexpr std::size_t kCalls = 256 << 10;  // some 5000 calls that are going on in a thread
  constexpr std::size_t kFewerCalls = 64 << 10;
  constexpr std::size_t kOthers = 128 << 10;  // tables of threads, and rounding
  events::ChannelOptions options;
  options.probes = static_cast<unsigned>(std::max<std::size_t>(1024, probes + probes / 16));
  const bool few = options.probes <= kFew;
  if (!few) options.lanes = 1;
  options.calls = few ? kCalls : kFewerCalls;
  const std::size_t all_lanes = options.lanes + 1;
  const std::size_t for_each_probe =
      sizeof(std::uint8_t) + sizeof(std::uint64_t) + all_lanes * arch::channel::kCounterSize;
  const std::size_t ring = ring_size + events::ChannelLayout::kRingSlack;
  options.bytes = options.probes * for_each_probe + all_lanes * ring + options.lanes * options.calls + kOthers;
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

// Bytes that the process may still map (RLIMIT_AS).
std::uint64_t may_still_map(pid_t pid, std::span<const symbols::Mapping> maps) {
  rlimit limit{};
  if (::prlimit(pid, RLIMIT_AS, nullptr, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return UINT64_MAX;
  std::uint64_t mapped = 0;
  for (const symbols::Mapping& mapping : maps) mapped += mapping.size();
  return limit.rlim_cur - std::min<std::uint64_t>(mapped, limit.rlim_cur);
}

// The longest rings with which a channel takes no large part of what the process may still map, nor, should all of them
// be used, of the memory that it may have: both are the program's. nullopt: the shortest would take too many addresses.
std::optional<events::ChannelOptions> fitting_channel(std::size_t probes, std::uint64_t room, std::uint64_t memory) {
  constexpr std::uint64_t kShare = 8;
  for (std::size_t ring = kLongRing; ring >= kShortRing; ring /= 2) {
    const auto options = channel_for(probes, ring);
    if (options.bytes <= room / kShare && (options.bytes <= memory / kShare || ring == kShortRing)) return options;
  }
  return std::nullopt;
}

// What a descriptor of a thread's is open on, and whether it still is.
class RemoteFile {
 public:
  RemoteFile(pid_t tid, std::int64_t fd) : link_(fmt::format("/proc/{}/fd/{}", tid, fd)) { known_ = look(file_); }

  bool is_there() const {
    struct stat now {};
    return known_ && look(now) && same(now);
  }
  bool is(int own) const {
    struct stat now {};
    return known_ && ::fstat(own, &now) == 0 && same(now);
  }

 private:
  bool look(struct stat& out) const { return ::stat(link_.c_str(), &out) == 0; }
  bool same(const struct stat& other) const { return other.st_dev == file_.st_dev && other.st_ino == file_.st_ino; }

  std::string link_;
  struct stat file_ {};
  bool known_ = false;
};

}  // namespace

void JumpMemory::ask_for_memory(AddressSpace& space, bool line, RemoteAddr near, std::size_t sites) {
  const auto map = [this, line, near, sites](AddressSpace& here, RemoteSyscalls& remote, Process& process) {
    const char* why = line ? map_line(here, remote, process, sites) : nullptr;
    if (!why && line) here.optimisation().line = here.detours().lines().size() - 1;
    // A new channel has no code yet: in the same stop.
    if (!why) why = map_code(here, remote, process, near, sites);
    return remote.refusal() ? remote.refusal() : why;
  };
  ask_to_map(space, map, line);
}

void JumpMemory::ask_to_map(AddressSpace& space, Mapper mapper, bool alone) {
  Optimisation& work = space.optimisation();
  Process* process = targets_.anybody_in(space);
  if (!process) return;
  work.phase = Phase::mapping;
  const std::weak_ptr<AddressSpace> weak = process->space;
  const auto map_later = [this](AddressSpace& here) {
    Optimisation& later = here.optimisation();
    later.phase = later.batch.empty() ? Phase::idle : Phase::building;
    later.map_again = std::clamp(2 * later.map_again, kMapAgain, kMapAgainMost);
    for (const RemoteAddr site : later.batch)
      rooms_.optimiser.give_up(
          here, site,
          "no memory can be mapped for it now: a thread can't be stopped, or is in 32-bit code; it is tried again", {});
    rooms_.optimiser.wake_optimiser(here, later.map_again);
  };
  const auto map = [this, weak, mapper = std::move(mapper), alone, map_later](Tracee& tracee) {
    const auto alive = weak.lock();
    if (!alive || tracee.process->space != alive) return;
    AddressSpace& here = *alive;
    if (alone && here.optimisation().phase == Phase::mapping && !rooms_.jobs.others_stopped(tracee, Sleepers::leave))
      return map_later(here);
    const char* why = "the thread that was to map memory has gone";
    const bool back = rooms_.jobs.with_remote_calls(
        tracee, here, [&](RemoteSyscalls& remote) { why = mapper(here, remote, *tracee.process); });
    if (here.optimisation().phase != Phase::mapping) return;
    if (back && why == RemoteSyscalls::kIn32BitCode) return map_later(here);
    if (back && why) return rooms_.optimiser.refuse_all(here, why);
    here.optimisation().phase = here.optimisation().batch.empty() ? Phase::idle : Phase::building;
    here.optimisation().map_again = {};
    rooms_.optimiser.wake_optimiser(here, 0s);
    if (back) rooms_.lanes.meet(tracee);
  };
  const auto fail = [weak, map_later](const Error&) {
    const auto alive = weak.lock();
    if (alive && alive->optimisation().phase == Phase::mapping) map_later(*alive);
  };
  rooms_.jobs.request_job(*process, Job{map, fail, {}});
}

// Makes a memfd in the target, takes it over, and maps it in both. Null: done; else why not. No other thread of the
// process runs meanwhile: none sees the descriptor, gets its number, or hands it down to a child. One that waits in a
// call which a stop could fail is left alone: should it wake just then, what it opens has the next number. Who shares
// descriptors but no memory may have put something else in its place.
const char* JumpMemory::map_line(AddressSpace& space, RemoteSyscalls& remote, Process& process, std::size_t sites) {
  static constexpr const char* kNoChannel = "no channel could be made in the target";
  const auto maps = symbols::read_maps(process.id.pid);
  const RemoteAddr name = maps ? empty_text(space.memory(), *maps) : RemoteAddr{};
  if (!name) return kNoChannel;
  const auto options = fitting_channel(sites, may_still_map(process.id.pid, *maps), memory_limit(process.id.pid));
  if (!options) return "a channel would take too much of the memory that the process may still map (its ulimit -v)";
  const auto remote_fd = remote.call(SYS_memfd_create, {name.value, MFD_CLOEXEC | MFD_ALLOW_SEALING, 0, 0, 0, 0});
  if (!remote_fd) return "the thread that was to make a channel has gone";
  if (*remote_fd < 0) return kNoChannel;
  const auto fd_number = static_cast<std::uint64_t>(*remote_fd);
  // As the thread itself sees it: it may have descriptors of its own.
  const RemoteFile file(remote.tid(), *remote_fd);
  const auto close_it = [&] {
    if (file.is_there()) remote.call(SYS_close, {fd_number, 0, 0, 0, 0, 0});
  };
  const UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, process.id.pid, 0)));
  UniqueFd memfd(pidfd ? static_cast<int>(syscall(SYS_pidfd_getfd, pidfd.get(), static_cast<int>(fd_number), 0)) : -1);
  if (memfd && !file.is(memfd.get())) return close_it(), kNoChannel;
  if (!memfd) return close_it(), "its memory can't be shared: pidfd_getfd() is not possible (Linux 5.6)";
  auto channel = events::Channel::adopt(std::move(memfd), *options);
  if (!channel) {
    spdlog::warn("process {}: {}", process.id.pid, channel.error().message);
    return close_it(), kNoChannel;
  }
  const std::uint64_t size = (*channel)->layout().size;
  if (!file.is_there()) return kNoChannel;
  // Where the program has all its memory to come locked (mlockall(2), MCL_FUTURE) the kernel would fill all of this one
  // at once; but not memory that nobody may access (mm/gup.c, populate_vma_page_range), until it isn't locked any more.
  const auto at = remote.call(SYS_mmap, {0, size, PROT_NONE, MAP_SHARED, fd_number, 0});
  close_it();
  if (!at) return "the thread that was to map a channel has gone";
  if (*at == -EAGAIN)
    return "the program locks its memory, and a channel would be more than it may lock (its ulimit -l)";
  if (*at < 0 && *at > -4096) return "no room for a channel in the target (see its ulimit -v)";
  const auto place = static_cast<std::uint64_t>(*at);
  const auto unlocked = remote.call(SYS_munlock, {place, size, 0, 0, 0, 0});
  const auto opened = remote.call(SYS_mprotect, {place, size, PROT_READ | PROT_WRITE, 0, 0, 0});
  if (!unlocked || !opened) return "the thread that was to map a channel has gone";
  if (*unlocked != 0 || *opened != 0) {
    remote.call(SYS_munmap, {place, size, 0, 0, 0, 0});
    return kNoChannel;
  }
  // A core dump is the program's, and writing its holes would fill them (mm/gup.c, no_page_table). A mere wish.
  remote.call(SYS_madvise, {place, size, MADV_DONTDUMP, 0, 0, 0});
  const RemoteAddr base{place};
  (*channel)->set_base(base);
  space.xol().add_data(base, round_up(size, kPageSize), true, XolAreas::Access::data);
  auto feed = std::make_shared<events::Feed>(std::move(*channel), process.id.pid);
  rooms_.ticks.begin();
  space.detours().lines().push_back({std::move(feed), base, size, {}, {}, {}});
  return nullptr;
}

const char* JumpMemory::map_code(AddressSpace& space, RemoteSyscalls& remote, Process& process, RemoteAddr near,
                                 std::size_t sites) {
  Optimisation& work = space.optimisation();
  const auto maps = symbols::read_maps(process.id.pid);
  if (!maps) return "its maps can't be read";
  const std::uint64_t wanted = kRuntimeCode + sites * bytes_for_site(space.detours());
  const std::uint64_t size = round_up(std::clamp(wanted, kLeastCode, kMostCode), kPageSize);
  const std::uint64_t room = stack_room(process.id.pid);
  for (unsigned attempt = 0; attempt < kMaxHoleAttempts; ++attempt) {
    const auto hole = choose_hole(*maps, near, size, attempt, room);
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
    work.layout.reset();
    const auto runtime =
        native::build_runtime(hole->value, space.detours().lines()[work.line].feed->channel->places(), rooms_.features);
    const Mark mark = AddressSpace::mark_of(runtime.code);
    space.xol().add_data(*hole, size, false, XolAreas::Access::code, mark);
    if (runtime.refusal != arch::DetourRefusal::none) return arch::describe(runtime.refusal).data();
    if (!space.memory().write(*hole, std::as_bytes(std::span(runtime.code)))) return "generated code can't be written";
    space.add_call_trap({runtime.runtime.call_trap}, {runtime.runtime.call_done});
    space.detours().areas().push_back(
        {*hole, size, runtime.code.size(), work.line, runtime.code.size(), runtime.runtime, runtime.fixups, {}});
    return nullptr;
  }
  return "there is no room for generated code within reach";
}

// ---- the feeds' readers ---------------------------------------------------------------------------------------------

void JumpMemory::names_known(pid_t pid, std::uint64_t ticket) {
  Process* process = targets_.find_process(pid);
  if (!process || !process->space) return;
  Optimisation& work = process->space->optimisation();
  work.names_known = std::max(work.names_known, ticket);
  rooms_.optimiser.wake_optimiser(*process->space, 0s);
}

void JumpMemory::indices_free(pid_t pid, const events::FeedPtr& feed, std::span<const std::uint32_t> indices) {
  Process* process = targets_.find_process(pid);
  if (!process || !process->space) return;
  DetourSpace& detours = process->space->detours();
  for (std::size_t i = 0; i < detours.lines().size(); ++i)
    if (detours.lines()[i].feed == feed)
      for (const std::uint32_t index : indices) detours.free_index(i, index);
}

void JumpMemory::close_feeds(AddressSpace& space) {
  // The space itself may be kept for a while, for copies of it that turn up late; their channels are gone.
  for (const Line& line : std::exchange(space.detours().lines(), {})) listener_.feed_closed(line.feed);
  rooms_.rounds.answer_waiting(space, ~0ull);
}

}  // namespace probed::tracer
