// See session.hpp.
#include "daemon/api/session.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <variant>

#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>

#include "proto/base/fd.hpp"

namespace probed::api {
namespace {

namespace asio = boost::asio;

constexpr int kMessagesPerTurn = 64;  // then other connections have theirs
constexpr std::chrono::milliseconds kTimePerTurn{5};
constexpr std::size_t kBytesPerWrite = 1 << 20;  // gathered into one system call
constexpr std::size_t kMessagesPerWrite = 16;    // Asio passes at most 64 buffers on, two for each
// Bytes that the kernel keeps for a client that is sent events (unix(7); twice that in its own counting), so that it
// can read as many when it gets a processor.
constexpr int kSendBuffer = 1 << 20;

}  // namespace

Session::Session(SessionOwner& owner, Socket socket, Peer peer, ClientId id, const SessionLimits& limits)
    : owner_(owner),
      socket_(std::move(socket)),
      timer_(socket_.get_executor()),
      peer_(std::move(peer)),
      id_(id),
      limits_(limits),
      reader_(limits.max_message),
      outbox_(limits.outbox) {
  boost::system::error_code failed;
  socket_.non_blocking(true, failed);  // of what is done here and not by Asio: write_some()
}

void Session::start() {
  known_ = true;
  owner_.services().controller.client_connected(*this);
  watch_hangup();
  read_more();
}

void Session::leave_controller() {
  if (!std::exchange(known_, false)) return;
  ++ticket_;
  outbox_.share()->subscriptions -= subscriptions_.size();
  subscriptions_.clear();
  owner_.services().controller.client_gone(id_);
}

void Session::close() {
  if (closed_) return;
  closed_ = true;
  const auto self = shared_from_this();  // the owner may hold the last other reference
  leave_controller();
  boost::system::error_code ignored;
  socket_.close(ignored);
  timer_.cancel(ignored);
  owner_.session_closed(id_);
}

// ---- messages ----

bool Session::can_run() const {
  return known_ && !ending_ && !stopped_ && !run_ && outbox_.unsent_answers() <= limits_.answer_limit;
}

// Runs what has been read, as far as it may, and sees to it that it goes on when there is more to do.
void Session::pump() {
  if (closed_ || ending_) return;
  int budget = kMessagesPerTurn;
  const auto until = std::chrono::steady_clock::now() + kTimePerTurn;
  bool more = true;
  while (more && can_run() && budget-- > 0) {
    more = run_next_frame();
    if (std::chrono::steady_clock::now() > until) budget = 0;
  }
  write_more();
  if (ending_) return;
  if (!can_run()) return hung_up_ ? close() : void();
  if (more) return resume_later();
  if (eof_) return end_of_input();
  read_more();
}

// Always from the event loop, never out of a call of the controller's: it need not expect new requests, or the end of
// this client, in the middle of completing something.
void Session::resume_later() {
  if (std::exchange(resume_posted_, true)) return;
  asio::post(socket_.get_executor(), [self = shared_from_this()] {
    self->resume_posted_ = false;
    if (self->closed_) return;
    self->advance();
    self->pump();
  });
}

// False: no whole message is there.
bool Session::run_next_frame() {
  auto frame = reader_.next();
  if (!frame) {
    fail(frame.error());
    return false;
  }
  const bool is_rest = !*frame && eof_;
  const auto text = is_rest ? reader_.rest() : *frame;
  if (text) begin(*text, is_rest);
  return text.has_value() && !ending_;
}

// Whoever has never sent a request speaks something else: the first fault ends that.
void Session::begin(std::string_view text, bool is_rest) {
  proto::Message message = proto::parse_message(text);
  const auto is_request = [](const auto& item) { return std::holds_alternative<proto::Request>(item); };
  const bool has_requests = std::ranges::any_of(message.items, is_request);
  spoke_ = spoke_ || has_requests;
  // A last line without its end that is no message: the client has closed its side in the middle of one.
  if (!spoke_ || (is_rest && !has_requests)) {
    const auto& refused = std::get<proto::Refused>(message.items.front());
    return fail(refused.error, refused.id);
  }
  run_ = Run();
  run_->charge = std::make_unique<AnswerCharge>(outbox_.share());
  run_->message = std::move(message);
  advance();
}

void Session::advance() {
  advancing_ = true;  // completions that come during a call need not wake us
  while (run_ && !run_->waiting && run_->next < run_->message.items.size()) run_item();
  advancing_ = false;
  if (run_ && !run_->waiting) finish_run();
}

static Error no_room() {
  return {Reason::limit_exceeded, "your connections leave too much of what was answered before unread",
          "read the answers, or close connections that nobody reads from"};
}

void Session::run_item() {
  auto& item = run_->message.items[run_->next++];
  if (const auto* refused = std::get_if<proto::Refused>(&item))
    return append_answer(proto::make_error(refused->id, refused->error));
  const auto& request = std::get<proto::Request>(item);
  run_->waiting = true;
  const std::uint64_t ticket = ++ticket_;
  if (run_->answers.size() > limits_.batch_answer)
    return complete(ticket, request.id, request.notify,
                    Error{Reason::limit_exceeded,
                          "the answers to this batch have grown too long; this part was not run", "split the batch"});
  // Before anything is done. Most answers are shorter.
  constexpr std::size_t kUsualAnswer = 64 << 10;
  if (!request.notify && !outbox_.may_answer(kUsualAnswer)) return complete(ticket, request.id, false, no_room());
  auto done = [weak = weak_from_this(), ticket, id = request.id, notify = request.notify,
               told = changes_something(request.method)](Result<std::string> result) {
    const auto self = weak.lock();
    if (!self) return;
    if (!notify && !told && result && !self->outbox_.may_answer(result->size())) result = no_room();
    self->complete(ticket, id, notify, std::move(result));
  };
  // The library throws when a value isn't of the type asked for. Validation has made sure of that, so it would be our
  // bug, but not one to end everybody's probes for.
  try {
    dispatch(owner_.services(), shared_from_this(), request, done);
  } catch (const proto::Json::exception& e) {
    done(Error{Reason::internal, request.method + " failed inside probed: " + e.what(), "please report this"});
  }
}

void Session::complete(std::uint64_t ticket, const std::string& id, bool notify, Result<std::string> result) {
  if (ticket != ticket_ || !run_ || !run_->waiting || closed_) return;
  if (!notify)
    append_answer(result ? proto::make_response(id, std::move(*result)) : proto::make_error(id, result.error()));
  run_->waiting = false;
  if (!advancing_) resume_later();
}

void Session::append_answer(std::string text) {
  run_->charge->take(text.size());
  if (run_->answered++ > 0) run_->answers += ',';
  if (run_->answers.empty() && !run_->message.batch)
    run_->answers = std::move(text);
  else
    run_->answers += text;
}

void Session::finish_run() {
  Run run = std::move(*run_);
  run_.reset();
  run.charge.reset();
  if (run.answered > 0) outbox_.answer(run.message.batch ? "[" + run.answers + "]" : std::move(run.answers));
  outbox_.release();
}

// ---- reading ----

void Session::read_more() {
  if (reading_ || eof_ || closed_) return;
  reading_ = true;
  socket_.async_read_some(asio::buffer(input_), [self = shared_from_this()](const auto& error, std::size_t size) {
    self->reading_ = false;
    self->on_read(error, size);
  });
}

void Session::on_read(const boost::system::error_code& error, std::size_t size) {
  if (closed_ || ending_) return;
  if (error && error != asio::error::eof) return close();
  if (error)
    eof_ = true;
  else
    reader_.feed({input_.data(), size});
  pump();
}

// Everything that was sent has been run. A client that still listens may have closed its writing side only.
void Session::end_of_input() {
  hung_up_ = hung_up_ || probed::hung_up(socket_.native_handle());
  if (hung_up_) return close();
  if (reader_.buffered() > 0)
    return fail(Error{Reason::bad_message, "the connection's writing side was closed in the middle of a message",
                      "what came before it has been answered; send the message whole"});
  wind_down();
}

// The protocol has no urgent bytes (MSG_OOB); one that stays would be reported again and again (EPOLLPRI).
void Session::discard_urgent() {
  char byte = 0;
  [[maybe_unused]] const ssize_t n = ::recv(socket_.native_handle(), &byte, 1, MSG_OOB | MSG_DONTWAIT);
}

// While nothing is read (a request is under way, or answers wait), this is how a vanished client is noticed.
void Session::watch_hangup() {
  socket_.async_wait(Socket::wait_error, [self = shared_from_this()](const boost::system::error_code& error) {
    if (error || self->closed_) return;
    if (!probed::hung_up(self->socket_.native_handle())) {
      self->discard_urgent();
      return self->watch_hangup();
    }
    self->hung_up_ = true;
    // What it has sent before is run as far as that needs no waiting; the reader then meets the end by itself.
    if (!self->reading_ && !self->resume_posted_) self->close();
  });
}

// ---- writing ----

// Gathers what is to be written next, and passes it on as far as the socket takes it.
void Session::write_more() {
  if (writing_ || closed_) return;
  in_flight_.clear();
  unsent_.clear();
  std::size_t bytes = 0;
  while (bytes < kBytesPerWrite && in_flight_.size() < kMessagesPerWrite) {
    Outgoing out;
    if (!outbox_.next(reader_.framing(), out)) break;
    bytes += out.size();
    in_flight_.push_back(std::move(out));
  }
  if (in_flight_.empty()) return;
  for (const Outgoing& out : in_flight_) {
    if (!out.header.empty()) unsent_.push_back(asio::buffer(out.header));
    unsent_.push_back(asio::buffer(out.body));
  }
  writing_ = true;
  send_unsent();
}

// By hand: asio::async_write goes back to the event loop after every 64 KiB. Its end is told from there, too, for who
// offers events doesn't expect requests to be run, or the client to go, meanwhile.
void Session::send_unsent() {
  boost::system::error_code error;
  while (!unsent_.empty() && !error) {
    std::size_t sent = socket_.write_some(unsent_, error);
    auto first = unsent_.begin();
    while (first != unsent_.end() && first->size() <= sent) sent -= (first++)->size();
    if (first != unsent_.end()) *first += sent;
    unsent_.erase(unsent_.begin(), first);
  }
  if (error == asio::error::would_block || error == asio::error::try_again)
    return socket_.async_wait(Socket::wait_write, [self = shared_from_this()](const auto& failure) {
      if (failure) return self->on_written(failure);
      self->send_unsent();
    });
  asio::post(socket_.get_executor(), [self = shared_from_this(), error] { self->on_written(error); });
}

void Session::on_written(const boost::system::error_code& error) {
  writing_ = false;
  for (Outgoing& sent : in_flight_) outbox_.done(std::move(sent));
  in_flight_.clear();
  if (closed_) return;
  if (error) return close();
  write_more();
  pump();
  wind_down();
}

// ---- ending ----

// The stream has no known next message: one error, then the end. Its probes and subscriptions end now.
void Session::fail(const proto::RpcError& error, std::string_view id) {
  if (ending_) return;
  ending_ = true;
  run_.reset();
  outbox_.answer(proto::make_error(id, error));
  leave_controller();
  timer_.expires_after(limits_.linger);
  timer_.async_wait([self = shared_from_this()](const auto& e) {
    if (!e) self->close();
  });
  write_more();
}

void Session::stop_reading() {
  if (closed_) return;
  stopped_ = true;
  ++ticket_;
  if (run_) finish_run();  // of a batch, what has been answered
  if (!ending_ && !subscriptions_.empty()) return;
  ending_ = true;
  leave_controller();
  wind_down();
}

void Session::say_farewell(std::string_view params_json) {
  if (closed_) return;
  if (ending_) return unsent_events() == 0 ? close() : void();  // it has had its time
  notify("daemon.stopping", params_json);
  ending_ = true;
  leave_controller();
}

// Closes what has nothing more to write and nothing more to come.
void Session::wind_down() {
  if (closed_ || writing_ || !outbox_.empty()) return;
  if (ending_ && !stopped_) return drain();
  if (ending_) {
    // Unread input would make the other end's next call fail before it has read our last words.
    boost::system::error_code ignored;
    socket_.shutdown(Socket::shutdown_send, ignored);
    while (::recv(socket_.native_handle(), input_.data(), input_.size(), MSG_DONTWAIT) > 0) continue;
    return close();
  }
  if (eof_ && !run_ && !resume_posted_ && reader_.buffered() == 0 && subscriptions_.empty()) close();
}

// Closing a Unix socket with unread input makes the other end's next call fail with ECONNRESET, perhaps before it has
// read our last words. So shut down our side and swallow, for a while, what still comes.
void Session::drain() {
  boost::system::error_code ignored;
  if (!std::exchange(draining_, true)) socket_.shutdown(Socket::shutdown_send, ignored);
  if (reading_ || closed_) return;
  reading_ = true;
  socket_.async_read_some(asio::buffer(input_), [self = shared_from_this()](const auto& error, std::size_t) {
    self->reading_ = false;
    if (self->closed_) return;
    if (error) return self->close();
    self->drain();
  });
}

// ---- control::Client, Connection ----

bool Session::may_trace(pid_t pid) const { return known_ && owner_.services().authorizer.may_trace(peer_, pid).ok(); }

bool Session::offer_event(std::uint64_t subscription, std::string_view event_json) {
  return known_ && outbox_.offer(subscription, event_json);
}

void Session::report_missed(std::uint64_t subscription, std::uint64_t count) {
  if (!known_) return;
  outbox_.missed(subscription, count);
  write_more();
}

void Session::flush_events() {
  if (known_) write_more();
}

void Session::notify(std::string_view method, std::string_view params_json) {
  if (!known_) return;
  outbox_.notification(proto::make_notification(method, params_json));
  write_more();
  if (!outbox_.overflowed()) return;
  // The controller is in the middle of something; it must not lose a client under its hands.
  asio::post(socket_.get_executor(), [self = shared_from_this()] { self->close(); });
}

void Session::subscribed(std::uint64_t subscription) {
  subscriptions_.insert(subscription);
  ++outbox_.share()->subscriptions;
  outbox_.expect(subscription);
  boost::system::error_code smaller;
  socket_.set_option(Socket::send_buffer_size(kSendBuffer), smaller);
}

void Session::unsubscribed(std::uint64_t subscription) {
  outbox_.share()->subscriptions -= subscriptions_.erase(subscription);
  outbox_.seal(subscription);
}

}  // namespace probed::api
