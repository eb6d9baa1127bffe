// Hits and records on their way from targets to subscriptions.
//
// Asio thread.
#pragma once

#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>

#include "daemon/control/part.hpp"
#include "daemon/events/hit_queue.hpp"
#include "daemon/events/record_clock.hpp"

namespace probed::control {

class Stream : public Part {
 public:
  // queue_bytes: as for ControllerImpl.
  Stream(Parts& parts, std::size_t queue_bytes);
  // Where the tracer's hits go.
  tracer::HitSink sink() { return {queue_, queue_event_.native_handle()}; }

  // Requests: controller.hpp says what they do.
  Result<Subscribed> subscribe(Client& client, SubscribeRequest request);
  Result<SubscriptionTotals> unsubscribe(Client& client, std::uint64_t subscription);

  // Once, at the beginning: hits are taken from then on.
  void poll_hits();
  // Delivers all there is now, but for the records of threads that the tracer is still to be asked about.
  void drain_known();
  // The same with these: where nobody knows the thread by now, it is said to be the main one.
  void drain_all();

  // A new probe: whoever wants its events gets them. `sight`: shared by those that are linked together.
  void link(Probe& probe, Sight& sight);
  // The subscription, which is about to be erased, gets no more events.
  void unlink(const Subscription& subscription);
  // Before a probe is erased, or when its process has ended: whoever gets its events is told a little later, as what
  // ends together is told together.
  void note_end(const Probe& probe);

  // What the tracer reports: tracer::Listener says it.
  void on_taps_added(const events::FeedPtr& feed, const std::vector<tracer::Listener::Tap>& taps, pid_t pid,
                     std::uint64_t ticket);
  void on_taps_unused(const events::FeedPtr& feed, std::vector<std::uint32_t> indices, pid_t pid);
  void on_feed_closed(const events::FeedPtr& feed);

  // Of this place alone: breakpoints and detours.
  Counts counts_of(const Probe& probe) const;

 private:
  void wait_for_hits();
  std::size_t hits_per_turn() const;
  void offer(Probe& probe, const events::RecordHeader& header, std::span<const std::byte> packed);
  void flush_touched();
  std::size_t take_hits(std::size_t limit, std::uint64_t end);
  std::size_t drain(std::size_t limit);
  void report_queue_losses_in_time();
  void report_queue_losses();
  bool matches(const Subscription& subscription, const Probe& probe, Sight& sight) const;
  void listen(Subscription& subscription, Probe& probe);
  void tell_streaming(std::vector<ProbeId> ids);
  void tell_ends();
  FeedState* find_feed(const events::FeedPtr& feed);
  void give_up_unknown(FeedState& state);
  void close_tap(FeedState& state, std::uint32_t index);
  std::uint64_t missed_of(const Probe& probe) const;
  void watch_feeds();
  std::size_t drain_feeds(std::size_t limit, std::uint64_t until);
  void drain_feeds_before(const events::RecordHeader& header);
  std::size_t drain_feed(FeedState& state, std::size_t limit, std::uint64_t until = ~0ull);
  void take_record(FeedState& state, const events::ChannelRecord& record);
  void take_unknown(FeedState& state);
  void take_known(FeedState& state, const events::ChannelRecord& record, pid_t tid);
  std::span<const std::byte> take_arguments(const tracer::ProbeProgram& program, const events::ChannelRecord& record,
                                            events::RecordHeader& header);
  const FeedState::Thread& thread_in(FeedState& state, pid_t pid, pid_t tid);

  events::HitQueue queue_;
  boost::asio::posix::stream_descriptor queue_event_;
  boost::asio::steady_timer poll_timer_;
  std::vector<std::unique_ptr<FeedState>> feeds_;
  bool feeds_record_ = false;  // some probe's records are wanted
  bool asleep_ = false;        // nothing is polled
  unsigned idle_turns_ = 0;    // in a row, without a hit
  events::RecordClock clock_;
  std::chrono::steady_clock::time_point now_{};  // of the drain
  std::uint64_t last_hit_ = 0;                   // of a breakpoint that was taken from the queue: when, ns
  std::array<std::byte, events::kMaxArgumentBytes> packed_{};
  events::UnpackScratch scratch_{};
  // Since the last flush: who has been offered events, and whose events they were.
  std::vector<Subscription*> touched_;
  std::vector<Probe*> offered_;
  std::size_t widest_audience_ = 0;  // of a probe, about: how many listen to it
  // What subscriptions are still to be told: those of their probes that have ended.
  struct Ends {
    std::vector<ProbeId> removed;
    std::string first;  // full_name_in_process()
    pid_t pid = 0;      // the process that has ended, or runs another program; 0: none
  };
  std::map<std::uint64_t, Ends> ends_;
  std::chrono::steady_clock::time_point next_loss_report_{};
};

}  // namespace probed::control
