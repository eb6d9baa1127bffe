// The channel: memory shared between one traced address space and the daemon, through which detours deliver what their
// probes saw without a stop. What generated code knows of it stands in arch/detour.hpp; this is the whole.
//
// One sealed memfd, mapped once in the target and once here, at different addresses:
//
//   header          magic, version, sizes: for people with a debugger; nobody reads it
//   thread table    which thread owns which lane                                daemon writes, detours read
//   lanes           128 bytes each; lane 0 is shared, the others have one owner head: detours, the rest: daemon
//   probe flags     u8 for each probe: disabled, count only, record             daemon writes, detours read
//   probe dropped   u64 for each probe                                          detours count
//   counters        for each lane and probe {u64 counted, u64 filtered}         detours count
//   call stacks     for each lane but the shared one: arch::channel::kCallSlot  detours; daemon while the thread stands
//   rings           for each lane: 2^n bytes, then kRingSlack more              detours write, daemon reads and clears
//
// Positions in a ring count bytes since the beginning, are multiples of 8, and only grow. A record starts at its
// position modulo the ring's size and never wraps: one that begins near the end continues in the slack behind it, and
// the next one begins where it would have begun had the record wrapped. So one mapping will do, and a record is
// contiguous.
//
//        0            limit % size                   head % size          size       size + kRingSlack
//        |            |                              |                    |          |
//        | committed  |  all zero                    | (never more than limit - head)|
//
//   reserve   the writer moves head forward by its record's size if that stays within limit; otherwise the record is
//             dropped and counted
//   fill      everything but the first word, which is still 0
//   commit    the first word: position, size, probe. A plain store where the processor keeps stores in order (x86)
//   consume   the daemon sees the first word [acquire; pairs with the commit], copies the record, clears it
//   free      the daemon moves limit forward [release; pairs with the writer's comparison]
//
// So a first word of 0 says "not committed (yet)", and records come out in the order of their reservation. A writer
// that is interrupted between reserve and commit holds up its lane until it goes on: the records that a signal handler
// writes meanwhile lie behind. If it never goes on, because its thread died or a handler jumped out of the detour, it
// leaves a hole, which costs one record (lost()):
//   lane with an owner   retire() says that the thread is dead; what lies behind the hole is found by its first word
//   shared lane          the record says who reserved it, and how much; shared_thread_died() releases it
//   otherwise            stalled() tells, and skip_hole() steps over it when the caller has proved that no thread is in
//                        a detour any more
//
// Life of a lane:   free --assign()--> owned --retire()--> retiring --drained--> free
// Its counters are never cleared, so that sums stay exact.
//
// The target may write anything anywhere at any time. Here every word is read once into our own memory before it is
// looked at, every position and size is checked against what we know ourselves, and nothing read leads to an address.
// The table is written from a copy of our own and never read. Damage costs its writer's own records (damaged()); bad
// values cost nobody else anything. The memfd is sealed against shrinking, so our mapping can't fault.
//
// A channel of zeros reads as disabled: a fork child that gets zeros in place of the channel harms nobody.
//
// A call stack is its thread's, and the tracer thread's while that thread is stopped outside of the capture part of
// detours. What stands there is as little trusted: a stack that makes no sense is emptied, and its calls are lost.
//
// Threads: assign(), retire(), set_mode() and the calls belong to the tracer thread, which knows when threads come and
// go; all the rest to the Asio thread. A lane changes hands between them through its state.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "arch/detour.hpp"
#include "daemon/base/types.hpp"
#include "proto/base/fd.hpp"
#include "proto/base/result.hpp"

namespace probed::events {

struct ChannelOptions {
  std::size_t bytes = 16 << 20;  // of the whole; rings get what the rest leaves. Memory is only taken where it is used
  unsigned lanes = 15;           // threads that get a lane of their own, up to kMaxLanes; the others share one
  unsigned probes = 1024;        // indices 0 to probes - 1; at most arch::channel::kMaxProbes
  std::size_t calls = 0;         // bytes of each call stack, a multiple of 8; 0: no thread keeps its calls itself
};

// A lane. The shared one is 0.
enum class LaneId : std::uint32_t { shared = 0 };
constexpr std::uint32_t number(LaneId id) { return static_cast<std::uint32_t>(id); }

// Where the parts are, as offsets from the beginning of the file. Pure.
struct ChannelLayout {
  static constexpr std::uint64_t kMagic = 0x6c656e6e61686370;  // "pchannel"
  static constexpr std::uint32_t kVersion = 1;
  static constexpr unsigned kMaxLanes = 1023;
  static constexpr std::size_t kLaneSize = 128;  // two cache lines: the adjacent one is prefetched with it
  static constexpr std::size_t kRingSlack = 8192;
  static constexpr std::size_t kMinRing = 16 << 10;

  unsigned lanes = 0;  // with the shared one
  unsigned probes = 0;
  unsigned bucket_bits = 1;
  std::size_t no_rseq = 0, thread_table = 0, lane = 0, flags = 0, dropped = 0, counters = 0, calls = 0, rings = 0;
  std::size_t counters_stride = 0, ring_stride = 0;
  std::size_t call_stack = 0;
  std::size_t ring_size = 0;  // a power of two
  std::size_t size = 0;       // of the file

  // Errors: bad_params: too few bytes for that many lanes and probes, or too many of either.
  static Result<ChannelLayout> make(const ChannelOptions& options);

  std::size_t lane_at(LaneId id) const { return lane + number(id) * kLaneSize; }
  std::size_t counters_at(LaneId id) const { return counters + number(id) * counters_stride; }
  std::size_t calls_at(LaneId id) const { return calls + (number(id) - 1) * call_stack; }
  std::size_t ring_at(LaneId id) const { return rings + number(id) * ring_stride; }
};
static_assert(ChannelLayout::kRingSlack >= arch::channel::kMaxRecord);

// Where a channel's parts are in a target that mapped it at `base`: what code is generated for.
arch::ChannelPlaces places(const ChannelLayout& layout, RemoteAddr base);

// One record, valid during the callback.
struct ChannelRecord {
  std::uint32_t probe = 0;
  LaneId lane = LaneId::shared;
  std::uint64_t owner = 0;               // what assign() was given; 0 in the shared lane
  std::uint64_t thread_pointer = 0;      // as the record says; 0 in a lane with an owner
  std::uint64_t time = 0;                // the processor's time stamp counter
  std::uint32_t cpu = 0;                 // kNoCpu: not known
  std::span<const std::uint64_t> words;  // all of it, the 4 above included

  static constexpr std::uint32_t kNoCpu = 0xffff;
};

// A call on top of a thread's call stack, valid during the callback.
struct ChannelCall {
  std::uint64_t slot = 0, time = 0, return_address = 0;
  std::uint32_t tag = 0;  // without flags
  bool silent = false;
  std::span<const std::uint64_t> words;  // all of it, with a record's offsets
};

// hits = recorded + dropped + counted; filtered ones are none. The records that lost() counts are missing, as nobody
// knows whose they were.
struct ProbeCounts {
  std::uint64_t recorded = 0;  // taken out of the rings
  std::uint64_t dropped = 0;   // no room
  std::uint64_t counted = 0;   // while the probe only counted
  std::uint64_t filtered = 0;
  std::uint64_t hits() const { return recorded + dropped + counted; }
};

class Channel {
 public:
  // A channel in a memfd of our own making: for targets that can be handed a descriptor, and for tests.
  static Result<std::unique_ptr<Channel>> create(const ChannelOptions& options);
  // In a memfd that the target made (memfd_create with MFD_ALLOW_SEALING) and we took by pidfd_getfd: sized, sealed,
  // mapped. Errors: bad_params; internal: the descriptor is no memfd, or the system refused.
  static Result<std::unique_ptr<Channel>> adopt(UniqueFd memfd, const ChannelOptions& options);
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  const ChannelLayout& layout() const { return layout_; }
  int memfd() const { return memfd_.get(); }
  // Where the target mapped all layout().size bytes of it, shared and writable. Once, before code is generated.
  void set_base(RemoteAddr base);
  arch::ChannelPlaces places() const { return events::places(layout_, base_); }

  // ---- tracer thread ----

  // Gives a thread a lane. owner: not 0; comes back with its records. rseq: the thread's registered struct rseq, or
  // none. thread_pointer: on x86-64 its fs base, and only if the word there has the same value, else 0. No other living
  // thread of the address space may have the same (CLONE_VM without CLONE_SETTLS has, and a vfork child while its
  // parent waits, which does no harm). nullopt: no lane is free, its bucket is full, or it has no thread pointer: it
  // uses the shared lane.
  std::optional<LaneId> assign(std::uint64_t owner, std::uint64_t thread_pointer, std::optional<RemoteAddr> rseq);
  // The thread is dead, or has been seen outside of detours and won't enter one: nobody writes to the lane any more.
  void retire(LaneId lane);
  void set_mode(std::uint32_t probe, arch::channel::ProbeFlags mode);
  // Whether somebody has counted in the shared lane since the last call.
  bool take_shared_counting();

  // The stack that the lane's thread began on: from now on it keeps its calls itself. Nothing happens when that is
  // known already. The thread stands still, as for all of these.
  void set_stack(LaneId lane, std::uint64_t low, std::uint64_t high);
  // Another range in its place, also an empty one. Preconditions: all calls have been taken, and the thread stands
  // outside of the capture part of detours.
  void limit_stack(LaneId id, std::uint64_t low, std::uint64_t high);
  // Takes the call on top away and passes it on, if it was entered at this address or below: take(const ChannelCall&).
  template <class Take>
  bool take_call(LaneId lane, std::uint64_t highest_slot, Take&& take) {
    ChannelCall call;
    if (!pop_call(lane, highest_slot, call)) return false;
    take(std::as_const(call));
    return true;
  }
  // As many as there are; as many as there can be when the target goes on writing some.
  template <class Take>
  void take_calls(LaneId lane, std::uint64_t highest_slot, Take&& take) {
    std::size_t most = layout_.call_stack / arch::channel::kCallFixed;
    while (most-- > 0 && take_call(lane, highest_slot, take)) {
    }
  }
  // A call that belongs to nobody's detours: whatever the thread does there or above finds that it isn't the last.
  void mark_call(LaneId lane, std::uint64_t slot);

  // ---- Asio thread ----

  // From now on records of this probe are taken; others are strays. Its counts start from 0: call it while the probe is
  // disabled and no thread can be in its detour.
  void add_probe(std::uint32_t probe, const arch::CaptureLayout& layout);
  void remove_probe(std::uint32_t probe);
  // What only counts so far records from now on; a disabled probe stays so, whatever the tracer does meanwhile.
  void start_recording(std::uint32_t probe);

  // Calls take(const ChannelRecord&) for at most `max` records of each lane, oldest of a lane first, and returns how
  // many there were in all. What comes behind a record that was made later than `until` stays. Allocates nothing; ends,
  // whatever the target writes meanwhile.
  template <class Take>
  std::size_t drain(std::size_t max, Take&& take, std::uint64_t until = ~0ull) {
    std::size_t taken = 0;
    for (unsigned i = 0; i < layout_.lanes; ++i) taken += drain_lane(LaneId{i}, max, take, until);
    return taken;
  }
  template <class Take>
  std::size_t drain_lane(LaneId id, std::size_t max, Take&& take, std::uint64_t until = ~0ull) {
    if (!begin_drain(id, max, until)) return 0;
    std::size_t taken = 0;
    ChannelRecord record;
    while (next(id, record)) {
      take(std::as_const(record));
      ++taken;
    }
    end_drain(id, max);
    return taken;
  }

  ProbeCounts counts(std::uint32_t probe) const;
  // counts().dropped alone.
  std::uint64_t dropped(std::uint32_t probe) const;
  std::uint64_t lost() const { return lost_; }        // holes stepped over
  std::uint64_t damaged() const { return damaged_; }  // times that what a lane held made no sense
  std::uint64_t strays() const { return strays_; }    // records of probes that were not there (any more)

  // The thread that used the shared lane under this thread pointer is dead: what it reserved will not be committed.
  void shared_thread_died(std::uint64_t thread_pointer);
  // A reservation at the front of a lane that was not committed while nothing else was there to be done, and for how
  // many drains in a row.
  struct Stall {
    std::uint64_t position = 0;
    std::uint64_t thread_pointer = 0;  // of who reserved it, in the shared lane; 0: not known
    unsigned drains = 0;
  };
  std::optional<Stall> stalled(LaneId lane) const;
  // Gives up the reservation at the front of a lane. No thread may be between reserve and commit there any more.
  void skip_hole(LaneId lane);

 private:
  enum class State : std::uint8_t { free, owned, retiring };
  struct Lane {
    std::atomic<State> state{State::free};
    std::atomic<bool> was_used{false};  // its counters may not be 0
    // The tracer's, published by state.
    std::uint64_t owner = 0;
    std::uint64_t thread_pointer = 0;
    // The reader's.
    std::uint64_t consumed = 0;  // position of the next record
    std::uint64_t freed = 0;     // what limit has been moved to, minus the ring's size
    unsigned stalled_drains = 0;
    std::size_t budget = 0;       // of this drain
    std::uint64_t until = 0;      // likewise
    bool resynchronised = false;  // in this drain
  };
  struct Shape {
    std::uint16_t least = 0, most = 0;  // bytes of its records; 0: no such probe
    std::uint64_t recorded = 0;
    std::chrono::steady_clock::time_point since{};
  };
  struct TableEntry {
    std::uint64_t thread_pointer = 0;
    LaneId lane = LaneId::shared;
  };
  struct Dead {
    std::uint64_t thread_pointer = 0;
    std::uint64_t head = 0;  // of the shared lane when it was known to be dead
  };
  Channel(UniqueFd memfd, const ChannelLayout& layout, std::byte* local);

  void empty_calls(LaneId id);
  std::optional<std::size_t> call_at(LaneId id, std::uint64_t address) const;
  bool pop_call(LaneId id, std::uint64_t highest_slot, ChannelCall& call);

  std::uint64_t load(std::size_t offset) const;
  void store(std::size_t offset, std::uint64_t value);
  std::size_t ring_word(LaneId id, std::uint64_t position) const;
  void write_entry(std::size_t index);

  std::optional<std::size_t> free_entry(std::uint64_t thread_pointer) const;

  std::uint64_t believed(std::uint32_t probe, std::uint64_t said) const;
  bool begin_drain(LaneId id, std::size_t max, std::uint64_t until);
  bool next(LaneId id, ChannelRecord& record);
  void end_drain(LaneId id, std::size_t max);

  bool is_commit(std::uint64_t word, std::uint64_t position) const;
  void take_words(std::size_t at, std::uint64_t first, std::size_t size);
  void describe_record(LaneId id, const Lane& lane, ChannelRecord& record) const;
  bool finish_retired(LaneId id, Lane& lane);
  bool leave_to_dead(LaneId id, Lane& lane);
  void step_over(LaneId id, Lane& lane, std::uint64_t end);
  void resynchronise(LaneId id, Lane& lane);
  std::uint64_t find_commit(LaneId id, std::uint64_t from, std::uint64_t end) const;
  void clear(LaneId id, std::uint64_t from, std::uint64_t end);
  void free_room(LaneId id, Lane& lane);
  std::optional<std::uint64_t> head_within(LaneId id, const Lane& lane) const;

  UniqueFd memfd_;
  const ChannelLayout layout_;
  std::byte* const local_;
  RemoteAddr base_;
  std::unique_ptr<Lane[]> lanes_;
  std::vector<TableEntry> table_;
  std::vector<Shape> shapes_;
  std::array<Dead, 256> dead_{};
  std::size_t next_dead_ = 0;
  std::array<std::uint64_t, arch::channel::kMaxRecord / 8> words_{}, call_words_{};
  std::uint64_t lost_ = 0, damaged_ = 0, strays_ = 0;
};

}  // namespace probed::events
