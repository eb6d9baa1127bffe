// What becomes of a stopped thread.
//
// Whoever handles a stop looks, changes what has to be changed in the thread and in what is known of it, and answers
// with an act. Loop::carry_out() does it, and logs it (--log-level trace): nobody else lets a thread go on, keeps it
// or lets it go for good, but for calls that it makes for us on the way (remote_syscall.hpp).
#pragma once

#include <cstdint>
#include <optional>

#include "daemon/tracer/kernel/wait.hpp"

namespace probed::tracer {

// What a thread that is kept stopped waits for.
enum class Hold : std::uint8_t {
  entry,    // somebody who wants its program held says that it may start
  loader,   // somebody has looked at the libraries that its dynamic loader has just loaded
  leaving,  // the other threads of its process, to be let go for good together with them
};

struct [[nodiscard]] Act {
  enum class Kind : std::uint8_t {
    go_on,   // as its state says: running, stepping, to its next system call, or listening where job control stopped it
    leave,   // for good, as soon as nothing of ours is in it: Detacher::prepare_to_leave() makes another act of it
    detach,  // for good, at once
    wait,    // stays, until the other threads of its process have come to leave together with it
    stay,    // stays, until somebody has it go on; does the jobs that wait for a stopped thread meanwhile
    end,     // has ended
    none,    // it isn't there to be let go on: dying (its end is told of next), away on a call for us, or it has been
             // let go, or runs, already
  };

  static Act go_on(const char* why, int signal = 0) { return {Kind::go_on, signal, why, {}}; }
  static Act leave(const char* why, int signal = 0) { return {Kind::leave, signal, why, {}}; }
  static Act detach(const char* why, int signal = 0) { return {Kind::detach, signal, why, {}}; }
  static Act wait(const char* why) { return {Kind::wait, 0, why, {}, Hold::leaving}; }
  static Act stay(Hold until, const char* why) { return {Kind::stay, 0, why, {}, until}; }
  static Act end(WaitStatus how) { return {Kind::end, 0, "its end", how}; }
  static Act none(const char* why) { return {Kind::none, 0, why, {}}; }
  // A request to the kernel has failed: the thread is dying.
  static Act dying() { return none("it is dying"); }
  // It has died in the middle of a call for us, or is late with that.
  static Act away() { return none("it is away on a call for us, or has died over it"); }

  Kind kind = Kind::none;
  int signal = 0;                 // that it gets with go_on, leave and detach; 0: none
  const char* why = "";           // of static life time
  std::optional<WaitStatus> how;  // with end
  Hold until = Hold::entry;       // with wait and stay
};

}  // namespace probed::tracer
