// confined MODE: works on demand in a place that something has been taken away from.
//
//   free      nothing
//   strict    seccomp's first mode: read, write, exit, rt_sigreturn; anything else kills
//   filter    a seccomp filter that kills the process for any other call as well
//   mdwe      memory that is writable can't become executable (PR_SET_MDWE)
//   chroot    the root directory is an empty one, made for it, and nothing above can be reached
//   mounts    a mount namespace in which another file lies over its executable
//   nodump    not dumpable: its /proc files belong to root
//   place     a seccomp filter that lets it call getppid in call_here() only
//   trap      a seccomp filter that has SIGSYS sent for getppid, whose handler looks at where that was called
//
// Each "go" line is answered by "done CALLS WRONG"; "end" ends it. Exits with 77 when the kernel lacks the mode. In the
// modes place and trap all reading is done by call_here() as well, and the answer has how often that was called at the end.
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "machine.h"
#include "work.h"

#ifndef PR_SET_MDWE
#define PR_SET_MDWE 65
#define PR_MDWE_REFUSE_EXEC_GAIN 1
#endif

enum { kLacking = 77, kCalls = 100 };

static int unconfined(void) { return 0; }

static int strict(void) { return prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT); }

#define ALLOW(number) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

static int filter(void) {
  struct sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      ALLOW(SYS_read),
      ALLOW(SYS_write),
      ALLOW(SYS_exit),
      ALLOW(SYS_rt_sigreturn),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
  };
  const struct sock_fprog program = {sizeof code / sizeof code[0], code};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) | prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

static int mdwe(void) { return prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0); }

static int chrooted(void) {
  char directory[] = "/tmp/probed-chroot-XXXXXX";
  if (!mkdtemp(directory) || chdir(directory) != 0 || rmdir(directory) != 0) return -1;
  return chroot(".");
}

static int mounts(void) {
  char path[4096];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
  if (length < 0 || unshare(CLONE_NEWNS) != 0) return -1;
  path[length] = '\0';
  if (mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0) return -1;
  return mount("/bin/true", path, NULL, MS_BIND, NULL);
}

TARGET_FUNCTION long call_here(long number, long a, void* b, long c);
extern const char behind_call[];
__asm__(
    ".text\n.globl call_here\n.type call_here, @function\n"
    ".globl called_here, behind_call\n"
    "call_here: " CALL("called_here", "behind_call") ".size call_here, . - call_here\n");

static long calls_here, strange_traps;
enum { kTrapped = 4711 };

static void on_trapped(int signal, siginfo_t* info, void* context) {
  const void* const behind = behind_call;
  (void)signal;
  if (info->si_call_addr != behind || *program_counter(context) != (long)behind) ++strange_traps;
  *call_result(context) = kTrapped;
}

// `wrong`: what becomes of a call of getppid at another place; `right`: of one in call_here().
static int judge_getppid(unsigned right, unsigned wrong) {
  const uint64_t place = (uintptr_t)behind_call;
  struct sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getppid, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, instruction_pointer)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)place, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, instruction_pointer) + 4),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)(place >> 32), 0, 1),
      BPF_STMT(BPF_RET | BPF_K, right),
      BPF_STMT(BPF_RET | BPF_K, wrong),
  };
  const struct sock_fprog program = {sizeof code / sizeof code[0], code};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) | prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

static int by_place(void) { return judge_getppid(SECCOMP_RET_ALLOW, SECCOMP_RET_KILL_PROCESS); }

static int trapped(void) {
  struct sigaction action = {.sa_sigaction = on_trapped, .sa_flags = SA_SIGINFO};
  return sigaction(SIGSYS, &action, NULL) | judge_getppid(SECCOMP_RET_TRAP, SECCOMP_RET_KILL_PROCESS);
}

static void line_here(char* line, size_t size) {
  size_t used = 0;
  for (char c; used + 1 < size;) {
    ++calls_here;
    if (call_here(SYS_read, STDIN_FILENO, &c, 1) != 1) _exit(3);
    if (c == '\n') break;
    line[used++] = c;
  }
  line[used] = '\0';
}

static void serve_here(long expected) {
  char line[64];
  for (;;) {
    line_here(line, sizeof line);
    if (strcmp(line, "end") == 0) break;
    long wrong = 0;
    for (int i = 0; i < kCalls; ++i, ++calls_here) wrong += call_here(SYS_getppid, 0, NULL, 0) != expected;
    printf("done %d %ld %ld\n", kCalls, wrong + strange_traps, calls_here);
    fflush(stdout);
  }
}

static int not_dumpable(void) { return prctl(PR_SET_DUMPABLE, 0); }

static const struct {
  const char* name;
  int (*enter)(void);
} kModes[] = {{"free", unconfined}, {"strict", strict}, {"filter", filter},      {"mdwe", mdwe},
              {"chroot", chrooted}, {"mounts", mounts}, {"nodump", not_dumpable}, {"place", by_place},
              {"trap", trapped}};

static void say(const char* text, size_t length) {
  if (write(STDOUT_FILENO, text, length) != (ssize_t)length) syscall(SYS_exit, 4);
}

static void serve(void) {
  char line[64], answer[64];
  for (;;) {
    target_line(line, sizeof line);
    if (strcmp(line, "end") == 0) return;
    int wrong = 0;
    for (int i = 0; i < kCalls; ++i) wrong += work(i, i, work_text(i)) != expected_work(i, i, work_text(i));
    say(answer, (size_t)snprintf(answer, sizeof answer, "done %d %d\n", kCalls, wrong));
  }
}

int main(int argc, char** argv) {
  for (size_t i = 0; argc == 2 && i < sizeof kModes / sizeof kModes[0]; ++i) {
    if (strcmp(argv[1], kModes[i].name) != 0) continue;
    char ready[64];
    const long getppid_before = getppid();
    const int length = snprintf(ready, sizeof ready, "ready %d confined\n", (int)getpid());
    if (kModes[i].enter() != 0) {
      perror(argv[1]);
      return kLacking;
    }
    say(ready, (size_t)length);
    const int traps = strcmp(argv[1], "trap") == 0;
    if (traps || strcmp(argv[1], "place") == 0)
      serve_here(traps ? kTrapped : getppid_before);
    else
      serve();
    say("result ok\n", 10);
    syscall(SYS_exit, 0);
  }
  return 2;
}
