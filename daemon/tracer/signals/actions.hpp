// The program's actions of the signals that our breakpoints and loads raise, and the landing among them.
//
// Owning thread: the tracer thread.
#pragma once

#include "daemon/tracer/room.hpp"
#include "daemon/tracer/signals/trap_action.hpp"

namespace probed::tracer {

struct AfterTrap {
  bool alive = true;
  bool blocks = false;         // the thread blocks the signal; its mask says so again
  bool exact = false;          // that is known, not inferred
  bool with_all = false;       // if it does, it blocks everything
  bool may_step = true;        // a step's trap would reset nothing
  bool in_handler = false;     // it is in its SIGTRAP handler
  bool program_first = false;  // a signal of the program's own has come before ours: deliver it first
  int signal = 0;              // a signal of the program's own that is to be pending again: resume with it
};

// Whether a thread has put back what the process is to get back: no: it may make no calls; away: it has died, or is
// late.
enum class Leaves : std::uint8_t { yes, no, away };

class Actions : public Room {
 public:
  using Room::Room;

  // From /proc. nullopt: the thread has gone.
  std::optional<Dispositions> actions_now(Tracee& tracee);

  // Before breakpoints are written: whether there are actions to be fetched first, or threads to be watched from now
  // on, which takes a stopped thread.
  bool must_learn_actions(const Process& process) const;
  // Does that, in a thread that stands in an event stop.
  void learn_actions(Tracee& tracee);
  // Begins the process's journal before anything is written into its text. No-op when there is one, or none is kept.
  void begin_journal(const Process& process);
  // Whether the landing has to be made, or made SIGTRAP's action, before so many more breakpoints are written.
  bool lacks_landing(const Process& process, std::size_t more) const;
  // Does that, in a thread that stands in an event stop. Where it fails that is only logged.
  void prepare_landing(Tracee& tracee, std::size_t more);

  // At the stop of a trap or a fault of ours: puts back what the kernel has reset for it. `regs`: as it was reported.
  // `merged`: the stop's siginfo is the program's, so its signal was there first.
  AfterTrap mend_after_trap(Tracee& tracee, const ptrace::Registers& regs, int signal, bool merged);
  // After a merged trap (AfterTrap::signal) of a thread that isn't to go on from this stop: the program's SIGTRAP is
  // pending again. False: the thread has died, or is late.
  bool queue_trap_again(Tracee& tracee, RemoteAddr breakpoint);
  // Before the program gets a forced signal of its own, from the stop that reports it. An act: the thread goes on
  // without it now, and gets it again if it is to get it. nullopt: deliver it, its action is in place.
  std::optional<Act> before_own_signal(Tracee& tracee, int signal);
  // Plans a look at the actions some time after a trap of ours, unless one is planned; only while the landing is there.
  static void will_look_behind_traps(Process& process);
  // That look: what has been reset is put back, by a job.
  void look_behind_traps(Process& process);
  // Puts back what is owed, by a job, when there may be nothing left in the way of it.
  void settle_actions(Process& process);

  // At an exec event: nothing is known of handlers any more; what is ignored or owed stays.
  void actions_after_exec(Tracee& tracee);
  // At its program's entry: the thread blocks SIGTRAP again if it did at the exec and nothing else has changed.
  void mend_entry_mask(Tracee& tracee);

  // Whether the kernel has anything of ours for the process that no other process, which stays traced, shares.
  bool owes_actions(const Process& process) const;
  // The same, and the process has one thread only: leave_actions() is its business.
  bool must_leave_actions(const Process& process) const;
  // Takes our marks and the landing away, and puts back what is still owed, in a thread that stands in an event stop.
  Leaves leave_actions(Tracee& tracee);

 private:
  template <class F>
  bool with_actions(Tracee& tracee, int put_back, F f, RemoteAddr trapped_at = {});
  bool suspect_others(const Tracee& tracee, int signal);
  bool others_may_reset(const Tracee& tracee, int signal) const;
  std::optional<Dispositions> look_at_actions(Tracee& tracee);
  bool put_actions_back(Tracee& tracee);
  static bool must_mend_landing(Process& process, int signal, const AfterTrap& after);
  void mend_action(Tracee& tracee, const ptrace::Registers& regs, int signal, bool merged, AfterTrap& after);
  void see_into_handler(Tracee& tracee, int signal);
  void note_own_signal(Tracee& tracee, int signal);
};

}  // namespace probed::tracer
