// See server.hpp.
#include "daemon/api/server.hpp"

#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <tuple>

#include <boost/asio/dispatch.hpp>

namespace probed::api {
namespace {

namespace local = boost::asio::local;

constexpr int kAcceptsPerTurn = 32;  // then those who are connected have their turn
constexpr std::chrono::milliseconds kPause{200};
constexpr std::chrono::seconds kBetweenReports{1};

// accept(2): the process, the machine or its memory is at its limit. Waiting for readiness would spin, for the
// connection that can't be accepted keeps the socket ready.
bool out_of_resources(int error) { return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM; }

const Error kScarce{
    Reason::limit_exceeded,
    "the daemon is short of file descriptors: what is left is kept for its targets",
    "try again when others have closed their connections, or give probed more (LimitNOFILE=, ulimit -n)",
    {}};

Error too_many(const std::string& who, std::size_t clients) {
  return {Reason::limit_exceeded,
          who + " has " + std::to_string(clients) + " clients, as many as it may have",
          "close some of them, or try again later; those that have gone count until their last request is done",
          {}};
}

// Bytes of answers that the connections of a user other than root leave unread: two of the longest (kMostNames).
constexpr std::size_t kMostUserAnswers = 64 << 20;

}  // namespace

Server::Server(boost::asio::io_context& io, control::Controller& controller, Listener listener, ServerOptions options)
    : io_(io),
      options_(std::move(options)),
      authorizer_(options_.procfs),
      services_{controller, authorizer_, options_.session.outbox.event_buffer},
      listener_(std::move(listener)),
      acceptor_(io),
      pause_(io) {
  acceptor_.assign(local::stream_protocol(), listener_.release_fd());
}

Server::~Server() { stop(); }

void Server::start() { wait_for_client(); }

void Server::close_door() {
  if (std::exchange(stopped_, true)) return;
  boost::system::error_code ignored;
  listener_.remove();  // while nobody can take its place, and have his own removed
  acceptor_.close(ignored);
  pause_.cancel(ignored);
  for (const auto& [id, session] : Sessions(sessions_)) session->stop_reading();
}

void Server::say_farewell(std::string_view why, std::chrono::milliseconds limit, std::function<void()> done) {
  close_door();
  farewell_said_ = std::move(done);
  pause_.expires_after(limit);
  pause_.async_wait([this](const boost::system::error_code& cancelled) {
    if (cancelled || !farewell_said_) return;
    std::size_t clients = 0, bytes = 0;
    for (const auto& [id, session] : sessions_) {
      clients += session->unsent_events() > 0 ? 1 : 0;
      bytes += session->unsent_events();
    }
    if (clients > 0)
      options_.log(std::to_string(clients) + " client(s) have not read their last events in time: " +
                   std::to_string(bytes) + " bytes of them are lost");
    stop();
  });
  std::string text;
  proto::append_json_string(text, why);
  const std::string params = "{\"message\":" + text + "}";
  for (const auto& [id, session] : Sessions(sessions_)) session->say_farewell(params);
  look_for_last();
}

void Server::stop() {
  close_door();
  while (!sessions_.empty()) std::shared_ptr<Session>(sessions_.begin()->second)->close();
}

void Server::session_closed(ClientId id) {
  const auto closed = sessions_.find(id);
  leaving_.push_back(closed->second);
  sessions_.erase(closed);
  look_for_last();
}

void Server::look_for_last() {
  if (!sessions_.empty() || !farewell_said_) return;
  boost::system::error_code ignored;
  pause_.cancel(ignored);
  boost::asio::post(io_, std::exchange(farewell_said_, nullptr));
}

void Server::wait_for_client() {
  acceptor_.async_wait(local::stream_protocol::acceptor::wait_read, [this](const boost::system::error_code& error) {
    if (error || stopped_) return;
    accept_some();
  });
}

void Server::accept_some() {
  for (int i = 0; i < kAcceptsPerTurn; ++i)
    if (!accept_one()) return;
  wait_for_client();
}

// False: no more now, and what to wait for is arranged.
bool Server::accept_one() {
  UniqueFd fd(accept4(acceptor_.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (fd) {
    short_of_files_ = false;
    admit(std::move(fd));
    return true;
  }
  const int error = errno;
  if (error == EINTR || error == ECONNABORTED) return true;
  if (error == EAGAIN)
    wait_for_client();
  else
    back_off(error);
  return false;
}

void Server::back_off(int error) {
  if (!out_of_resources(error) || !std::exchange(short_of_files_, true))
    options_.log(std::string("cannot accept a client, will try again: ") + std::strerror(error));
  pause_.expires_after(kPause);
  pause_.async_wait([this](const boost::system::error_code& cancelled) {
    if (cancelled || stopped_) return;
    accept_some();
  });
}

bool Server::room_for(const Peer& peer) const {
  const std::size_t reserved = peer.uid == 0 ? 0 : std::min(options_.reserved_for_root, options_.max_sessions / 2);
  return living() + reserved < options_.max_sessions;
}

std::size_t Server::sessions_of(uid_t user) const {
  const auto is_theirs = [user](const std::shared_ptr<Session>& session) {
    return session && session->peer().uid == user;
  };
  return static_cast<std::size_t>(
      std::ranges::count_if(sessions_, [&](const auto& entry) { return is_theirs(entry.second); }) +
      std::ranges::count_if(leaving_, [&](const auto& entry) { return is_theirs(entry.lock()); }));
}

// One error, as far as the socket takes it, before it is closed. The log has it once a second at most: whoever is
// turned away may come again at once.
void Server::turn_away(int fd, const Error& why) {
  const std::string text = proto::make_error("null", why) + "\n";
  std::ignore = send(fd, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  ++turned_away_;
  const auto now = std::chrono::steady_clock::now();
  if (now < tell_turned_away_) return;
  tell_turned_away_ = now + kBetweenReports;
  options_.log("turned away " + std::to_string(std::exchange(turned_away_, 0)) + " client(s), the last because " +
               why.message);
}

// Descriptors are handed out lowest first. The last quarter is kept for what targets need: their memory, forked
// children.
bool Server::scarce(int fd) {
  rlimit limit{};
  return getrlimit(RLIMIT_NOFILE, &limit) == 0 && static_cast<rlim_t>(fd) >= limit.rlim_cur - limit.rlim_cur / 4;
}

// As long as one of the user's sessions lives.
std::shared_ptr<UserShare> Server::share_of(uid_t user) {
  std::erase_if(shares_, [](const auto& entry) { return entry.second.expired(); });
  if (const auto known = shares_[user].lock()) return known;
  const auto room = std::make_shared<UserShare>(UserShare{.most = options_.user_events});
  if (user != 0) room->most_answers = kMostUserAnswers;
  shares_[user] = room;
  return room;
}

void Server::admit(UniqueFd fd) {
  auto peer = peer_of(fd.get(), options_.procfs);
  if (!peer) return turn_away(fd.get(), peer.error());
  std::erase_if(leaving_, [](const auto& session) { return session.expired(); });
  if (!room_for(*peer)) return turn_away(fd.get(), too_many("the daemon", living()));
  if (scarce(fd.get())) return turn_away(fd.get(), kScarce);
  const std::size_t own = peer->uid == 0 ? 0 : sessions_of(peer->uid);
  if (peer->uid != 0 && own >= options_.max_user_sessions)
    return turn_away(fd.get(), too_many("user " + std::to_string(peer->uid), own));
  local::stream_protocol::socket socket(io_);
  boost::system::error_code error;
  socket.assign(local::stream_protocol(), fd.get(), error);
  if (error) return turn_away(fd.get(), Error{Reason::internal, "its socket can't be watched: " + error.message()});
  fd.release();
  const ClientId id{++last_id_};
  SessionLimits limits = options_.session;
  limits.outbox.shared = share_of(peer->uid);
  // The last to hold it may be what a request has left in another thread; its end belongs to this one.
  const auto end_here = [&io = io_](Session* last) {
    boost::asio::dispatch(io, [owned = std::unique_ptr<Session>(last)] {});
  };
  const std::shared_ptr<Session> session(new Session(*this, std::move(socket), std::move(*peer), id, limits), end_here);
  sessions_.emplace(id, session);
  session->start();
}

}  // namespace probed::api
