// One connection: reads messages, runs them one at a time and in order, writes answers and events.
//
// Thread: the Asio thread; nothing here locks. The controller holds a plain reference to it between client_connected
// and client_gone; everything asynchronous holds a shared_ptr, checks open() first, and answers that come for a request
// of a session that is gone fall into the void.
//
// Flow: reading stops while a request is under way or more than answer_limit bytes of answers are unsent, so a client
// that doesn't read cannot make the daemon's memory grow; and an answer that a user's connections have no room for, as
// they leave others unread, is an error instead. Events have their own bounded buffer (outbox.hpp).
//
// End: when the client has gone (hang-up, write error), at once. When it has only closed its writing side, after the
// last answer, or, with subscriptions, when it closes the rest. After a message that leaves the stream without a known
// next one (one too long, one cut off by the end), and after a first message that is no request, when the error's
// answer has been read or a few seconds have passed.
#pragma once

#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>  // before Asio: Boost 1.74 uses std::exchange without including it
#include <vector>

#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/steady_timer.hpp>

#include "daemon/api/dispatch.hpp"
#include "daemon/api/outbox.hpp"
#include "proto/framing.hpp"
#include "proto/jsonrpc.hpp"

namespace probed::api {

struct SessionLimits {
  OutboxLimits outbox;
  std::size_t max_message = proto::kMaxMessage;
  std::size_t answer_limit = 1 << 20;      // bytes of unsent answers beyond which no request is read
  std::size_t batch_answer = 16 << 20;     // bytes of a batch's answers beyond which the rest of it is not run
  std::chrono::milliseconds linger{3000};  // for a refused client to read why
};

class Session;
// Who keeps the sessions.
class SessionOwner {
 public:
  virtual ~SessionOwner() = default;
  virtual const Services& services() const = 0;
  virtual void session_closed(ClientId id) = 0;  // the session drops out of the owner's hands
};

class Session final : public Connection, public std::enable_shared_from_this<Session> {
 public:
  using Socket = boost::asio::local::stream_protocol::socket;

  Session(SessionOwner& owner, Socket socket, Peer peer, ClientId id, const SessionLimits& limits);

  void start();
  // Ends it now. Tells the controller (client_gone) and the owner, once.
  void close();
  // The daemon is ending: no request is read any more, and the one under way gets no answer. What has subscriptions
  // stays for the events still to come, until say_farewell(); the rest is closed as soon as all answers are written, at
  // say_farewell() at the latest.
  void stop_reading();
  // Behind them: daemon.stopping, then the end of the connection as soon as that is written.
  void say_farewell(std::string_view params_json);

  // Bytes of events that wait, or are on their way.
  std::size_t unsent_events() const { return outbox_.unsent_events() + outbox_.sealed_events(); }

  // control::Client
  ClientId id() const override { return id_; }
  uid_t user() const override { return peer_.uid; }
  gid_t group() const override { return peer_.gid; }
  bool may_trace(pid_t pid) const override;
  bool offer_event(std::uint64_t subscription, std::string_view event_json) override;
  void report_missed(std::uint64_t subscription, std::uint64_t count) override;
  void flush_events() override;
  void notify(std::string_view method, std::string_view params_json) override;

  // Connection
  const Peer& peer() const override { return peer_; }
  bool open() const override { return known_; }
  void subscribed(std::uint64_t subscription) override;
  void unsubscribed(std::uint64_t subscription) override;
  bool owns(std::uint64_t subscription) const override { return subscriptions_.contains(subscription); }
  std::size_t subscription_count() const override { return subscriptions_.size(); }
  std::size_t user_subscription_count() const override { return outbox_.share()->subscriptions; }

 private:
  // A message under way: its items run in order, its answers are one text at the end.
  struct Run {
    proto::Message message;
    std::size_t next = 0;
    bool waiting = false;  // for the completion of item next - 1
    std::string answers;
    std::size_t answered = 0;
    std::unique_ptr<AnswerCharge> charge;
  };

  void pump();
  bool can_run() const;
  bool run_next_frame();
  void begin(std::string_view text, bool is_rest);
  void advance();
  void run_item();
  void complete(std::uint64_t ticket, const std::string& id, bool notify, Result<std::string> result);
  void resume_later();
  void append_answer(std::string text);
  void finish_run();

  void read_more();
  void on_read(const boost::system::error_code& error, std::size_t size);
  void end_of_input();
  void watch_hangup();
  void discard_urgent();

  void write_more();
  void send_unsent();
  void on_written(const boost::system::error_code& error);
  void fail(const proto::RpcError& error, std::string_view id = "null");
  void leave_controller();
  void wind_down();
  void drain();

  SessionOwner& owner_;  // not touched after close()
  Socket socket_;
  boost::asio::steady_timer timer_;
  const Peer peer_;
  const ClientId id_;
  const SessionLimits limits_;

  proto::FrameReader reader_;
  Outbox outbox_;
  std::optional<Run> run_;
  std::uint64_t ticket_ = 0;  // of the item under way; a completion with another one comes too late
  std::set<std::uint64_t> subscriptions_;
  std::vector<Outgoing> in_flight_;
  std::vector<boost::asio::const_buffer> unsent_;  // what is left of them
  std::array<char, 16 * 1024> input_{};

  bool known_ = false;  // to the controller
  bool closed_ = false;
  bool stopped_ = false;  // no request is run any more
  bool ending_ = false;   // nothing is read any more; what is queued is still written
  bool eof_ = false;      // the client writes no more
  bool spoke_ = false;    // it has sent a request
  bool hung_up_ = false;  // nor reads
  bool reading_ = false, writing_ = false;
  bool resume_posted_ = false, advancing_ = false, draining_ = false;
};

}  // namespace probed::api
