// The daemon's side of a channel. Layout, threads and the reasons are in the header.
#include "daemon/events/channel.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <string>

#include "proto/base/check.hpp"

namespace probed::events {
namespace {

namespace ch = arch::channel;

constexpr std::size_t kPage = 4096;
constexpr std::size_t kHeaderSize = 64;

Error refuse(Reason reason, std::string message, std::string hint = {}) {
  return {reason, std::move(message), std::move(hint)};
}

Error system_refused(const char* call) {
  return refuse(Reason::internal,
                std::string("cannot set up the channel for optimised probes: ") + call + ": " + std::strerror(errno),
                "check the daemon's limits on memory and open files");
}

// Bytes of a record, from its commit word: at most kMaxRecord.
constexpr std::size_t commit_size(std::uint64_t word) { return (word >> 21 & 0x3ff) * 8; }

// A quarter full at most, so that a bucket of four seldom overflows.
unsigned bucket_bits_for(unsigned lanes) {
  return std::max(1u, static_cast<unsigned>(std::bit_width(std::max(1u, lanes) - 1)));
}

}  // namespace

// ---- layout ----

Result<ChannelLayout> ChannelLayout::make(const ChannelOptions& options) {
  if (options.lanes > kMaxLanes || options.probes > ch::kMaxProbes)
    return refuse(Reason::bad_params, "a channel has at most 1023 lanes and 2097152 probes");
  ChannelLayout l;
  l.lanes = options.lanes + 1;
  l.probes = std::max(1u, options.probes);
  l.bucket_bits = bucket_bits_for(l.lanes);
  l.no_rseq = kHeaderSize;
  l.thread_table = kPage;
  l.lane = l.thread_table + (std::size_t{ch::kBucketSize} << l.bucket_bits);
  l.flags = round_up(l.lane + l.lanes * kLaneSize, kPage);
  l.dropped = round_up(l.flags + l.probes, kPage);
  l.counters = round_up(l.dropped + l.probes * sizeof(std::uint64_t), kPage);
  l.counters_stride = round_up(l.probes * ch::kCounterSize, kPage);
  l.calls = l.counters + l.lanes * l.counters_stride;
  l.call_stack = options.calls;
  l.rings = l.calls + options.lanes * l.call_stack;
  const std::size_t least = l.rings + l.lanes * (kMinRing + kRingSlack);
  if (options.bytes < least)
    return refuse(Reason::bad_params,
                  "a channel of " + std::to_string(options.bytes) + " bytes is too small for " +
                      std::to_string(options.lanes) + " lanes and " + std::to_string(l.probes) + " probes",
                  "allow at least " + std::to_string(least) + " bytes, or fewer lanes");
  const std::size_t share = (options.bytes - l.rings) / l.lanes - kRingSlack;
  l.ring_size = std::min(std::bit_floor(share), std::size_t{1} << 30);
  l.ring_stride = l.ring_size + kRingSlack;
  l.size = l.rings + l.lanes * l.ring_stride;
  return l;
}

arch::ChannelPlaces places(const ChannelLayout& layout, RemoteAddr base) {
  arch::ChannelPlaces p;
  p.thread_table = (base + layout.thread_table).value;
  p.bucket_bits = layout.bucket_bits;
  p.ring_mask = static_cast<std::uint32_t>(layout.ring_size - 1);
  p.shared_lane = (base + layout.lane_at(LaneId::shared)).value;
  p.shared_counters = (base + layout.counters_at(LaneId::shared)).value;
  p.probe_flags = (base + layout.flags).value;
  p.probe_dropped = (base + layout.dropped).value;
  return p;
}

// ---- life ----

Result<std::unique_ptr<Channel>> Channel::create(const ChannelOptions& options) {
  UniqueFd memfd(::memfd_create("probed-channel", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memfd) return system_refused("memfd_create");
  return adopt(std::move(memfd), options);
}

Result<std::unique_ptr<Channel>> Channel::adopt(UniqueFd memfd, const ChannelOptions& options) {
  auto layout = ChannelLayout::make(options);
  if (!layout) return std::move(layout).error();
  // The target may have put any other file in the place of its number; only a memfd has seals, and none of its calls
  // wait.
  if (::fcntl(memfd.get(), F_GET_SEALS) < 0) return system_refused("F_GET_SEALS");
  if (::ftruncate(memfd.get(), static_cast<off_t>(layout->size)) != 0) return system_refused("ftruncate");
  // Whoever else holds the file could cut it short under our mapping, which then raises SIGBUS.
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  if (::fcntl(memfd.get(), F_ADD_SEALS, kSeals) != 0) return system_refused("F_ADD_SEALS");
  void* const local = ::mmap(nullptr, layout->size, PROT_READ | PROT_WRITE, MAP_SHARED, memfd.get(), 0);
  if (local == MAP_FAILED) return system_refused("mmap");
  // What was in the file before is the target's invention.
  if (::madvise(local, layout->size, MADV_REMOVE) != 0) std::memset(local, 0, layout->size);
  return std::unique_ptr<Channel>(new Channel(std::move(memfd), *layout, static_cast<std::byte*>(local)));
}

Channel::Channel(UniqueFd memfd, const ChannelLayout& layout, std::byte* local)
    : memfd_(std::move(memfd)),
      layout_(layout),
      local_(local),
      lanes_(new Lane[layout.lanes]),
      table_(std::size_t{ch::kBucketEntries} << layout.bucket_bits),
      shapes_(layout.probes) {
  lanes_[0].state = State::owned;
  lanes_[0].was_used = true;
}

Channel::~Channel() { ::munmap(local_, layout_.size); }

void Channel::set_base(RemoteAddr base) {
  PROBED_CHECK(!base_ && base, "a channel is mapped once");
  base_ = base;
  store(0, ChannelLayout::kMagic);
  store(8, ChannelLayout::kVersion);
  store(16, layout_.size);
  store(24, layout_.lanes);
  store(32, layout_.probes);
  store(layout_.no_rseq, ~0ull);
  for (unsigned i = 0; i < layout_.lanes; ++i) {
    const LaneId id{i};
    const std::size_t at = layout_.lane_at(id);
    store(at + ch::kLaneRing, (base + layout_.ring_at(id)).value);
    store(at + ch::kLaneCounters, (base + layout_.counters_at(id)).value);
    store(at + ch::kLaneRseq, (base + layout_.no_rseq).value);
    store(at + ch::kLaneFlags, id == LaneId::shared ? ch::kLaneShared : 0);
    store(at + ch::kLaneLimit, layout_.ring_size);
  }
}

// ---- memory ----

// Every access is one that the target can race with. Acquire and release cost nothing on x86.
// These are inlined into what is done for each record.
inline std::uint64_t Channel::load(std::size_t offset) const {
  return std::atomic_ref(*reinterpret_cast<std::uint64_t*>(local_ + offset)).load(std::memory_order_acquire);
}

void Channel::store(std::size_t offset, std::uint64_t value) {
  std::atomic_ref(*reinterpret_cast<std::uint64_t*>(local_ + offset)).store(value, std::memory_order_release);
}

inline std::size_t Channel::ring_word(LaneId id, std::uint64_t position) const {
  return layout_.ring_at(id) + (static_cast<std::size_t>(position) & (layout_.ring_size - 1));
}

// ---- lanes; tracer thread ----

std::optional<LaneId> Channel::assign(std::uint64_t owner, std::uint64_t thread_pointer,
                                      std::optional<RemoteAddr> rseq) {
  PROBED_CHECK(owner != 0 && base_, "lanes are given to threads of a mapped channel");
  if (thread_pointer == 0) return std::nullopt;
  const auto entry = free_entry(thread_pointer);
  unsigned i = 1;
  while (i < layout_.lanes && lanes_[i].state.load(std::memory_order_acquire) != State::free) ++i;
  if (!entry || i == layout_.lanes) return std::nullopt;

  Lane& lane = lanes_[i];
  lane.owner = owner;
  lane.thread_pointer = thread_pointer;
  lane.was_used = true;
  store(layout_.lane_at(LaneId{i}) + ch::kLaneRseq, rseq.value_or(base_ + layout_.no_rseq).value);
  store(layout_.lane_at(LaneId{i}) + ch::kLaneStackSize, 0);
  store(layout_.lane_at(LaneId{i}) + ch::kLaneCallTop, (base_ + layout_.no_rseq).value);  // a slot that nobody has
  lane.state.store(State::owned, std::memory_order_release);
  table_[*entry] = {thread_pointer, LaneId{i}};
  write_entry(*entry);
  return LaneId{i};
}

// nullopt: the bucket is full, or has such a thread pointer already.
std::optional<std::size_t> Channel::free_entry(std::uint64_t thread_pointer) const {
  const std::size_t first = std::size_t{ch::bucket_of(thread_pointer, layout_.bucket_bits)} * ch::kBucketEntries;
  std::optional<std::size_t> free;
  for (std::size_t i = first; i < first + ch::kBucketEntries; ++i) {
    if (table_[i].thread_pointer == thread_pointer) return std::nullopt;
    if (table_[i].thread_pointer == 0 && !free) free = i;
  }
  return free;
}

void Channel::write_entry(std::size_t index) {
  const std::size_t at = layout_.thread_table + index * ch::kEntrySize;
  const TableEntry& entry = table_[index];
  if (entry.thread_pointer == 0) return store(at, 0);
  store(at + 8, (base_ + layout_.lane_at(entry.lane)).value);
  store(at, entry.thread_pointer);
}

void Channel::retire(LaneId id) {
  PROBED_CHECK(id != LaneId::shared && number(id) < layout_.lanes, "only owned lanes are retired");
  Lane& lane = lanes_[number(id)];
  PROBED_CHECK(lane.state == State::owned, "a lane is retired once");
  const auto entry = std::ranges::find(table_, lane.thread_pointer, &TableEntry::thread_pointer);
  PROBED_CHECK(entry != table_.end(), "an owned lane is in the table");
  *entry = {};
  write_entry(static_cast<std::size_t>(entry - table_.begin()));
  lane.state.store(State::retiring, std::memory_order_release);
}

void Channel::set_mode(std::uint32_t probe, ch::ProbeFlags mode) {
  PROBED_CHECK(probe < layout_.probes, "a probe's index is below the channel's number of probes");
  auto& byte = *reinterpret_cast<std::uint8_t*>(local_ + layout_.flags + probe);
  std::atomic_ref(byte).store(mode, std::memory_order_release);
}

bool Channel::take_shared_counting() {
  const std::size_t at = layout_.lane_at(LaneId::shared) + ch::kLaneCounted;
  if (load(at) == 0) return false;
  store(at, 0);
  return true;
}

// ---- calls; tracer thread ----

namespace {
constexpr std::size_t kCallLink = sizeof(std::uint64_t);  // in front of a call
constexpr std::size_t kCallRoom = ch::kMaxRecord + 2 * sizeof(std::uint64_t);
static_assert(kCallRoom >= ch::kMaxCall && ch::kMaxCall + 2 * sizeof(std::uint64_t) <= ChannelLayout::kRingSlack);
constexpr std::uint32_t kNobodysTag = 0;
}  // namespace

// At the bottom is the empty stack's top, and above the limit there is room for the largest of calls.
void Channel::empty_calls(LaneId id) {
  const std::size_t bottom = layout_.calls_at(id) + kCallLink, lane = layout_.lane_at(id);
  store(bottom + ch::kCallSlot, ~0ull);
  store(lane + ch::kLaneCallLowest, (base_ + bottom).value);
  store(lane + ch::kLaneCallTop, (base_ + bottom).value);
  store(lane + ch::kLaneCallNext, (base_ + bottom + ch::kCallFixed + kCallLink).value);
  store(lane + ch::kLaneCallLimit, (base_ + layout_.calls_at(id) + layout_.call_stack - kCallRoom).value);
}

void Channel::set_stack(LaneId id, std::uint64_t low, std::uint64_t high) {
  PROBED_CHECK(id != LaneId::shared && number(id) < layout_.lanes, "only owned lanes have call stacks");
  const std::size_t lane = layout_.lane_at(id);
  if (layout_.call_stack <= 2 * kCallRoom || high <= low || load(lane + ch::kLaneStackSize) != 0) return;
  empty_calls(id);
  store(lane + ch::kLaneStackLow, low);
  store(lane + ch::kLaneStackSize, high - low);
}

void Channel::limit_stack(LaneId id, std::uint64_t low, std::uint64_t high) {
  PROBED_CHECK(id != LaneId::shared && number(id) < layout_.lanes, "only owned lanes have call stacks");
  store(layout_.lane_at(id) + ch::kLaneStackSize, 0);
  set_stack(id, low, high);
}

// Where a call in the target's words is; nullopt: nowhere in this lane's stack.
std::optional<std::size_t> Channel::call_at(LaneId id, std::uint64_t address) const {
  const std::uint64_t begin = (base_ + layout_.calls_at(id) + kCallLink).value;
  const std::uint64_t offset = address - begin;
  if (offset % 8 != 0 || offset > layout_.call_stack - kCallRoom) return std::nullopt;
  return layout_.calls_at(id) + kCallLink + offset;
}

bool Channel::pop_call(LaneId id, std::uint64_t highest_slot, ChannelCall& call) {
  const std::size_t lane = layout_.lane_at(id);
  if (id == LaneId::shared || load(lane + ch::kLaneStackSize) == 0) return false;
  const auto top = call_at(id, load(lane + ch::kLaneCallTop)), next = call_at(id, load(lane + ch::kLaneCallNext));
  const auto damaged = [&] { return empty_calls(id), false; };
  if (!top || !next || *top >= *next || *next - *top > kCallRoom) return damaged();
  call.slot = load(*top + ch::kCallSlot);
  if (call.slot == ~0ull || call.slot > highest_slot) return false;
  const std::uint64_t below = load(*top + ch::kCallBelow);
  const auto before = call_at(id, below);
  if (!before || *before >= *top) return damaged();
  const std::size_t count = std::min((*next - *top - kCallLink) / 8, call_words_.size());
  if (count < ch::kCallFixed / 8) return damaged();
  for (std::size_t i = 0; i < count; ++i) call_words_[i] = load(*top + 8 * i);
  call.time = call_words_[ch::kCallTime / 8];
  call.return_address = call_words_[ch::kCallReturn / 8];
  const auto tag = static_cast<std::uint32_t>(call_words_[ch::kCallTag / 8]);
  call.tag = tag & (ch::kCallTags - 1);
  call.silent = (tag & ch::kCallSilent) != 0;
  call.words = std::span(call_words_).first(count);
  store(lane + ch::kLaneCallNext, (base_ + *top).value);
  store(lane + ch::kLaneCallTop, below);
  return true;
}

void Channel::mark_call(LaneId id, std::uint64_t slot) {
  const std::size_t lane = layout_.lane_at(id);
  const std::uint64_t low = load(lane + ch::kLaneStackLow);
  if (id == LaneId::shared || slot - low >= load(lane + ch::kLaneStackSize)) return;
  const auto top = call_at(id, load(lane + ch::kLaneCallTop)), at = call_at(id, load(lane + ch::kLaneCallNext));
  if (!top || !at || *top >= *at || load(*top + ch::kCallSlot) < slot) return;
  const std::size_t end = *at + ch::kCallFixed + kCallLink;
  if (!call_at(id, (base_ + end).value)) return;
  store(*at + ch::kCallBelow, (base_ + *top).value);
  store(*at + ch::kCallSlot, slot);
  store(*at + ch::kCallTime, 0);
  store(*at + ch::kCallReturn, 0);
  store(*at + ch::kCallTag, kNobodysTag);
  store(lane + ch::kLaneCallNext, (base_ + end).value);
  store(lane + ch::kLaneCallTop, (base_ + *at).value);
}

void Channel::start_recording(std::uint32_t probe) {
  PROBED_CHECK(probe < layout_.probes, "a probe's index is below the channel's number of probes");
  auto& byte = *reinterpret_cast<std::uint8_t*>(local_ + layout_.flags + probe);
  std::uint8_t expected = ch::kCountOnly;
  std::atomic_ref(byte).compare_exchange_strong(expected, ch::kRecord);
}

// ---- probes ----

void Channel::add_probe(std::uint32_t probe, const arch::CaptureLayout& layout) {
  PROBED_CHECK(probe < layout_.probes, "a probe's index is below the channel's number of probes");
  shapes_[probe] = {layout.fixed_size, layout.max_size, 0, std::chrono::steady_clock::now()};
  store(layout_.dropped + probe * sizeof(std::uint64_t), 0);
  for (unsigned i = 0; i < layout_.lanes; ++i) {
    if (!lanes_[i].was_used) continue;
    const std::size_t at = layout_.counters_at(LaneId{i}) + std::size_t{probe} * ch::kCounterSize;
    store(at + ch::kCounted, 0);
    store(at + ch::kFiltered, 0);
  }
}

void Channel::remove_probe(std::uint32_t probe) {
  PROBED_CHECK(probe < layout_.probes, "a probe's index is below the channel's number of probes");
  shapes_[probe] = {};
}

// What the target has counted is what it says: more than all processors can have made since the probe was added is not
// believed. No hit takes less than a nanosecond; a second for what is late.
std::uint64_t Channel::believed(std::uint32_t probe, std::uint64_t said) const {
  using namespace std::chrono;
  if (said <= static_cast<std::uint64_t>(nanoseconds(1s).count()))
    return said;  // most are, and no clock need be read for them
  // Of the machine: those that we may run on ourselves (std::thread::hardware_concurrency()) may be fewer.
  static const auto processors = static_cast<std::uint64_t>(std::max(1L, ::sysconf(_SC_NPROCESSORS_CONF)));
  const nanoseconds since = steady_clock::now() - shapes_[probe].since + 1s;
  return std::min(said, static_cast<std::uint64_t>(since.count()) * processors);
}

ProbeCounts Channel::counts(std::uint32_t probe) const {
  PROBED_CHECK(probe < layout_.probes, "a probe's index is below the channel's number of probes");
  ProbeCounts counts;
  counts.recorded = shapes_[probe].recorded;
  counts.dropped = dropped(probe);
  for (unsigned i = 0; i < layout_.lanes; ++i) {
    if (!lanes_[i].was_used) continue;
    const std::size_t at = layout_.counters_at(LaneId{i}) + std::size_t{probe} * ch::kCounterSize;
    counts.counted += believed(probe, load(at + ch::kCounted));
    counts.filtered += believed(probe, load(at + ch::kFiltered));
  }
  counts.counted = believed(probe, counts.counted);
  counts.filtered = believed(probe, counts.filtered);
  return counts;
}

std::uint64_t Channel::dropped(std::uint32_t probe) const {
  return believed(probe, load(layout_.dropped + probe * sizeof(std::uint64_t)));
}

// ---- reading ----

bool Channel::begin_drain(LaneId id, std::size_t max, std::uint64_t until) {
  Lane& lane = lanes_[number(id)];
  lane.until = until;
  lane.resynchronised = false;
  lane.budget = max;
  return lane.state.load(std::memory_order_acquire) != State::free;
}

// The next record into words_ and `record`. False: there is none now. Holes and strays count against the budget, so
// that a target that makes them as fast as we take them out holds nobody up.
bool Channel::next(LaneId id, ChannelRecord& record) {
  Lane& lane = lanes_[number(id)];
  for (; lane.budget > 0; --lane.budget) {
    // Before the word: the thread's last store was before its retirement.
    const bool is_retiring = lane.state.load(std::memory_order_acquire) == State::retiring;
    const std::size_t at = ring_word(id, lane.consumed);
    const std::uint64_t first = load(at);
    if (first == 0) {
      if (is_retiring ? finish_retired(id, lane) : leave_to_dead(id, lane)) continue;
      return false;
    }
    if (!is_commit(first, lane.consumed)) {
      if (lane.resynchronised) return false;
      resynchronise(id, lane);
      continue;
    }
    lane.stalled_drains = 0;
    if (load(at + ch::kRecordTime) > lane.until) return false;
    const std::size_t size = commit_size(first);
    take_words(at, first, size);
    describe_record(id, lane, record);
    lane.consumed += size;
    if (lane.consumed - lane.freed >= layout_.ring_size / 4) free_room(id, lane);
    Shape& shape = shapes_[record.probe];
    ++(shape.most == 0 ? strays_ : shape.recorded);
    if (shape.most != 0) return --lane.budget, true;
  }
  return false;
}

// Whether the word can be the first of a record there. One of a probe that is gone may have any size.
inline bool Channel::is_commit(std::uint64_t word, std::uint64_t position) const {
  const std::uint32_t probe = word & (ch::kMaxProbes - 1);
  const std::size_t size = commit_size(word);
  if (word >> 32 != (ch::commit_tag(position) >> 32) || (word >> 31 & 1) != 0 || probe >= shapes_.size()) return false;
  if (size < static_cast<std::size_t>(ch::kRecordFixed)) return false;
  const Shape& shape = shapes_[probe];
  return shape.most == 0 || (size >= shape.least && size <= shape.most);
}

// Copies the record that stands there, whose first word has been read, and clears it.
inline void Channel::take_words(std::size_t at, std::uint64_t first, std::size_t size) {
  auto* words = reinterpret_cast<std::uint64_t*>(local_ + at);
  words_[0] = first;
  for (std::size_t i = 1; i < size / 8; ++i) words_[i] = std::atomic_ref(words[i]).load(std::memory_order_relaxed);
  for (std::size_t i = 0; i < size / 8; ++i) std::atomic_ref(words[i]).store(0, std::memory_order_relaxed);
}

inline void Channel::describe_record(LaneId id, const Lane& lane, ChannelRecord& record) const {
  const bool is_shared = id == LaneId::shared;
  record.probe = words_[0] & (ch::kMaxProbes - 1);
  record.lane = id;
  record.owner = is_shared ? 0 : lane.owner;
  record.time = words_[ch::kRecordTime / 8];
  record.thread_pointer = is_shared ? words_[ch::kRecordThreadPointer / 8] : 0;
  record.cpu = words_[ch::kRecordCpu / 8] & 0xffff;
  record.words = std::span(words_).first(commit_size(words_[0]) / 8);
}

void Channel::free_room(LaneId id, Lane& lane) {
  lane.freed = lane.consumed;
  store(layout_.lane_at(id) + ch::kLaneLimit, lane.freed + layout_.ring_size);
}

void Channel::end_drain(LaneId id, std::size_t max) {
  Lane& lane = lanes_[number(id)];
  if (lane.freed != lane.consumed) free_room(id, lane);
  // The head's cache line is the writer's: look at it only when there was nothing to do.
  if (lane.budget != max || lane.state.load(std::memory_order_relaxed) == State::free) return;
  const auto head = head_within(id, lane);
  const bool is_empty = load(ring_word(id, lane.consumed)) == 0;
  if (!head && is_empty && !lane.resynchronised) resynchronise(id, lane), free_room(id, lane);
  lane.stalled_drains = head && is_empty && *head != lane.consumed ? lane.stalled_drains + 1 : 0;
}

// ---- holes and damage ----

// The lane's head if it can be true.
std::optional<std::uint64_t> Channel::head_within(LaneId id, const Lane& lane) const {
  const std::uint64_t head = load(layout_.lane_at(id) + ch::kLaneHead);
  if (head % 8 != 0 || head - lane.consumed > layout_.ring_size) return std::nullopt;
  return head;
}

// Clears where records between two positions can lie, the slack included.
void Channel::clear(LaneId id, std::uint64_t from, std::uint64_t end) {
  const std::size_t begin = static_cast<std::size_t>(from) & (layout_.ring_size - 1);
  const std::size_t size = std::min<std::size_t>(end - from, layout_.ring_size);
  const std::size_t straight = std::min(size, layout_.ring_stride - begin);
  const std::size_t wrapped = begin + size > layout_.ring_size ? begin + size - layout_.ring_size : 0;
  for (std::size_t i = 0; i < straight; i += 8) store(layout_.ring_at(id) + begin + i, 0);
  for (std::size_t i = 0; i < wrapped; i += 8) store(layout_.ring_at(id) + i, 0);
}

// The first position from `from` on where a record begins; `end`: there is none.
std::uint64_t Channel::find_commit(LaneId id, std::uint64_t from, std::uint64_t end) const {
  for (; from != end; from += 8)
    if (is_commit(load(ring_word(id, from)), from)) return from;
  return end;
}

void Channel::step_over(LaneId id, Lane& lane, std::uint64_t end) {
  ++lost_;
  clear(id, lane.consumed, end);
  lane.consumed = end;
  lane.stalled_drains = 0;
}

// Called with nothing committed at the front of a retired lane. True: look again. An empty lane becomes free.
bool Channel::finish_retired(LaneId id, Lane& lane) {
  const auto head = head_within(id, lane);
  if (head && *head != lane.consumed) {
    step_over(id, lane, find_commit(id, lane.consumed + 8, *head));
    return true;
  }
  if (!head) ++damaged_, clear(id, lane.consumed, lane.consumed + layout_.ring_size);
  store(layout_.lane_at(id) + ch::kLaneHead, lane.consumed);
  free_room(id, lane);
  lane.stalled_drains = 0;
  lane.state.store(State::free, std::memory_order_release);
  return false;
}

// Called with nothing committed at the front. True: a dead thread had reserved it, and it has been stepped over.
bool Channel::leave_to_dead(LaneId id, Lane& lane) {
  if (id != LaneId::shared || next_dead_ == 0) return false;
  const std::size_t at = ring_word(id, lane.consumed);
  const std::uint64_t owner = load(at + ch::kRecordThreadPointer);
  const std::size_t size = (load(at + ch::kRecordCpu) >> 16 & 0x3ff) * 8;
  const auto head = head_within(id, lane);
  if (owner == 0 || size == 0 || !head || size > *head - lane.consumed) return false;
  const auto left_it = [&](const Dead& dead) {
    return dead.thread_pointer == owner && static_cast<std::int64_t>(dead.head - lane.consumed) > 0;
  };
  if (std::ranges::none_of(dead_, left_it)) return false;
  step_over(id, lane, lane.consumed + size);
  return true;
}

void Channel::shared_thread_died(std::uint64_t thread_pointer) {
  if (thread_pointer == 0) return;
  const std::uint64_t head = load(layout_.lane_at(LaneId::shared) + ch::kLaneHead);
  dead_[next_dead_++ % dead_.size()] = {thread_pointer, head};
}

std::optional<Channel::Stall> Channel::stalled(LaneId id) const {
  const Lane& lane = lanes_[number(id)];
  if (lane.stalled_drains == 0) return std::nullopt;
  Stall stall{lane.consumed, 0, lane.stalled_drains};
  if (id == LaneId::shared) stall.thread_pointer = load(ring_word(id, lane.consumed) + ch::kRecordThreadPointer);
  return stall;
}

void Channel::skip_hole(LaneId id) {
  Lane& lane = lanes_[number(id)];
  const auto head = head_within(id, lane);
  if (!head || *head == lane.consumed || load(ring_word(id, lane.consumed)) != 0) return;
  step_over(id, lane, find_commit(id, lane.consumed + 8, *head));
  free_room(id, lane);
}

// What stands at the front is no record: somebody wrote into the ring. Goes on at the next thing that looks like one,
// or with an empty ring. At most once in a drain, as it looks at the whole ring.
void Channel::resynchronise(LaneId id, Lane& lane) {
  ++damaged_;
  lane.resynchronised = true;
  const std::uint64_t head = load(layout_.lane_at(id) + ch::kLaneHead) & ~7ull;
  const bool plausible = head - lane.consumed <= layout_.ring_size;
  const std::uint64_t end = plausible ? head : lane.consumed + layout_.ring_size;
  const std::uint64_t found = end == lane.consumed ? end : find_commit(id, lane.consumed + 8, end);
  clear(id, lane.consumed, std::max(found, lane.consumed + 8));
  lane.consumed = found != end || plausible ? found : head;
}

}  // namespace probed::events
