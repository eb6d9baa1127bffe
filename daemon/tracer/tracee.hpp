// What the tracer knows about one traced thread, and about the process it belongs to.
//
// Owning thread: the tracer thread.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "daemon/base/types.hpp"
#include "daemon/tracer/act.hpp"
#include "daemon/tracer/kernel/ptrace.hpp"
#include "daemon/tracer/kernel/remote_syscall.hpp"
#include "daemon/tracer/kernel/wait.hpp"
#include "daemon/tracer/signals/trap_action.hpp"
#include "daemon/tracer/text/address_space.hpp"
#include "proto/base/fd.hpp"

namespace probed::tracer {

struct Process;

// Executes a slot one instruction at a time: the stepped tier, or an asynchronous signal that waits for the instruction
// to complete. Or gets out of a detour in that way: `slot` is 0 then.
struct Stepping {
  RemoteAddr slot;
  int held_signal = 0;  // delivered once the instruction is done; 0: none
  siginfo_t held_info{};
  bool masked = false;
  std::uint64_t mask = 0;  // to put back; only when masked
  bool own = false;        // the program steps itself, and is to see the step
};

// Is in a detour that it can't be stepped out of, and is to leave it by itself: all signals are blocked meanwhile,
// which it can't notice, as it is stopped at its next system call at the latest. So they stay in the kernel's queues
// in their order; those that had been taken from there wait here. Outside it is sent a signal of ours, the mark, in
// whose delivery the first of them is put.
struct Leaving {
  struct Held {
    int signal = 0;
    siginfo_t info{};
  };
  std::uint64_t mask = 0;  // the program's
  std::deque<Held> held;
  int mark = 0;        // has been sent, and nothing else is let through; 0: not yet
  bool masked = true;  // by us; else the mask is the program's now
};

// Whether a thread has yet to get out of code of ours before it is itself again, and how.
using WayOut = std::variant<std::monostate, Stepping, Leaving>;

// How a thread was left when it was last dealt with; one whose stop is being handled still is as it was left before.
struct Running {};    // goes on
struct Listening {};  // where job control has stopped it: PTRACE_LISTEN
struct Held {         // stopped, on purpose
  Hold until = Hold::entry;
};
struct Unclaimed {  // the first thread of a process whose creator's event hasn't come; `until`: it won't any more
  Waiter::Clock::time_point until;
};
struct Away {  // on a system call for us that takes too long
  Borrowed back;
  bool listened = false;     // before
  std::optional<Hold> held;  // before, and is to be again
};
using Left = std::variant<Running, Listening, Held, Unclaimed, Away>;

// A thread sent back to the probed instruction by us (a signal came first): its next hit there, with these registers,
// is the same execution and is not counted again.
struct Rehit {
  RemoteAddr site;
  ptrace::Registers regs{};
};

// What the process has arranged for one of the signals that we raise (trap_action.hpp), as far as has been seen.
struct Arrangement {
  std::optional<Action> known;  // as we left it in the kernel, marked; nullopt: the default action
  bool contended = false;       // threads that block the signal have raised it for us: the action was reset
  bool owed = false;            // the kernel has reset it, and it can't be put back while other threads run
  std::chrono::steady_clock::time_point fetched{};  // when the kernel was last asked for it
};

// The landing as SIGTRAP's action, and the default one that it stands for.
struct LandingAction {
  Action ours, before;
  bool in_place = true;  // as far as is known; the program may put it back by itself, having kept it
  bool shared = false;   // the program, not the kernel, has been seen to set the action itself since
};

struct Arrangements {
  std::array<Arrangement, kForcedSignals.size()> all;  // by forced_index()
  std::chrono::steady_clock::time_point looked{};      // when /proc was last asked whether there are any
  std::optional<Waiter::Clock::time_point> look_at;    // when it is to be asked again: nobody has since a trap of ours
  std::chrono::steady_clock::time_point trapped{};     // when a trap of ours came last
  std::chrono::steady_clock::time_point mended_from{}, ask_at{};
  unsigned mended = 0;          // times that the landing has been put back since mended_from
  unsigned looked_in_vain = 0;  // times in a row that what should be in place was not
  // A thread is asked to put it back not before ask_at, and so much later the next time.
  Waiter::Clock::duration ask_pause = std::chrono::milliseconds(10);
  bool with_faults = false;              // detours may follow bad pointers here: SIGSEGV and SIGBUS matter, too
  std::optional<LandingAction> landing;  // nullopt: it never was

  Arrangement& of(int signal) { return all[forced_index(signal)]; }
  const Arrangement& of(int signal) const { return all[forced_index(signal)]; }
  bool any_known() const {
    return std::ranges::any_of(all, [](const Arrangement& a) { return a.known.has_value(); });
  }
  // Whether the kernel has something of ours in it.
  bool any_ours() const { return landing.has_value() || any_known(); }
  bool landing_in_place() const { return landing && landing->in_place; }
  bool any_owed() const { return std::ranges::any_of(all, &Arrangement::owed); }
};

// Whose masks are followed from system call to system call, so that it is known what a forced signal has cleared:
// threads that block one of ours, seen so by chance, always. All of them in a process of several threads that handles
// SIGTRAP, at first, and from when one of them was seen to block it.
struct MaskWatch {
  std::optional<std::chrono::steady_clock::time_point> until;
  std::optional<std::chrono::steady_clock::time_point> arming_until;  // breakpoints are about to be written
  bool always = false;
  bool first_faults = false;  // those of jumps have been watched for
};

// What is known of a thread in the program that it runs, and what it is in the middle of there: an exec ends all of it.
struct InProgram {
  WayOut way_out;
  Stepping* stepping() { return std::get_if<Stepping>(&way_out); }
  const Stepping* stepping() const { return std::get_if<Stepping>(&way_out); }
  Leaving* leaving() { return std::get_if<Leaving>(&way_out); }
  const Leaving* leaving() const { return std::get_if<Leaving>(&way_out); }
  bool is_itself() const { return std::holds_alternative<std::monostate>(way_out); }
  // Precondition: it steps. It does no longer.
  Stepping end_step() { return std::get<Stepping>(std::exchange(way_out, std::monostate())); }

  // A system call in a slot, which a seccomp filter is to see where the program makes it; `at`: the pc behind it.
  struct FilteredCall {
    RemoteAddr at;
    bool entered = false;
  };
  // Where it was sent, and it hasn't been seen outside since.
  struct InSlot {
    RemoteAddr base;
    std::optional<FilteredCall> filtered_call;
  };
  std::optional<InSlot> in_slot;
  std::vector<Rehit> rehits;  // the outermost first: handlers may be interrupted in a slot, too
  // Where it was sent behind a one-byte instruction without executing it, or in front of one after that.
  std::optional<ptrace::Registers> stands;
  // With which it was sent into the copy of one.
  std::optional<ptrace::Registers> sent;
  // How it ran into the breakpoint in front of which it has been put back, for its report to be taken (wait.hpp).
  struct Trapped {
    ptrace::Registers regs{};
    siginfo_t info{};
  };
  std::optional<Trapped> trapped;
  // As it was left in front of a call that our interrupt made fail, where the kernel doesn't undo that for a handler.
  std::optional<ptrace::Registers> made_again;
  // The call that it waits in may be gone on with in another's name (native::kRestartNumber): its own number, and
  // whether the thread has been seen to enter the call so.
  struct Restart {
    std::uint64_t number = 0;
    bool entered = false;
  };
  std::optional<Restart> restart;
  bool hidden = false;        // was let go to die with a core dump, for which the breakpoints were taken out
  bool trap_suspect = false;  // ran into a breakpoint about when SIGTRAP's handler was reset for one of several threads
  int action_looked = 0;      // the action has been looked at for this signal, which it gets next; 0: for none
  bool watched = false;       // stops at system calls and at the beginning of handlers: its mask is known at each stop
  std::optional<std::uint64_t> mask;        // as the program has set it, at this stop; nullopt: not known
  std::optional<std::uint64_t> trap_frame;  // sp where a SIGTRAP handler was entered that hasn't been seen left

  // In the channels of its address space, by line; the shared one when it has none of its own. As many as it was given
  // lanes in: fewer than there are lines when it hasn't been seen stand still since.
  std::vector<events::LaneId> lanes;
  std::uint64_t thread_pointer = 0;  // 0: not known
  // The one stack that it began on, and nothing else; empty: not known. nullopt: nobody has looked yet.
  std::optional<arch::CodeRange> own_stack;
  bool stack_limited = false;  // its lanes don't know yet that own_stack has become smaller
  bool vforked = false;        // its creator sleeps until it execs or ends

  // Its rights by protection key, while it has more than these in a detour (DetourThreads::pass_key).
  std::optional<std::uint32_t> key_rights;

  // In the middle of a load of a detour at which it has been seen before.
  struct Load {
    std::uint64_t pc = 0, times_scheduled = 0;
    unsigned stops = 0;    // in a row
    bool blocked = false;  // for so long that it is not waited for
  };
  Load load;

  // Held at the dynamic loader's report, until whoever waits for libraries has looked; 0: it isn't.
  std::uint64_t loader_ticket = 0;
  Waiter::Clock::time_point loader_until{};

  std::optional<std::uint64_t> rseq;  // address of its rseq area; 0: it has none
  char comm[16] = {};
  std::chrono::steady_clock::time_point comm_read{};
};

struct Tracee : InProgram {
  // It has executed another program, and has left its slot and its lanes.
  void start_program() { static_cast<InProgram&>(*this) = {}; }

  pid_t tid = 0;
  Process* process = nullptr;  // null only while it is unclaimed
  Left left;
  // Nothing keeps it stopped: it executes the program, or a call for us.
  bool runs() const { return std::holds_alternative<Running>(left) || away(); }
  bool is_held() const { return std::holds_alternative<Held>(left); }
  bool is_held(Hold until) const { return is_held() && std::get<Held>(left).until == until; }
  bool listens() const { return std::holds_alternative<Listening>(left); }
  const Unclaimed* unclaimed() const { return std::get_if<Unclaimed>(&left); }
  const Away* away() const { return std::get_if<Away>(&left); }
  Away* away() { return std::get_if<Away>(&left); }
  // While it is away the wish to hold it is over.
  void hold_no_longer(Hold until) {
    if (Away* a = away(); a && a->held == until) a->held.reset();
  }
  WaitStatus::Kind stop = WaitStatus::Kind::other;          // of the stop being handled
  bool group_stopped = false;                               // that stop is job control's: let go on with listen()
  std::optional<siginfo_t> sent_again;                      // a signal that we have sent it anew, as it was at first
  bool interrupt_again = false;                             // once the signal it was about to get has been dealt with
  std::uint8_t interrupts_put_off = 0;                      // for such a signal, in a row
  std::optional<Waiter::Clock::time_point> interrupted_at;  // by the optimiser
  pid_t lender = 0;      // whose thread pointer its vfork child runs on, itself or its own creator; 0: it has none
  UniqueFd stat;         // /proc/PID/task/TID/stat, for the CPU when there's no rseq
  bool one_cpu = false;  // it was confined to one CPU when last looked at
};

// A slot as it was when a thread in it forked: the creator may leave it, and it may be used for something else, before
// the child, whose pc is in its copy, is seen.
struct BirthPlace {
  RemoteAddr base;
  Slot slot;
};

// Work that needs a thread of the process standing in a PTRACE_EVENT_STOP.
struct Job {
  std::function<void(Tracee&)> run;
  std::function<void(Error)> fail;
  Waiter::Clock::time_point deadline{};
  bool somebody_waits = false;  // it is given up early when no thread can stop
  bool looked_at = false;       // for that
};

// A process whose threads are being let go for good.
struct LettingGo {
  static constexpr auto kTimeout = std::chrono::seconds(5);
  static constexpr auto kStuckAfter = std::chrono::seconds(1);

  Waiter::Clock::time_point deadline{};    // who asked is told which threads can't be
  Waiter::Clock::time_point look_at{};     // at once then, if none of them can stop (a frozen control group)
  std::vector<pid_t> to_ask;               // threads that haven't been asked to stop yet
  Waiter::Clock::time_point ask_all_at{};  // then they are; who isn't there any more is looked for, too
  std::optional<Waiter::Clock::time_point> together_until;  // the first to come wait for the others
};

struct Process {
  bool detaching() const { return letting_go.has_value(); }
  void begin_to_leave() {
    if (!letting_go) letting_go.emplace();
    const auto now = Waiter::Clock::now();
    letting_go->look_at = now + LettingGo::kStuckAfter;
    letting_go->deadline = now + LettingGo::kTimeout;
  }
  // It is to be let go, and its turn to be stopped for that comes later.
  bool waits_to_be_asked(pid_t tid) const {
    return letting_go && std::ranges::find(letting_go->to_ask, tid) != letting_go->to_ask.end();
  }

  TargetId id;
  std::uint32_t execs = 0;    // programs it has started since it was attached
  bool said_damaged = false;  // once: a program that scribbles over its channel would fill the log
  pid_t root = 0;  // the attached process this one descends from by fork or vfork; itself when attached by request
  std::shared_ptr<AddressSpace> space;
  std::shared_ptr<AddressSpace> before_exec;  // what a child forked just before the exec may still be a copy of
  std::shared_ptr<AddressSpace> copy_of;      // a forked child until its first stop: its memory is a copy of this
  std::optional<BirthPlace> born_in;          // the slot that its creator made it in; until its first stop
  std::set<pid_t> threads;
  Arrangements actions;
  MaskWatch watch;
  std::uint64_t mask_at_exec = 0;  // what the program began with that runs now; 0 also when that isn't known
  bool attaching = false;          // Attacher is at work on it: the program that an exec starts is the one to attach to
  bool follow_fork = false;
  bool keep_after_exec = false;                         // attached explicitly: stays attached, without probes
  std::chrono::steady_clock::duration longest_pause{};  // that the optimiser has kept a thread of it stopped
  bool hold_at_entry = false;  // at its next exec, run to before the first constructor and hold there
  bool hold_at_execs = false;  // at each; followed children inherit it, and are attached by themselves from then on
  // Where that is found, while it runs there: the dynamic loader's hook for debuggers, and r_debug.r_state.
  RemoteAddr loader_hook, loader_state;
  std::optional<LettingGo> letting_go;
  std::vector<std::function<void(Result<void>)>> detach_replies;
  bool asked_to_give_back = false;  // page copies, as the first of its threads was let go
  // Which threads have been asked to stop for the jobs: the one that it disturbs least, all whose calls can't fail
  // because of it, all.
  enum class Ask : std::uint8_t { best, harmless, everyone };
  Ask asked = Ask::best;
  bool filtered = false;  // a seccomp filter is in force, which is for good
  Waiter::Clock::time_point filter_looked_for{};
  std::deque<Job> jobs;
  pid_t runs_jobs = 0;                                    // the thread that does them at this moment; 0: none
  std::optional<Waiter::Clock::time_point> give_back_at;  // to look for page copies that aren't needed any more
  std::optional<Waiter::Clock::time_point> ask_again;     // to interrupt threads whose interrupt was put off
};

}  // namespace probed::tracer
