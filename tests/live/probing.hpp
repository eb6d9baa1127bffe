// What the tests of probes share beyond the harness: adding probes, gathering their events, looking at the text.
//
// Thread: the test's own.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "machine.hpp"
#include "tests/live/harness.hpp"

// For tests of probes that have become jumps.
#define NEEDS_JUMPS() \
  if (!kHasJumps) SKIP_TEST("probes don't become jumps on this architecture yet")

namespace probed::live {

// probe.add's parameters; `more` is merged in at the top ({"x-step":true}).
Json add_params(pid_t pid, const std::vector<std::string>& definitions, const Json& more = Json::object());
// Adds them and returns their views; fails the test case when that is refused.
std::vector<Json> add(RpcClient& client, pid_t pid, const std::vector<std::string>& definitions,
                      const Json& more = Json::object());
// The whole "error" of a probe.add that must fail; null when it did not.
Json add_error(RpcClient& client, pid_t pid, const std::vector<std::string>& definitions,
               const Json& more = Json::object());
std::string reason_of(const Json& error);  // "" when there is none
std::string hint_of(const Json& error);

Json ids_of(const std::vector<Json>& probes);                                      // {"ids":[...]}
std::vector<Json> remove_all(RpcClient& client, const std::vector<Json>& probes);  // with their last counters
// probe.list, of one process or of all.
std::vector<Json> list_probes(RpcClient& client, pid_t pid = 0);

struct Counts {
  std::uint64_t hits = 0, missed = 0, filtered = 0;
  bool operator==(const Counts&) const = default;
};
// From probe.profile; fails the test case when there is no such probe.
Counts counts_of(RpcClient& client, const Json& probe);

// One subscription. Its client has no other one: every `events` notification of the connection belongs here.
class Events {
 public:
  explicit Events(RpcClient& client, const Json& params = Json::object());
  // Reads until so many events have come; false when they did not.
  bool reach(std::size_t count, Millis limit = kPatience);
  // Ends the subscription: everything that was delivered is here when this returns.
  void end();
  const std::vector<Json>& all() const { return events_; }
  std::vector<Json> of(const Json& probe) const;
  std::uint64_t missed() const { return missed_; }             // as the notifications said
  std::uint64_t told_delivered() const { return delivered_; }  // as the answer to events.unsubscribe said
  std::uint64_t told_missed() const { return total_missed_; }
  // Notifications that were no events, in order of their arrival.
  const std::vector<Json>& others() const { return others_; }

 private:
  void take(const Json& notification);

  RpcClient& client_;
  std::uint64_t id_ = 0, missed_ = 0, delivered_ = 0, total_missed_ = 0;
  std::vector<Json> events_, others_;
};

std::uint64_t address_of(const Json& probe);  // its "address"
std::string hex(std::uint64_t value);         // "0x..."
// Bytes of the target's memory as they are now; shorter when not all can be read.
std::vector<std::uint8_t> bytes_at(pid_t pid, std::uint64_t address, std::size_t size);
// Waits until its text is its files' again: the second jump of two, in padding, stays until every thread has been seen
// elsewhere.
bool text_restored(pid_t pid);
// The first child of the process's first thread, once there is one; its pid as seen from here.
pid_t only_child_of(pid_t pid);
// A breakpoint, or the jump that takes its place.
bool has_breakpoint(pid_t pid, std::uint64_t address);
// The mappings that are in now and were not in before, executable ones only.
std::vector<std::string> new_executable_mappings(const TargetState& before, const TargetState& now);

// For messages: one a line.
std::string joined(const std::vector<std::string>& lines);

// A target with the state it was in before anything was done to it.
struct Watched {
  explicit Watched(std::string_view name, const std::vector<std::string>& arguments = {})
      : target(name, arguments), before(state_of(target.pid())) {}
  Target target;
  TargetState before;
  pid_t pid() const { return target.pid(); }
  // Nobody traces it, its text, mappings, descriptors and signals are as they were.
  bool unharmed(Millis limit = kPatience) { return left_unharmed(pid(), before, PageCopies::may_stay, limit); }
  // What is not as it was, now, without waiting; "" when all is.
  std::string harm() { return joined(harm_done(pid(), before, PageCopies::may_stay)); }
  // Waits until it has so many threads and the first of them waits for input; takes its state anew: a program's second
  // thread brings a signal handler of the C library's.
  bool runs_threads(std::size_t count);
  std::string ask(const std::string& command);  // sends a line, returns the next one
};

}  // namespace probed::live
