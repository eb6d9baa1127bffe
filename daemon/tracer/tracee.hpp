// What the tracer knows about one traced thread, and about the process it belongs to.
//
// Owning thread: the tracer thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "daemon/base/fd.hpp"
#include "daemon/base/types.hpp"
#include "daemon/tracer/address_space.hpp"
#include "daemon/tracer/ptrace.hpp"
#include "daemon/tracer/wait.hpp"

namespace probed::tracer {

struct Process;

// A thread executing a slot one instruction at a time: the stepped tier, or an asynchronous signal waiting for the
// instruction to complete.
struct Stepping {
  RemoteAddr slot;
  int held_signal = 0;  // delivered once the instruction is done; 0: none
  siginfo_t held_info{};
  std::uint64_t mask = 0;  // to put back; only when held_signal is set
};

// A thread sent back to the probed instruction by us (a signal came first): its next hit there, with these registers,
// is the same execution and is not counted again.
struct Rehit {
  RemoteAddr site;
  ptrace::Registers regs{};
};

struct Tracee {
  enum class State : std::uint8_t {
    running,
    listening,  // stopped by job control
    held,       // kept stopped by us, on purpose
    unclaimed,  // a new process whose parent's event hasn't arrived yet
  };

  pid_t tid = 0;
  Process* process = nullptr;  // null only while unclaimed
  State state = State::running;
  WaitStatus::Kind stop = WaitStatus::Kind::other;  // of the stop being handled
  bool group_stopped = false;                       // that stop is job control's: let go on with listen()
  Waiter::Clock::time_point unclaimed_until{};      // when unclaimed: then nobody will claim it any more
  bool interrupt_again = false;                     // once the signal it was about to get has been dealt with
  RemoteAddr slot;                                  // sent there and not seen outside since; 0: none
  std::optional<Stepping> stepping;
  std::optional<Rehit> rehit;
  std::optional<ptrace::Registers> rewound;  // registers we left when putting an interrupted system call back

  std::optional<std::uint64_t> rseq;  // address of its rseq area; 0: it has none
  UniqueFd stat;                      // /proc/PID/task/TID/stat, for the CPU when there's no rseq
  bool one_cpu = false;               // it was confined to one CPU when last looked at
  char comm[16] = {};
  std::chrono::steady_clock::time_point comm_read{};
};

// Work that needs a thread of the process standing in a PTRACE_EVENT_STOP.
struct Job {
  std::function<void(Tracee&)> run;
  std::function<void(Error)> fail;
  Waiter::Clock::time_point deadline;
};

struct Process {
  TargetId id;
  std::uint32_t execs = 0;  // programs it has started since it was attached
  pid_t root = 0;  // the attached process this one descends from by fork or vfork; itself when attached by request
  std::shared_ptr<AddressSpace> space;
  std::shared_ptr<AddressSpace> before_exec;  // what a child forked just before the exec may still be a copy of
  std::shared_ptr<AddressSpace> copy_of;      // a forked child until its first stop: its memory is a copy of this
  std::set<pid_t> threads;
  bool follow_fork = false;
  bool keep_after_exec = false;  // attached explicitly: stays attached, without probes
  bool hold_at_entry = false;    // at its next exec, run to the entry point and hold there
  std::optional<SitePlan> entry_breakpoint;
  bool detaching = false;
  bool interrupt_all_sent = false;
  std::deque<Job> jobs;
  std::vector<std::function<void(Result<void>)>> detach_replies;
  Waiter::Clock::time_point detach_deadline{};
};

}  // namespace probed::tracer
