// Accepts connections and keeps their sessions.
//
// Thread: the Asio thread; destroyed while the io_context doesn't run. Invariant: every open session is in
// sessions_, and stop() leaves none.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string_view>
#include <utility>  // before Asio
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/steady_timer.hpp>

#include "daemon/api/listener.hpp"
#include "daemon/api/session.hpp"

namespace probed::api {

struct ServerOptions {
  SessionLimits session;
  std::size_t max_sessions = 1024;
  std::size_t max_user_sessions = 256;  // of one user; root is exempt
  std::size_t reserved_for_root = 32;   // of all, so that users can't lock the administrator out
  std::size_t user_events = 256 << 20;  // bytes of events that wait for the clients of one user, root's too
  Procfs procfs = Procfs();
  std::function<void(std::string_view)> log = [](std::string_view) {};  // one line, for the operator
};

class Server final : public SessionOwner {
 public:
  Server(boost::asio::io_context& io, control::Controller& controller, Listener listener, ServerOptions options = {});
  ~Server() override;

  void start();
  // The first step of an orderly end: accepts no clients and reads no requests any more, removes the socket file.
  // Sessions with subscriptions stay, for their last events, and others until their answers are written. The controller
  // must still live. Idempotent.
  void close_door();
  // The last one: tells those with subscriptions `why` the daemon ends, and calls `done` when all that is for them is
  // written, or isn't within `limit`; no session is left then.
  void say_farewell(std::string_view why, std::chrono::milliseconds limit, std::function<void()> done);
  // Ends every session, at once. Idempotent.
  void stop();

  std::size_t session_count() const { return sessions_.size(); }
  const std::string& path() const { return listener_.path(); }

  const Services& services() const override { return services_; }
  void session_closed(ClientId id) override;

 private:
  using Sessions = std::map<ClientId, std::shared_ptr<Session>>;

  void wait_for_client();
  void accept_some();
  bool accept_one();
  void back_off(int error);
  void admit(UniqueFd fd);
  void turn_away(int fd, const Error& why);
  void look_for_last();
  static bool scarce(int fd);
  std::size_t living() const { return sessions_.size() + leaving_.size(); }
  bool room_for(const Peer& peer) const;
  std::size_t sessions_of(uid_t user) const;
  std::shared_ptr<UserShare> share_of(uid_t user);

  boost::asio::io_context& io_;
  ServerOptions options_;
  Authorizer authorizer_;
  Services services_;
  Listener listener_;
  boost::asio::local::stream_protocol::acceptor acceptor_;
  boost::asio::steady_timer pause_;
  Sessions sessions_;
  // Their clients have gone, and a request of theirs is still under way: what it holds is limited as theirs is.
  std::vector<std::weak_ptr<Session>> leaving_;
  std::map<uid_t, std::weak_ptr<UserShare>> shares_;
  std::uint64_t last_id_ = 0;
  std::uint64_t turned_away_ = 0;  // since the log was told last
  std::chrono::steady_clock::time_point tell_turned_away_{};
  std::function<void()> farewell_said_;  // once sessions_ is empty
  bool stopped_ = false, short_of_files_ = false;
};

}  // namespace probed::api
