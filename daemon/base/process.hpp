// What /proc says about a process: identity, state, tracer, credentials. Pure reading; nothing here needs ptrace.
//
// Thread: any. Every answer may be out of date when it arrives: a process can end, or its pid be used again, at any
// time. Whoever must be sure compares target_id() before and after.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/base/types.hpp"
#include "proto/base/result.hpp"

namespace probed::process {

// The fields of /proc/PID/stat that matter here (proc(5)).
struct Stat {
  std::string comm;  // at most 15 bytes, may hold blanks and parentheses; 63 for kernel workers
  char state = '?';  // R S D T t Z X I ...
  pid_t parent = 0;
  std::uint32_t flags = 0;       // PF_*, include/linux/sched.h
  std::uint32_t threads = 0;     // of the process, dead ones that nobody has waited for among them; 0: gone meanwhile
  std::uint64_t start_time = 0;  // clock ticks since boot

  bool zombie() const { return state == 'Z' || state == 'X' || state == 'x'; }
  bool kernel_thread() const { return (flags & 0x00200000u) != 0; }  // PF_KTHREAD
};

// The text of a stat file. Errors: internal when it isn't one.
Result<Stat> parse_stat(std::string_view text);
// Errors: no_such_process, permission_denied (hidepid).
Result<Stat> read_stat(pid_t pid);
// Errors: as read_stat.
Result<TargetId> target_id(pid_t pid);

// What tells the program that a process runs from one that it ran before, or will run: made of the random bytes that
// the kernel gives each program it starts (getauxval(3), AT_RANDOM). 0: gone, or its memory may not be read.
std::uint64_t program_mark(pid_t pid);
// /proc/sys/kernel/random/boot_id: pids and start times begin anew with each. Empty: it can't be read.
std::string boot_id();

// Of the main thread; empty when the process is gone.
std::string comm(pid_t pid);
// The strings that its program was started with, each with its NUL, at most so many bytes: /proc/PID/cmdline and
// environ, which are read from its memory. Empty: they may not be read, or not without waiting for a file system.
std::string arguments(pid_t pid, std::size_t most);
std::string environment(pid_t pid, std::size_t most);
// The path of the program as /proc/PID/exe gives it, without " (deleted)"; empty: gone, a kernel thread, a zombie, or
// not permitted.
std::string exe(pid_t pid);
// A task of the process through which its memory can be seen: itself, or another thread once the main thread has exited
// (then mem, maps, exe, auxv and map_files of /proc/PID are empty, while /proc/PID/task is not). pid when there is
// none.
pid_t task_with_memory(pid_t pid);

// It is exiting, or one of the kernel's own (fs/proc/array.c, proc_pid_statm: nothing but zeros). False also when it
// can't be seen: no descriptor is left for that.
bool is_without_memory(pid_t tid);
// Whether the thread executes none of its program's instructions any more: it has begun to exit, or is gone. Others may
// know of its end (pthread_join(3), its memory given to a new one) before a tracer is told.
bool is_exiting(pid_t tid);
// Of a process, or of a thread of one: R, S, ..., Z; '\0' when it is gone.
char state(pid_t tid);
// Whether no thread of the process runs any more; its parent may not have waited for it yet.
bool has_ended(pid_t pid);
// Whether this one thread has ended, or is gone.
bool is_dead_task(pid_t tid);
// False when the process is gone.
bool is_kernel_thread(pid_t pid);
// Every thread that the directory listed, ascending. Errors: no_such_process, permission_denied.
Result<std::vector<pid_t>> thread_ids(pid_t pid);
// Every process that /proc lists; none when it can't be read.
std::vector<pid_t> process_ids();
// 0: nobody traces it. Errors: no_such_process, permission_denied.
Result<pid_t> tracer_pid(pid_t pid);
// The process (thread group) that a thread id belongs to. Errors: no_such_process, permission_denied.
Result<pid_t> thread_group(pid_t tid);
// The same for a process that is known. Takes no descriptor (tgkill(2): ESRCH).
bool is_thread_of(pid_t tid, pid_t pid);

// Real, effective, saved and file system ids.
struct Credentials {
  uid_t ruid = 0, euid = 0, suid = 0, fsuid = 0;
  gid_t rgid = 0, egid = 0, sgid = 0, fsgid = 0;
};
// Errors: no_such_process, permission_denied.
Result<Credentials> credentials(pid_t pid);

// Why a process that was attached a moment ago isn't any more, or isn't what it was: it has ended, or has executed
// another program (target_gone, both).
Error no_longer_there(pid_t pid);

// The program gives whoever executes it privileges (set-user-ID, set-group-ID, capabilities of its file) that this
// process, at its first instruction, doesn't have, and a tracer without CAP_SYS_PTRACE is to blame (execve(2)): not
// no_new_privs, nor a file system mounted nosuid. False also when that can't be read.
bool lacks_privileges_of_program(pid_t pid);

// By the ELF class of /proc/PID/exe; x32 programs count as 32-bit. Errors: no_such_process, permission_denied,
// unsupported_target (no program, or not an ELF file).
Result<bool> is_32bit(pid_t pid);

}  // namespace probed::process
