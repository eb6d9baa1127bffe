// Signals of the program's own on their way to it: delivered, held back for a moment, sent again.
//
// Owning thread: the tracer thread.
#pragma once

#include "daemon/tracer/room.hpp"

namespace probed::tracer {

class Delivery : public Room {
 public:
  using Room::Room;

  // Hands a signal that is the program's own on to it, from the stop that reports it.
  Act deliver(Tracee& tracee, int signal);

  // The thread is about to die with a core dump, which is to hold the program's own text: breakpoints come out, unless
  // other processes share the memory.
  void hide_from_core_dump(Tracee& tracee);
  // It has stopped once more, so it lives: they are back.
  void show_again(Tracee& tracee);

  // Whether the signals that a thread with this mask gets in our code may wait until it has been stepped.
  bool may_hold_signals(Tracee& tracee, std::uint64_t mask);
  // `ours`: what the thread is to block until it has left our code; `mask`: what it blocks itself.
  void hold_signals(const Tracee& tracee, std::uint64_t mask, std::uint64_t ours);
  // For the journal: a signal that the thread, whose others are held, goes on without for now; 0: none. And when it
  // has.
  void note_taken(const Tracee& tracee, int signal, const siginfo_t& info);
  void note_gone_on(const Tracee& tracee);
  // The end of hold_signals(): the thread has this mask.
  void let_signals(const Tracee& tracee, std::uint64_t mask);

  // A signal whose stop is over, and which the thread is to get after all.
  static void send_again(Tracee& tracee, siginfo_t info);
  // At a signal's stop, while one that was sent again is on its way: if it is that, it says who sent it first.
  void mend_sent_again(Tracee& tracee, int signal);
  // Whether the thread, when it goes on, is about to get a signal that was sent to it again.
  static bool gets_sent_again(const Tracee& tracee);

  // Where a fault of the program's own happened, or its step ended, as its handler is to see it. `from`: the pc in our
  // code that it was reported with; nothing is done when it was reported elsewhere.
  static void move_fault(const Tracee& tracee, siginfo_t& info, std::uint64_t from, std::uint64_t to);
  // null: none is kept.
  static Journal* journal_of(const Tracee& tracee);
};

}  // namespace probed::tracer
