// Persistent probes in files, so that they outlive the daemon: one for each target, PID-STARTTIME.probes in the state
// directory, rewritten as a whole and renamed into place.
//
// Nothing here knows the registry (keeper.cpp does). What is read back is believed only when it is a file
// of this user's alone, of this boot, and every key of it is what it has to be; else it is refused whole.
#pragma once

#include <sys/types.h>

#include <compare>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/base/types.hpp"
#include "daemon/control/controller.hpp"
#include "daemon/symbols/maps.hpp"
#include "proto/base/result.hpp"
#include "proto/json.hpp"

namespace probed::control {

// Where what outlives the daemon is kept.
struct Keeping {
  std::string directory;
};

// Who has added a probe, in the daemon's user namespace.
struct Owner {
  uid_t user = 0;
  gid_t group = 0;
  auto operator<=>(const Owner&) const = default;
};

// The code that a probe stood at.
struct Place {
  std::vector<std::uint8_t> code;  // one instruction; empty: it never stood anywhere
  symbols::Backing backing;
  bool operator==(const Place&) const = default;
};

struct KeptProbe {
  ProbeId id{};
  std::string group, name, definition, filter, symbol, module;
  Owner owner;
  bool many = false, enabled = true, gone = false, optimize = true, pending = false, stepped = false;
  std::string why_disabled, why_gone;
  struct Usdt {
    std::string provider, name;
  };
  std::optional<Usdt> usdt;  // of those that the definition matched, the one this is
  std::optional<std::uint64_t> max_rate, expires;
  struct Limit {
    std::uint64_t batch = 0;  // probes that share it have the same number
    std::uint64_t remaining = 0;
  };
  std::optional<Limit> limit;
  std::uint64_t hits = 0, missed = 0, filtered = 0, abandoned = 0, unmatched = 0;
  bool glob = false;  // as Probe's members of these names
  ProbeId from{};
  std::string match;
  std::set<std::string> unwanted;
  Place place;
  std::optional<Unwatched> unwatched;
};

struct KeptTarget {
  TargetId id;
  std::string boot;           // process::boot_id()
  std::uint64_t program = 0;  // process::program_mark(); 0: not known
  bool follow_fork = false;
  std::optional<Owner> attached_by;  // it stays attached without probes, because of a target.attach
  std::uint64_t followed = 0;        // children that it was followed into
  bool armed = true, optimize = true;
  std::uint64_t attempts = 0;  // daemons in a row that have ended soon after they had put these probes back
  std::vector<KeptProbe> probes;
};

// "unwatched":{...}, in these files as in views of probes.
inline void put_unwatched(proto::JsonWriter& w, const Unwatched& u) {
  w.key("unwatched").begin_object().key("times").number(u.times).key("from").number(u.from);
  w.key("to").number(u.to).key("total").number(u.total).end_object();
}

// One line of JSON. Probes with names that are no UTF-8 are left out.
std::string kept_text(const KeptTarget& target, std::set<ProbeId>* left_out = nullptr);
// Errors: bad_message, with what is wrong.
Result<KeptTarget> read_kept_text(std::string_view text);

std::string kept_path(const std::string& directory, TargetId target);
// Atomically, with mode 0600. Errors: internal, and the file is as it was.
Result<void> write_kept(const std::string& path, std::string_view text);
// That what it says still holds now.
void touch_kept(const std::string& path);

struct FoundKept {
  std::string path;
  Result<KeptTarget> target;   // error: refused, and why
  std::uint64_t last_known{};  // when the counters were what they are: CLOCK_MONOTONIC, ns
  bool other_boot = false;     // with an error: it tells of processes that have ended with the machine
};
std::vector<FoundKept> find_kept(const std::string& directory);
// Out of the way, as NAME.refused, for somebody to look at.
void set_aside(const std::string& path);
// A daemon that keeps none: what another one kept is removed, which the log says.
void drop_kept(const std::string& directory);

std::uint64_t monotonic_now();  // CLOCK_MONOTONIC, ns

}  // namespace probed::control
