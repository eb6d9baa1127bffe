// What clients' requests are carried out by: targets, probes, owners, subscriptions, global switches. Behind it are the
// parts of parts.hpp.
//
// Lives on the Asio thread; every method is called there and every callback runs there. Long work (symbols) goes to a
// worker pool, ptrace work to the tracer thread; requests complete through their callback. Authorisation is the
// caller's (api/authorize); the controller trusts what it is told.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/base/types.hpp"
#include "daemon/symbols/resolve.hpp"
#include "proto/base/result.hpp"

namespace probed::control {

template <class T>
using Reply = std::function<void(Result<T>)>;
// The text of an answer, made where the list is made, as both may take a while: on any thread.
template <class T>
using Shape = std::function<std::string(const std::vector<T>&)>;

struct TargetView {
  TargetId id;
  std::string comm, exe;
  std::uint32_t threads = 0;
  std::uint32_t probes = 0;
  bool follow_fork = false;
  std::uint64_t longest_pause_ns = 0;  // that the optimiser has kept a thread of it stopped
  std::uint64_t starved_ns = 0;        // Status, since it was attached
  std::uint64_t children_let_go = 0;   // that it has made and that weren't followed
};

struct AttachOptions {
  bool follow_fork = false;
  bool hold_at_entry =
      false;             // the target is about to exec: stop it at the new program's entry, notify, wait for resume
  bool persist = false;  // it stays attached when the client has gone
  // The same at each exec from now on, also of the children it is followed into: these are targets of their own then.
  bool hold_at_execs = false;
};

struct ProbeSpec {
  std::string definition;
  std::optional<std::string> filter;
  bool disabled = false;
  bool optimize = true;
  // Where its code isn't loaded (yet, or any more), it waits for it instead of being refused or gone.
  bool pending = false;
};

struct AddRequest {
  pid_t pid = 0;
  std::vector<ProbeSpec> probes;
  bool persist = false;
  std::optional<std::uint64_t> limit;  // hits after which the whole batch is disabled, exactly
  // Hits of each in a second after which it is disabled, soon; 0: any number; nullopt: the daemon's, for breakpoints.
  std::optional<std::uint64_t> max_rate;
  std::optional<std::uint64_t> expire;  // seconds after which they are disabled
  bool follow_fork = false;             // used when this request attaches the target
  bool force_step = false;              // x-step: use the stepped tier, for tests and benchmarks
};

// What a daemon that has put a probe back can't know: what happened while there was none. CLOCK_MONOTONIC, ns.
struct Unwatched {
  std::uint64_t times = 0;         // so often it has been put back
  std::uint64_t from = 0, to = 0;  // the last time: when the counters were last known, when it was in place again (0:
                                   // it isn't)
  std::uint64_t total = 0;         // of all times
};

struct ArgView {
  std::string name, type;
};

struct ProbeView {
  ProbeId id{};
  std::string name;  // GROUP/NAME
  std::string kind;  // "p" or "r"
  pid_t pid = 0;
  RemoteAddr address;
  std::string symbol;  // "processCommand+0x0"
  std::string module;
  std::string state;         // "enabled" "disabled" "gone" "pending"
  std::string state_reason;  // why the daemon has disabled it, or could not put it back; empty: neither
  std::string tier;          // "stepped" "boosted" "optimized"
  std::string tier_reason;   // why it isn't optimised; empty: it is, or it isn't known yet
  std::string definition;
  std::string filter;     // empty: none
  std::string condition;  // the definition's own filter; empty: none
  std::vector<ArgView> args;
  std::vector<std::string> notes;  // what its user should know: where it really is, what has been optimised out
  struct From {
    ProbeId id{};
    std::string name;  // GROUP/NAME
  };
  std::optional<From> from;  // the pending glob that it is a match of
  bool persist = false;
  bool ended = false;                     // its process, or the program it ran, has ended
  uid_t user = 0;                         // who has added it
  std::optional<Unwatched> unwatched;     // nullopt: it was never without a daemon
  bool armed = false;                     // its breakpoint is in place now
  std::optional<std::uint64_t> max_rate;  // hits a second; nullopt: the daemon's
  std::optional<std::uint64_t> expires;   // CLOCK_MONOTONIC, ns
  std::uint64_t places = 1;               // of a static probe there may be many; address and symbol are the first one's
  std::uint64_t hits = 0, missed = 0, filtered = 0;
  // Of return probes: calls that have ended without a return, returns of calls that began before the probe was there.
  std::uint64_t abandoned = 0, unmatched = 0;
};

// A match of a glob that can't be probed.
struct Skipped {
  std::string symbol;
  RemoteAddr address;
  Error why;
};

struct Added {
  std::vector<ProbeView> probes;
  std::vector<Skipped> skipped;  // of globs only: what is named exactly is added, all of it, or nothing is
};

// A probe that can't be put in place now.
struct Failed {
  ProbeId id{};
  std::string name;  // GROUP/NAME
  Error why;
};

struct Changed {
  std::vector<ProbeView> probes;
  std::vector<Failed> failed;  // of those: they are gone, or pending
};

// Which probes a request names. Unknown ids and names are no-ops (a probe already gone).
struct Selector {
  std::vector<ProbeId> ids;
  std::vector<std::string> names;  // NAME or GROUP/NAME, every target
  bool all = false;
};

struct SubscribeRequest {
  std::optional<pid_t> pid;                        // every probe of this target, later ones too
  std::optional<std::vector<std::string>> probes;  // names, or ids as decimal strings
};

struct Subscribed {
  std::uint64_t id = 0;
  // What the probes that it begins with have counted since this daemon runs: none of these hits is this subscription's,
  // all later ones are. (Of a probe that is being hit at this very moment, give or take that hit.)
  std::uint64_t hits = 0;
};

struct SubscriptionTotals {
  std::uint64_t delivered = 0, missed = 0;
};

struct Status {
  bool armed = true, optimize = true;
  std::uint32_t targets = 0, probes = 0, clients = 0, subscriptions = 0;
  std::uint64_t hits = 0, missed = 0, filtered = 0;
  std::uint64_t optimized = 0;         // probes that a jump leads to now
  std::uint64_t longest_pause_ns = 0;  // that the optimiser has kept a thread stopped
  // What the tracer goes before others by: "realtime", "nice", "slice" or "none" (tracer/kernel/urgency.hpp).
  std::string_view priority = "none";
  // What it has waited for a processor all the same: the longest wait, and the sum of those worth telling.
  std::uint64_t longest_wait_ns = 0, starved_ns = 0;
};

// How many probes there may be, persistent ones included; each match of a glob is one.
struct ProbeLimits {
  std::size_t per_target = 200'000;
  std::size_t per_user = 400'000;  // of one user, in all targets; root is exempt
};

// One connection as the controller sees it: where events and notifications for it go.
class Client {
 public:
  virtual ~Client() = default;
  virtual ClientId id() const = 0;
  virtual uid_t user() const = 0;  // effective, in the daemon's user namespace
  virtual gid_t group() const = 0;
  // Whether this client's user may see and control this process now.
  virtual bool may_trace(pid_t pid) const = 0;
  // One encoded event for a subscription. False: no room, the event is lost to this client (the caller counts it).
  virtual bool offer_event(std::uint64_t subscription, std::string_view event_json) = 0;
  // `count` events of this subscription were lost since the last call.
  virtual void report_missed(std::uint64_t subscription, std::uint64_t count) = 0;
  // Sends what offer_event gathered.
  virtual void flush_events() = 0;
  // A notification other than events: method and its params as JSON text. Never dropped.
  virtual void notify(std::string_view method, std::string_view params_json) = 0;
};

class Controller {
 public:
  virtual ~Controller() = default;

  virtual void client_connected(Client& client) = 0;
  // Removes the client's probes and subscriptions, and lets go what only it has attached; the client is not used after
  // this returns.
  virtual void client_gone(ClientId client) = 0;

  virtual void attach(Client& client, pid_t pid, AttachOptions options, Reply<TargetView> reply) = 0;
  virtual void detach(pid_t pid, Reply<void> reply) = 0;  // removes every probe of the target, everybody's
  virtual void resume(pid_t pid, Reply<void> reply) = 0;  // ends hold_at_entry
  virtual std::vector<TargetView> targets() const = 0;

  virtual void add(Client& client, AddRequest request, Reply<Added> reply) = 0;  // all or none, but for globs
  // Final counters of the removed ones. Only probes whose target the client may trace are touched.
  virtual void remove(Client& client, Selector which, Reply<std::vector<ProbeView>> reply) = 0;
  // Enabling a probe whose code has gone looks for it again.
  virtual void set_enabled(Client& client, Selector which, bool enabled, Reply<Changed> reply) = 0;
  // Looks whether the code of every probe, or of those of one target, is still there, before probes() is asked.
  virtual void look(std::optional<pid_t> pid, std::function<void()> done) = 0;
  virtual std::vector<ProbeView> probes(std::optional<pid_t> pid) const = 0;

  virtual Result<Subscribed> subscribe(Client& client, SubscribeRequest request) = 0;
  // Everything delivered so far has been offered to the client when this returns.
  virtual Result<SubscriptionTotals> unsubscribe(Client& client, std::uint64_t subscription) = 0;

  // What couldn't be armed again is in the answer; its code has changed meanwhile.
  virtual void set_armed(Client& client, bool armed, Reply<std::vector<Failed>> reply) = 0;
  virtual void set_optimize(bool enabled, Reply<void> reply) = 0;
  virtual Status status() const = 0;

  // pattern: [MODULE:]GLOB
  // What is found is told only while the process runs the program that was looked at, and the client may trace it.
  virtual void functions(Client& client, pid_t pid, std::string pattern, std::size_t limit,
                         Shape<symbols::Function> shape, Reply<std::string> reply) = 0;
  // location: as in a definition
  virtual void variables(Client& client, pid_t pid, std::string location, Shape<dwarf::VisibleVariable> shape,
                         Reply<std::string> reply) = 0;
  // file: [MODULE:]FILE
  virtual void lines(Client& client, pid_t pid, std::string file, std::size_t limit, Shape<symbols::SourceLine> shape,
                     Reply<std::string> reply) = 0;
  // pattern: [[MODULE:]PROVIDER:]NAME
  virtual void usdt(Client& client, pid_t pid, std::string pattern, std::size_t limit, Shape<symbols::UsdtProbe> shape,
                    Reply<std::string> reply) = 0;
};

}  // namespace probed::control
