// What another process needs to know to take everything of ours out of a target when this daemon has been killed: one
// file for each address space, in the state directory.
//
// Write-ahead: a record is there before what it tells of is in the target, and what it tells of is compared with what
// is there before anything is put back; so a record too many does no harm, and none is ever rewritten for tidiness. The
// file is mapped: a record costs some stores, and outlives this process as soon as they are done. (Not the machine: the
// targets end with that.) An address has one record of each kind, for good: as many as there were probed addresses.
//
// Written by the tracer thread; read by recover.cpp, in another process. The directory is the daemon's user's alone.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "daemon/base/types.hpp"
#include "daemon/symbols/maps.hpp"
#include "daemon/tracer/program.hpp"
#include "daemon/tracer/signals/trap_action.hpp"
#include "daemon/tracer/text/text_overlay.hpp"
#include "proto/base/fd.hpp"
#include "proto/base/result.hpp"

namespace probed::tracer {

struct JournalRecord {
  enum class Kind : std::uint8_t {
    none,
    breakpoint,  // before: the instruction and what followed it
    patch,       // a jump's or an island's bytes; which of them are in the text is for its bytes to say
    semaphore,   // count is ours; changing: the value was about to become `after_value`, which counts one more or less
  };
  Kind kind = Kind::none;
  bool in_text = false;      // may be; false: it surely isn't any more
  std::uint8_t size = 0;     // of the instruction, or of the patch
  std::uint8_t context = 0;  // bytes of `before`
  std::uint16_t count = 0, after_count = 0, after_value = 0;
  std::uint8_t changing = 0;
  std::array<std::uint8_t, 16> before{};
  std::array<std::uint8_t, 8> after{};
  std::uint64_t address = 0;
  symbols::Backing backing;
};

// What is kept from a thread until it has left our code: the signals that it doesn't block itself, and one that had
// been taken out of the kernel's queues.
struct HeldSignals {
  std::int32_t tid = 0;  // 0: this place is free
  // The signal, which nobody has but us; 0: none. Negative: the thread may stand in the stop that has reported it yet,
  // and if its tracer dies then, the kernel queues it again, as it is blocked (kernel/signal.c, ptrace_signal).
  std::int32_t taken = 0;
  std::uint64_t mask = 0;  // what the thread blocks itself
  std::uint64_t ours = 0;  // what it blocks meanwhile
  siginfo_t info{};        // of `taken`
};

// In front of the records.
struct JournalHeader {
  static constexpr std::array<char, 8> kMagic{'p', 'r', 'o', 'b', 'e', 'd', 'j', '3'};
  std::array<char, 8> magic{};
  std::array<char, 40> boot{};  // /proc/sys/kernel/random/boot_id: pids and start times begin anew with each
  std::uint32_t record_size = 0;
  std::int32_t pid = 0;
  std::uint64_t start_time = 0;
  std::uint64_t landing = 0;  // what SIGTRAP's handler is while it is ours; 0: it never was
  Action action;              // what it was before
  std::uint64_t record_count = 0;
  std::array<HeldSignals, 64> held;  // no more threads at one time
  std::uint64_t incomplete = 0;      // 1: more was written into the target than there was room for in here
};

class Journal {
 public:
  // A new file for this target; null when the directory can't be written to (which is said once in the log).
  static std::unique_ptr<Journal> create(const std::string& directory, TargetId target);
  ~Journal();  // the file stays
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  // Nothing of ours is in the target any more.
  void remove();

  void note_breakpoint(const SitePlan& plan);
  void note_taken_out(RemoteAddr breakpoint);
  void note_patch(const Patch& patch, const symbols::Backing& backing);
  void note_landing(const Action& ours, const Action& before);
  // Before a thread's mask becomes `ours`, and when it is the thread's own again.
  void note_mask(pid_t tid, std::uint64_t mask, std::uint64_t ours);
  void forget_mask(pid_t tid);
  // Of such a thread: it is about to go on without this signal, and when it has. Of several the first is kept.
  void note_taken(pid_t tid, int signal, const siginfo_t& info);
  void note_gone_on(pid_t tid);
  // Around a change of a semaphore's value.
  void begin_semaphore(RemoteAddr at, const symbols::Backing& backing, std::uint16_t ours, std::uint16_t value);
  void end_semaphore(RemoteAddr at);

 private:
  using Kind = JournalRecord::Kind;
  Journal(std::string path, UniqueFd fd) : path_(std::move(path)), fd_(std::move(fd)) {}
  bool grow(std::size_t records);
  JournalHeader& header() { return *static_cast<JournalHeader*>(map_); }
  JournalRecord& at(std::size_t index);
  HeldSignals* held_from(pid_t tid);  // 0: a free place; null: there is none
  // The record of that kind there is of an address, or a new one; null: the file can't grow, which is told and noted.
  JournalRecord* record(Kind kind, RemoteAddr address);
  static std::uint64_t key(Kind kind, RemoteAddr address) {
    return address.value << 2 | static_cast<std::uint64_t>(kind);
  }

  std::string path_;
  UniqueFd fd_;
  void* map_ = nullptr;
  std::size_t mapped_ = 0, capacity_ = 0;
  std::unordered_map<std::uint64_t, std::size_t> index_;
};

// A journal that another process has written.
struct FoundJournal {
  std::string path;
  JournalHeader header;
  std::vector<JournalRecord> records;
  std::vector<std::uint64_t> landings;  // pages that were found beside it
};
// Every journal in the directory that is one; journal_owner.hpp has the same with what is left alone, and why.
std::vector<FoundJournal> find_journals(const std::string& directory);
void rewrite_record(const FoundJournal& journal, std::size_t index, const JournalRecord& record);

}  // namespace probed::tracer
