// What the tracer does with stopped threads is divided by subject. A room is one subject: a class with the state that
// nobody else changes. What all of them know stands in Targets; rooms call each other by way of Rooms (rooms.hpp, which
// lists them).
//
// Owning thread: the tracer thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "daemon/tracer/act.hpp"
#include "daemon/tracer/kernel/wait.hpp"
#include "daemon/tracer/listener.hpp"
#include "daemon/tracer/probes/hit_recorder.hpp"
#include "daemon/tracer/requests.hpp"
#include "daemon/tracer/targets.hpp"
#include "daemon/tracer/tracee.hpp"

namespace probed::tracer {

struct Rooms;

inline Error refuse(Reason reason, std::string message, std::string hint = "") {
  return Error{reason, std::move(message), std::move(hint), {}};
}

class Room {
 public:
  explicit Room(Rooms& rooms);
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;

 protected:
  ~Room() = default;

  Rooms& rooms_;
  Targets& targets_;
  Waiter& waiter_;
  Listener& listener_;
};

}  // namespace probed::tracer
