// Events: from the tracer's queue to the subscriptions.
//
// The tracer rings an eventfd only when we are asleep. Once awake we poll on a short timer until a turn finds nothing,
// so that a busy probe costs the tracer no system call a hit and we handle hits by the hundred.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "daemon/control/controller_parts.hpp"
#include "proto/base/check.hpp"
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

void ControllerImpl::wait_for_hits() {
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
std::size_t ControllerImpl::hits_per_turn() const {
  return std::clamp(kOffersPerTurn / (widest_audience_ + 1), kLeastPerTurn, kHitsPerTurn);
}

// Nobody rings for what detours record: while some of it is wanted we look, the less often the longer nothing comes.
void ControllerImpl::poll_hits() {
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

void ControllerImpl::offer(Probe& probe, const events::RecordHeader& header, std::span<const std::byte> packed) {
  std::string_view event;
  if (probe.audience.has_room())
    event =
        encoder_.encode(probe.schema, header, packed, probe.symbols ? name_of_address : nullptr, probe.symbols.get());
  const bool first = probe.audience.offer([&](Subscription& subscription) {
    if (!subscription.client->offer_event(subscription.id, event)) return false;
    ++subscription.totals.delivered;
    if (!std::exchange(subscription.touched, true)) touched_.push_back(&subscription);
    return true;
  });
  if (first) offered_.push_back(&probe);
}

// The end of a turn: what has been offered goes out, and so does what nobody had room for.
void ControllerImpl::flush_touched() {
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
std::size_t ControllerImpl::take_hits(std::size_t limit, std::uint64_t end) {
  return queue_.consume(
      [&](const events::RecordHeader& header, std::span<const std::byte> packed) {
        if (!feeds_.empty()) drain_feeds_before(header);
        last_hit_ = header.time;
        const auto it = probes_.find(header.probe);
        if (it == probes_.end()) return;  // its owner has gone
        if (!it->second.audience.empty()) offer(it->second, header, packed);
      },
      limit, end);
}

// A thread's events come in the order in which they happened, whichever way: what was recorded before a hit of a
// breakpoint is taken before that, and what was recorded since the hits were looked for, or since the last one that was
// taken if there are more, waits for the next turn.
std::size_t ControllerImpl::drain(std::size_t limit) {
  if (!feeds_.empty()) clock_.look();
  const std::uint64_t now = arch::native::record_clock();
  const std::size_t taken = take_hits(limit, queue_.end());
  const std::size_t recorded = feeds_.empty() ? 0 : drain_feeds(limit, taken < limit ? now : clock_.counter(last_hit_));
  flush_touched();
  return std::max(taken, recorded);
}

// Everything that is there now; a target may make more as fast as we take it out.
void ControllerImpl::drain_known() {
  if (!feeds_.empty()) clock_.look();
  const std::uint64_t now = arch::native::record_clock();
  take_hits(SIZE_MAX, queue_.end());
  drain_feeds(SIZE_MAX, now);
  flush_touched();
  report_queue_losses();
}

void ControllerImpl::drain_all() {
  drain_known();
  for (const auto& state : feeds_) give_up_unknown(*state);  // whoever asks wants all there is
  flush_touched();
}

void ControllerImpl::report_queue_losses_in_time() {
  const auto now = std::chrono::steady_clock::now();
  if (now < next_loss_report_) return;
  next_loss_report_ = now + kLossReports;
  report_queue_losses();
}

// Hits that found the queue full, told to whoever listens to their probes. Every probe is looked at: how many listen to
// one is counted as well.
void ControllerImpl::report_queue_losses() {
  widest_audience_ = 0;
  if (subscriptions_.empty()) return;
  for (auto& [id, probe] : probes_) {
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

bool ControllerImpl::matches(const Subscription& subscription, const Probe& probe, Sight& sight) const {
  const SubscribeRequest& wanted = subscription.request;
  if (wanted.pid && *wanted.pid != probe.pid) return false;
  const auto& names = subscription.wanted;
  const auto named = [&names](const Probe& p) {
    return names.contains(std::to_string(number(p.shown()))) || names.contains(p.name) || names.contains(p.full_name());
  };
  if (wanted.probes && !is_named(probe, named)) return false;
  if (probe.owner == subscription.client->id()) return true;
  const auto [known, first] = sight.try_emplace({subscription.client->id(), probe.pid}, false);
  if (first) known->second = subscription.client->may_trace(probe.pid);
  return known->second;
}

// Whoever gets a probe's events is told of its process's end, too.
void ControllerImpl::listen(Subscription& subscription, Probe& probe) {
  probe.audience.add(subscription);
  if (const auto t = targets_.find(probe.pid); t != targets_.end())
    t->second.interested.insert(subscription.client->id());
}

void ControllerImpl::link(Probe& probe, Sight& sight) {
  for (auto& [id, subscription] : subscriptions_)
    if (matches(subscription, probe, sight)) listen(subscription, probe);
  widest_audience_ = std::max(widest_audience_, probe.audience.size());
  probe.program->streaming.store(!probe.audience.empty(), std::memory_order_relaxed);
}

void ControllerImpl::unlink(const Subscription& subscription) {
  std::vector<ProbeId> changed;
  for (auto& [id, probe] : probes_) {
    if (!probe.audience.remove(subscription)) continue;
    probe.program->streaming.store(!probe.audience.empty(), std::memory_order_relaxed);
    if (probe.audience.empty()) changed.push_back(id);
  }
  tell_streaming(std::move(changed));
}

// Detours record only what somebody listens to.
void ControllerImpl::tell_streaming(std::vector<ProbeId> ids) {
  watch_feeds();
  if (!ids.empty()) tracer_->post([ids = std::move(ids)](tracer::Engine& engine) { engine.refresh_modes(ids); });
}

Result<std::uint64_t> ControllerImpl::subscribe(Client& client, SubscribeRequest request) {
  drain_all();  // what was hit before is not this subscription's
  Subscription& subscription = subscriptions_[++last_subscription_];
  subscription.id = last_subscription_;
  subscription.client = &client;
  subscription.request = std::move(request);
  if (const auto& probes = subscription.request.probes) subscription.wanted = {probes->begin(), probes->end()};
  if (subscription.request.pid)
    if (const auto t = targets_.find(*subscription.request.pid); t != targets_.end())
      t->second.interested.insert(client.id());
  std::vector<ProbeId> changed;
  Sight sight;
  for (auto& [id, probe] : probes_) {
    if (!matches(subscription, probe, sight)) continue;
    if (probe.audience.empty()) probe.reported_missed = missed_of(probe);  // nobody was there to be told
    listen(subscription, probe);
    widest_audience_ = std::max(widest_audience_, probe.audience.size());
    probe.program->streaming.store(true, std::memory_order_relaxed);
    // At once: from the answer on every hit is either delivered or missed.
    for (const Probe::Source& source : probe.sources) source.feed->feed->channel->start_recording(source.index);
    changed.push_back(id);
  }
  tell_streaming(std::move(changed));
  return subscription.id;
}

Result<SubscriptionTotals> ControllerImpl::unsubscribe(Client& client, std::uint64_t id) {
  const auto it = subscriptions_.find(id);
  if (it == subscriptions_.end() || it->second.client != &client)
    return Error{Reason::no_such_subscription,
                 "this connection has no subscription " + std::to_string(id),
                 "events.subscribe answers with its number",
                 {}};
  drain_all();
  const SubscriptionTotals totals = it->second.totals;
  unlink(it->second);
  subscriptions_.erase(it);
  return totals;
}

// ---- the end of probes ----------------------------------------------------------------------------------------------

// Before it is erased, or when its process has ended. Told a little later: what ends together is told together.
void ControllerImpl::note_end(const Probe& probe) {
  if (probe.audience.empty() || !probe.committed) return;
  probe.audience.each([&](const Subscription& subscription) {
    if (ends_.empty()) post([this] { tell_ends(); });
    Ends& ends = ends_[subscription.id];
    if (probe.ended) ends.pid = probe.pid;
    if (probe.ended || !is_shown(probe)) return;
    if (ends.removed.empty()) ends.first = probe.full_name();
    ends.removed.push_back(probe.id);
  });
}

// A stream of what has ended would wait for ever without a word.
void ControllerImpl::tell_ends() {
  std::set<std::uint64_t> live;  // subscriptions that still have probes
  for (const auto& [id, probe] : probes_)
    if (!probe.ended) probe.audience.each([&](const Subscription& subscription) { live.insert(subscription.id); });
  for (const auto& [id, ends] : std::exchange(ends_, {})) {
    const auto it = subscriptions_.find(id);
    if (it == subscriptions_.end()) continue;
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

// ---- clients --------------------------------------------------------------------------------------------------------

void ControllerImpl::client_connected(Client& client) { clients_.emplace(client.id(), &client); }

void ControllerImpl::client_gone(ClientId client) {
  clients_.erase(client);
  std::vector<std::uint64_t> dead;
  for (const auto& [id, subscription] : subscriptions_)
    if (subscription.client->id() == client) dead.push_back(id);
  for (const std::uint64_t id : dead) {
    unlink(subscriptions_.at(id));
    subscriptions_.erase(id);
  }
  std::vector<pid_t> left;
  for (auto& [pid, target] : targets_) {
    target.interested.erase(client);
    if (target.holder == client || target.holds_execs == client) forget_hold(target);
    if (target.attached_for.erase(client) > 0 && !target.stays()) left.push_back(pid);
  }
  std::vector<ProbeId> ids;
  for (const auto& [id, probe] : probes_)
    if (probe.owner == client) ids.push_back(id);
  if (!ids.empty()) remove_ids(std::move(ids), [](auto) {});
  for (const pid_t pid : left) detach_if_unused(pid, [] {});
}

}  // namespace probed::control
