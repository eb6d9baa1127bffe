// See trace.hpp. Main thread.
//
// Order matters: the probes are added disabled, then subscribed to, then enabled, so that every hit has a reader; they
// are disabled before the subscription ends, so that what was counted was also delivered or reported as lost.
#include "client/probectl/trace.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "client/display.hpp"
#include "client/probectl/answer.hpp"
#include "client/probectl/first.hpp"
#include "client/probectl/held_command.hpp"
#include "client/probectl/private_daemon.hpp"
#include "client/probectl/process.hpp"
#include "client/probectl/reach.hpp"
#include "client/probectl/report.hpp"
#include "client/probectl/stream.hpp"
#include "client/probectl/untraced.hpp"
#include "client/views.hpp"
#include "proto/json.hpp"

namespace probed::client {
namespace {

constexpr auto kCleanUpLimit = std::chrono::seconds(15);  // for all calls of the clean-up together
constexpr auto kReadyLimit = std::chrono::seconds(15);
constexpr int kDyingPatience = 300;  // ms, for CMD, whose memory may take a while to be given back
constexpr int kAttempts = 3;         // to go on with daemons that end as soon as they are there

// What a trace is made of, in the order in which it is put together; taken apart the other way round.
struct Parts {
  Signals signals;
  Output output;
  std::optional<PrivateDaemon> daemon;
  std::optional<Connection> connection;
  std::optional<HeldCommand> command;
};

std::string pid_params(pid_t pid) {
  proto::JsonWriter json;
  return json.begin_object().key("pid").number(std::int64_t{pid}).end_object().text();
}

// Of the daemon, ns: starvedNs and longestWaitNs of its status.
struct Starved {
  std::uint64_t sum = 0, longest = 0;
  bool first = false;  // it has a real-time priority all the same
};

Starved starved_of(JsonView status) {
  return {status["starvedNs"].u64_or(0), status["longestWaitNs"].u64_or(0), status["priority"].string() == "realtime"};
}

class Trace {
 public:
  Trace(Parts& parts, const Options& options, pid_t pid)
      : parts_(parts),
        options_(options),
        pid_(pid),
        connection_(*parts.connection),
        stream_(*parts.connection, parts.output, parts.signals, options) {
    targets_[pid_] = options.command_line.empty() ? "" : options.command_line[0];
    stream_.on_other([this](const Notification& notification) { take(notification); });
  }

  int run();

 private:
  Result<void> arm();
  Result<void> start_command();
  Result<void> resume(pid_t pid);
  void note_at_start(bool was_stopped) const;
  Result<void> wait_for_program();
  Result<void> add_probes();
  Result<void> subscribe();
  Result<Document> add_and_enable();
  bool come_back();
  void watch_target();
  int give_up(const Error& error);
  void clean_up();
  void each_own_target(const std::function<void(pid_t pid, JsonView target)>& look);
  void count_children();
  void let_targets_go();
  bool goes_on_in_programs() const { return parts_.command || options_.follow_fork; }
  Result<void> attach();
  void take_program(pid_t pid, JsonView params);
  void take_end(pid_t pid, JsonView params);
  void count_let_go(pid_t pid, JsonView told);
  void arm_in_program(pid_t pid);
  std::vector<std::uint64_t> add_in_program(pid_t pid, std::size_t& pending, std::optional<Error>& refused);
  void forget_program(pid_t pid);
  void note_program(pid_t pid, std::size_t count, std::size_t pending, const std::optional<Error>& refused);
  std::optional<Document> finish_call(std::string_view method, const std::string& params);
  bool note_second_signal();
  Error in_context(Error error);
  void print_armed(JsonView probes);
  void print_account();
  void learn_starved();
  void look_at_starved();
  void note_starved();
  int conclude();

  void take(const Notification& notification);
  void note_armed_more(std::size_t count, std::string_view skipped);
  void take_added(JsonView params);
  void take_disabled(JsonView params);
  void take_execed(JsonView params);
  void note_unprivileged(pid_t pid, JsonView params);
  void note_own_end(JsonView params, std::uint64_t left);
  void take_removed(JsonView params);
  void take_switched(const Notification& notification);
  bool none_can_be_hit() const;
  bool names_ours(JsonView params) const;
  void count(JsonView probes);
  std::string ids_params() const;

  Parts& parts_;
  const Options& options_;
  const pid_t pid_;
  Connection& connection_;
  Stream stream_;
  UniqueFd pidfd_;
  struct Counters {
    std::uint64_t hits = 0, missed = 0, filtered = 0, abandoned = 0, unmatched = 0;
  };
  std::map<std::uint64_t, Counters> probes_;  // by id, of our probes
  std::map<std::uint64_t, pid_t> placed_in_;  // those added when that process had started another program
  // Our targets: the process that the trace is of, and those children of it that run programs of their own. Their name.
  std::map<pid_t, std::string> targets_;
  Untraced untraced_;
  std::set<std::uint64_t> globs_;      // pending definitions of ours of which there are matches among these
  std::set<std::uint64_t> disabled_;   // of them, by the daemon: they had a rate, or an end
  std::set<std::uint64_t> removed_;    // of them, by others
  std::set<std::uint64_t> forgotten_;  // of them, by this trace: their program is no more
  std::uint64_t before_ = 0;           // hits that earlier daemons of this trace have told us of
  Starved starved_before_, starved_;   // before this trace, and at its end
  Clock::time_point armed_at_{};
  std::vector<std::uint64_t> subscriptions_;
  std::string skipped_;    // of globs, for the line that says "armed"
  std::string_view word_;  // for an error that the protocol has no reason for
  Clock::time_point clean_up_end_;
  bool attached_ = false, ready_ = false, denied_ = false, armed_ = false, cleaning_up_ = false;
  bool own_end_told_ = false, loss_told_ = false;
  bool gone_ = false;  // the process has ended; its target (see targets_) ends with the last child that has its probes
};

void Trace::take(const Notification& notification) {
  const auto& [method, params] = notification;
  if (method == "probe.disabled") return take_disabled(params);
  if (method == "probe.added") return take_added(params);
  if (method == "probe.removed") return take_removed(params);
  if (method == "probe.switched" || method == "daemon.switched") return take_switched(notification);
  if (method == "probe.unplaced") stream_.say("still pending: " + display(params["message"].string()));
  if (method == "probe.returned" && names_ours(params)) {
    stream_.learn(params["probes"]);
    std::size_t count = 0;
    params["ids"].each_element([&](JsonView id) { return count += probes_.contains(id.u64_or(0)), true; });
    if (!cleaning_up_) note_armed_more(count, "");
    params["notes"].each_element([this](JsonView text) { return stream_.say(display(text.string())), true; });
  }
  if (method == "probe.gone" && names_ours(params)) stream_.say(how_they_went(params, options_.pending));
  const auto pid = static_cast<pid_t>(params["pid"].u64_or(0));
  if (!targets_.contains(pid)) return;
  if (method == "target.left") return take_program(static_cast<pid_t>(params["child"].u64_or(0)), params);
  if (method == "target.ready" && armed_) return stream_.later([this, pid] { arm_in_program(pid); });
  if (method == "target.execed" && armed_ && goes_on_in_programs()) return take_program(pid, params);
  if (method == "target.exited" || method == "target.detached") take_end(pid, params);
  if (method == "target.memberExited" && static_cast<pid_t>(params["member"].u64_or(0)) == pid_)
    note_own_end(params, params["left"].u64_or(0));
  if (pid == pid_ && method == "target.exited") note_own_end(params, targets_.size());
  if (targets_.empty()) stream_.end(End::target_gone);
  if (pid != pid_) return;
  if (method == "target.ready") ready_ = true;
  if (method == "target.detached" && !cleaning_up_) {
    stream_.say(fmt::format("somebody detached PID {}; its probes are gone", pid_));
    stream_.end(End::target_gone);
  }
  if (method == "target.execed") take_execed(params);
}

// The process that the trace is of has ended. `left`: children of it that are still traced, and the trace with them.
void Trace::note_own_end(JsonView params, std::uint64_t left) {
  if (std::exchange(gone_, true)) return;
  if (left > 0) stream_.go_on();
  if (!armed_ || cleaning_up_) return;
  own_end_told_ = true;
  auto text = fmt::format("PID {} ended{}", pid_, how_it_ended(params));
  if (left == 1) text += "; the trace goes on with 1 process that it has made";
  if (left > 1) text += fmt::format("; the trace goes on with {} processes that it has made", left);
  stream_.say(text);
}

// ---- what others do to our probes -----------------------------------------------------------------------------------

void Trace::take_removed(JsonView params) {
  if (cleaning_up_) return;
  const std::size_t before = removed_.size();
  params["ids"].each_element([this](JsonView id) {
    const auto number = id.u64_or(0);
    if (probes_.contains(number) && !forgotten_.contains(number)) removed_.insert(number);
    return true;
  });
  if (removed_.size() == before) return;
  stream_.say(fmt::format("{} by another client", display(params["message"].string())));
  if (!none_can_be_hit()) return;
  stream_.say("no probe is left that could be hit");
  stream_.end(End::count);
}

// Whoever switched them off may switch them on again: the trace goes on.
void Trace::take_switched(const Notification& notification) {
  const auto& [method, params] = notification;
  if (cleaning_up_ || !armed_) return;
  if (method == "daemon.switched") return stream_.say(how_it_was_switched(params));
  if (names_ours(params)) stream_.say(display(params["message"].string()));
}

bool Trace::none_can_be_hit() const {
  return !parts_.command && std::ranges::all_of(probes_, [this](const auto& probe) {
    return disabled_.contains(probe.first) || removed_.contains(probe.first) || forgotten_.contains(probe.first);
  });
}

void Trace::note_unprivileged(pid_t pid, JsonView params) {
  if (!params["unprivileged"].boolean_or(false)) return;
  stream_.say(
      fmt::format("PID {}, {}, runs without the privileges that its file gives (set-user-ID, capabilities): the kernel "
                  "withholds them under a tracer that has none; run this as root",
                  pid, display(params["comm"].string())));
}

// What isn't said to go on elsewhere. Where `attached` is false before the probes are in place, the command is a
// program that we may not trace (set-user-ID, say).
void Trace::take_execed(JsonView params) {
  note_unprivileged(pid_, params);
  count_let_go(pid_, params);
  denied_ = parts_.command && !params["attached"].boolean_or(true);
  if (!armed_) return;
  stream_.say(
      fmt::format("PID {} runs {} now; the probes were in the program before (with --follow-fork they go on there)",
                  pid_, display(params["comm"].string())));
  stream_.end(End::target_gone);
}

// ---- programs that our processes execute ----------------------------------------------------------------------------

void Trace::count_let_go(pid_t pid, JsonView told) {
  if (const auto children = told["childrenLetGo"].u64()) untraced_.let_go(pid, *children);
}

void Trace::take_end(pid_t pid, JsonView params) {
  count_let_go(pid, params);
  targets_.erase(pid);
}

// `pid`, a target of ours or a child of one, runs another program. Held there it is heard of again: target.ready.
void Trace::take_program(pid_t pid, JsonView params) {
  const auto comm = display(params["comm"].string());
  note_unprivileged(pid, params);
  count_let_go(pid, params);
  const bool attached = params["attached"].boolean_or(false);
  if (attached) {
    targets_[pid] = comm;
    return;
  }
  untraced_.ran(comm, pid != pid_);
  if (pid != pid_) {
    targets_.erase(pid);
    if (targets_.empty()) stream_.end(End::target_gone);
    return;
  }
  stream_.say(fmt::format("PID {} runs {} now, which may not be traced", pid_, comm));
  stream_.end(End::target_gone);
}

// It stands before its program's first instruction. The definitions go on there: where they name something that it has,
// or will load. What can't be done there is told, and the program goes on in any case.
void Trace::arm_in_program(pid_t pid) {
  if (cleaning_up_ || !targets_.contains(pid)) return;
  forget_program(pid);
  std::size_t pending = 0;
  std::optional<Error> refused;
  const auto ids = add_in_program(pid, pending, refused);
  proto::JsonWriter wanted, enabled;
  wanted.begin_object().key("probes").begin_array();
  enabled.begin_object().key("ids").begin_array();
  for (const auto id : ids) {
    wanted.string(std::to_string(id));
    enabled.number(id);
  }
  if (!ids.empty()) {
    const auto subscribed =
        connection_.call("events.subscribe", wanted.end_array().end_object().text(), stream_.interruptible());
    if (subscribed) subscriptions_.push_back((*subscribed)["subscription"].u64_or(0));
    const auto armed =
        connection_.call("probe.enable", enabled.end_array().end_object().text(), stream_.interruptible());
    if (!subscribed || !armed) refused = subscribed ? armed.error() : subscribed.error();
  }
  note_program(pid, ids.size() - pending, pending, refused);
  // A connection that has ended says so itself.
  if (const auto resumed = resume(pid); !resumed && connection_.alive())
    stream_.say(fmt::format("PID {} could not be let go on: {}", pid, display(resumed.error().message)));
}

// Also when something has gone wrong, or a signal came: nobody else would let it go on as long as we live. Of one that
// has ended meanwhile the stream tells.
Result<void> Trace::resume(pid_t pid) {
  const auto resumed = connection_.call("target.resume", pid_params(pid), {Clock::now() + kReadyLimit, -1, {}});
  if (!resumed && resumed.error().reason != Reason::not_attached) return resumed.error();
  return {};
}

// One by one: that one definition has no place there doesn't hinder the others.
std::vector<std::uint64_t> Trace::add_in_program(pid_t pid, std::size_t& pending, std::optional<Error>& refused) {
  std::vector<std::uint64_t> ids;
  Options one = options_;
  one.pending = true;
  if (one.count) *one.count -= std::min(*one.count, stream_.printed());
  for (const auto& definition : options_.probes) {
    if (names_address(definition)) continue;
    one.probes = {definition};
    auto added = connection_.call("probe.add", trace_add_params(one, pid), stream_.interruptible());
    if (!added) {
      refused = std::move(added).error();
      continue;
    }
    (*added)["probes"].each_element([&](JsonView probe) {
      ids.push_back(probe["id"].u64_or(0));
      pending += probe["state"].raw_string() == "pending";
      probes_.emplace(ids.back(), Counters());
      placed_in_[ids.back()] = pid;
      return true;
    });
    stream_.learn((*added)["probes"]);
  }
  return ids;
}

// What was in the program that the process ran before: its counters stay, its names are free again.
void Trace::forget_program(pid_t pid) {
  proto::JsonWriter json;
  json.begin_object().key("ids").begin_array();
  bool any = false;
  for (const auto& [id, counters] : probes_) {
    const auto placed = placed_in_.find(id);
    if ((placed == placed_in_.end() ? pid_ : placed->second) != pid) continue;
    json.number(id);
    forgotten_.insert(id);
    any = true;
  }
  if (!any) return;
  const auto removed = connection_.call("probe.remove", json.end_array().end_object().text(), stream_.interruptible());
  if (removed) count((*removed)["probes"]);
}

void Trace::note_program(pid_t pid, std::size_t count, std::size_t pending, const std::optional<Error>& refused) {
  const auto& comm = targets_.at(pid);
  if (count == 0) untraced_.ran(comm);
  std::string text = fmt::format("PID {} runs {} now", pid, comm);
  if (count > 0) text += fmt::format("; armed {} there", count_of(count, "probe"));
  if (pending > 0) text += fmt::format("; {} pending: not there, or not loaded yet", count_of(pending, "probe"));
  if (refused) text += fmt::format("; refused there: {}", display(refused->message));
  stream_.say(text);
}

bool Trace::names_ours(JsonView params) const {
  bool ours = false;
  params["ids"].each_element([&](JsonView id) { return !(ours = probes_.contains(id.u64_or(0))); });
  return ours;
}

void Trace::note_armed_more(std::size_t count, std::string_view skipped) {
  stream_.say(fmt::format("armed {} more, whose code has been loaded{}", count_of(count, "probe"),
                          skipped.empty() ? "" : fmt::format(" ({})", skipped)));
}

// What a pending glob of ours matches has been loaded.
void Trace::take_added(JsonView params) {
  const auto from = params["from"].u64_or(0);
  if (!probes_.contains(from) && !globs_.contains(from)) return;
  std::size_t count = 0;
  params["ids"].each_element([&](JsonView id) {
    probes_.emplace(id.u64_or(0), Counters());
    return ++count, true;
  });
  if (count > 0 && probes_.erase(from) > 0) globs_.insert(from);  // its matches are hit in its place
  stream_.learn_added(params);
  if (cleaning_up_) return;
  const auto skipped = skipped_summary(params["skipped"], options_.verbose, params["skippedCount"].u64_or(0));
  note_armed_more(count, skipped);
  if (!skipped.empty() && options_.verbose) report_skipped(params["skipped"], options_.json());
}

// `ids` for a batch, `id` for one.
void Trace::take_disabled(JsonView params) {
  const std::size_t before = disabled_.size();
  const auto note_one = [&](JsonView id) {
    if (const std::uint64_t number = id.u64_or(0); probes_.contains(number)) disabled_.insert(number);
    return true;
  };
  note_one(params["id"]);
  params["ids"].each_element(note_one);
  if (disabled_.size() == before) return;
  const auto reason = params["reason"].string();
  if (reason == "limit") return stream_.end(End::count);
  const auto message = display(params["message"].string());
  stream_.say(fmt::format("probes were disabled: {}", message.empty() ? reason : message));
  if (!none_can_be_hit()) return;
  stream_.say("no probe is left that could be hit");
  stream_.end(End::count);
}

void Trace::count(JsonView probes) {
  probes.each_element([&](JsonView probe) {
    const auto known = probes_.find(probe["id"].u64_or(0));
    if (known == probes_.end()) return true;
    const auto raise = [&probe](std::uint64_t& counter, const char* name) {
      counter = std::max(counter, probe[name].u64_or(0));
    };
    Counters& counters = known->second;
    raise(counters.hits, "hits");
    raise(counters.missed, "missed");
    raise(counters.filtered, "filtered");
    raise(counters.abandoned, "abandoned");
    raise(counters.unmatched, "unmatched");
    return true;
  });
}

std::string Trace::ids_params() const {
  proto::JsonWriter json;
  json.begin_object().key("ids").begin_array();
  for (const auto& [id, counters] : probes_) json.number(id);
  for (const auto id : globs_) json.number(id);
  return json.end_array().end_object().text();
}

// For more than the life of its probes: its programs, and those of its children, are held until our probes are there.
Result<void> Trace::attach() {
  proto::JsonWriter json;
  json.begin_object().key("pid").number(std::int64_t{pid_}).key("holdAtExecs").boolean(true);
  if (parts_.command && !armed_) json.key("holdAtEntry").boolean(true);
  if (options_.follow_fork) json.key("followFork").boolean(true);
  auto attached = connection_.call("target.attach", json.end_object().text(), stream_.interruptible());
  if (!attached) return std::move(attached).error();
  attached_ = true;
  return {};
}

// Until release() the command's process is ours, waiting; the daemon attaches to it there and holds it at the entry of
// the program it becomes.
Result<void> Trace::start_command() {
  if (auto attached = attach(); !attached) return attached;
  if (auto released = parts_.command->release(stream_.interruptible()); !released) return released;
  return wait_for_program();
}

Result<void> Trace::wait_for_program() {
  auto limit = stream_.interruptible();
  limit.deadline = Clock::now() + kReadyLimit;
  while (!ready_) {
    if (gone_)
      return Error{
          Reason::target_gone, fmt::format("{} ended before its first instruction", options_.command_line[0]), "", {}};
    if (denied_)
      return Error{
          Reason::permission_denied,
          fmt::format("this user may not trace {}: it is a set-user-ID program, has capabilities, or may not be "
                      "read",
                      options_.command_line[0]),
          "run this as root",
          {}};
    const auto woken = connection_.wait(limit);
    if (!woken) return woken.error();
    if (*woken == Wake::message) continue;
    const char* why = *woken == Wake::interrupt ? "interrupted" : "the daemon did not report it ready in time";
    return Error{Reason::internal, fmt::format("starting {}: {}", options_.command_line[0], why), "", {}};
  }
  return {};
}

Result<void> Trace::add_probes() {
  Options left = options_;
  if (left.count) *left.count -= std::min(*left.count, stream_.printed());
  if (const auto since = std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - armed_at_);
      left.expire && armed_)
    *left.expire -= std::min(*left.expire - 1, static_cast<std::uint64_t>(since.count()));
  auto added = connection_.call("probe.add", trace_add_params(left, pid_), stream_.interruptible());
  if (!added) return std::move(added).error();
  const auto probes = (*added)["probes"];
  probes.each_element([&](JsonView probe) {
    probes_.emplace(probe["id"].u64_or(0), Counters());
    return true;
  });
  stream_.learn(probes);
  note_of_probes(probes);
  const auto skipped = (*added)["skipped"];
  skipped_ = skipped_summary(skipped, options_.verbose);
  if (!skipped_.empty() && options_.verbose) report_skipped(skipped, options_.json());
  return {};
}

Result<void> Trace::subscribe() {
  proto::JsonWriter json;
  json.begin_object().key("probes").begin_array();
  for (const auto& [id, counters] : probes_) json.string(std::to_string(id));
  json.end_array().end_object();
  auto subscribed = connection_.call("events.subscribe", json.text(), stream_.interruptible());
  if (!subscribed) return std::move(subscribed).error();
  subscriptions_.push_back((*subscribed)["subscription"].u64_or(0));
  return {};
}

// That there is no answer is no reason not to trace. A daemon of our own has waited for our sake alone.
void Trace::learn_starved() {
  if (parts_.daemon) return;
  const auto status = connection_.call("daemon.status", "{}", stream_.interruptible());
  starved_before_ = status ? starved_of(status->view()) : Starved();
}

void Trace::look_at_starved() {
  const auto status = finish_call("daemon.status", "{}");
  if (!status) return;
  const Starved now = starved_of(status->view());
  if (now.sum >= starved_.sum) starved_ = now;
}

// A thread of the target that was stopped stood still while the daemon waited for a processor.
void Trace::note_starved() {
  if (starved_.sum <= starved_before_.sum) return;
  const std::uint64_t sum = starved_.sum - starved_before_.sum, longest = std::min(starved_.longest, sum);
  const char* why = starved_.first
                        ? "its real-time share was used up, or other real-time work ran"
                        : "it may have no real-time priority: run it as root, or raise the limit with ulimit -r 2";
  note(fmt::format(
      "the machine was busy: probed waited {} ms for a processor, up to {} ms at a time, and threads that it "
      "had stopped stood still as long ({})",
      sum / 1'000'000, longest / 1'000'000, why));
}

Result<void> Trace::arm() {
  learn_starved();
  const bool was_stopped = !parts_.command && state_of(pid_) == 'T';  // it is the daemon's then
  if (parts_.command)
    if (auto started = start_command(); !started) return started;
  if (!parts_.command && goes_on_in_programs())
    if (auto attached = attach(); !attached) return attached;
  auto enabled = add_and_enable();
  if (!enabled) return std::move(enabled).error();
  armed_at_ = Clock::now();
  print_armed((*enabled)["probes"]);
  if (parts_.command) return resume(pid_);
  note_at_start(was_stopped);
  return {};
}

// Why nothing may be seen of a process that runs already.
void Trace::note_at_start(bool was_stopped) const {
  if (was_stopped)
    note(fmt::format("PID {} is stopped: it does nothing until somebody lets it go on (kill -CONT {})", pid_, pid_));
  const auto children = options_.follow_fork ? children_of(pid_) : std::vector<pid_t>();
  if (children.empty()) return;
  constexpr std::size_t kMostNamed = 8;
  std::string pids;
  for (std::size_t i = 0; i < std::min(children.size(), kMostNamed); ++i)
    pids += fmt::format("{}{}", i == 0 ? "" : ", ", children[i]);
  if (children.size() > kMostNamed) pids += ", ...";
  note(fmt::format("{} that PID {} has already {} not followed: trace {} by its own PID ({})",
                   children.size() == 1 ? "the child" : fmt::format("the {} children", children.size()), pid_,
                   children.size() == 1 ? "is" : "are", children.size() == 1 ? "it" : "each", pids));
}

// What it answers says how many there are.
Result<Document> Trace::add_and_enable() {
  if (auto added = add_probes(); !added) return std::move(added).error();
  if (auto subscribed = subscribe(); !subscribed) return std::move(subscribed).error();
  auto enabled = connection_.call("probe.enable", ids_params(), stream_.interruptible());
  if (!enabled) return std::move(enabled).error();
  // A script is told "armed" when hits count, and here none would.
  if (shows_disarmed((*enabled)["probes"])) {
    word_ = "disarmed";
    return Error{Reason::unsupported, kDisarmed, kArmHint, {}};
  }
  std::optional<Error> failed;
  (*enabled)["failed"].each_element([&](JsonView item) {
    failed = failed_error(item);
    return false;
  });
  if (failed) return *std::move(failed);
  return enabled;
}

// The daemon has gone: its probes went with it, and are added anew to the next one, if one comes. False: none has, or
// the trace is to end anyway.
bool Trace::come_back() {
  if (parts_.daemon || connection_.alive() || !stream_.failure() || options_.reconnect == 0) return false;
  const auto lost = Clock::now();
  loss_told_ = true;
  const auto path = socket_path(options_.socket);
  note(fmt::format("the daemon at {} {}; waiting {} s for another one", path, stream_.how_daemon_went(),
                   options_.reconnect));
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    if (!stream_.reconnect(path, std::chrono::seconds(options_.reconnect))) return false;
    before_ = stream_.received() + stream_.missed();
    probes_.clear();
    disabled_.clear();
    removed_.clear();
    forgotten_.clear();
    placed_in_.clear();
    subscriptions_.clear();
    attached_ = false;  // add_probes() attaches for as long as there are probes
    learn_starved();
    auto attached = goes_on_in_programs() ? attach() : Result<void>();
    auto enabled = attached ? add_and_enable() : Result<Document>(std::move(attached).error());
    const std::chrono::duration<double> gap = Clock::now() - lost;
    if (enabled) {
      loss_told_ = false;
      note(fmt::format(
          "a daemon is back: {} in PID {} again; what was hit in {:.3f} s without them is missed, uncounted",
          count_of(probes_.size(), "probe"), pid_, gap.count()));
      return true;
    }
    stream_.fail(std::move(enabled).error());
    if (connection_.alive()) return false;
  }
  return false;
}

void Trace::print_armed(JsonView probes) {
  armed_ = true;
  std::size_t pending = 0;
  probes.each_element([&](JsonView probe) { return pending += probe["state"].raw_string() == "pending", true; });
  auto notes = skipped_.empty() ? "" : " (" + skipped_ + ")";
  if (pending > 0) notes += fmt::format(" ({} more pending: not loaded yet)", pending);
  std::fputs(fmt::format("armed {} in PID {}{}\n", count_of(probes_.size() - pending, "probe"), pid_, notes).c_str(),
             stderr);
}

// The daemon reports the target's end; should that report be lost, the kernel's own ends the trace a little later.
void Trace::watch_target() {
  if (!parts_.command) pidfd_ = open_pidfd(pid_);
  const int fd = parts_.command ? parts_.command->pidfd() : pidfd_.get();
  stream_.watch(fd, [this] {
    if (!gone_) stream_.end_soon(End::target_gone);
  });
}

bool Trace::note_second_signal() {
  if (parts_.signals.take()) note("cleaning up; this takes a moment");
  return true;
}

std::optional<Document> Trace::finish_call(std::string_view method, const std::string& params) {
  if (!connection_.alive()) return std::nullopt;
  const WaitLimit limit{clean_up_end_, parts_.signals.fd(), [this] { return note_second_signal(); }};
  auto reply = connection_.call(method, params, limit);
  if (!reply) return std::nullopt;  // the next step may still succeed, and the daemon cleans up after us anyway
  return std::move(reply).value();
}

void Trace::clean_up() {
  cleaning_up_ = true;
  go_first();
  clean_up_end_ = Clock::now() + kCleanUpLimit;
  const auto count_reply = [this](const std::optional<Document>& reply) {
    if (reply) count((*reply)["probes"]);
  };
  const auto ids = ids_params();
  if (!probes_.empty()) count_reply(finish_call("probe.disable", ids));
  for (const auto subscription : subscriptions_)
    finish_call("events.unsubscribe", fmt::format("{{\"subscription\":{}}}", subscription));
  if (!probes_.empty()) {
    count_reply(finish_call("probe.profile", "{}"));
    if (!parts_.daemon) look_at_starved();  // who is no administrator is told of his targets alone
  }
  count_children();  // a target that only these probes have attached goes with them
  if (!probes_.empty()) count_reply(finish_call("probe.remove", ids));
  look_at_starved();
  let_targets_go();
}

void Trace::each_own_target(const std::function<void(pid_t pid, JsonView target)>& look) {
  const auto targets = finish_call("target.list", "{}");
  if (!targets) return;
  (*targets)["targets"].each_element([&](JsonView target) {
    const auto pid = static_cast<pid_t>(target["pid"].u64_or(0));
    if (targets_.contains(pid)) look(pid, target);
    return true;
  });
}

void Trace::count_children() {
  each_own_target([this](pid_t pid, JsonView target) { count_let_go(pid, target); });
}

// Everybody's probes go with a detach, so it is left to whoever else has some in this target.
void Trace::let_targets_go() {
  if (!attached_) return;
  std::vector<pid_t> unused;
  each_own_target([&unused](pid_t pid, JsonView target) {
    if (target["probes"].u64() == 0u) unused.push_back(pid);
  });
  for (const pid_t pid : unused) finish_call("target.detach", pid_params(pid));
}

// One that has ended and that nobody has waited for yet can still be sent signals.
static bool still_runs(pid_t pid) {
  const UniqueFd process = open_pidfd(pid);
  return process ? !wait_for_exit(process, 0) : ::kill(pid, 0) == 0 || errno == EPERM;
}

// What an error means to whoever started this trace.
Error Trace::in_context(Error error) {
  const auto sudden = parts_.daemon && !connection_.alive() ? parts_.daemon->sudden_end() : "";
  if (!sudden.empty()) {
    const auto words = parts_.daemon->last_words();
    error.message = fmt::format("the private daemon {}{}{}", sudden, words.empty() ? "" : "; its last words: ", words);
    const bool clean = parts_.daemon->left_nothing(), runs = still_runs(pid_);
    error.hint = fmt::format("PID {} {}", pid_,
                             !runs   ? "has ended"
                             : clean ? "goes on without its probes, which have been taken out"
                                     : "may have breakpoints left");
  }
  if (!armed_ && parts_.signals.take())
    error = {Reason::internal, "interrupted before the probes were in place", "the target goes on without them", {}};
  // A module that is there will not have it later.
  const auto names_module = [&] {
    const std::size_t index = error.definition.value_or(0);
    const std::string_view text = index < options_.probes.size() ? options_.probes[index] : std::string_view();
    std::string_view location = text.substr(std::min(*error.column, text.size()));
    location = location.substr(0, location.find(' '));
    for (std::size_t i = 0; (i = location.find(':', i)) != location.npos; i += 2)
      if (!location.substr(i).starts_with("::")) return true;
    return false;
  };
  const bool may_be_elsewhere = error.column && (error.reason == Reason::no_such_module ||
                                                 (error.reason == Reason::no_such_symbol && !names_module()));
  // The process that its hint is about is one we have ended.
  if (parts_.command && error.hint.find("probectl functions -p") != std::string::npos)
    error.hint = fmt::format("start {} by itself: `probectl functions -p PID` then lists what can be probed",
                             options_.command_line[0]);
  if (parts_.command && !armed_ && may_be_elsewhere) {
    constexpr std::string_view kPending = "with --pending a probe waits for a library that isn't loaded yet";
    if (error.hint.find(kPending) == error.hint.npos)
      error.hint += (error.hint.empty() ? "" : "; ") + std::string(kPending);
    error.hint +=
        ", and written MODULE:NAME also for a program that CMD executes (one that a child of it executes: with "
        "--follow-fork, too)";
  }
  return error;
}

int Trace::give_up(const Error& error) {
  // Nothing of the program has run yet; run without its probes is not what was asked for.
  if (parts_.command && !armed_) parts_.command->kill();
  const auto shown = in_context(error);
  const auto word = word_.empty() ? failure_word(&connection_, error) : word_;
  clean_up();
  return fail(shown, options_.json(), word, {options_.probes, options_.filter});
}

// What was hit and did not arrive was lost on the way to us, which the stream reports, or before, which the probes
// count.
void Trace::print_account() {
  Counters sum;
  for (const auto& [id, counters] : probes_) {
    sum.hits += counters.hits;
    sum.missed += counters.missed;
    sum.filtered += counters.filtered;
    sum.abandoned += counters.abandoned;
    sum.unmatched += counters.unmatched;
  }
  sum.hits += before_;
  const auto account = make_account(sum.hits, stream_.received(), stream_.missed());
  const bool explained = account.missed == stream_.missed() || account.missed == stream_.missed() + sum.missed;
  if (connection_.alive() && !explained)
    note(fmt::format("the probes counted {} hits, the stream reported {} missed", sum.hits, stream_.missed()));
  if (!connection_.alive() && !stream_.daemon_stopped() && !loss_told_)
    note("what was hit and not sent yet when the daemon ended is lost, uncounted");
  note_missed(stream_.missed_in_stream(), stream_.has_returns());
  note_starved();
  if (const auto untraced = untraced_.text(options_.follow_fork); !untraced.empty()) note(untraced);
  if (sum.filtered > 0) note(fmt::format("a filter turned {} more away", sum.filtered));
  // What return probes have seen besides returns of calls that they had seen begin.
  if (sum.abandoned > 0)
    note(fmt::format("{} ended without a return (an exception, longjmp, the end of a thread)",
                     count_of(sum.abandoned, "call")));
  if (sum.unmatched > 0)
    note(fmt::format("{} of calls whose beginning was not seen", count_of(sum.unmatched, "return")));
  std::fputs(fmt::format("hits={} delivered={} missed={}\n", account.hits, account.delivered, account.missed).c_str(),
             stderr);
}

int Trace::conclude() {
  stream_.finish();
  if (parts_.command && !own_end_told_) {
    // The signal that has ended us may have been meant for both: ^C at a terminal.
    const auto ended = parts_.command->reap(stream_.was_signalled() ? kDyingPatience : 0);
    if (ended) note(fmt::format("{} (PID {}) ended{}", options_.command_line[0], pid_, *ended));
    if (!ended && !gone_) note(fmt::format("{} (PID {}) goes on, untraced", options_.command_line[0], pid_));
  }
  print_account();
  if (parts_.output.state() == Output::State::failed) return fail(parts_.output.error(), options_.json());
  const auto& failure = stream_.failure();
  return failure ? fail(in_context(*failure), options_.json(), failure_word(&connection_, *failure)) : 0;
}

int Trace::run() {
  watch_target();
  auto armed = arm();
  if (!armed) return give_up(armed.error());
  do stream_.run();
  while (come_back());
  clean_up();
  return conclude();
}

Result<pid_t> find_target(const Options& options) {
  if (options.pid) return *options.pid;
  if (options.target_name.empty()) return 0;  // a command, not started yet
  return choose_by_name(all_processes(), options.target_name);
}

Result<void> connect(Parts& parts, const Options& options) {
  auto connection = reach_daemon(options, parts.signals, parts.daemon);
  if (!connection) return std::move(connection).error();
  parts.connection.emplace(std::move(connection).value());
  return {};
}

Result<pid_t> fork_command(Parts& parts, const Options& options) {
  auto command = HeldCommand::fork(options.command_line, parts.signals, parts.daemon ? parts.daemon->pid() : 0);
  if (!command) return std::move(command).error();
  parts.command.emplace(std::move(command).value());
  return parts.command->pid();
}

}  // namespace

std::string trace_add_params(const Options& options, pid_t pid) {
  proto::JsonWriter json;
  json.begin_object().key("pid").number(std::int64_t{pid}).key("probes").begin_array();
  for (const auto& definition : options.probes) {
    json.begin_object().key("definition").string(definition);
    if (!options.filter.empty()) json.key("filter").string(options.filter);
    json.key("disabled").boolean(true);
    if (options.no_optimize) json.key("optimize").boolean(false);
    if (options.pending) json.key("pending").boolean(true);
    json.end_object();
  }
  json.end_array();
  if (options.count) json.key("limit").number(*options.count);
  if (options.max_rate) json.key("maxRate").number(*options.max_rate);
  if (options.expire) json.key("expire").number(*options.expire);
  if (options.follow_fork) json.key("followFork").boolean(true);
  return json.end_object().text();
}

Account make_account(std::uint64_t counted_hits, std::uint64_t delivered, std::uint64_t reported_missed) {
  if (counted_hits >= delivered) return {counted_hits, delivered, counted_hits - delivered};
  return {delivered + reported_missed, delivered, reported_missed};
}

int run_trace(const Options& options) {
  auto target = find_target(options);
  if (!target) return fail(target.error(), options.json());
  auto signals = Signals::install();
  if (!signals) return fail(signals.error(), options.json());
  auto output = open_output(options);
  if (!output) return fail(output.error(), options.json());
  Parts parts{std::move(signals).value(), std::move(output).value(), {}, {}, {}};
  if (auto connected = connect(parts, options); !connected)
    return fail(connected.error(), options.json(), failure_word(nullptr, connected.error()));
  if (!options.command_line.empty()) target = fork_command(parts, options);
  if (!target) return fail(target.error(), options.json());
  return Trace(parts, options, *target).run();
}

}  // namespace probed::client
