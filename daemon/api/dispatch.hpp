// From a request to the controller and back: validation, authorisation, the call, the answer's JSON.
//
// Thread: the Asio thread. Order for every request: the method must exist, the parameters must fit its table, the peer
// must be allowed; only then is anything done. An answer comes through the completion, during the call or later.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/api/authorize.hpp"
#include "daemon/control/controller.hpp"
#include "proto/jsonrpc.hpp"

namespace probed::api {

// A client with what handlers need beyond the controller's view of it.
class Connection : public control::Client {
 public:
  virtual const Peer& peer() const = 0;
  virtual bool open() const = 0;  // false: gone; nothing may be asked of the controller in its name
  // A subscription of this connection has begun; its events wait until the answer that tells its id is queued.
  virtual void subscribed(std::uint64_t subscription) = 0;
  // It has ended: what is gathered for it goes before the answer.
  virtual void unsubscribed(std::uint64_t subscription) = 0;
  virtual bool owns(std::uint64_t subscription) const = 0;
  virtual std::size_t subscription_count() const = 0;
  virtual std::size_t user_subscription_count() const = 0;  // of all connections of its user
};

struct Services {
  control::Controller& controller;
  const Authorizer& authorizer;
  std::size_t event_buffer = 0;               // bytes, for initialize to tell
  std::size_t max_subscriptions = 256;        // of one connection
  std::size_t max_user_subscriptions = 1024;  // of all connections of a user; root is exempt
  // CLOCK_MONOTONIC, ns: tells this daemon from the ones before and after it.
  std::uint64_t started_ns =
      static_cast<std::uint64_t>(std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count());
};

using Completion = std::function<void(Result<std::string>)>;  // the result as JSON text

// Of a method: then its answer is to be told, as it says what has been done.
bool changes_something(std::string_view method);

void dispatch(const Services& services, const std::shared_ptr<Connection>& connection, const proto::Request& request,
              Completion done);

// The methods there are handlers for; a test holds them against proto::methods().
std::vector<std::string_view> handled_methods();

}  // namespace probed::api
