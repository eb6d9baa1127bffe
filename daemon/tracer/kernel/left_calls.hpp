// System calls that a thread is on its way out of when our interrupt has made them fail: they are made again.
//
// Owning thread: the tracer thread; the thread in question stands in a stop. Where its registers tell the call
// (native::kRegistersTellCall) the kernel does it, and undoes it when a signal handler runs first. Elsewhere its pc is
// moved in front of the call's instruction again, and it is we who undo it. There a thread with the same registers may
// have come back from a handler a moment ago, which really has interrupted the call. So what is known of the thread
// decides: the call that /proc/TID/syscall said it waits in, just before the interrupt or some time since it is traced,
// and where handlers were entered since then.
#pragma once

#include <sys/types.h>

#include <optional>

#include "daemon/tracer/kernel/ptrace.hpp"

namespace probed::tracer {

// A thread is traced from now on: it has just been seized, or was created by one that is traced, or has executed
// another program.
enum class Tracked { seized, born };
void begin_call_notes(pid_t tid, Tracked how);
void forget_call_notes(pid_t tid);
// One that was seized and has not been seen to wait in any call: is looked at again.
void look_again_at_call(pid_t tid);

// The thread is about to be interrupted: remembers the call that it waits in, until settle_call_note(): nobody needs to
// know it any more, as it has stopped for that.
void note_call(pid_t tid);
void settle_call_note(pid_t tid);
// The stopped thread makes calls for us, in which it isn't looked at, and after which the kernel doesn't know its own
// call's argument any more.
void begin_own_calls(pid_t tid, const ptrace::Registers& regs);
void end_own_calls(pid_t tid);
// The signal is delivered to the thread, which stands in that stop, and a handler may be entered.
void note_handler(pid_t tid, const ptrace::Registers& regs, int signal);
// Whether the thread's call failed with nothing to blame but the interruption, or a signal that would have been
// ignored. Where that can't be told: false.
bool was_only_interrupted(pid_t tid, const ptrace::Registers& regs);
// At the stop of our interrupt, or one for a signal that would have been ignored. False: it can't be; the registers are
// as they were.
bool make_again(pid_t tid, ptrace::Registers& regs);
// A handler is about to run. `made_again`: as make_again() has left the thread, forgotten now. True: it stands there
// still, and the registers are such that its call has failed.
bool unmake(std::optional<ptrace::Registers>& made_again, ptrace::Registers& regs);

// Whether a system call instruction is at that address.
bool is_call_at(pid_t tid, std::uint64_t address);

}  // namespace probed::tracer
