#include "daemon/tracer/recovery/journal_owner.hpp"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>

#include "daemon/base/process.hpp"

namespace probed::tracer {

Verdict judge(const Sighting& seen, std::uint64_t start_time) {
  if (!seen.own_proc) return {Fate::unknown, "/proc here is that of another pid namespace"};
  if (seen.start_time == start_time) {
    if (seen.ended) return {Fate::gone, {}};
    if (seen.same_boot && seen.same_pids) return {Fate::lives, {}};
    return {Fate::may_live, !seen.same_pids
                                ? "the journal was written in another pid namespace"
                                : "the journal was written under another boot id (/proc/sys/kernel/random/boot_id)"};
  }
  if (!seen.same_pids) return {Fate::unknown, "the journal was written in another pid namespace"};
  if (seen.pid_exists && !seen.start_time) return {Fate::unknown, "/proc hides that process (hidepid)"};
  if (seen.pid_exists && !seen.same_clock) return {Fate::unknown, "the journal was written in another time namespace"};
  return {Fate::gone, {}};
}

namespace {

std::uint64_t own_namespace(const char* kind) {
  struct stat file {};
  return ::stat((std::string("/proc/self/ns/") + kind).c_str(), &file) == 0 ? file.st_ino : 0;
}

// Whether the numbers in /proc are those that we know processes by: it isn't mounted for another pid namespace.
bool proc_is_own() {
  std::array<char, 32> name{};
  const ssize_t n = ::readlink("/proc/self", name.data(), name.size());
  return n > 0 && std::string_view(name.data(), static_cast<std::size_t>(n)) == std::to_string(::getpid());
}

}  // namespace

Namespaces own_namespaces() { return {own_namespace("pid"), own_namespace("time")}; }

JournalRecord record_of(const Namespaces& namespaces) {
  JournalRecord record;
  record.address = namespaces.pids;
  record.backing.offset = namespaces.times;
  return record;
}

Namespaces namespaces_of(const FoundJournal& journal) {
  if (journal.records.empty() || journal.records[0].kind != JournalRecord::Kind::none) return {};
  return {journal.records[0].address, journal.records[0].backing.offset};
}

std::array<char, 40> boot_of_this_machine() {
  std::array<char, 40> id{};
  const std::string text = process::boot_id();
  std::copy_n(text.begin(), std::min(text.size(), id.size()), id.begin());
  return id;
}

Sighting look_for(const FoundJournal& journal) {
  const JournalHeader& header = journal.header;
  const Namespaces written = namespaces_of(journal), here = own_namespaces();
  Sighting seen;
  seen.same_boot = header.boot == boot_of_this_machine() && header.boot[0] != '\0';
  // Journals of before they had them were written, and are read, where everything is the same.
  const bool known = written.pids != 0;
  seen.same_pids = known ? written.pids == here.pids : seen.same_boot;
  seen.same_clock = known ? written.times == here.times : seen.same_boot;
  seen.own_proc = proc_is_own();
  if (header.pid <= 0) return seen;
  seen.pid_exists = ::kill(header.pid, 0) == 0 || errno == EPERM;
  if (const auto id = process::target_id(header.pid)) seen.start_time = id->start_time;
  seen.ended = seen.start_time && process::has_ended(header.pid);
  return seen;
}

}  // namespace probed::tracer
