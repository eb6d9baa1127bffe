// See outbox.hpp.
#include "daemon/api/outbox.hpp"

#include <algorithm>
#include <utility>

namespace probed::api {
namespace {

constexpr std::size_t kAroundEvents = 256;  // bytes of a notification in front of its events and behind them

}  // namespace

Outbox::Subscription& Outbox::subscription(std::uint64_t id) {
  const auto found = std::ranges::find(subscriptions_, id, &Subscription::id);
  if (found != subscriptions_.end()) return *found;
  return subscriptions_.emplace_back(Subscription{id});
}

std::string Outbox::fresh_buffer() {
  std::string buffer;
  if (!spare_.empty()) {
    buffer = std::move(spare_.back());
    spare_.pop_back();
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
  for (Subscription& s : subscriptions_)
    if (s.open == &item) s.open = nullptr;
}

bool Outbox::held(const Item& item) const {
  if (!item.batch) return false;
  const auto s = std::ranges::find(subscriptions_, item.subscription, &Subscription::id);
  return s != subscriptions_.end() && s->held;
}

bool Outbox::offer(std::uint64_t id, std::string_view event) {
  const std::size_t cost = event.size() + 1;
  if (event_bytes_ + cost > limits_.event_buffer) return false;
  Subscription& s = subscription(id);
  if (s.open && s.open->count > 0 && s.open->text.size() + cost > limits_.batch_size) s.open = nullptr;
  Item& batch = s.open ? *s.open : open_batch(s);
  if (batch.count++ > 0) batch.text += ',';
  batch.text += event;
  batch.charged += cost;
  event_bytes_ += cost;
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

void Outbox::done(Outgoing&& sent) {
  answer_bytes_ -= sent.answers;
  event_bytes_ -= sent.events;
  notification_bytes_ -= sent.notifications;
  // All that the buffer can be made of: fresh memory would cost a page fault for every few events, of which there are
  // most when the client is behind.
  const std::size_t most = limits_.event_buffer / limits_.batch_size + 1;
  const bool reusable = sent.events > 0 && sent.body.capacity() <= 2 * limits_.batch_size;
  if (reusable && spare_.size() < most) spare_.push_back(std::move(sent.body));
}

}  // namespace probed::api
