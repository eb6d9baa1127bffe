// The calls of probed functions that haven't returned yet, of one address space.
//
// Owning thread: the tracer thread.
//
// A call is known by where its return address lies: at a function's entry, at each of its returns and at a tail call
// the stack pointer stands there, and of the calls of one function that are going on in an address space no two share
// it, on however many stacks they are. Goroutines' stacks are moved as they grow; theirs is counted from the stack's
// end, with the goroutine's name. An exit belongs to the call that was entered last at its place: every entry is seen
// while the probe is enabled, and when it is disabled all are forgotten. So no return is credited to another call.
//
// Calls that end otherwise (exceptions, longjmp, the end of a thread) leave theirs behind. What lies below the place
// where the thread stands, on the same stack, is presumed abandoned, and so is what a thread leaves when it ends; a
// coroutine's, that may go on later, can't be told apart, so they are kept for a while: one that returns all the same
// is taken back. What another call at the same place finds is abandoned for certain.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "daemon/tracer/program.hpp"

namespace probed::tracer {

// Where a call's return address lies.
struct StackPlace {
  std::uint64_t stack = 0;  // a goroutine; 0: `slot` is an address
  std::uint64_t slot = 0;
  std::uint64_t lowest = 0;  // from there up to the slot nothing is in use any more; the slot itself: not known
  // Whose stack it is, as far as `lowest` says anything: those of several threads may lie in one mapping. 0: anybody's.
  pid_t tid = 0;
};

struct Activation {
  enum class Kind : std::uint8_t {
    going_on,
    filtered,  // known only so that its exit is not taken for one without an entry
    missed,    // likewise
  };
  Kind kind = Kind::going_on;
  std::shared_ptr<ReturnProbe> probe;
  pid_t tid = 0;  // that entered it; 0: its copy in a parent's memory did
  std::uint64_t return_address = 0;
  std::uint64_t time = 0;  // of the entry, ns
  std::vector<std::byte> kept;
};

class ReturnStacks {
 public:
  ReturnStacks() = default;
  // A forked child's calls are its parent's.
  ReturnStacks(const ReturnStacks& other);
  ReturnStacks& operator=(const ReturnStacks&) = delete;

  // A call begins; of kind going_on, with nothing kept. Null: it is the same call, which has come back to its first
  // instruction; or there are too many.
  Activation* enter(const std::shared_ptr<ReturnProbe>& probe, const StackPlace& place, std::uint64_t return_address);
  // How many calls of the probe are going on.
  std::uint32_t active(const ReturnProbe& probe) const;
  // The call just entered isn't to be reported.
  void reject(Activation& call, Activation::Kind why);

  // A call ends: the one that was entered here. Null: none was, as far as is known. Valid until the next call of a
  // method here.
  const Activation* leave(const ReturnProbe& probe, const StackPlace& place, std::uint64_t return_address);

  // A call of a stack that a thread keeps itself, as detours do: it is the last one at its place. `left`: its thread
  // has been seen above it, so it is presumed abandoned. A later one of another thread stays, and it is abandoned.
  void take_over(std::uint64_t slot, Activation call, bool left);

  // A thread has ended.
  void thread_ended(pid_t tid);
  // The program has ended.
  void program_ended();
  // The probe has been disabled or removed: what is known of its calls says nothing any more.
  void forget(const ReturnProbe& probe);
  void forget_all();

 private:
  struct Key {
    std::uint64_t stack, slot;
    const ReturnProbe* probe;
    auto operator<=>(const Key&) const = default;
  };
  using Calls = std::map<Key, Activation>;

  static bool counts(const Activation& call) { return call.kind == Activation::Kind::going_on; }
  enum class Itself : bool { no, yes };
  void presume_below(const StackPlace& place, Itself itself);
  Calls::iterator presume(Calls::iterator call);
  void note_abandoned(const Activation& call);
  void keep_spare(Calls::node_type node);

  Calls calls_, presumed_;
  std::unordered_map<const ReturnProbe*, std::uint32_t> active_;
  std::vector<Calls::node_type> spare_;  // so that calls allocate nothing
  Activation left_;
};

}  // namespace probed::tracer
