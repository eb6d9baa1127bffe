// Events: from the tracer's queue to the subscriptions.
//
// The tracer rings an eventfd only when we are asleep. Once awake we poll on a short timer until a turn finds nothing,
// so that a busy probe costs the tracer no system call a hit and we handle hits by the hundred.
#include "daemon/control/stream.hpp"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>

#include "daemon/control/batches.hpp"
#include "daemon/control/parts.hpp"
#include "proto/json.hpp"

namespace probed::control {
namespace {

using namespace std::chrono_literals;

constexpr auto kPollInterval = 1ms;
constexpr auto kIdleInterval = 4ms;
constexpr unsigned kBusyTurns = 20;
constexpr std::size_t kHitsPerTurn = 4096;  // before control calls get their turn; of each lane, as far as recorded
constexpr std::size_t kLeastPerTurn = 64;
constexpr std::size_t kOffersPerTurn = 1 << 18;
constexpr auto kLossReports = 50ms;  // looks at every probe, of which there may be many thousands

// Empty: no symbol covers it. context: the TargetSymbols of when the probe was added, all read.
std::string name_of_address(const void* context, std::uint64_t address) {
  const auto found = static_cast<const symbols::TargetSymbols*>(context)->symbolize({address});
  if (!found) return {};
  return fmt::format("{}+{:#x}", found->symbol, found->offset);
}

}  // namespace

Stream::Stream(Parts& parts, std::size_t queue_bytes)
    : Part(parts),
      queue_(queue_bytes),
      queue_event_(parts.io, ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      poll_timer_(parts.io) {}

void Stream::wait_for_hits() {
  asleep_ = true;
  queue_event_.async_wait(
      boost::asio::posix::stream_descriptor::wait_read, [this](const boost::system::error_code& error) {
        if (error) return;
        asleep_ = false;
        std::uint64_t rings = 0;
        [[maybe_unused]] const ssize_t n = ::read(queue_event_.native_handle(), &rings, sizeof rings);
        poll_hits();
      });
}

// The more listen to one probe the fewer.
std::size_t Stream::hits_per_turn() const {
  return std::clamp(kOffersPerTurn / (widest_audience_ + 1), kLeastPerTurn, kHitsPerTurn);
}

// Nobody rings for what detours record: while some of it is wanted we look, the less often the longer nothing comes.
void Stream::poll_hits() {
  const std::size_t limit = hits_per_turn(), taken = drain(limit);
  idle_turns_ = taken == 0 ? idle_turns_ + 1 : 0;
  if (taken == 0 && !feeds_record_ && queue_.prepare_to_sleep()) {
    report_queue_losses();
    return wait_for_hits();
  }
  report_queue_losses_in_time();
  const auto pause = taken >= limit ? 0ms : feeds_record_ && idle_turns_ > kBusyTurns ? kIdleInterval : kPollInterval;
  poll_timer_.expires_after(pause);
  poll_timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error) poll_hits();
  });
}

void Stream::offer(Probe& probe, const events::RecordHeader& header, std::span<const std::byte> packed) {
  std::string_view event;
  if (probe.audience.has_room())
    event = parts_.encoder.encode(probe.schema, header, packed, probe.symbols ? name_of_address : nullptr,
                                  probe.symbols.get());
  const bool first = probe.audience.offer([&](Subscription& subscription) {
    if (!subscription.client->offer_event(subscription.id, event)) return false;
    ++subscription.totals.delivered;
    if (!std::exchange(subscription.touched, true)) touched_.push_back(&subscription);
    return true;
  });
  if (first) offered_.push_back(&probe);
}

// The end of a turn: what has been offered goes out, and so does what nobody had room for.
void Stream::flush_touched() {
  for (Probe* probe : offered_) {
    probe->audience.settle([&](Subscription& subscription, std::uint64_t count) {
      subscription.totals.missed += count;
      subscription.client->report_missed(subscription.id, count);
    });
  }
  offered_.clear();
  for (Subscription* subscription : touched_) {
    subscription->touched = false;
    subscription->client->flush_events();
  }
  touched_.clear();
}

// Those that were there when the queue ended at `end`: with each the records come that were made before it, and while
// these are taken more hits are made.
std::size_t Stream::take_hits(std::size_t limit, std::uint64_t end) {
  return queue_.consume(
      [&](const events::RecordHeader& header, std::span<const std::byte> packed) {
        if (!feeds_.empty()) drain_feeds_before(header);
        last_hit_ = header.time;
        const auto it = registry_.probes.find(header.probe);
        if (it == registry_.probes.end()) return;  // its owner has gone
        if (!it->second.audience.empty()) offer(it->second, header, packed);
      },
      limit, end);
}

// A thread's events come in the order in which they happened, whichever way: what was recorded before a hit of a
// breakpoint is taken before that, and what was recorded since the hits were looked for, or since the last one that was
// taken if there are more, waits for the next turn.
std::size_t Stream::drain(std::size_t limit) {
  if (!feeds_.empty()) clock_.look();
  const std::uint64_t now = arch::native::record_clock();
  const std::size_t taken = take_hits(limit, queue_.end());
  const std::size_t recorded = feeds_.empty() ? 0 : drain_feeds(limit, taken < limit ? now : clock_.counter(last_hit_));
  flush_touched();
  return std::max(taken, recorded);
}

// A target may make more as fast as we take it out.
void Stream::drain_known() {
  if (!feeds_.empty()) clock_.look();
  const std::uint64_t now = arch::native::record_clock();
  take_hits(SIZE_MAX, queue_.end());
  drain_feeds(SIZE_MAX, now);
  flush_touched();
  report_queue_losses();
}

void Stream::drain_all() {
  drain_known();
  for (const auto& state : feeds_) give_up_unknown(*state);  // whoever asks wants all there is
  flush_touched();
}

void Stream::report_queue_losses_in_time() {
  const auto now = std::chrono::steady_clock::now();
  if (now < next_loss_report_) return;
  next_loss_report_ = now + kLossReports;
  report_queue_losses();
}

// Hits that found the queue full, told to whoever listens to their probes. Every probe is looked at: how many listen to
// one is counted as well.
void Stream::report_queue_losses() {
  widest_audience_ = 0;
  if (registry_.subscriptions.empty()) return;
  for (auto& [id, probe] : registry_.probes) {
    widest_audience_ = std::max(widest_audience_, probe.audience.size());
    const std::uint64_t missed = missed_of(probe);
    if (missed <= probe.reported_missed) continue;  // less: the target writes to what it counts in
    const std::uint64_t count = missed - std::exchange(probe.reported_missed, missed);
    if (count == 0) continue;
    probe.audience.each([&](Subscription& subscription) {
      subscription.totals.missed += count;
      subscription.client->report_missed(subscription.id, count);
    });
  }
}

// ---- subscriptions --------------------------------------------------------------------------------------------------

bool Stream::matches(const Subscription& subscription, const Probe& probe, Sight& sight) const {
  const SubscribeRequest& wanted = subscription.request;
  if (wanted.pid && *wanted.pid != probe.pid) return false;
  const auto& names = subscription.wanted;
  const auto named = [&names](const Probe& p) {
    return names.contains(std::to_string(number(p.shown()))) || names.contains(p.name) || names.contains(p.full_name());
  };
  if (wanted.probes && !registry_.is_named(probe, named)) return false;
  if (probe.owner == subscription.client->id()) return true;
  const auto [known, first] = sight.try_emplace({subscription.client->id(), probe.pid}, false);
  if (first) known->second = subscription.client->may_trace(probe.pid);
  return known->second;
}

// Whoever gets a probe's events is told of its process's end, too.
void Stream::listen(Subscription& subscription, Probe& probe) {
  probe.audience.add(subscription);
  if (const auto t = registry_.targets.find(probe.pid); t != registry_.targets.end())
    t->second.interested.insert(subscription.client->id());
}

void Stream::link(Probe& probe, Sight& sight) {
  for (auto& [id, subscription] : registry_.subscriptions)
    if (matches(subscription, probe, sight)) listen(subscription, probe);
  widest_audience_ = std::max(widest_audience_, probe.audience.size());
  probe.program->streaming.store(!probe.audience.empty(), std::memory_order_relaxed);
}

void Stream::unlink(const Subscription& subscription) {
  std::vector<ProbeId> changed;
  for (auto& [id, probe] : registry_.probes) {
    if (!probe.audience.remove(subscription)) continue;
    probe.program->streaming.store(!probe.audience.empty(), std::memory_order_relaxed);
    if (probe.audience.empty()) changed.push_back(id);
  }
  tell_streaming(std::move(changed));
}

// Detours record only what somebody listens to.
void Stream::tell_streaming(std::vector<ProbeId> ids) {
  watch_feeds();
  if (!ids.empty()) parts_.tracer->post([ids = std::move(ids)](tracer::Engine& engine) { engine.refresh_modes(ids); });
}

Result<Subscribed> Stream::subscribe(Client& client, SubscribeRequest request) {
  drain_all();  // what was hit before is not this subscription's
  Subscription& subscription = registry_.subscriptions[++registry_.last_subscription];
  subscription.id = registry_.last_subscription;
  subscription.client = &client;
  subscription.request = std::move(request);
  if (const auto& probes = subscription.request.probes) subscription.wanted = {probes->begin(), probes->end()};
  if (subscription.request.pid)
    if (const auto t = registry_.targets.find(*subscription.request.pid); t != registry_.targets.end())
      t->second.interested.insert(client.id());
  std::vector<ProbeId> changed;
  Subscribed begun{subscription.id};
  Sight sight;
  for (auto& [id, probe] : registry_.probes) {
    if (!matches(subscription, probe, sight)) continue;
    if (probe.audience.empty()) probe.reported_missed = missed_of(probe);  // nobody was there to be told
    listen(subscription, probe);
    widest_audience_ = std::max(widest_audience_, probe.audience.size());
    probe.program->streaming.store(true, std::memory_order_relaxed);
    // At once: from the answer on every hit is either delivered or missed.
    for (const Probe::Source& source : probe.sources) source.feed->feed->channel->start_recording(source.index);
    const std::uint64_t hits = counts_of(probe).hits;
    begun.hits += hits - std::min(hits, probe.hits_before);
    changed.push_back(id);
  }
  tell_streaming(std::move(changed));
  return begun;
}

Result<SubscriptionTotals> Stream::unsubscribe(Client& client, std::uint64_t id) {
  const auto it = registry_.subscriptions.find(id);
  if (it == registry_.subscriptions.end() || it->second.client != &client)
    return Error{Reason::no_such_subscription,
                 "this connection has no subscription " + std::to_string(id),
                 "events.subscribe answers with its number",
                 {}};
  drain_all();
  const SubscriptionTotals totals = it->second.totals;
  unlink(it->second);
  registry_.subscriptions.erase(it);
  return totals;
}

// ---- the end of probes ----------------------------------------------------------------------------------------------

void Stream::note_end(const Probe& probe) {
  if (probe.audience.empty() || !probe.committed) return;
  probe.audience.each([&](const Subscription& subscription) {
    if (ends_.empty()) post([this] { tell_ends(); });
    Ends& ends = ends_[subscription.id];
    if (probe.ended) ends.pid = probe.pid;
    if (probe.ended || !is_shown(probe)) return;
    if (ends.removed.empty()) ends.first = full_name_in_process(probe);
    ends.removed.push_back(probe.id);
  });
}

// A stream of what has ended would wait for ever without a word.
void Stream::tell_ends() {
  std::set<std::uint64_t> live;  // subscriptions that still have probes
  for (const auto& [id, probe] : registry_.probes)
    if (!probe.ended) probe.audience.each([&](const Subscription& subscription) { live.insert(subscription.id); });
  for (const auto& [id, ends] : std::exchange(ends_, {})) {
    const auto it = registry_.subscriptions.find(id);
    if (it == registry_.subscriptions.end()) continue;
    std::string why = fmt::format("process {} has ended, or runs another program", ends.pid);
    if (!ends.removed.empty()) {
      why = was_done(ends.first, ends.removed.size(), "removed");
      proto::JsonWriter w;
      w.begin_object().key("ids").begin_array();
      for (const ProbeId probe : ends.removed) w.number(std::uint64_t{number(probe)});
      w.end_array().key("message").string(why).end_object();
      it->second.client->notify("probe.removed", w.text());
    }
    if (live.contains(id) || !it->second.is_of_some()) continue;
    proto::JsonWriter w;
    w.begin_object().key("subscription").number(id).key("message").string(why).end_object();
    it->second.client->notify("events.ended", w.text());
  }
}

}  // namespace probed::control
