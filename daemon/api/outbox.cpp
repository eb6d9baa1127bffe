// See outbox.hpp.
#include "daemon/api/outbox.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace probed::api {
namespace {

constexpr std::size_t kAroundEvents = 256;  // bytes of a notification in front of its events and behind them

}  // namespace

Outbox::Outbox(OutboxLimits limits) : limits_(std::move(limits)) {
  if (!limits_.shared) limits_.shared = std::make_shared<EventRoom>(EventRoom{SIZE_MAX, 0});
}

Outbox::~Outbox() { limits_.shared->used -= event_bytes_ + spare_.size() * limits_.batch_size; }

const Outbox::Subscription* Outbox::known(std::uint64_t id) const {
  const auto at = std::ranges::lower_bound(subscriptions_, id, {}, &Subscription::id);
  return at != subscriptions_.end() && at->id == id ? &*at : nullptr;
}

Outbox::Subscription& Outbox::subscription(std::uint64_t id) {
  const auto at = std::ranges::lower_bound(subscriptions_, id, {}, &Subscription::id);
  if (at != subscriptions_.end() && at->id == id) return *at;
  return *subscriptions_.insert(at, Subscription{id});
}

std::string Outbox::fresh_buffer() {
  std::string buffer;
  if (!spare_.empty()) {
    buffer = std::move(spare_.back());
    spare_.pop_back();
    limits_.shared->used -= limits_.batch_size;
    buffer.clear();
  }
  buffer.reserve(limits_.batch_size + kAroundEvents);
  return buffer;
}

Outbox::Item& Outbox::open_batch(Subscription& s) {
  auto item = std::make_unique<Item>();
  item->subscription = s.id;
  item->batch = true;
  item->text = fresh_buffer();
  item->text.append(R"({"jsonrpc":"2.0","method":"events","params":{"subscription":)");
  item->text.append(std::to_string(s.id)).append(R"(,"events":[)");
  s.open = stream_.emplace_back(std::move(item)).get();
  return *s.open;
}

void Outbox::close_batch(const Item& item) {
  if (const Subscription* s = known(item.subscription); s && s->open == &item) subscription(s->id).open = nullptr;
}

bool Outbox::held(const Item& item) const {
  if (!item.batch) return false;
  const Subscription* s = known(item.subscription);
  return s && s->held;
}

bool Outbox::offer(std::uint64_t id, std::string_view event) {
  const std::size_t cost = event.size() + 1;
  EventRoom& shared = *limits_.shared;
  if (event_bytes_ + cost > limits_.event_buffer || cost > shared.most - std::min(shared.used, shared.most))
    return false;
  Subscription& s = subscription(id);
  if (s.open && s.open->count > 0 && s.open->text.size() + cost > limits_.batch_size) s.open = nullptr;
  Item& batch = s.open ? *s.open : open_batch(s);
  if (batch.count++ > 0) batch.text += ',';
  batch.text += event;
  batch.charged += cost;
  event_bytes_ += cost;
  shared.used += cost;
  return true;
}

void Outbox::missed(std::uint64_t id, std::uint64_t count) {
  if (count == 0) return;
  Subscription& s = subscription(id);
  (s.open ? *s.open : open_batch(s)).missed += count;
}

void Outbox::answer(std::string message) {
  answer_bytes_ += message.size();
  Outgoing out;
  out.answers = message.size();
  out.body = std::move(message);
  answers_.push_back(std::move(out));
}

void Outbox::notification(std::string message) {
  // What is offered from now on comes after it.
  for (Subscription& s : subscriptions_) s.open = nullptr;
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
    out.body.append(R"(],"missed":)").append(std::to_string(item.missed)).append("}}");
    close_batch(item);
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
    out.answers = out.body.size();
    answer_bytes_ += out.answers;
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

// All that the buffer can be made of: fresh memory would cost a page fault for every few events, of which there are
// most when the client is behind. Not while others of its user need the room.
bool Outbox::keeps_spare() const {
  const std::size_t most = limits_.event_buffer / limits_.batch_size + 1;
  return spare_.size() < most && limits_.shared->used < limits_.shared->most / 2;
}

void Outbox::done(Outgoing&& sent) {
  answer_bytes_ -= sent.answers;
  event_bytes_ -= sent.events;
  limits_.shared->used -= sent.events;
  notification_bytes_ -= sent.notifications;
  if (sent.events == 0 || sent.body.capacity() > 2 * limits_.batch_size || !keeps_spare()) return;
  spare_.push_back(std::move(sent.body));
  limits_.shared->used += limits_.batch_size;
}

}  // namespace probed::api
