// Whether the process that a journal tells of is there still: a journal goes only when that is known to be false.
//
// A pid and a start time name a process within one boot, one pid namespace and one time namespace. The boot's id is no
// proof of another boot: systemd-nspawn mounts one of its own over it, and a sandboxed service may see another one. So
// it only ever raises a doubt. Neither is an empty /proc: it may hide other users' processes (proc(5), hidepid), or be
// another pid namespace's.
//
// judge() is pure; look_for() reads /proc. Any thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "daemon/tracer/text/journal.hpp"

namespace probed::tracer {

// What is seen from here of the process that a journal names.
struct Sighting {
  bool same_boot = false;                   // by its id
  bool same_pids = false;                   // the journal was written in this pid namespace
  bool same_clock = false;                  // and in this time namespace: start times mean the same
  bool own_proc = false;                    // /proc is that of this pid namespace
  bool pid_exists = false;                  // as kill(2) has it, which nothing hides
  bool ended = false;                       // a zombie
  std::optional<std::uint64_t> start_time;  // of who has the pid; nullopt: nobody, or it is hidden
};

enum class Fate : std::uint8_t {
  lives,
  may_live,  // the pid and the start time are there, but maybe of another boot or namespace: its text is to tell
  gone,
  unknown,
};
struct Verdict {
  Fate fate = Fate::unknown;
  std::string doubt;  // why it isn't sure, as the end of a sentence
};

Verdict judge(const Sighting& seen, std::uint64_t start_time);
Sighting look_for(const FoundJournal& journal);

// The namespaces that a pid and a start time are meant in, by their numbers; 0: not known. A journal's first record
// holds them, of kind none: readers that don't know of it pass over it.
struct Namespaces {
  std::uint64_t pids = 0, times = 0;
};
Namespaces own_namespaces();
JournalRecord record_of(const Namespaces& namespaces);
Namespaces namespaces_of(const FoundJournal& journal);

// The journals in the directory. What others can have written, and what isn't understood (another version's, a damaged
// one), is left alone: a line of `refused` for each says why.
std::vector<FoundJournal> find_journals(const std::string& directory, std::vector<std::string>& refused);

// /proc/sys/kernel/random/boot_id, as a journal has it.
std::array<char, 40> boot_of_this_machine();

}  // namespace probed::tracer
