// ptrace(2), waitid(2) and waitpid(2) as the kernel does them, for threads that only seem to run: tests of what the
// tracer decides say what a thread does next, in orders that no real one can be made to keep.
//
// While one of these exists, this program's ptrace(), waitid() and waitpid() are its own. The threads are a puppet's:
// their memory is real, their registers, signals and stops are simulated. What a thread executes:
//
//   in the program's text   nothing, until a test says so (go_to()): it "runs" where it is
//   a breakpoint            SIGTRAP, as int3 does it
//   a system call           is made, by the puppet, with the stops that its tracer has asked for
//   a direct jump, jmp *%rax  is followed
//   push and pop of %rbx    move the stack pointer
//   anything else           whatever it is, the pc moves behind it
//
// Sources: ptrace(2); kernel/ptrace.c, kernel/signal.c (ptrace_stop, ptrace_signal, get_signal).
#pragma once

#include <signal.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/user.h>

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tests/unit/tracer/simulated/puppet.hpp"

namespace probed::tracer::simulated {

// The program's text: what threads run in without executing it. Every signal has the same handler there, which returns
// at once.
struct ProgramText {
  std::uint64_t begin = 0, end = 0, handler = 0;
};

// A signal that reached the program, where it was then and what it blocked.
struct Delivery {
  int signal = 0;
  std::uint64_t pc = 0, mask = 0;
  siginfo_t info{};
};

// What a handler returns to.
struct Frame {
  user_regs_struct regs{};
  std::uint64_t mask = 0;
};

struct Thread {
  enum class State : std::uint8_t { running, stopped, listening, ended };
  enum class How : std::uint8_t { freely, step, to_call, without_call };

  pid_t tid = 0, process = 0;
  bool traced = false;
  State state = State::running;
  How how = How::freely;
  user_regs_struct regs{};
  std::uint64_t mask = 0;
  std::deque<siginfo_t> pending;  // signals that haven't been reported
  std::deque<siginfo_t> behind;   // come while it executes its next instruction
  bool trap_stop = false;         // PTRACE_INTERRUPT is to stop it
  int report = 0;                 // the status of its stop, or its end
  bool report_there = false;      // nobody has taken it
  siginfo_t info{};               // of the stop
  unsigned long message = 0;
  bool in_call = false, skip_call = false;  // it stands at a system call's entry
  bool returning = false;                   // which is that of a handler's return
  bool parked = false;                      // executes nothing of what is beside the program
  std::vector<Frame> frames;                // of the handlers that it is in
  std::set<int> reset;                      // whose action the kernel has reset, for they were raised while blocked
  std::vector<Delivery> delivered;
};

class Kernel {
 public:
  Kernel(unsigned threads, ProgramText text);
  ~Kernel();
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  Puppet& puppet() { return puppet_; }
  // The thread with this id, also when it has ended.
  Thread& thread(pid_t tid) { return threads_.at(tid); }

  // ---- what happens to threads: the test's part ----

  // A running thread comes to this address, and executes what is to be executed there.
  void go_to(pid_t tid, std::uint64_t address);
  // Somebody sends it a signal. SIGKILL ends its process, SIGCONT what stops it.
  void send(pid_t tid, int signal, int code = SI_USER, pid_t from = 1);
  // The same, while the thread executes the next instruction: it has not been seen before that is done.
  void send_behind(pid_t tid, int signal);
  // A running thread's instruction faults where it is (SIGSEGV, SIGILL, ...).
  void fault(pid_t tid, int signal);
  // It creates a thread, or a process; both are traced when it is. Outside of the program's text it does so by the
  // system call that it stands in front of.
  void clone(pid_t tid, pid_t created);
  void fork(pid_t tid, pid_t created);
  // It executes another program: the other threads are gone, it has its process's id.
  void exec(pid_t tid);
  // It ends by itself.
  void exit(pid_t tid, int code);
  // Job control stops its process: each thread reports that instead of the signal.
  void stop_job(pid_t tid, int signal);
  // It has no processor: executes nothing of what lies beside the program's text, copies of its instructions, until it
  // is given one. The calls that it makes for the tracer are elsewhere.
  void park(pid_t tid) { threads_.at(tid).parked = true; }
  void unpark(pid_t tid);
  // Whether PTRACE_INTERRUPT stops a running thread at once; if not, when let_stop() says so, or its next stop does.
  void stop_at_once(bool at_once) { stops_at_once_ = at_once; }
  void let_stop(pid_t tid);
  // What its default action makes of the signal, in place of a handler: these end the process when delivered.
  void make_fatal(int signal) { fatal_.insert(signal); }

  // ---- what the tracer asks ----

  long ptrace(int request, pid_t tid, std::uintptr_t address, std::uintptr_t data);
  // As waitid() with WNOWAIT | WNOHANG: 0 for none; nullopt: there is no such child.
  std::optional<pid_t> reported(std::optional<pid_t> tid) const;
  int take(pid_t tid);
  const Thread* find(pid_t tid) const;

 private:
  Thread& add(pid_t tid, pid_t process);
  void advance(Thread& thread);
  bool is_program(std::uint64_t pc) const { return pc >= text_.begin && pc < text_.end; }
  bool is_beside(std::uint64_t pc) const;
  // Executes one instruction; false: it has stopped over it.
  bool execute(Thread& thread);
  bool execute_call(Thread& thread);
  bool return_from_handler(Thread& thread);
  void begin_call(Thread& thread) const;
  void create(Thread& creator, Thread& created, int event);
  void stop(Thread& thread, int status, const siginfo_t& info);
  void stop_for_event(Thread& thread, int event, int signal);
  void stop_for_call(Thread& thread);
  bool take_signal(Thread& thread);
  void raise(Thread& thread, int signal, int code, std::uint64_t address);
  void deliver(Thread& thread, const siginfo_t& info);
  void end(Thread& thread, int status);
  void end_process(pid_t process, int status);
  long resume(Thread& thread, Thread::How how, int signal);
  long detach(Thread& thread, int signal);
  long interrupt(Thread& thread);
  static long peek(const Thread& thread, const __ptrace_peeksiginfo_args& which, void* to);
  long register_set(Thread& thread, bool set, int which, void* iov) const;

  Puppet puppet_;
  ProgramText text_;
  std::map<pid_t, Thread> threads_;
  std::deque<pid_t> reports_;
  std::set<int> fatal_;
  bool stops_at_once_ = true;
};

}  // namespace probed::tracer::simulated
