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

  std::optional<Dispositions> actions_now(Tracee& tracee);
  bool must_learn_actions(const Process& process) const;
  void learn_actions(Tracee& tracee);
  static void will_look_behind_traps(Process& process);
  void look_behind_traps(Process& process);
  void settle_actions(Process& process);
  AfterTrap mend_after_trap(Tracee& tracee, const ptrace::Registers& regs, int signal, bool merged);
  bool queue_trap_again(Tracee& tracee, RemoteAddr breakpoint);
  std::optional<Act> before_own_signal(Tracee& tracee, int signal);
  void actions_after_exec(Tracee& tracee);
  void mend_entry_mask(Tracee& tracee);
  bool owes_actions(const Process& process) const;
  bool must_leave_actions(const Process& process) const;
  Leaves leave_actions(Tracee& tracee);
  bool lacks_landing(const Process& process, std::size_t more) const;
  void prepare_landing(Tracee& tracee, std::size_t more);
  void begin_journal(const Process& process);

 private:
  template <class F>
  bool with_actions(Tracee& tracee, int put_back, F f, RemoteAddr trapped_at = {}, bool* refused = nullptr);
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
