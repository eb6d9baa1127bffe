// Feeds: what detours record, from the channels to the subscriptions, and what the tracer tells about them.
//
// No allocation for an event. A record says under which index it was made and in which lane; who that is, the tracer
// has told before. Only records of threads that it hasn't seen standing still yet are put aside for a moment, until it
// has been asked to look.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "daemon/control/parts.hpp"
#include "daemon/control/stream.hpp"
#include "proto/base/fd.hpp"

namespace probed::control {
namespace {

using namespace std::chrono_literals;

constexpr auto kCommAge = 20ms;  // prctl(PR_SET_NAME) may change it at any time
constexpr auto kAskAge = 20ms;
constexpr std::size_t kMostThreads = 65536;      // whose names are kept
constexpr std::size_t kMostUnknown = 128 << 10;  // records put aside: a burst of a new thread
constexpr auto kUnknownFor = 200ms;              // then they are said to be the main thread's

void read_comm(pid_t pid, pid_t tid, char (&comm)[16]) {
  const std::string path = "/proc/" + std::to_string(pid) + "/task/" + std::to_string(tid) + "/comm";
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  char text[64];
  ssize_t n = fd ? ::read(fd.get(), text, sizeof text) : 0;
  if (n <= 0) return;  // it has ended: what was known last stays
  if (text[n - 1] == '\n') --n;
  const auto size = std::min(static_cast<std::size_t>(n), sizeof comm - 1);
  std::memset(comm, 0, sizeof comm);
  std::memcpy(comm, text, size);
}

bool records_wanted(const tracer::ProbeProgram& program) {
  return program.streaming || !recorded_by(program).filter_in_daemon.empty();
}

}  // namespace

// More records than a lane can hold: those that are there now are among them, however fast others follow.
static std::size_t all_of(const FeedState& state) { return state.feed->channel->layout().ring_size / 32 + 1; }

FeedState* Stream::find_feed(const events::FeedPtr& feed) {
  const auto it = std::ranges::find_if(feeds_, [&](const auto& state) { return state->feed == feed; });
  return it == feeds_.end() ? nullptr : it->get();
}

// ---- what the tracer tells ------------------------------------------------------------------------------------------

void Stream::on_taps_added(const events::FeedPtr& feed, const std::vector<tracer::Listener::Tap>& taps, pid_t pid,
                           std::uint64_t ticket) {
  FeedState* state = find_feed(feed);
  if (!state) {
    feeds_.push_back(std::make_unique<FeedState>());
    state = feeds_.back().get();
    state->feed = feed;
    read_comm(feed->pid, feed->pid, state->comm);
    clock_.look();
  }
  for (const auto& [index, program] : taps) {
    feed->channel->add_probe(index, recorded_by(*program).capture.layout);
    if (state->taps.size() <= index) state->taps.resize(index + 1);
    FeedState::Tap& tap = state->taps[index];
    tap = {nullptr, program, 0};
    const auto it = registry_.probes.find(program->id);
    if (it == registry_.probes.end()) continue;
    tap.probe = &it->second;
    it->second.sources.push_back({state, index});
  }
  // Only these can have become wanted; looking at all of them for each of many thousands would take long.
  if (std::ranges::any_of(taps, [](const auto& tap) { return records_wanted(*tap.program); })) watch_feeds();
  parts_.tracer->post([pid, ticket](tracer::Engine& engine) { engine.names_known(pid, ticket); });
}

void Stream::on_taps_unused(const events::FeedPtr& feed, std::vector<std::uint32_t> indices, pid_t pid) {
  FeedState* state = find_feed(feed);
  if (!state) return;
  drain_feed(*state, SIZE_MAX);
  give_up_unknown(*state);
  flush_touched();
  for (const std::uint32_t index : indices) close_tap(*state, index);
  parts_.tracer->post(
      [feed, pid, indices = std::move(indices)](tracer::Engine& engine) { engine.indices_free(pid, feed, indices); });
}

void Stream::on_feed_closed(const events::FeedPtr& feed) {
  FeedState* state = find_feed(feed);
  if (!state) return;
  drain_feed(*state, SIZE_MAX);
  give_up_unknown(*state);
  flush_touched();
  for (std::uint32_t index = 0; index < state->taps.size(); ++index) close_tap(*state, index);
  std::erase_if(feeds_, [&](const auto& s) { return s.get() == state; });
  watch_feeds();
}

// Nobody will say any more whose these were.
void Stream::give_up_unknown(FeedState& state) {
  for (FeedState::Unknown& unknown : state.unknown) unknown.since = {};
  take_unknown(state);
}

// What was counted there becomes the probe's own.
void Stream::close_tap(FeedState& state, std::uint32_t index) {
  if (index >= state.taps.size() || !state.taps[index].program) return;
  FeedState::Tap& tap = state.taps[index];
  const events::ProbeCounts counts = state.feed->channel->counts(index);
  tracer::Counters& counters = *tap.program->counters;
  counters.hits += counts.hits() - std::min(counts.hits(), tap.rejected);
  counters.missed += counts.dropped;
  counters.filtered += counts.filtered + tap.rejected;
  if (tap.probe)
    std::erase_if(tap.probe->sources, [&](const Probe::Source& s) { return s.feed == &state && s.index == index; });
  state.feed->channel->remove_probe(index);
  tap = {};
}

// ---- counting -------------------------------------------------------------------------------------------------------

Counts Stream::counts_of(const Probe& probe) const {
  const tracer::Counters& own = *probe.program->counters;
  Counts sum{own.hits, own.missed, own.filtered};
  for (const auto& [feed, index] : probe.sources) {
    const events::ProbeCounts counts = feed->feed->channel->counts(index);
    const std::uint64_t rejected = feed->taps[index].rejected;
    sum.hits += counts.hits() - std::min(counts.hits(), rejected);
    sum.missed += counts.dropped;
    sum.filtered += counts.filtered + rejected;
  }
  return sum;
}

std::uint64_t Stream::missed_of(const Probe& probe) const {
  std::uint64_t missed = probe.program->counters->missed.load(std::memory_order_relaxed);
  for (const auto& [feed, index] : probe.sources) missed += feed->feed->channel->dropped(index);
  return missed;
}

// Whether records are to be looked for at all.
void Stream::watch_feeds() {
  const auto wanted = [](const FeedState::Tap& tap) { return tap.program && records_wanted(*tap.program); };
  feeds_record_ =
      std::ranges::any_of(feeds_, [&](const auto& state) { return std::ranges::any_of(state->taps, wanted); });
  if (!feeds_record_ || !asleep_) return;
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = ::write(queue_event_.native_handle(), &one, sizeof one);
}

// ---- draining -------------------------------------------------------------------------------------------------------

// Clock of the records: what was made later than `until` stays.
std::size_t Stream::drain_feeds(std::size_t limit, std::uint64_t until) {
  if (feeds_.empty()) return 0;
  clock_.look();
  now_ = std::chrono::steady_clock::now();
  std::size_t most = 0;
  for (const auto& state : feeds_) most = std::max(most, drain_feed(*state, limit, until));
  return most;
}

// What the threads of a process that has just hit a breakpoint had recorded before.
void Stream::drain_feeds_before(const events::RecordHeader& header) {
  now_ = std::chrono::steady_clock::now();
  const std::uint64_t until = clock_.counter(header.time);
  for (const auto& state : feeds_)
    if (state->feed->pid == header.pid) drain_feed(*state, SIZE_MAX, until);
}

// `limit`: records of each lane, at most those that one can hold. Returns the most that there were in one.
std::size_t Stream::drain_feed(FeedState& state, std::size_t limit, std::uint64_t until) {
  events::Channel& channel = *state.feed->channel;
  for (const std::uint64_t thread_pointer : state.feed->threads.take_dead()) channel.shared_thread_died(thread_pointer);
  if (!state.unknown.empty()) take_unknown(state);
  const std::size_t taken = channel.drain(
      std::min(limit, all_of(state)), [&](const events::ChannelRecord& record) { take_record(state, record); }, until);
  if (!state.unknown.empty() && now_ - state.asked > kAskAge) {
    state.asked = now_;
    parts_.tracer->post([pid = state.feed->pid](tracer::Engine& engine) { engine.find_threads(pid); });
  }
  return taken;
}

void Stream::take_record(FeedState& state, const events::ChannelRecord& record) {
  if (record.owner != 0) return take_known(state, record, static_cast<pid_t>(record.owner));
  const auto tid = state.feed->threads.find(record.thread_pointer, record.time);
  if ((tid && state.unknown.empty()) || state.unknown.size() >= kMostUnknown)
    return take_known(state, record, tid.value_or(state.feed->pid));
  state.unknown.push_back({record, {record.words.begin(), record.words.end()}, now_});
}

// Those put aside, in their order, as far as their threads are known by now, or won't be.
void Stream::take_unknown(FeedState& state) {
  while (!state.unknown.empty()) {
    FeedState::Unknown& oldest = state.unknown.front();
    const auto tid = state.feed->threads.find(oldest.record.thread_pointer, oldest.record.time);
    if (!tid && now_ - oldest.since < kUnknownFor) return;
    oldest.record.words = oldest.words;
    take_known(state, oldest.record, tid.value_or(state.feed->pid));
    state.unknown.pop_front();
  }
}

void Stream::take_known(FeedState& state, const events::ChannelRecord& record, pid_t tid) {
  if (record.probe >= state.taps.size()) return;
  FeedState::Tap& tap = state.taps[record.probe];
  if (!tap.probe || !tap.program) return;
  const events::DetourPlan& plan = recorded_by(*tap.program);
  const bool filtered_here = !plan.filter_in_daemon.empty();
  if (tap.probe->audience.empty() && !filtered_here) return;

  events::RecordHeader header;
  header.probe = tap.program->id;
  const auto borrower = state.feed->threads.borrower(tid, record.time);
  header.pid = borrower.value_or(state.feed->pid);
  header.tid = borrower.value_or(tid);
  header.cpu = record.cpu == events::ChannelRecord::kNoCpu ? 0 : record.cpu;
  header.time = clock_.nanoseconds(record.time);
  header.ip = tap.probe->address.value;
  const FeedState::Thread& thread = thread_in(state, header.pid, header.tid);
  std::memcpy(header.comm, thread.comm, sizeof header.comm);
  const std::span<const std::byte> packed = take_arguments(*tap.program, record, header);
  if (filtered_here) {
    values::CommonFields common{header.pid, header.tid, header.cpu, header.comm};
    common.duration = header.duration;
    const tracer::ReturnProbe* returns = tap.program->returns.get();
    if (!(returns ? returns->exit_filter : tap.program->filter)->matches(packed, common)) return void(++tap.rejected);
  }
  if (!tap.probe->audience.empty()) offer(*tap.probe, header, packed);
}

// The arguments of a record; what else it says of a return goes into the header.
std::span<const std::byte> Stream::take_arguments(const tracer::ProbeProgram& program,
                                                  const events::ChannelRecord& record, events::RecordHeader& header) {
  if (!program.returns) {
    values::CommonFields known;
    if (program.detour->needs_comm) known.comm = header.comm;
    return std::span(packed_).first(events::unpack(*program.detour, record.words, known, packed_));
  }
  const tracer::ReturnProbe& returns = *program.returns;
  const events::ReturnRecord said = events::describe_return(record.words);
  header.ip = said.exit;
  header.ret_ip = said.return_address;
  header.tail_call = said.tail_call ? 1 : 0;
  const std::uint64_t began = clock_.nanoseconds(said.entry_time);
  header.duration = header.time - std::min(header.time, began);
  values::CommonFields known;
  known.comm = header.comm;
  known.duration = header.duration;
  known.tail_call = said.tail_call;
  return std::span(packed_).first(
      events::unpack_return(returns.fetch, *returns.detours, record.words, known, scratch_, packed_));
}

// With its name as it is now, or was lately.
const FeedState::Thread& Stream::thread_in(FeedState& state, pid_t pid, pid_t tid) {
  if (!state.last || state.last->tid != tid) {
    if (state.threads.size() > kMostThreads) state.threads.clear();
    state.last = &state.threads[tid];
    state.last->tid = tid;
  }
  FeedState::Thread& thread = *state.last;
  if (now_ - thread.read > kCommAge) {
    if (thread.comm[0] == '\0') {  // in case it has ended
      std::memcpy(thread.comm, state.comm, sizeof thread.comm);
      read_comm(state.feed->pid, state.feed->pid, thread.comm);
    }
    read_comm(pid, tid, thread.comm);
    thread.read = now_;
  }
  return thread;
}

}  // namespace probed::control
