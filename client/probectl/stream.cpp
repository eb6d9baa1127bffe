// See stream.hpp.
#include "client/probectl/stream.hpp"

#include <fmt/format.h>
#include <sys/epoll.h>

#include <algorithm>

#include "client/probectl/report.hpp"
#include "client/views.hpp"
#include "proto/base/check.hpp"

namespace probed::client {
namespace {

constexpr auto kSoon = std::chrono::seconds(2);
constexpr auto kTryAgain = std::chrono::milliseconds(20);
constexpr auto kAnswerLimit =
    std::chrono::seconds(20);                        // of a daemon that has just been started, for all calls together
constexpr auto kPatience = std::chrono::seconds(2);  // with a reader that does not read, after ^C
constexpr EventSorter::Bounds kBounds;

void add_to(int epoll, int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  PROBED_CHECK(::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0, "a descriptor of ours can be watched");
}

}  // namespace

Stream::Stream(Connection& connection, Output& output, Signals& signals, const Options& options)
    : connection_(connection),
      output_(output),
      signals_(signals),
      options_(options),
      text_(options.times),
      wake_(::epoll_create1(EPOLL_CLOEXEC)) {
  PROBED_CHECK(wake_, "an epoll instance can be made");
  add_to(wake_.get(), signals_.fd());
  if (options_.sort.value_or(output_.is_terminal())) sorter_.emplace(kBounds);
  connection_.on_notification([this](const Notification& notification) { handle(notification); });
}

void Stream::end(End why) {
  if (end_ == End::none) end_ = why;
}

void Stream::end_soon(End why) {
  if (soon_ != End::none) return;
  soon_ = why;
  soon_end_ = Clock::now() + kSoon;
}

void Stream::watch(int fd, std::function<void()> on_exit) {
  if (fd < 0) return;
  add_to(wake_.get(), fd);
  watched_fd_ = fd;
  on_watched_ = std::move(on_exit);
}

void Stream::handle(const Notification& notification) {
  if (notification.method == "events") return take_events(notification.params);
  if (notification.method == "daemon.stopping") stopped_ = true;
  if (!other_) return;
  // What is said of it comes after the events that came before it.
  output_.flush({next_deadline(), wake_.get(), {}});
  other_(notification);
}

void Stream::take_events(JsonView params) {
  EventBatch batch;
  const bool whole = scan_events(
      params, [this](std::string_view event) { take_event(event); }, batch);
  if (!whole) {
    failure_ = Error{Reason::bad_message,
                     "the daemon sent a malformed batch of events",
                     "probectl and probed may be of different versions; see --version of both",
                     {}};
    end(End::daemon_gone);
  }
  missed_ += batch.missed;
  release_due();
}

void Stream::take_event(std::string_view event) {
  ++received_;
  if (options_.count && printed_ == *options_.count) return;
  ++printed_;
  if (sorter_) {
    sorter_->add(JsonView(event)["time"].u64_or(0), std::string(event), Clock::now());
  } else {
    append(output_.buffer(), event);
  }
  if (options_.count && printed_ == *options_.count) end(End::count);
}

void Stream::append(std::string& out, std::string_view event) {
  if (options_.json())
    out.append(event).push_back('\n');
  else
    text_.append(out, event);
}

EventSorter::Take Stream::taker() {
  return [this](EventSorter::Held held) {
    if (!held.is_note) return append(output_.buffer(), held.text);
    output_.flush({next_deadline(), wake_.get(), {}});
    note(held.text);
  };
}

void Stream::release_due() {
  if (sorter_) sorter_->release(Clock::now(), taker());
}

void Stream::release_all() {
  if (sorter_) sorter_->release_all(taker());
}

void Stream::say(std::string text) {
  if (sorter_ && !sorter_->empty()) return sorter_->add_note(std::move(text), Clock::now());
  output_.flush({next_deadline(), wake_.get(), {}});
  note(text);
}

std::optional<Clock::time_point> Stream::next_deadline() const {
  if (!duration_end_) return soon_end_;
  return soon_end_ ? std::min(*duration_end_, *soon_end_) : duration_end_;
}

// SIGHUP asks for a new file where there is one, unless it is the terminal's own end.
void Stream::take_signals() {
  bool hangup = false;
  if (signals_.take(output_.is_file() ? &hangup : nullptr)) end(End::signal);
  if (!hangup) return;
  if (output_.lost_its_terminal()) return end(End::signal);
  if (auto reopened = output_.reopen({next_deadline(), -1, {}}); !reopened)
    note(reopened.error().message + "; going on in the file as it is");
}

void Stream::handle_interrupt() {
  epoll_event events[2];
  const int count = ::epoll_wait(wake_.get(), events, 2, 0);
  for (int i = 0; i < count; ++i) {
    if (events[i].data.fd == watched_fd_) {
      ::epoll_ctl(wake_.get(), EPOLL_CTL_DEL, watched_fd_, nullptr);
      on_watched_();
    } else {
      take_signals();
    }
  }
}

void Stream::run_tasks() {
  while (!tasks_.empty()) {
    const auto task = std::move(tasks_.front());
    tasks_.pop_front();
    task();
  }
}

// One buffer full of messages, or a wait until there is something to do.
void Stream::wait_once() {
  const WaitLimit limit{next_deadline(), wake_.get(), {}};
  auto woken = connection_.wait({Clock::now(), wake_.get(), {}});
  if (woken && *woken == Wake::message) {
    output_.maybe_flush(limit);
  } else if (woken && *woken == Wake::timeout) {  // the input ran dry
    output_.flush(limit);
    WaitLimit until = limit;
    if (const auto due = sorter_ ? sorter_->due() : std::nullopt; due)
      until.deadline = std::min(*due, until.deadline.value_or(*due));
    if (end_ == End::none && output_.state() == Output::State::open) woken = connection_.wait(until);
  }
  if (output_.state() != Output::State::open) end(End::output);
  if (!woken) {
    failure_ = std::move(woken).error();
    if (stopped_) failure_ = Error{Reason::internal, "the daemon has been stopped", "", {}};
    end(End::daemon_gone);
  } else if (*woken == Wake::interrupt) {
    handle_interrupt();
  }
}

bool Stream::reconnect(const std::string& socket, Clock::duration patience) {
  const auto deadline = Clock::now() + patience;
  output_.flush({next_deadline(), wake_.get(), {}});
  end_ = End::none;
  while (end_ == End::none) {
    // One that is dying still takes connections for a moment, and answers nothing.
    if (auto connection = Connection::connect(socket);
        connection && connection->call("daemon.status", "{}",
                                       {std::min(deadline, next_deadline().value_or(deadline)), wake_.get(), {}})) {
      connection_ = std::move(connection).value();
      connection_.on_notification([this](const Notification& notification) { handle(notification); });
      failure_.reset();
      stopped_ = false;
      calls_end_ = Clock::now() + kAnswerLimit;
      return true;
    }
    const auto now = Clock::now();
    if (now >= deadline) {
      fail({Reason::internal,
            fmt::format("the daemon at {} {}, and none came within {} s", socket, how_daemon_went(),
                        patience / std::chrono::seconds(1)),
            "start one and try again; --reconnect SEC waits longer",
            {}});
      return false;
    }
    const auto again = std::min(now + kTryAgain, deadline);
    const auto woken = poll_fd(-1, 0, {std::min(again, next_deadline().value_or(again)), wake_.get(), {}});
    if (!woken) return end(End::daemon_gone), false;
    look_for_end();
  }
  failure_.reset();  // it is not why this stream ends
  return false;
}

std::string Stream::how_daemon_went() const {
  return stopped_ ? "has been stopped" : "has gone, and with it what was hit and not sent yet";
}

void Stream::fail(Error error) {
  failure_ = std::move(error);
  end_ = End::daemon_gone;
}

// What ends a stream though no message comes.
void Stream::look_for_end() {
  handle_interrupt();
  const auto now = Clock::now();
  if (duration_end_ && now >= *duration_end_) end(End::duration);
  if (soon_end_ && now >= *soon_end_) end(soon_);
}

End Stream::run() {
  calls_end_.reset();
  if (options_.seconds && !duration_end_) {
    constexpr double kForever = 1e9;  // seconds; the clock's own range ends at nine times that
    const std::chrono::duration<double> length(std::min(*options_.seconds, kForever));
    duration_end_ = Clock::now() + std::chrono::ceil<Clock::duration>(length);
  }
  while (end_ == End::none) {
    run_tasks();
    wait_once();
    release_due();
    look_for_end();  // messages may keep coming without a pause
  }
  if (end_ == End::daemon_gone) release_all();  // it sends no more, and what is said of it comes behind
  return end_;
}

void Stream::finish() {
  WaitLimit limit{{}, signals_.fd(), {}};
  if (end_ == End::signal) limit = {Clock::now() + kPatience, -1, {}};
  release_all();
  output_.flush(limit);
  if (output_.state() == Output::State::open && output_.buffered() > 0)
    note(fmt::format("{} bytes of events were not written: the reader does not read", output_.buffered()));
  if (sorter_ && sorter_->late() > 0)
    note(fmt::format("{} came more than {} ms late, or behind {} others, and {} out of order",
                     count_of(sorter_->late(), "event"), kBounds.window / std::chrono::milliseconds(1), kBounds.events,
                     sorter_->late() == 1 ? "is" : "are"));
}

}  // namespace probed::client
