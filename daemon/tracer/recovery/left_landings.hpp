// What daemons that were killed have left in a process, as its own memory tells: their landings (landing.hpp), whose
// tables name every breakpoint that there was. So it is known where a thread goes on that runs into one; and what has
// to be put back, where the mapped files still say what belongs there, is known without a journal.
//
// Nothing in that memory is believed further than it can be checked: what is put back comes from the file, in places
// that hold a breakpoint, or a jump that leads into memory of no file's, and whose other bytes are the file's.
//
// The tracer thread, or whoever recovers.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "daemon/tracer/kernel/memory.hpp"
#include "daemon/tracer/text/journal.hpp"
#include "daemon/tracer/text/landing.hpp"
#include "daemon/tracer/text/layout.hpp"

namespace probed::tracer {

class AddressSpace;

class LeftLandings {
 public:
  // All landings in that memory but those in `but`, by their code.
  static LeftLandings of(TargetMemory& memory, const Layout& layout, RemoteAddr but = {});
  // The one that an action names; empty: it names none.
  static LeftLandings of(TargetMemory& memory, const Action& action);
  bool empty() const { return pages_.empty(); }
  const std::vector<RemoteAddr>& pages() const { return pages_; }
  // From where a breakpoint is, or was, to where its thread goes on: `trapped` itself, when it had been taken out.
  const std::map<std::uint64_t, std::uint64_t>& entries() const { return entries_; }

 private:
  bool add(TargetMemory& memory, RemoteAddr page);

  std::vector<RemoteAddr> pages_;
  std::map<std::uint64_t, std::uint64_t> entries_;
};

struct LeftText {
  std::vector<JournalRecord> records;  // as the daemon's own journal would have them
  std::size_t unproved = 0;            // breakpoints of which it isn't known what belongs there
  bool empty() const { return records.empty() && unproved == 0; }
};
// What still stands in the text.
LeftText left_text(pid_t pid, TargetMemory& memory, const Layout& layout, const LeftLandings& left);

// Whether somebody may still run into a breakpoint that only this action's landing knows, at none of these addresses.
bool leads_on(pid_t pid, TargetMemory& memory, const Action& action, const std::set<std::uint64_t>& but = {});

// ---- of an address space that is traced, on the tracer thread ----

// Looks for what is left in it. True: there is something, which is remembered as long as the space lives.
bool find_left(pid_t pid, const std::shared_ptr<AddressSpace>& space);
// A copy of it holds the same.
void inherit_left(const AddressSpace& from, const std::shared_ptr<AddressSpace>& to);
bool has_left(const AddressSpace& space);
std::size_t left_entries(const AddressSpace& space);
// Where a thread goes on that has run into a breakpoint of theirs there. nullopt: it isn't theirs.
std::optional<RemoteAddr> left_landing(AddressSpace& space, RemoteAddr trapped);
// SIGTRAP's action as that daemon has left it, when it is that now, or the kernel has reset it (trap_action.hpp).
std::optional<Action> left_action(AddressSpace& space, const Action& now);
// The space's own landing leads on from there, too. It has room.
void stage_left(AddressSpace& space);

}  // namespace probed::tracer
