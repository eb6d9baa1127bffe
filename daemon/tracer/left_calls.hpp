// System calls that a thread is on its way out of when our interrupt has made them fail: they are made again.
//
// Owning thread: the tracer thread; the thread in question stands in a stop. Where its registers tell the call
// (native::kRegistersTellCall) the kernel does it, and undoes it when a signal handler runs first. Elsewhere its pc is
// moved in front of the call's instruction again, and it is we who undo it; and the call is known by what
// /proc/TID/syscall said just before the interrupt, as its first argument is gone afterwards.
#pragma once

#include <sys/types.h>

#include <optional>

#include "daemon/tracer/ptrace.hpp"

namespace probed::tracer {

// The thread is about to be interrupted: remembers the call that it waits in.
void note_call(pid_t tid);
// Whether the thread's call failed with nothing but the interruption to blame.
bool was_only_interrupted(pid_t tid, const ptrace::Registers& regs);
// False: it can't be; the registers are as they were.
bool make_again(pid_t tid, ptrace::Registers& regs);
// A handler is about to run. `made_again`: as make_again() has left the thread, forgotten now. True: it stands there
// still, and the registers are such that its call has failed.
bool unmake(std::optional<ptrace::Registers>& made_again, ptrace::Registers& regs);

}  // namespace probed::tracer
