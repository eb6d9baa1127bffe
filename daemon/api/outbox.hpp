// What waits to be written to one client: answers in one queue, events and other notifications in another.
//
//   answers        unbounded here; the session stops reading requests while too many bytes of them are unsent, and
//                  refuses what its user's connections have no room for (may_answer)
//   events         bounded; what does not fit is refused and the caller counts it
//   notifications  in order with the events, never refused; overflowed() tells the session to give the client up
//
// Answers overtake events, so a stream never blocks control calls; a batch of events that is already on its way is
// finished first. Events of one subscription are gathered into `events` notifications of up to batch_size bytes, one
// of which is open at a time; the missed ones reported meanwhile go into the last one that is unsent, or into a new
// empty one: there is never more than one of these for each subscription.
//
// Thread: the Asio thread; no I/O here. Invariant: events accepted by offer() are in exactly one batch, and leave in
// the order of their acceptance within their subscription.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "proto/framing.hpp"

namespace probed::api {

// What all connections of one user hold, and may hold.
struct UserShare {
  std::size_t most = 0;                 // bytes of events, besides each outbox' own share
  std::size_t used = 0;                 // events unsent, and buffers that are kept for the next ones
  std::size_t most_answers = SIZE_MAX;  // bytes
  std::size_t answers = 0;              // put together or unsent
  std::size_t subscriptions = 0;
};

// Bytes of answers that are charged to a share as long as this lives.
class AnswerCharge {
 public:
  explicit AnswerCharge(std::shared_ptr<UserShare> share) : share_(std::move(share)) {}
  ~AnswerCharge() { give(bytes_); }
  AnswerCharge(const AnswerCharge&) = delete;
  AnswerCharge& operator=(const AnswerCharge&) = delete;
  void take(std::size_t bytes) {
    bytes_ += bytes;
    share_->answers += bytes;
  }
  void give(std::size_t bytes) {
    bytes_ -= bytes;
    share_->answers -= bytes;
  }
  std::size_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<UserShare> share_;
  std::size_t bytes_ = 0;
};

struct OutboxLimits {
  std::size_t event_buffer = 64 << 20;   // bytes of events unsent: a burst of 100,000 is some 25 MiB
  std::size_t batch_size = 64 << 10;     // bytes of one `events` notification, about
  std::size_t notifications = 16 << 20;  // bytes of other notifications unsent
  std::shared_ptr<UserShare> shared{};   // of all outboxes of a user; null: there are no such limits
  std::size_t own_share = 256 << 10;     // bytes of events unsent that others of the user never take from this one
  // `event_buffer` of a client that is behind for longer than a burst: what waits is late when it comes, and its last
  // answer comes behind all of it. 20 ms of two million events a second.
  std::size_t steady_buffer = 8 << 20;
  std::chrono::milliseconds burst{1000};
};

// One message on its way out.
struct Outgoing {
  std::string header;  // of the framing
  std::string body;
  // Bytes charged to each account while unsent; sealed: events that go before an answer.
  std::size_t events = 0, answers = 0, sealed = 0, notifications = 0;
  std::size_t room = 0;  // and to the shared room, for events and their buffer
  std::size_t size() const { return header.size() + body.size(); }
};

class Outbox {
 public:
  explicit Outbox(OutboxLimits limits = {});
  ~Outbox();
  Outbox(const Outbox&) = delete;
  Outbox& operator=(const Outbox&) = delete;

  void answer(std::string message);
  // Whether the user's connections may have so many bytes of answers more.
  bool may_answer(std::size_t bytes) const {
    const UserShare& share = *limits_.shared;
    return bytes <= share.most_answers - std::min(share.answers, share.most_answers);
  }
  const std::shared_ptr<UserShare>& share() const { return limits_.shared; }
  void notification(std::string message);
  // False: no room for the event; nothing is kept of it. Allocates only when a batch grows.
  bool offer(std::uint64_t subscription, std::string_view event_json);
  void missed(std::uint64_t subscription, std::uint64_t count);

  // A subscription nobody knows yet is held: nothing of it is sent, for its events must not come before the answer that
  // tells its id. expect() makes it known here, release() lets all those go whose answers are queued now.
  void expect(std::uint64_t subscription) { this->subscription(subscription); }
  void release();
  // Puts what is gathered for the subscription, which ends here, in front of the answers still to come.
  void seal(std::uint64_t subscription);

  // The next message to write; false: none is ready.
  bool next(proto::Framing framing, Outgoing& out);
  // It has been written, or never will be.
  void done(Outgoing&& sent);

  std::size_t unsent_answers() const { return answers_unsent_.bytes() + sealed_bytes_; }
  std::size_t unsent_events() const { return event_bytes_; }
  std::size_t sealed_events() const { return sealed_bytes_; }  // among unsent_answers()
  bool overflowed() const { return notification_bytes_ > limits_.notifications; }
  bool empty() const { return answers_.empty() && stream_.empty(); }

 private:
  struct Item {
    std::uint64_t subscription = 0;  // meaningless when it is no batch
    bool batch = false;
    std::string text;
    std::size_t charged = 0;  // to events (batch) or notifications
    std::size_t room = 0;     // a batch's, of the shared room: its events, or all of a buffer that was kept
    std::uint64_t count = 0, missed = 0;
  };
  struct Subscription {
    std::uint64_t id = 0;
    Item* last = nullptr;  // its last batch that is unsent; owned by stream_
    bool open = false;     // which takes more events
    bool held = true;
  };
  using ItemPtr = std::unique_ptr<Item>;

  const Subscription* known(std::uint64_t id) const;
  Subscription& subscription(std::uint64_t id);
  Item& add_batch(Subscription& subscription);
  Item& batch_for(Subscription& subscription, std::size_t cost);
  void forget_batch(const Item& item);
  Outgoing finish(Item& item);
  bool held(const Item& item) const;
  bool has_room(std::size_t cost);
  bool in_burst(std::size_t cost);
  void take_room(std::size_t bytes);
  void give_room(std::size_t bytes);
  bool keeps_spare() const;

  OutboxLimits limits_;
  std::deque<Outgoing> answers_;
  std::deque<ItemPtr> stream_;
  std::vector<Subscription> subscriptions_;  // by id; those seen since their start
  std::vector<std::string> spare_;           // buffers of sent batches, to be used again
  AnswerCharge answers_unsent_;
  std::size_t event_bytes_ = 0, sealed_bytes_ = 0, notification_bytes_ = 0;
  // Since when more than the steady buffer is unsent; and whether that has been so for too long, and the client hasn't
  // caught up since.
  std::optional<std::chrono::steady_clock::time_point> behind_since_;
  bool behind_ = false;
  std::size_t room_ = 0;  // of what is used of the shared room
};

}  // namespace probed::api
