// The receiving end of one subscription: events into the output, losses into a sum, and the loop that waits for an end.
// Shared by `trace` and `stream`. Main thread.
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "client/connection.hpp"
#include "client/event_text.hpp"
#include "client/probectl/event_sorter.hpp"
#include "client/probectl/options.hpp"
#include "client/probectl/output.hpp"
#include "client/probectl/signals.hpp"

namespace probed::client {

enum class End { none, signal, duration, count, target_gone, daemon_gone, output };

class Stream {
 public:
  Stream(Connection& connection, Output& output, Signals& signals, const Options& options);
  ~Stream() { connection_.on_notification({}); }  // the handler knows this object
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // Says something of the trace (report.hpp's note()), behind the events that have come before.
  void say(std::string text);

  // Notifications other than events go here, from within calls and run().
  void on_other(Connection::Handler handler) { other_ = std::move(handler); }
  // The probe's events are printed by the types it has.
  void learn(JsonView probe_views) {
    text_.learn(probe_views);
    probe_views.each_element([this](JsonView probe) {
      has_returns_ |= probe["kind"].raw_string() == "r";
      return true;
    });
  }
  void learn_added(JsonView params) { text_.learn_added(params); }  // probe.added's

  // Streams until something ends it: a signal, --duration (counted from the first call), --count, the output, the
  // daemon, end().
  End run();
  // run() calls it before it waits again: what a handler wants done that takes calls of its own.
  void later(std::function<void()> task) { tasks_.push_back(std::move(task)); }
  // Ends run(), from within a handler; the first reason stands.
  void end(End why);
  // Ends run() with `why` soon, unless it ends sooner for a better reason that may still be on its way.
  void end_soon(End why);
  // It doesn't after all.
  void go_on() { soon_ = End::none, soon_end_.reset(); }
  // Also wakes run() when this descriptor (a pidfd) becomes readable: `on_exit` is called once.
  void watch(int fd, std::function<void()> on_exit);

  // After run() has ended because the connection was lost: another one to the same socket, as soon as a daemon listens
  // there, within `patience`. False: none did, and run()'s failure stands; or what else ends a stream has come.
  // True: run() can be called again, once whatever is to be streamed has been asked for anew.
  bool reconnect(const std::string& socket, Clock::duration patience);
  // What ends run() for good, after reconnect().
  void fail(Error error);

  // Writes what is still held or buffered. After a signal a reader that does not read is not waited for long; says so
  // if bytes are left over, and if events came too late to be put in order.
  void finish();

  bool was_signalled() const { return end_ == End::signal; }
  // Events that came over the connection; printed() of them were asked for.
  std::uint64_t received() const { return received_; }
  std::uint64_t printed() const { return printed_; }
  std::uint64_t missed() const { return missed_; }
  // Of those that were hit while nothing was received.
  void add_missed(std::uint64_t count) {
    missed_ += count;
    missed_apart_ += count;
  }
  // Return probes have been among those learnt.
  bool has_returns() const { return has_returns_; }
  // The others, which came too fast.
  std::uint64_t missed_in_stream() const { return missed_ - missed_apart_; }
  // The daemon that has gone was stopped: it had sent or counted every event before. One that is killed doesn't.
  bool daemon_stopped() const { return stopped_; }
  // "the daemon has been stopped", or what else its end was, and what became of its events.
  std::string how_daemon_went() const;
  // Why run() failed: the connection's error for daemon_gone.
  const std::optional<Error>& failure() const { return failure_; }
  // A limit for calls made before run(): a signal ends them, and after reconnect() a daemon that doesn't answer.
  WaitLimit interruptible() const {
    return {.deadline = calls_end_, .interrupt_fd = signals_.fd(), .ignore_interrupt = {}};
  }

 private:
  void handle(const Notification& notification);
  void take_events(JsonView params);
  void take_event(std::string_view event);
  void append(std::string& out, std::string_view event);
  EventSorter::Take taker();
  void release_due();
  void release_all();
  void run_tasks();
  void wait_once();
  void handle_interrupt();
  void take_signals();
  void look_for_end();
  std::optional<Clock::time_point> next_deadline() const;

  Connection& connection_;
  Output& output_;
  Signals& signals_;
  const Options& options_;
  EventText text_;
  std::optional<EventSorter> sorter_;  // none: events are printed as they come
  Connection::Handler other_;
  UniqueFd wake_;  // an epoll set over the signals and what is watched: one descriptor to wait for
  int watched_fd_ = -1;
  std::function<void()> on_watched_;
  std::deque<std::function<void()>> tasks_;
  bool stopped_ = false;  // daemon.stopping has come
  bool has_returns_ = false;
  std::uint64_t received_ = 0, missed_ = 0, missed_apart_ = 0, printed_ = 0;
  End end_ = End::none;
  End soon_ = End::none;
  std::optional<Clock::time_point> duration_end_, soon_end_, calls_end_;
  std::optional<Error> failure_;
};

}  // namespace probed::client
