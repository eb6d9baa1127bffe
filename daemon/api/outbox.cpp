// See outbox.hpp.
#include "daemon/api/outbox.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace probed::api {
namespace {

constexpr std::size_t kAroundEvents = 256;  // bytes of a notification in front of its events and behind them

}  // namespace

static OutboxLimits with_share(OutboxLimits limits) {
  if (!limits.shared) limits.shared = std::make_shared<UserShare>(UserShare{.most = SIZE_MAX});
  return limits;
}

Outbox::Outbox(OutboxLimits limits) : limits_(with_share(std::move(limits))), answers_unsent_(limits_.shared) {}

Outbox::~Outbox() { give_room(room_); }

void Outbox::take_room(std::size_t bytes) {
  room_ += bytes;
  limits_.shared->used += bytes;
}

void Outbox::give_room(std::size_t bytes) {
  room_ -= bytes;
  limits_.shared->used -= bytes;
}

const Outbox::Subscription* Outbox::known(std::uint64_t id) const {
  const auto at = std::ranges::lower_bound(subscriptions_, id, {}, &Subscription::id);
  return at != subscriptions_.end() && at->id == id ? &*at : nullptr;
}

Outbox::Subscription& Outbox::subscription(std::uint64_t id) {
  const auto at = std::ranges::lower_bound(subscriptions_, id, {}, &Subscription::id);
  if (at != subscriptions_.end() && at->id == id) return *at;
  return *subscriptions_.insert(at, Subscription{id});
}

Outbox::Item& Outbox::add_batch(Subscription& s) {
  auto item = std::make_unique<Item>();
  item->subscription = s.id;
  item->batch = true;
  item->text.append(R"({"jsonrpc":"2.0","method":"events","params":{"subscription":)");
  item->text.append(std::to_string(s.id)).append(R"(,"events":[)");
  s.last = stream_.emplace_back(std::move(item)).get();
  s.open = true;
  return *s.last;
}

// With memory for another event of so many bytes: a buffer that was kept, if there is one, or one that grows.
Outbox::Item& Outbox::batch_for(Subscription& s, std::size_t cost) {
  if (s.open && s.last->count > 0 && s.last->text.size() + cost > limits_.batch_size) s.open = false;
  Item& batch = s.open ? *s.last : add_batch(s);
  const std::size_t wanted = batch.text.size() + cost;
  if (wanted <= batch.text.capacity()) return batch;
  if (batch.count == 0 && !spare_.empty()) {
    std::string kept = std::move(spare_.back());
    spare_.pop_back();
    kept.assign(batch.text);
    batch.text = std::move(kept);
    batch.room = limits_.batch_size;  // still charged for
  } else if (wanted > limits_.batch_size / 4) {
    batch.text.reserve(limits_.batch_size + kAroundEvents);
  }
  return batch;
}

void Outbox::forget_batch(const Item& item) {
  const Subscription* known = this->known(item.subscription);
  if (!known || known->last != &item) return;
  Subscription& s = subscription(known->id);
  s.last = nullptr;
  s.open = false;
}

bool Outbox::held(const Item& item) const {
  if (!item.batch) return false;
  const Subscription* s = known(item.subscription);
  return s && s->held;
}

// Whether the client may have more unsent than the steady buffer.
bool Outbox::in_burst(std::size_t cost) {
  if (event_bytes_ + cost <= limits_.own_share) behind_ = false;
  if (event_bytes_ + cost <= limits_.steady_buffer) return behind_since_.reset(), true;
  if (behind_) return false;
  const auto now = std::chrono::steady_clock::now();
  if (!behind_since_) behind_since_ = now;
  behind_ = now - *behind_since_ > limits_.burst;
  return !behind_;
}

bool Outbox::has_room(std::size_t cost) {
  if (event_bytes_ + cost > limits_.event_buffer || !in_burst(cost)) return false;
  const UserShare& shared = *limits_.shared;
  return cost <= shared.most - std::min(shared.used, shared.most) || event_bytes_ + cost <= limits_.own_share;
}

bool Outbox::offer(std::uint64_t id, std::string_view event) {
  const std::size_t cost = event.size() + 1;
  if (!has_room(cost)) return false;
  Item& batch = batch_for(subscription(id), cost);
  if (batch.count++ > 0) batch.text += ',';
  batch.text += event;
  batch.charged += cost;
  event_bytes_ += cost;
  if (batch.charged > batch.room) take_room(batch.charged - std::exchange(batch.room, batch.charged));
  return true;
}

void Outbox::missed(std::uint64_t id, std::uint64_t count) {
  if (count == 0) return;
  Subscription& s = subscription(id);
  (s.last ? *s.last : add_batch(s)).missed += count;
}

void Outbox::answer(std::string message) {
  answers_unsent_.take(message.size());
  Outgoing out;
  out.answers = message.size();
  out.body = std::move(message);
  answers_.push_back(std::move(out));
}

void Outbox::notification(std::string message) {
  // What is offered from now on comes after it.
  for (Subscription& s : subscriptions_) s.open = false;
  auto item = std::make_unique<Item>();
  item->charged = message.size();
  item->text = std::move(message);
  notification_bytes_ += item->charged;
  stream_.push_back(std::move(item));
}

void Outbox::release() {
  for (Subscription& s : subscriptions_) s.held = false;
}

Outgoing Outbox::finish(Item& item) {
  Outgoing out;
  out.body = std::move(item.text);
  if (item.batch) {
    out.events = item.charged;
    out.room = item.room;
    out.body.append(R"(],"missed":)").append(std::to_string(item.missed)).append("}}");
    forget_batch(item);
  } else {
    out.notifications = item.charged;
  }
  return out;
}

void Outbox::seal(std::uint64_t id) {
  std::deque<ItemPtr> others;
  for (ItemPtr& item : stream_) {
    if (!item->batch || item->subscription != id) {
      others.push_back(std::move(item));
      continue;
    }
    Outgoing out = finish(*item);
    out.sealed = out.body.size();
    sealed_bytes_ += out.sealed;
    answers_.push_back(std::move(out));
  }
  stream_ = std::move(others);
  std::erase_if(subscriptions_, [&](const Subscription& s) { return s.id == id; });
}

bool Outbox::next(proto::Framing framing, Outgoing& out) {
  if (!answers_.empty()) {
    out = std::move(answers_.front());
    answers_.pop_front();
  } else {
    const auto ready = std::ranges::find_if(stream_, [this](const ItemPtr& item) { return !held(*item); });
    if (ready == stream_.end()) return false;
    out = finish(**ready);
    stream_.erase(ready);
  }
  out.header = proto::frame_header(framing, out.body.size());
  out.body += proto::frame_trailer(framing);
  return true;
}

// Fresh memory would cost a page fault for every few events, of which there are most when the client is behind. No more
// than a steady stream needs, nor than half of the room that it shares.
bool Outbox::keeps_spare() const {
  const std::size_t most = std::min(limits_.event_buffer, limits_.steady_buffer) / limits_.batch_size + 1;
  return spare_.size() < most && limits_.shared->used + limits_.batch_size <= limits_.shared->most / 2;
}

void Outbox::done(Outgoing&& sent) {
  answers_unsent_.give(sent.answers);
  sealed_bytes_ -= sent.sealed;
  event_bytes_ -= sent.events;
  notification_bytes_ -= sent.notifications;
  give_room(sent.room);
  const std::size_t size = sent.body.capacity();
  if (sent.events == 0 || size < limits_.batch_size || size > 2 * limits_.batch_size || !keeps_spare()) return;
  spare_.push_back(std::move(sent.body));
  take_room(limits_.batch_size);
}

}  // namespace probed::api
