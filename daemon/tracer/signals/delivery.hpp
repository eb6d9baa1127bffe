// Signals of the program's own on their way to it: delivered, held back for a moment, sent again.
//
// Owning thread: the tracer thread.
#pragma once

#include "daemon/tracer/room.hpp"

namespace probed::tracer {

class Delivery : public Room {
 public:
  using Room::Room;

  void hide_from_core_dump(Tracee& tracee);
  void show_again(Tracee& tracee);
  bool may_hold_signals(Tracee& tracee, std::uint64_t mask);
  void hold_signals(const Tracee& tracee, std::uint64_t mask, std::uint64_t ours);
  void note_taken(const Tracee& tracee, int signal, const siginfo_t& info);
  void let_signals(const Tracee& tracee, std::uint64_t mask);
  static void send_again(Tracee& tracee, siginfo_t info);
  void mend_sent_again(Tracee& tracee, int signal);
  static bool gets_sent_again(const Tracee& tracee);
  static Journal* journal_of(const Tracee& tracee);
  static void move_fault(const Tracee& tracee, siginfo_t& info, std::uint64_t from, std::uint64_t to);
  Act deliver(Tracee& tracee, int signal);
};

}  // namespace probed::tracer
