// The daemon's side of the channel, with writers that do by hand what detours do, and with targets that scribble.
#include "daemon/events/channel.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <thread>
#include <vector>

#include "tests/arch/differential/options.hpp"
#include "tests/arch/differential/random.hpp"

namespace probed::test {
namespace {

using events::Channel;
using events::ChannelLayout;
using events::ChannelOptions;
using events::LaneId;
namespace ch = arch::channel;

constexpr std::uint64_t kBase = 0x7f00'0000'0000;  // where "the target" has it; nothing is there
constexpr ChannelOptions kSmall{.bytes = 256 << 10, .lanes = 3, .probes = 64};

std::unique_ptr<Channel> make(const ChannelOptions& options = kSmall) {
  auto channel = Channel::create(options);
  REQUIRE(channel);
  (*channel)->set_base({kBase});
  return std::move(*channel);
}

arch::CaptureLayout shape(std::uint16_t least, std::uint16_t most) {
  arch::CaptureLayout layout;
  layout.fixed_size = least;
  layout.max_size = most;
  return layout;
}

// The target: its own mapping, and reservations by hand.
class Target {
 public:
  explicit Target(Channel& channel) : layout_(channel.layout()) {
    void* const p = ::mmap(nullptr, layout_.size, PROT_READ | PROT_WRITE, MAP_SHARED, channel.memfd(), 0);
    REQUIRE(p != MAP_FAILED);
    memory_ = static_cast<std::byte*>(p);
  }
  ~Target() { ::munmap(memory_, layout_.size); }
  Target(const Target&) = delete;
  Target& operator=(const Target&) = delete;

  std::atomic_ref<std::uint64_t> word(std::size_t offset) const {
    return std::atomic_ref(*reinterpret_cast<std::uint64_t*>(memory_ + offset));
  }
  std::atomic_ref<std::uint64_t> head(LaneId id) const { return word(layout_.lane_at(id) + ch::kLaneHead); }
  std::uint64_t limit(LaneId id) const { return word(layout_.lane_at(id) + ch::kLaneLimit); }
  std::size_t ring(LaneId id, std::uint64_t position) const {
    return layout_.ring_at(id) + (position & (layout_.ring_size - 8));
  }

  std::optional<std::uint64_t> reserve(LaneId id, std::size_t size) const {
    const std::uint64_t position = head(id);
    if (position + size > limit(id)) return std::nullopt;
    head(id) = position + size;
    return position;
  }
  // All words but the first: the value.
  void fill(LaneId id, std::uint64_t position, std::size_t size, std::uint64_t value) const {
    for (std::size_t i = 8; i < size; i += 8) word(ring(id, position) + i) = value;
  }
  void commit(LaneId id, std::uint64_t position, std::uint32_t probe, std::size_t size) const {
    word(ring(id, position)) = ch::commit_word(position, probe, size);
  }
  bool write(LaneId id, std::uint32_t probe, std::size_t size, std::uint64_t value) const {
    const auto position = reserve(id, size);
    if (!position) return false;
    fill(id, *position, size, value);
    commit(id, *position, probe, size);
    return true;
  }
  // As the shared lane's writers do at once.
  void sign(std::uint64_t position, std::size_t size, std::uint64_t thread_pointer) const {
    word(ring(LaneId::shared, position) + ch::kRecordCpu) = size / 8 << 16 | 0xffff;
    word(ring(LaneId::shared, position) + ch::kRecordThreadPointer) = thread_pointer;
  }
  bool is_clear(LaneId id) const {
    for (std::size_t i = 0; i < layout_.ring_stride; i += 8)
      if (word(layout_.ring_at(id) + i) != 0) return false;
    return true;
  }
  std::byte* memory() const { return memory_; }

 private:
  const ChannelLayout& layout_;
  std::byte* memory_ = nullptr;
};

std::vector<std::uint64_t> values(Channel& channel, std::size_t max = 1000) {
  std::vector<std::uint64_t> got;
  channel.drain(max, [&got](const events::ChannelRecord& r) { got.push_back(r.words[4]); });
  return got;
}
using Values = std::vector<std::uint64_t>;

// ---- layout and life ----

TEST_CASE("a channel's parts lie one behind the other, within what was allowed") {
  for (const unsigned lanes : {0u, 1u, 15u, 1023u})
    for (const unsigned probes : {1u, 1000u, 50000u}) {
      const auto l = ChannelLayout::make({.bytes = 2000u << 20, .lanes = lanes, .probes = probes});
      REQUIRE(l);
      CHECK(l->no_rseq + 8 <= l->thread_table);
      CHECK(l->thread_table + (std::size_t{ch::kBucketSize} << l->bucket_bits) <= l->lane);
      CHECK(l->lane % 128 == 0);
      CHECK(l->lane_at(LaneId{lanes + 1}) <= l->flags);
      CHECK(l->flags + probes <= l->dropped);
      CHECK(l->dropped + probes * 8 <= l->counters);
      CHECK(l->counters_at(LaneId{lanes + 1}) == l->rings);
      CHECK(l->counters_stride >= probes * 16);
      CHECK(l->ring_at(LaneId{lanes + 1}) == l->size);
      CHECK(l->size <= 2000u << 20);
      CHECK(std::has_single_bit(l->ring_size));
      CHECK((4u << l->bucket_bits) >= 2 * (lanes + 1));
    }
}

TEST_CASE("too few bytes, too many lanes, too many probes are refused with what would do") {
  const auto small = ChannelLayout::make({.bytes = 100000, .lanes = 15, .probes = 1000});
  REQUIRE(!small);
  CHECK(small.error().reason == Reason::bad_params);
  CHECK(small.error().hint.starts_with("allow at least "));
  const std::size_t least = std::stoul(small.error().hint.substr(15));
  CHECK(ChannelLayout::make({.bytes = least, .lanes = 15, .probes = 1000}));
  CHECK(!ChannelLayout::make({.bytes = 1u << 31, .lanes = 1024, .probes = 1}));
  CHECK(!ChannelLayout::make({.bytes = 1u << 31, .lanes = 1, .probes = (1u << 21) + 1}));
}

TEST_CASE("a channel's file can't be resized by whoever else holds it, and nothing else is taken for one") {
  const auto channel = make();
  CHECK(::ftruncate(channel->memfd(), 4096) != 0);
  CHECK(::ftruncate(channel->memfd(), 1 << 30) != 0);
  std::FILE* const file = std::tmpfile();
  REQUIRE(file != nullptr);
  const auto refused = Channel::adopt(UniqueFd(::dup(::fileno(file))), kSmall);
  CHECK(!refused);
  std::fclose(file);
}

TEST_CASE("what was in an adopted file is forgotten") {
  UniqueFd memfd(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const std::vector<char> junk(256 << 10, 'x');
  REQUIRE(::write(memfd.get(), junk.data(), junk.size()) == static_cast<ssize_t>(junk.size()));
  auto channel = Channel::adopt(std::move(memfd), kSmall);
  REQUIRE(channel);
  (*channel)->set_base({kBase});
  const Target target(**channel);
  CHECK(target.is_clear(LaneId::shared));
  CHECK(target.head(LaneId::shared) == 0);
}

// ---- lanes ----

TEST_CASE("threads get lanes of their own while there are some, and find them in the table") {
  const auto channel = make();
  const Target target(*channel);
  const ChannelLayout& l = channel->layout();
  for (const std::uint64_t tp : {0x1000ull, 0x2040ull, 0x3080ull}) {
    const auto lane = channel->assign(tp + 1, tp, RemoteAddr{tp + 8});
    REQUIRE(lane);
    const std::size_t bucket = l.thread_table + ch::bucket_of(tp, l.bucket_bits) * ch::kBucketSize;
    bool found = false;
    for (std::size_t i = 0; i < ch::kBucketEntries; ++i)
      found =
          found || (target.word(bucket + i * 16) == tp && target.word(bucket + i * 16 + 8) == kBase + l.lane_at(*lane));
    CHECK(found);
    CHECK(target.word(l.lane_at(*lane) + ch::kLaneRseq) == tp + 8);
  }
  CHECK(!channel->assign(9, 0x40c0, std::nullopt));
}

TEST_CASE("two threads with one thread pointer, and threads without one, get no lane") {
  const auto channel = make();
  CHECK(channel->assign(1, 0x1000, std::nullopt));
  CHECK(!channel->assign(2, 0x1000, std::nullopt));
  CHECK(!channel->assign(3, 0, std::nullopt));
}

TEST_CASE("a full bucket sends a thread to the shared lane; others still find room") {
  const auto channel = make({.bytes = 4 << 20, .lanes = 15, .probes = 1});
  const unsigned bits = channel->layout().bucket_bits;
  std::vector<std::uint64_t> same;
  for (std::uint64_t tp = 0x40; same.size() < 5; tp += 0x40)
    if (ch::bucket_of(tp, bits) == 3) same.push_back(tp);
  for (std::size_t i = 0; i < 4; ++i) CHECK(channel->assign(i + 1, same[i], std::nullopt));
  CHECK(!channel->assign(5, same[4], std::nullopt));
  std::uint64_t other = 0x40;
  while (ch::bucket_of(other, bits) == 3) other += 0x40;
  CHECK(channel->assign(5, other, std::nullopt));
}

TEST_CASE("a retired lane is drained before another thread gets it; its records keep their owner") {
  const auto channel = make({.bytes = 256 << 10, .lanes = 1, .probes = 4});
  const Target target(*channel);
  channel->add_probe(1, shape(40, 40));
  const auto lane = channel->assign(11, 0x1000, std::nullopt);
  REQUIRE(lane);
  CHECK(target.write(*lane, 1, 40, 5));
  channel->retire(*lane);
  CHECK(!channel->assign(12, 0x1000, std::nullopt));
  std::vector<std::uint64_t> owners;
  const auto take = [&owners](const events::ChannelRecord& r) { owners.push_back(r.owner); };
  channel->drain(10, take);
  const auto again = channel->assign(12, 0x1000, std::nullopt);
  REQUIRE(again);
  CHECK(target.write(*again, 1, 40, 6));
  channel->drain(10, take);
  CHECK(owners == Values{11, 12});
}

// ---- records ----

TEST_CASE("records come out in the order of their reservation, and wait for one that is not committed") {
  const auto channel = make();
  const Target target(*channel);
  channel->add_probe(2, shape(40, 40));
  const LaneId lane = *channel->assign(1, 0x1000, std::nullopt);
  const auto outer = target.reserve(lane, 40);
  CHECK(target.write(lane, 2, 40, 2));
  CHECK(values(*channel).empty());
  REQUIRE(channel->stalled(lane));
  CHECK(channel->stalled(lane)->drains == 1);
  target.fill(lane, *outer, 40, 1);
  target.commit(lane, *outer, 2, 40);
  CHECK(values(*channel) == Values{1, 2});
  CHECK(!channel->stalled(lane));
}

TEST_CASE("records of random sizes go round the ring many times, and what is consumed is clear") {
  Random random(chosen_seed());
  const auto channel = make();
  const Target target(*channel);
  channel->add_probe(3, shape(40, 8184));
  const LaneId lane = *channel->assign(1, 0x1000, std::nullopt);
  std::deque<std::uint64_t> expected;
  std::uint64_t next = 1, dropped = 0;
  for (unsigned i = 0; i < 20000; ++i) {
    const std::size_t size = random.chance(5) ? 8184 : 40 + random.below(30) * 8;
    if (target.write(lane, 3, size, next))
      expected.push_back(next++);
    else
      ++dropped;
    if (random.chance(92)) continue;
    channel->drain(1 + random.below(20), [&expected](const events::ChannelRecord& r) {
      REQUIRE(!expected.empty());
      for (std::size_t w = 1; w < r.words.size(); ++w) REQUIRE(r.words[w] == expected.front());
      expected.pop_front();
    });
  }
  for (const std::uint64_t value : values(*channel, 100000)) {
    CHECK(value == expected.front());
    expected.pop_front();
  }
  CHECK(expected.empty());
  CHECK(dropped > 0);
  CHECK(target.is_clear(lane));
  CHECK(target.head(lane) > 20 * channel->layout().ring_size);
  CHECK(channel->damaged() == 0);
}

TEST_CASE("a full ring takes as much as it has room for, again and again") {
  const auto channel = make();
  const Target target(*channel);
  channel->add_probe(3, shape(64, 64));
  for (unsigned round = 0; round < 5; ++round) {
    std::size_t written = 0;
    while (target.write(LaneId::shared, 3, 64, round)) ++written;
    CHECK(written == channel->layout().ring_size / 64);
    CHECK(values(*channel, 100000).size() == written);
  }
}

TEST_CASE("records of a probe that is gone are strays, and its counts start anew") {
  const auto channel = make();
  const Target target(*channel);
  channel->add_probe(3, shape(40, 48));
  target.write(LaneId::shared, 3, 40, 1);
  target.write(LaneId::shared, 3, 48, 2);
  CHECK(values(*channel) == Values{1, 2});
  CHECK(channel->counts(3).recorded == 2);
  target.word(channel->layout().dropped + 3 * 8) = 17;
  CHECK(channel->counts(3).hits() == 19);
  target.write(LaneId::shared, 3, 40, 3);
  channel->remove_probe(3);
  CHECK(values(*channel).empty());
  CHECK(channel->strays() == 1);
  channel->add_probe(3, shape(40, 40));
  CHECK(channel->counts(3).hits() == 0);
}

TEST_CASE("what a target claims to have counted is believed as far as it can be true") {
  const auto channel = make();
  const Target target(*channel);
  channel->add_probe(3, shape(40, 48));
  target.word(channel->layout().dropped + 3 * 8) = ~0ull;
  const std::size_t at = channel->layout().counters_at(LaneId::shared) + 3 * ch::kCounterSize;
  target.word(at + ch::kCounted) = 1ull << 63;
  target.word(at + ch::kFiltered) = ~0ull;
  const auto counts = channel->counts(3);
  constexpr std::uint64_t kMost = 1ull << 46;  // of many processors in minutes
  CHECK(counts.dropped > 0);
  CHECK(counts.dropped < kMost);
  CHECK(counts.counted < kMost);
  CHECK(counts.filtered < kMost);
  CHECK(channel->dropped(3) < kMost);
}

// ---- holes ----

TEST_CASE("a thread that dies between reserve and commit costs its lane one record") {
  const auto channel = make();
  const Target target(*channel);
  channel->add_probe(1, shape(40, 64));
  for (const bool committed_behind : {true, false}) {
    const auto lane = channel->assign(1, 0x1000, std::nullopt);
    REQUIRE(lane);
    target.write(*lane, 1, 40, 1);
    const auto hole = target.reserve(*lane, 64);
    target.fill(*lane, *hole, 48, 99);  // it got this far
    if (committed_behind) target.write(*lane, 1, 48, 2);
    CHECK(values(*channel) == Values{1});
    const std::uint64_t lost = channel->lost();
    channel->retire(*lane);
    CHECK(values(*channel) == (committed_behind ? Values{2} : Values{}));
    CHECK(channel->lost() == lost + 1);
    values(*channel);
    CHECK(target.is_clear(*lane));
  }
}

TEST_CASE("a hole at the ring's end is cleared in the slack, too") {
  const auto channel = make();
  const Target target(*channel);
  const ChannelLayout& l = channel->layout();
  channel->add_probe(1, shape(40, 4096));
  const LaneId lane = *channel->assign(1, 0x1000, std::nullopt);
  while (target.head(lane) + 48 < l.ring_size) {
    REQUIRE(target.write(lane, 1, 48, 1));
    values(*channel);
  }
  const auto hole = target.reserve(lane, 4096);
  REQUIRE(hole);
  target.fill(lane, *hole, 4096, 7);
  target.write(lane, 1, 40, 2);
  channel->retire(lane);
  CHECK(values(*channel) == Values{2});
  values(*channel);
  CHECK(target.is_clear(lane));
}

TEST_CASE("in the shared lane a dead thread's reservation is stepped over, and a living one's waited for") {
  const auto channel = make();
  const Target target(*channel);
  channel->add_probe(1, shape(40, 64));
  const auto dead = target.reserve(LaneId::shared, 64);
  target.sign(*dead, 64, 0xdead0);
  const auto slow = target.reserve(LaneId::shared, 48);
  target.sign(*slow, 48, 0xa11e0);
  target.write(LaneId::shared, 1, 40, 3);
  CHECK(values(*channel).empty());
  CHECK(channel->stalled(LaneId::shared)->thread_pointer == 0xdead0);
  channel->shared_thread_died(0xdead0);
  CHECK(values(*channel).empty());
  CHECK(channel->lost() == 1);
  CHECK(values(*channel).empty());
  REQUIRE(channel->stalled(LaneId::shared));
  CHECK(channel->stalled(LaneId::shared)->thread_pointer == 0xa11e0);
  target.fill(LaneId::shared, *slow, 48, 2);
  target.commit(LaneId::shared, *slow, 1, 48);
  CHECK(values(*channel) == Values{2, 3});
  CHECK(channel->lost() == 1);
}

TEST_CASE("a thread pointer that came back to life is not taken for its dead owner") {
  const auto channel = make();
  const Target target(*channel);
  channel->add_probe(1, shape(40, 64));
  channel->shared_thread_died(0x1230);
  const auto slow = target.reserve(LaneId::shared, 48);
  target.sign(*slow, 48, 0x1230);
  CHECK(values(*channel).empty());
  CHECK(channel->lost() == 0);
  target.fill(LaneId::shared, *slow, 48, 2);
  target.commit(LaneId::shared, *slow, 1, 48);
  CHECK(values(*channel) == Values{2});
}

TEST_CASE("a reservation of nobody known is given up when the caller says so") {
  const auto channel = make();
  const Target target(*channel);
  channel->add_probe(1, shape(40, 64));
  target.reserve(LaneId::shared, 64);
  target.write(LaneId::shared, 1, 40, 1);
  CHECK(values(*channel).empty());
  channel->skip_hole(LaneId::shared);
  CHECK(values(*channel) == Values{1});
  CHECK(channel->lost() == 1);
  channel->skip_hole(LaneId::shared);  // nothing is there to skip
  CHECK(channel->lost() == 1);
}

// ---- hostile targets ----

TEST_CASE("impossible first words are damage, and what follows is still found") {
  const auto channel = make();
  const Target target(*channel);
  channel->add_probe(1, shape(40, 40));
  const std::uint64_t bad[] = {1,
                               ~0ull,
                               ch::commit_word(8, 1, 40),
                               ch::commit_word(0, 1, 48),
                               ch::commit_word(0, 63, 24),
                               ch::commit_word(0, 64, 40),
                               ch::commit_word(0, 1, 0)};
  std::uint64_t expected_damage = 0;
  for (const std::uint64_t word : bad) {
    const auto position = target.reserve(LaneId::shared, 40);
    REQUIRE(position);
    const bool relative = word != 1 && word != ~0ull;
    target.word(target.ring(LaneId::shared, *position)) = relative ? word + ch::commit_tag(*position) : word;
    target.write(LaneId::shared, 1, 40, 77);
    CHECK(values(*channel) == Values{77});
    CHECK(channel->damaged() == ++expected_damage);
  }
}

TEST_CASE("a head that makes no sense doesn't lead the reader astray") {
  const auto channel = make();
  const Target target(*channel);
  channel->add_probe(1, shape(40, 40));
  for (const std::uint64_t head : {~0ull, 1ull << 63, 7ull, 0x1'0000'0001ull}) {
    const auto lane = channel->assign(1, 0x1000, std::nullopt);
    REQUIRE(lane);
    target.write(*lane, 1, 40, 1);
    target.head(*lane) = head;
    values(*channel);
    channel->retire(*lane);
    for (unsigned i = 0; i < 4; ++i) values(*channel);
    CHECK(channel->assign(1, 0x1000, std::nullopt));
    // Lanes go round: give it back.
    for (unsigned i = 1; i <= 3; ++i) values(*channel);
    channel->retire(*lane);
    values(*channel);
  }
}

void scribble(const Target& target, const ChannelLayout& layout, Random& random) {
  const LaneId lane{static_cast<std::uint32_t>(random.below(layout.lanes))};
  const std::uint64_t head = target.head(lane);
  switch (random.below(8)) {
    case 0: target.word(random.below(layout.size / 8) * 8) = random.word(); break;
    case 1: target.head(lane) = random.word(); break;
    case 2: target.head(lane) = head + random.below(10000); break;
    case 3: {  // something that passes for a record
      const std::uint64_t at = head + random.below(64) * 8;
      target.word(target.ring(lane, at)) =
          ch::commit_word(at, static_cast<std::uint32_t>(random.below(80)), random.below(1023) * 8);
      break;
    }
    case 4: target.word(layout.lane_at(lane) + random.below(6) * 8) = random.word(); break;
    case 5: target.word(layout.ring_at(lane) + random.below(layout.ring_stride / 8) * 8) = random.below(3); break;
    case 6:
      target.write(lane, static_cast<std::uint32_t>(random.below(64)), 40 + random.below(20) * 8, random.word());
      break;
    default: target.head(lane) = head & ~7ull; break;
  }
}

TEST_CASE("a target that scribbles anywhere at any time harms nobody but itself") {
  const std::uint64_t seed = chosen_seed();
  INFO("PROBED_TEST_SEED=", seed);
  const auto channel = make();
  const Target target(*channel);
  const ChannelLayout& layout = channel->layout();
  for (std::uint32_t probe = 0; probe < 60; ++probe) channel->add_probe(probe, shape(40, 200));
  std::atomic<bool> stop{false};
  std::thread hostile([&] {
    Random random(seed);
    while (!stop) scribble(target, layout, random);
  });
  Random random(seed + 1);
  std::map<std::uint64_t, LaneId> owned;
  // The other thread may get no processor for a while.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  const auto is_idle = [&] { return channel->damaged() == 0 && std::chrono::steady_clock::now() < deadline; };
  for (std::uint64_t i = 0; i < from_environment("PROBED_TEST_CASES", 20000) || is_idle(); ++i) {
    const std::size_t got = channel->drain(16, [&](const events::ChannelRecord& r) {
      CHECK(r.probe < 64);
      CHECK(r.words.size() >= 4);
      CHECK(r.words.size() <= 1023);
      CHECK(number(r.lane) < layout.lanes);
    });
    CHECK(got <= 16 * layout.lanes);
    const std::uint64_t tp = 0x1000 + random.below(5) * 0x40;
    if (const auto mine = owned.find(tp); mine != owned.end()) {
      channel->retire(mine->second);
      owned.erase(mine);
    } else if (const auto lane = channel->assign(tp, tp, std::nullopt)) {
      owned[tp] = *lane;
    }
    for (unsigned l = 0; l < layout.lanes; ++l)
      if (channel->stalled(LaneId{l}) && random.chance(5)) channel->skip_hole(LaneId{l});
    if (random.chance(10)) channel->shared_thread_died(random.below(3));
    channel->counts(static_cast<std::uint32_t>(random.below(64)));
  }
  stop = true;
  hostile.join();
  CHECK(channel->damaged() > 0);
  // Left in peace, it works again.
  bool is_well = false;
  for (unsigned i = 0; i < 100 && !is_well; ++i) {
    const std::uint64_t position = target.head(LaneId::shared) & ~7ull;
    target.head(LaneId::shared) = position + 40;
    target.fill(LaneId::shared, position, 40, 123456);
    target.commit(LaneId::shared, position, 1, 40);
    for (const std::uint64_t value : values(*channel)) is_well = is_well || value == 123456;
    if (channel->stalled(LaneId::shared)) channel->skip_hole(LaneId::shared);  // what the other thread had reserved
  }
  CHECK(is_well);
}

}  // namespace
}  // namespace probed::test
