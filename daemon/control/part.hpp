// A part of the controller, with the state that is its own. Parts call each other through Parts (parts.hpp), which has
// all of them.
//
// Asio thread, but for post().
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/control/batches.hpp"
#include "daemon/control/controller.hpp"
#include "daemon/control/kept.hpp"
#include "daemon/control/registry.hpp"
#include "daemon/control/workers.hpp"
#include "daemon/tracer/engine.hpp"

namespace probed::control {

struct Parts;

class Part {
 public:
  explicit Part(Parts& parts);
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;

 protected:
  ~Part() = default;

  // Any thread: runs f on the Asio thread.
  template <class F>
  void post(F f);
  // Pool::at_work().
  template <class Make, class Done>
  void at_work(uid_t user, Work kind, Make make, Done done);

  Parts& parts_;
  Registry& registry_;
};

}  // namespace probed::control
