// What the parts of the controller hand each other: a batch on its way to the tracer, and probes on their way back.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "daemon/control/planner.hpp"
#include "daemon/control/registry.hpp"
#include "daemon/tracer/requests.hpp"
#include "proto/json.hpp"

namespace probed::control {

// "GROUP/NAME (process 12)", for people: a name may be that of probes in many processes.
inline std::string full_name_in_process(const Probe& probe) {
  return fmt::format("{} (process {})", probe.full_name(), probe.pid);
}

// "GROUP/NAME (process 12) was removed", "... and 2 more were removed": of `count` probes, this the first of them.
inline std::string was_done(const std::string& first, std::size_t count, std::string_view what) {
  return count == 1 ? fmt::format("{} was {}", first, what)
                    : fmt::format("{} and {} more were {}", first, count - 1, what);
}

// What one client is to be told of several probes.
struct ToldOfProbes {
  std::vector<ProbeId> ids;
  std::string first;  // the first one's full_name_in_process()

  // {"ids":[...], and open for more.
  void put_ids(proto::JsonWriter& w) const {
    w.begin_object().key("ids").begin_array();
    for (const ProbeId id : ids) w.number(std::uint64_t{number(id)});
    w.end_array();
  }
};

// Its owner, and whoever gets its events.
inline std::set<Client*> owner_and_audience(const Registry& registry, const Probe& probe) {
  std::set<Client*> clients;
  if (const auto owner = registry.clients.find(probe.owner); owner != registry.clients.end())
    clients.insert(owner->second);
  probe.audience.each([&](const Subscription& s) { clients.insert(s.client); });
  return clients;
}

// Of those that people know of. hearers(probe): the std::set<Client*> that is to be told of it.
template <class F>
std::map<Client*, ToldOfProbes> sort_by_hearer(const Registry& registry, const std::vector<ProbeId>& ids, F hearers) {
  std::map<Client*, ToldOfProbes> told;
  for (const ProbeId id : ids) {
    const auto it = registry.probes.find(id);
    if (it == registry.probes.end() || !is_shown(it->second)) continue;
    for (Client* client : hearers(it->second)) {
      ToldOfProbes& t = told[client];
      if (t.ids.empty()) t.first = full_name_in_process(it->second);
      t.ids.push_back(id);
    }
  }
  return told;
}

struct Plan {
  AddRequest request;
  ClientId who{}, owner{};
  uid_t user = 0;
  gid_t user_group = 0;
  std::vector<lang::Definition> definitions;
  std::shared_ptr<const tracer::TextOverlay> overlay;
  std::uint32_t execs = 0;
  Reply<Added> reply;
  // filled on the way
  std::shared_ptr<const symbols::TargetSymbols> symbols;
  std::vector<PlannedProbe> planned;
  std::vector<Skipped> skipped;
  std::vector<ProbeId> ids;
  bool any_pending = false;
  // What is known of the code around its places. Of many places it is found out before they are armed: until it is
  // known each of them stays a breakpoint. It goes with them, or, when that would have taken too long, after them.
  enum class Analysis : std::uint8_t { none, under_way, done };
  Analysis analysis = Analysis::none;
  std::vector<tracer::SiteCode> code;
  bool committed = false, in_place = false;  // given to the tracer; and it has said so
  ProbeId from{};                            // the pending glob that these are matches of; 0: none
  unsigned attempt = 1;

  static constexpr unsigned kAttempts = 5;
  // Its code has come and gone all the time: probes that may wait for theirs do so.
  bool waits() const { return attempt > kAttempts; }
  // The same request with nothing of it planned, when `why` says that code went away between planning and arming: a
  // library comes and goes, and a probe may well wait for it. Null: that isn't why, or has been tried often enough.
  std::shared_ptr<Plan> again(const Error& why) const {
    if (why.reason != Reason::unmapped_address || number(from) != 0 || waits()) return nullptr;
    auto plan = std::make_shared<Plan>();
    plan->request = request;
    plan->who = who;
    plan->owner = owner;
    plan->user = user;
    plan->user_group = user_group;
    plan->definitions = definitions;
    plan->overlay = overlay;
    plan->execs = execs;
    plan->reply = reply;
    plan->attempt = attempt + 1;
    return plan;
  }
};

// One probe to be put in place again, with all its places.
struct Item {
  ProbeId leader{};
  lang::Definition definition;
  std::string filter;
  bool many = false;  // whatever the definition matches belongs to it
  struct Lost {
    ProbeId id{};
    std::string symbol;  // where it was: of several places, the one to choose
  };
  std::vector<Lost> lost;
  std::vector<RemoteAddr> in_place;  // the other places it has
  std::optional<Place> expected;     // where the leader is to be put back, and nowhere else
  struct Found {
    ProbeId id{};  // 0: a new place
    PlannedProbe planned;
    tracer::ProgramPtr program;
    std::optional<Error> why;  // not placed
  };
  std::vector<Found> found;
  std::optional<Error> why;  // nothing was found
  // Of a glob that waits, instead of `lost` and `in_place`: what it is to make no probe of, and what it has found.
  bool glob = false;
  std::set<std::string> taken;  // by Probe::match
  std::vector<PlannedProbe> matches;
  std::vector<Skipped> skipped;

  void plan(Planner& planner);
  void plan_places(Planner& planner);
  bool is_as_expected() const;
  void plan_matches(Planner& planner);
};

// Where the dynamic loader reports.
struct Watch {
  tracer::SitePlan plan;
  RemoteAddr state;  // r_debug.r_state; 0: not known
};

struct Revival {
  pid_t pid = 0;
  uid_t user = 0;  // whose probes these are; root's as soon as one of them is
  std::uint32_t execs = 0;
  std::shared_ptr<const tracer::TextOverlay> overlay;
  std::shared_ptr<const symbols::TargetSymbols> symbols;
  std::vector<Item> items;
  bool wants_watch = false;
  std::optional<Watch> watch_plan;
  tracer::ProgramPtr watch;
  std::size_t unplaced = 0;                                        // steps that the tracer has not answered
  std::unordered_map<const tracer::ProbeProgram*, Error> refused;  // by the tracer
  std::function<void(std::vector<Failed>)> done;
};

struct PlannedAgain {
  std::shared_ptr<const symbols::TargetSymbols> symbols;
  std::vector<Item> items;
  std::optional<Watch> watch_plan;
};

// While a target is let go, or its probes come or go, the threads here go first on a busy machine; for so long at most.
constexpr auto kForLettingGo = std::chrono::seconds(1);

// What the tracer is asked to add at once, because that is quicker. What it refuses is divided (place_halves()): all
// places of a function's return probe stay together, and every other place is one by itself.
struct Step {
  struct Part {
    tracer::SiteRequest request;
    tracer::ProgramPtr before;  // whose place it takes, or which it joins; null: our own watch
    bool joins = false;
  };
  std::vector<Part> parts;
};

// Places that have it in common are one probe; empty: this one is one by itself.
inline std::string one_probe(const symbols::Site& where) {
  return where.usdt ? where.usdt->provider + ":" + where.usdt->name : where.one_probe;
}

inline std::string symbol_of(const symbols::Site& where) {
  return where.symbol.empty() ? fmt::format("{:#x}", where.address.value)
                              : fmt::format("{}+{:#x}", where.symbol, where.offset);
}

// What a definition that may wait waits for: something that isn't loaded.
inline bool may_come(const Error& error) {
  constexpr std::array kComing{Reason::no_such_module, Reason::no_such_symbol, Reason::unmapped_address};
  return std::ranges::find(kComing, error.reason) != kComing.end();
}

// The same for one definition: a function that its module doesn't have will not come with another one.
inline bool may_come(const Error& error, const lang::Definition& definition) {
  return may_come(error) && !(error.reason == Reason::no_such_symbol && !definition.location.module.empty());
}

// What a probe's events carry, as the elements of a JSON array of {name, type}; waiting.cpp.
std::string args_of(const Probe& probe);

}  // namespace probed::control
