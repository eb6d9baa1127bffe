// libprobeclient: one connection to probed. JSON-RPC 2.0 over a Unix stream socket, one message a line.
//
// Used from one thread, nothing is locked. Calls block; whatever notifications arrive meanwhile are handed to the
// handler in wire order, so that every event the daemon sent before a reply has been handled when call() returns.
// Functions report failure through Result, never through exceptions. After a failure of the connection itself (alive()
// is false) every later call fails at once with the same error.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "client/json_view.hpp"
#include "proto/base/fd.hpp"
#include "proto/base/result.hpp"

namespace probed::client {

using Clock = std::chrono::steady_clock;

// `given` if not empty, else $PROBED_SOCKET, else /run/probed/probed.sock.
std::string socket_path(std::string_view given);

// A reply's "result", byte for byte as the daemon sent it.
class Document {
 public:
  Document() = default;
  explicit Document(std::string text) : text_(std::move(text)) {}
  const std::string& text() const { return text_; }
  JsonView view() const { return JsonView(std::string_view(text_)); }
  JsonView operator[](std::string_view key) const { return view()[key]; }

 private:
  std::string text_;
};

// Valid while the handler runs: it looks into the receive buffer.
struct Notification {
  std::string_view method;
  JsonView params;
};

enum class Wake {
  message,    // at least one message was handled
  timeout,    // the deadline passed first
  interrupt,  // the interrupt descriptor became readable first
};

// Limits of waiting. The interrupt descriptor is only watched, never read.
struct WaitLimit {
  std::optional<Clock::time_point> deadline;
  int interrupt_fd = -1;
  // Asked when the interrupt descriptor is readable: true goes on waiting (it must then have read the descriptor).
  std::function<bool()> ignore_interrupt;
};
// Milliseconds for poll(2): 0 when the deadline has passed, -1 without one.
int milliseconds_until(const std::optional<Clock::time_point>& deadline);
const char* text_of_errno(int error);
// Waits until one of `events` (poll(2)) is there on fd: Wake::message. Errors: internal, poll itself failed.
Result<Wake> poll_fd(int fd, short events, const WaitLimit& limit);

// Rebuilds the error of a JSON-RPC error object; reasons this build does not know become Reason::internal.
Error error_from_json(JsonView error);

class Connection {
 public:
  using Handler = std::function<void(const Notification&)>;

  // A line from the daemon longer than this breaks the connection.
  static constexpr std::size_t kMaxLine = std::size_t{256} << 20;

  // Errors: permission_denied when the socket may not be used, else internal: nobody listens there.
  static Result<Connection> connect(const std::string& socket_path);
  explicit Connection(UniqueFd socket);

  // Called for each notification, from within call() and wait(); it must not use the connection. Notifications that
  // arrive while there is no handler are dropped.
  void on_notification(Handler handler) { handler_ = std::move(handler); }

  // Sends one request and waits for its reply. `params` is a JSON object. Errors: what the daemon answered; timed_out
  // when the limit's deadline passed, internal when its descriptor became readable (a late reply is then dropped) and
  // for the connection's own failure, which alive() tells apart.
  Result<Document> call(std::string_view method, std::string_view params, WaitLimit limit = {});

  // Handles what has arrived; waits for something when nothing has. One call handles at most one buffer full, so that
  // the caller gets its turn however fast messages come.
  Result<Wake> wait(WaitLimit limit);

  bool alive() const { return !failure_.has_value(); }

 private:
  struct PendingReply {
    std::uint64_t id = 0;
    std::optional<Result<Document>> reply;
  };

  Result<void> send(std::string_view bytes, const WaitLimit& limit);
  Result<void> wait_to_send(const WaitLimit& limit);
  Result<bool> receive();  // false: nothing there now
  void take_last_words();
  Result<bool> dispatch_buffered();  // true: handled something
  Result<void> dispatch(std::string_view line);
  void make_room();
  Error fail(Error error);

  UniqueFd socket_;
  Handler handler_;
  std::vector<char> buffer_;
  std::size_t head_ = 0, scanned_ = 0, tail_ = 0;  // unhandled bytes are [head_, tail_); no LF in [head_, scanned_)
  std::uint64_t next_id_ = 1;
  PendingReply* pending_ = nullptr;
  std::optional<Error> failure_;
};

// Calls on_event(std::string_view) with the exact bytes of each event of an `events` notification, in one pass.
struct EventBatch {
  std::uint64_t subscription = 0, events = 0, missed = 0;
};
// False: the notification was malformed; the events found before the fault have been handed over.
bool scan_events(JsonView params, const std::function<void(std::string_view)>& on_event, EventBatch& batch);

}  // namespace probed::client
