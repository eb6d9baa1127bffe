// What the controller keeps: targets, probes, subscriptions. Plain data; Asio thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "daemon/base/types.hpp"
#include "daemon/control/controller.hpp"
#include "daemon/control/kept.hpp"
#include "daemon/control/planner.hpp"
#include "daemon/events/encode.hpp"
#include "daemon/events/feed.hpp"
#include "daemon/tracer/kernel/wait.hpp"
#include "daemon/tracer/program.hpp"
#include "daemon/tracer/text/text_overlay.hpp"

namespace probed::control {

struct Subscription {
  std::uint64_t id = 0;
  Client* client = nullptr;
  SubscribeRequest request;
  std::unordered_set<std::string> wanted;  // request.probes, to be looked up for each probe there is
  SubscriptionTotals totals;
  // Whether all its probes can end: all that there will ever be of every target can't.
  bool is_of_some() const { return request.pid || request.probes; }
  bool touched = false;  // it has been offered events since the last flush
};

// Who listens to a probe. Whoever has no room for an event is passed over until the next settle(), which says how many
// that one has missed: once in each turn, and not for each event, a client that doesn't read costs something.
class Audience {
 public:
  bool empty() const { return listeners_.empty(); }
  std::size_t size() const { return listeners_.size(); }
  bool has_room() const { return with_room_ > 0; }
  void add(Subscription& subscription) {
    listeners_.push_back({&subscription, offered_});
    std::swap(listeners_[with_room_++], listeners_.back());
  }
  // After settle().
  bool remove(const Subscription& subscription) {
    const bool was_there =
        std::erase_if(listeners_, [&](const Listener& l) { return l.subscription == &subscription; });
    with_room_ = listeners_.size();
    return was_there;
  }
  template <class F>
  void each(F&& call) const {
    for (const Listener& listener : listeners_) call(*listener.subscription);
  }
  // take(Subscription&) -> bool: whether it had room for the event. True: the first since settle().
  template <class Take>
  bool offer(Take&& take) {
    for (std::size_t i = 0; i < with_room_;) {
      if (take(*listeners_[i].subscription)) {
        ++i;
        continue;
      }
      listeners_[i].missed_from = offered_;
      std::swap(listeners_[i], listeners_[--with_room_]);
    }
    return offered_++ == 0;
  }
  // missed(Subscription&, count) for each that has been passed over.
  template <class Missed>
  void settle(Missed&& missed) {
    for (std::size_t i = with_room_; i < listeners_.size(); ++i)
      missed(*listeners_[i].subscription, offered_ - listeners_[i].missed_from);
    with_room_ = listeners_.size();
    offered_ = 0;
  }

 private:
  struct Listener {
    Subscription* subscription;
    std::uint64_t missed_from;
  };
  std::vector<Listener> listeners_;
  std::size_t with_room_ = 0;  // the first so many
  std::uint64_t offered_ = 0;
};

struct Probe;

// A channel, as its reader keeps it.
struct FeedState {
  struct Tap {
    Probe* probe = nullptr;      // null: it has gone, its last records are nobody's
    tracer::ProgramPtr program;  // null: no such index
    std::uint64_t rejected = 0;  // of what was recorded, by a filter that only the daemon can evaluate
  };
  struct Thread {
    pid_t tid = 0;
    char comm[16] = {};
    std::chrono::steady_clock::time_point read{};
  };
  events::FeedPtr feed;
  char comm[16] = {};  // the process's name when this began: of threads that ended before their first record was read
  std::vector<Tap> taps;  // by index
  std::unordered_map<pid_t, Thread> threads;
  Thread* last = nullptr;  // of them; the one asked for last, as records come in runs
  std::uint64_t last_time = 0;
  // Records of threads that the tracer hasn't named yet: they wait for a moment.
  struct Unknown {
    events::ChannelRecord record;  // `words` are below
    std::vector<std::uint64_t> words;
    std::chrono::steady_clock::time_point since;
  };
  std::deque<Unknown> unknown;
  std::chrono::steady_clock::time_point asked{};
};

struct Probe {
  ProbeId id{};
  pid_t pid = 0;
  ClientId owner = ClientId::none;  // none: persistent
  uid_t user = 0;                   // who has added it
  gid_t user_group = 0;
  std::string group, name;
  std::string definition, filter;
  std::string symbol;  // "processCommand+0x0"
  std::string module;
  std::vector<std::string> notes;  // what its user should know
  RemoteAddr address;
  bool enabled = true;
  bool gone = false;       // the memory or the process it was in has gone, or (pending) has never been there
  bool no_code = false;    // gone, and for good: what it was in can't be probed
  bool optimize = true;    // as it was added; the global switch is another thing
  bool pending = false;    // comes back by itself when its code does
  bool ended = false;      // its process, or the program it ran, has ended: it can't come back
  bool committed = false;  // the tracer has confirmed it; until then nobody sees it
  // How often it is hit, and may be: limits.cpp. Of a leader, for all its places.
  struct Pace {
    std::optional<std::uint64_t> most;  // hits a second; 0: any number; nullopt: the daemon's, while it is a breakpoint
    std::chrono::steady_clock::time_point since{};  // of the second that is being counted; zero: none is
    std::uint64_t passes = 0;                       // up to then
    unsigned fast_seconds = 0;                      // in a row
  } pace;
  std::optional<std::chrono::steady_clock::time_point> expires;
  std::string why_disabled;  // by the daemon; empty: it wasn't, or has been enabled since
  bool not_begun = false;    // added disabled, and never enabled since
  // One probe at many places (a static probe): the first place's entry is what people see and name, and the others
  // follow it: same name, its id in their events, enabled and removed with it.
  // So are those that have waited for their code: whatever the definition names then, but for a glob.
  bool many = false;               // a leader that may get more places
  ProbeId leader{};                // 0: itself
  std::vector<ProbeId> followers;  // of a leader
  ProbeId shown() const { return number(leader) != 0 ? leader : id; }
  // A glob that waits for its code (waiting.cpp): each match becomes a probe of its own, of which this one's
  // id is in `from`. As long as there are some they are seen in its place; it goes on waiting for others.
  bool glob = false;
  ProbeId from{};                  // of a match: what it was made of; 0: it was added itself
  std::string match;               // of a match: what it is, so that it isn't made twice
  std::size_t matches = 0;         // of a glob: those there are
  std::set<std::string> unwanted;  // of a glob: matches that somebody has removed
  std::size_t told_skipped = 0;    // of a glob: matches that can't be probed, as its clients know
  std::shared_ptr<const lang::Definition> parsed;
  std::uint64_t start_time = 0;  // with pid: the process it is in
  std::uint64_t mark = 0;        // of the program it is in (process::program_mark); only where probes are kept
  Place place;                   // where it stood last; likewise
  bool awaited = false;          // another daemon's, which is still to be put back
  std::string why_gone;          // of one that couldn't be
  std::optional<Unwatched> unwatched;
  tracer::ProgramPtr program;
  events::EventSchema schema;
  std::shared_ptr<const symbols::TargetSymbols> symbols;  // for arguments of type symbol; null: it has none
  Audience audience;
  // Where its detours record.
  struct Source {
    FeedState* feed = nullptr;
    std::uint32_t index = 0;
  };
  std::vector<Source> sources;
  std::uint64_t hits_before = 0;      // of program->counters->hits, that an earlier daemon has counted
  std::uint64_t reported_missed = 0;  // of program->counters->missed, told to the subscriptions

  std::string full_name() const { return group + "/" + name; }
};

// Probe operations on one target run one after the other: each looks at the text that the one before has left.
struct Target {
  TargetId id;
  std::string comm, exe;
  bool attached = false;
  // By target.attach: it stays without probes as long as one of these connections lives,
  std::set<ClientId> attached_for;
  std::optional<Owner> attached_by;  // or, with persist, as long as the target does
  bool stays() const { return attached_by || !attached_for.empty(); }
  std::uint64_t longest_pause = 0;   // ns, see Status
  std::uint64_t starved_before = 0;  // ns: Status::starved_ns when it was attached
  std::uint64_t mark = 0;            // of its program (process::program_mark); only where probes are kept
  bool follow_fork = false;
  ClientId holder{};                  // who wants it held at its entry, and will let it go on; none: nobody
  ClientId holds_execs{};             // likewise at each exec
  std::uint64_t children_let_go = 0;  // that it has made and that weren't followed
  std::uint32_t threads = 0;
  std::uint32_t execs = 0;                    // see tracer::AttachResult
  std::set<pid_t> members;                    // itself and the children it is followed into
  std::optional<tracer::WaitStatus> own_end;  // how it ended itself, while children that it is followed into live on
  std::shared_ptr<const tracer::TextOverlay> overlay;
  std::set<ClientId> interested;  // told about its end: they have attached it, have probes in it or get their events
  struct Operation {
    std::function<void()> run;
    // A client's: once that has gone this is done instead.
    ClientId whose = ClientId::none;
    std::function<void()> drop;
  };
  std::deque<Operation> operations;
  bool busy = false;
  ProbeId loader_watch{};           // of our own, where the dynamic loader reports; 0: none. See reviver.cpp
  bool look_queued = false;         // among the operations is one that looks for what has come back
  std::uint64_t loader_ticket = 0;  // of the loader's last report: threads up to it wait until that has been done
};

// What a probe has counted, its other places included.
struct Counts {
  std::uint64_t hits = 0, missed = 0, filtered = 0;
};

// What clients may trace, for as long as one thing is done: asking costs a look at many files of /proc.
using Sight = std::map<std::pair<ClientId, pid_t>, bool>;

// Whether the owner of what persists may still trace that process.
using OwnerJudge = std::function<Result<void>(Owner, pid_t)>;

// What people see: not the further places of a probe, nor a glob whose matches they see.
inline bool is_shown(const Probe& probe) { return number(probe.leader) == 0 && probe.matches == 0; }

// All that the controller knows of, whichever of its parts deals with it.
struct Registry {
  std::map<ClientId, Client*> clients;
  std::map<pid_t, Target> targets;
  std::map<ProbeId, Probe> probes;
  std::map<std::uint64_t, Subscription> subscriptions;
  std::uint32_t last_probe = 0;
  std::uint64_t last_subscription = 0;
  Status totals;                    // counters of probes that are no more
  std::uint64_t longest_pause = 0;  // ns
  bool armed = true;
  bool optimize = true;
  std::uint64_t max_rate = 0;  // hits a second of a breakpoint; 0: any number
  ProbeLimits probe_limits;
  OwnerJudge owner_may_trace = [](Owner, pid_t) { return Result<void>(); };

  // Entered when it isn't known yet.
  Target& target(pid_t pid);
  std::size_t probe_count(pid_t pid) const;
  std::size_t probe_count_of_user(uid_t user) const;
  // By itself, or by the glob that it is a match of.
  template <class Named>
  bool is_named(const Probe& probe, Named named) const {
    if (named(probe)) return true;
    const auto glob = probes.find(probe.from);
    return glob != probes.end() && named(glob->second);
  }

 private:
  template <class Pred>
  std::size_t count_probes(Pred pred) const;
};

}  // namespace probed::control
