// See connection.hpp.
#include "client/connection.hpp"

#include <fmt/format.h>
#include <grp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <tuple>

#include "proto/jsonrpc.hpp"

namespace probed::client {
namespace {

constexpr char kDefaultSocket[] = "/run/probed/probed.sock";
constexpr std::size_t kReceiveChunk = std::size_t{256} << 10;  // about what a Unix socket holds

// What may be done about a socket that this user may not connect to.
std::string way_in(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return "run as root, or ask whoever has started the daemon";
  const group* const owner = ::getgrgid(status.st_gid);
  const std::string name = owner ? owner->gr_name : std::to_string(status.st_gid);
  if ((status.st_mode & S_IWGRP) != 0) return fmt::format("run as root or join the socket's group, {}", name);
  return fmt::format("run as root; probed --socket-mode 0660 would let its group, {}, in", name);
}

Error cannot_connect(const std::string& path, int error) {
  auto message = fmt::format("cannot reach the daemon at {}: {}", path, text_of_errno(error));
  if (error == EACCES || error == EPERM) return {Reason::permission_denied, std::move(message), way_in(path), {}};
  // connect(2) says ECONNREFUSED of any file that is none.
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0 && !S_ISSOCK(status.st_mode))
    return {Reason::internal,
            fmt::format("cannot reach the daemon at {}: that is no socket", path),
            "name the one that probed was started with (--socket)",
            {}};
  // The default place is root's.
  std::string hint = path == kDefaultSocket && ::geteuid() != 0
                         ? "start one: probed --socket /tmp/p.sock & and export PROBED_SOCKET=/tmp/p.sock"
                         : fmt::format("start one: probed --socket {} &", path);
  return {Reason::internal, std::move(message), hint + "; or name one that runs with --socket", {}};
}

Error wait_error(Wake wake, std::string_view method) {
  if (wake == Wake::interrupt) return {Reason::internal, "interrupted", "", {}};
  return {Reason::timed_out,
          fmt::format("the daemon did not answer in time ({})", method),
          "look at the daemon's log; it may be busy reading debug information",
          {}};
}

Error bad_line(std::string_view why) {
  return {Reason::bad_message,
          fmt::format("the daemon sent something that is no protocol message: {}", why),
          "probectl and probed may be of different versions; see --version of both",
          {}};
}

// The members of a JSON-RPC message that matter here. `params` may run on past its end: see parse().
struct Envelope {
  std::string_view method;
  JsonView id, params, result, error;
};

// One pass. A notification whose "params" comes after its "method" is not scanned further: "params" may be megabytes of
// events, and whoever handles them walks it once anyway.
bool parse(std::string_view line, Envelope& envelope) {
  const JsonView message(line);
  if (!message.is_object()) return false;
  return message.each_member([&](std::string_view key, JsonView value) {
    if (key == "method") envelope.method = value.raw_string();
    if (key == "id") envelope.id = value;
    if (key == "result") envelope.result = value;
    if (key == "error") envelope.error = value;
    if (key == "params") envelope.params = value;
    return !(key == "params" && !envelope.method.empty() && !envelope.id.exists());
  });
}

}  // namespace

const char* text_of_errno(int error) {
  const char* text = ::strerrordesc_np(error);
  return text ? text : "unknown error";
}

int milliseconds_until(const std::optional<Clock::time_point>& deadline) {
  if (!deadline) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(*deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 1 << 30));
}

Result<Wake> poll_fd(int fd, short events, const WaitLimit& limit) {
  for (;;) {
    pollfd watched[] = {{fd, events, 0}, {limit.interrupt_fd, POLLIN, 0}};
    const int ready = ::poll(watched, 2, milliseconds_until(limit.deadline));
    if (ready < 0 && errno == EINTR) continue;
    if (ready < 0) return Error{Reason::internal, fmt::format("poll failed: {}", text_of_errno(errno)), "", {}};
    if (watched[1].revents && !(limit.ignore_interrupt && limit.ignore_interrupt())) return Wake::interrupt;
    if (watched[0].revents) return Wake::message;
    if (limit.deadline && Clock::now() >= *limit.deadline) return Wake::timeout;
  }
}

std::string socket_path(std::string_view given) {
  if (!given.empty()) return std::string(given);
  const char* from_environment = std::getenv("PROBED_SOCKET");
  return from_environment && *from_environment ? from_environment : kDefaultSocket;
}

Error error_from_json(JsonView json) {
  const auto data = json["data"];
  const auto word = data["reason"].string();
  Error error{reason_from_string(word).value_or(Reason::internal), json["message"].string(), data["hint"].string(), {}};
  if (const auto column = data["column"].u64()) error.column = static_cast<std::size_t>(*column);
  if (const auto which = data["definition"].u64()) error.definition = static_cast<std::size_t>(*which);
  if (error.message.empty()) error.message = word.empty() ? "the daemon reported an error without a message" : word;
  return error;
}

Result<Connection> Connection::connect(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) return cannot_connect(path, ENAMETOOLONG);
  std::memcpy(address.sun_path, path.data(), path.size());
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket) return cannot_connect(path, errno);
  const auto* generic = reinterpret_cast<const sockaddr*>(&address);
  if (::connect(socket.get(), generic, sizeof(address)) != 0) return cannot_connect(path, errno);
  return Connection(std::move(socket));
}

Connection::Connection(UniqueFd socket) : socket_(std::move(socket)) {}

Error Connection::fail(Error error) {
  if (!failure_) failure_ = error;
  return error;
}

Result<Document> Connection::call(std::string_view method, std::string_view params, WaitLimit limit) {
  if (failure_) return *failure_;
  PendingReply pending{next_id_++, {}};
  pending_ = &pending;
  auto sent = send(proto::make_request(pending.id, method, params) + '\n', limit);
  if (!sent && failure_) take_last_words();
  Result<Wake> woken = sent ? Result<Wake>(Wake::message) : Result<Wake>(sent.error());
  while (!pending.reply && woken && *woken == Wake::message) woken = wait(limit);
  pending_ = nullptr;
  if (pending.reply) return std::move(*pending.reply);
  if (!woken) return std::move(woken).error();
  return wait_error(*woken, method);
}

// A daemon that closes the connection may have said why before; what it closes on is our request.
void Connection::take_last_words() {
  for (auto more = receive(); more && *more;) more = receive();
  std::ignore = dispatch_buffered();
}

Result<Wake> Connection::wait(WaitLimit limit) {
  if (failure_) return *failure_;
  for (;;) {
    auto handled = dispatch_buffered();
    if (!handled) return fail(std::move(handled).error());
    if (*handled) return Wake::message;
    auto received = receive();
    if (!received) return fail(std::move(received).error());
    if (*received) continue;
    auto woken = poll_fd(socket_.get(), POLLIN, limit);
    if (!woken) return fail(std::move(woken).error());
    if (*woken != Wake::message) return woken;
  }
}

Result<void> Connection::send(std::string_view bytes, const WaitLimit& limit) {
  while (!bytes.empty()) {
    const auto sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN) {
      if (auto waited = wait_to_send(limit); !waited) return fail(std::move(waited).error());
    } else if (errno != EINTR) {
      return fail({Reason::internal,
                   fmt::format("the daemon closed the connection: {}", text_of_errno(errno)),
                   "see the daemon's log",
                   {}});
    }
  }
  return {};
}

// Takes in what arrives meanwhile: were both ends to wait for the other to read, neither would go on.
Result<void> Connection::wait_to_send(const WaitLimit& limit) {
  auto woken = poll_fd(socket_.get(), POLLIN | POLLOUT, limit);
  if (!woken) return std::move(woken).error();
  if (*woken != Wake::message) return wait_error(*woken, "sending a request");
  if (auto received = receive(); !received) return std::move(received).error();
  return {};
}

void Connection::make_room() {
  if (head_ == tail_) head_ = scanned_ = tail_ = 0;
  if (buffer_.size() - tail_ >= kReceiveChunk) return;
  std::copy(buffer_.begin() + static_cast<std::ptrdiff_t>(head_), buffer_.begin() + static_cast<std::ptrdiff_t>(tail_),
            buffer_.begin());
  tail_ -= head_, scanned_ -= head_, head_ = 0;
  // Doubling keeps the moves of one very long line linear in its length.
  if (buffer_.size() - tail_ < kReceiveChunk) buffer_.resize(std::max(tail_ + kReceiveChunk, buffer_.size() * 2));
}

Result<bool> Connection::receive() {
  make_room();
  for (;;) {
    const auto got = ::recv(socket_.get(), buffer_.data() + tail_, buffer_.size() - tail_, MSG_DONTWAIT);
    if (got > 0) {
      tail_ += static_cast<std::size_t>(got);
      return true;
    }
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return false;
    const char* why = got == 0 ? "end of stream" : text_of_errno(errno);
    return Error{
        Reason::internal, fmt::format("the daemon closed the connection: {}", why), "see the daemon's log", {}};
  }
}

Result<bool> Connection::dispatch_buffered() {
  bool handled = false;
  while (scanned_ < tail_) {
    const char* from = buffer_.data() + scanned_;
    const auto* newline = static_cast<const char*>(std::memchr(from, '\n', tail_ - scanned_));
    if (!newline) {
      scanned_ = tail_;
      if (tail_ - head_ > kMaxLine) return bad_line("a line without an end");
      break;
    }
    const std::string_view line(buffer_.data() + head_, newline);
    head_ = scanned_ = static_cast<std::size_t>(newline - buffer_.data()) + 1;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    if (auto done = dispatch(line); !done) return std::move(done).error();
    handled = true;
    if (pending_ && pending_->reply) break;  // what follows the reply belongs to the caller's next turn
  }
  return handled;
}

Result<void> Connection::dispatch(std::string_view line) {
  Envelope envelope;
  if (!parse(line, envelope)) return bad_line(line.substr(0, 60));
  if (!envelope.method.empty()) {
    if (handler_) handler_({envelope.method, envelope.params});
    return {};
  }
  const bool answers_us = pending_ && envelope.id.u64() == pending_->id;
  // An error without an id is the daemon's answer to something it could not even parse: whatever we are waiting for.
  const bool unattributed = pending_ && envelope.id.is_null() && envelope.error.exists();
  if (!answers_us && !unattributed) return {};  // the late answer to a call that was given up
  if (envelope.error.exists())
    pending_->reply = error_from_json(envelope.error);
  else
    pending_->reply = Document(std::string(envelope.result.text()));
  return {};
}

bool scan_events(JsonView params, const std::function<void(std::string_view)>& on_event, EventBatch& batch) {
  if (!params.is_object()) return false;
  JsonWalker member(params);
  while (member.next()) {
    if (member.key() == "subscription") batch.subscription = member.value().u64_or(0);
    if (member.key() == "missed") batch.missed = member.value().u64_or(0);
    if (member.key() != "events") continue;
    JsonWalker element(member.value());
    while (element.next()) {
      const auto event = element.value().text();
      if (event.empty()) return false;
      element.resume_at(event.data() + event.size());
      on_event(event);
      ++batch.events;
    }
    if (!element.finished()) return false;
    member.resume_at(element.finished());
  }
  return member.finished() != nullptr;
}

}  // namespace probed::client
