// lifecycle SCENARIO ROUNDS: tasks that come to life and end in every way, each checked by its creator.
//
//   threads   four creators, each of whose threads live for microseconds
//   tree      processes that fork two more each, five deep; each one's exit code says whether its subtree was right
//   vfork     four threads, each vforks and executes
//   spawn     four threads, each posix_spawns
//   clones    clone() and clone3() with odd flags
//   exec      a thread that is not the leader executes the program anew, ROUNDS times
//   crowd     the same, among 60 threads that do nothing
//   leader    the leader ends before its threads, which go on and finish the work
//   exits     children whose threads are all at work when one of them ends the process
//   kills     the same, ended by SIGKILL from outside
//
// Prints: calls (work() in this address space), child_calls (that certainly happen in copies of it), result.
#include <errno.h>
#include <linux/sched.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#include "work.h"

#ifndef CLONE_CLEAR_SIGHAND
#define CLONE_CLEAR_SIGHAND 0x100000000ULL
#endif

enum { kThreads = 4, kCrowd = 60, kStack = 64 * 1024, kDepth = 5 };
extern char** environ;
static atomic_long calls, child_calls, wrong;
static long rounds;

static int exit_code(int i) { return work(i, i + 1, work_text(i)) & 0x3f; }
static int expected_code(int i) { return expected_work(i, i + 1, work_text(i)) & 0x3f; }
static void do_work(int i) {
  ++calls;
  if (work(i, 2 * i, work_text(i)) != expected_work(i, 2 * i, work_text(i))) ++wrong;
}

static void complain(const char* what, long got, long wanted) {
  ++wrong;
  fprintf(stderr, "%s: %ld (0x%lx) instead of %ld\n", what, got, (unsigned long)got, wanted);
}

// Any child's end; a stop is never reported, for nobody asked for it.
static int wait_for(pid_t pid, int options) {
  int status = 0;
  pid_t got;
  do got = waitpid(pid, &status, options);
  while (got < 0 && errno == EINTR);
  if (got != pid) complain("waitpid", got, pid);
  return status;
}

static void check_exit(pid_t pid, int code, int options, const char* what) {
  if (pid < 0) {
    complain(what, -errno, 0);
    return;
  }
  const int status = wait_for(pid, options);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != code) complain(what, status, code << 8);
}

static void in_threads(void* (*run)(void*)) {
  pthread_t threads[kThreads];
  for (long i = 0; i < kThreads; ++i)
    if (pthread_create(&threads[i], NULL, run, (void*)i) != 0) complain("pthread_create", errno, 0);
  for (int i = 0; i < kThreads; ++i) pthread_join(threads[i], NULL);
}

// ---- threads ----

static void* live_shortly(void* argument) {
  do_work((int)(long)argument);
  return argument;
}

static void* create_short_ones(void* argument) {
  for (long i = 0; i < rounds; ++i) {
    pthread_t thread;
    void* got = NULL;
    if (pthread_create(&thread, NULL, live_shortly, (void*)i) != 0) complain("pthread_create", errno, 0);
    pthread_join(thread, &got);
    if (got != (void*)i) complain("pthread_join", (long)got, i);
  }
  return argument;
}

static void threads(void) { in_threads(create_short_ones); }

// ---- tree ----

static int subtree(int depth) {
  const int mine = exit_code(depth);
  if (mine != expected_code(depth)) return 1;
  if (depth == 0) return 0;
  pid_t children[2];
  for (int i = 0; i < 2; ++i) {
    children[i] = fork();
    if (children[i] == 0) _exit(subtree(depth - 1));
    if (children[i] < 0) return 2;
  }
  int bad = 0;
  for (int i = 0; i < 2; ++i) {
    const int status = wait_for(children[i], 0);
    bad |= !WIFEXITED(status) ? 3 : WEXITSTATUS(status);
  }
  return bad;
}

static void tree(void) {
  for (long i = 0; i < rounds; ++i) {
    const pid_t pid = fork();
    if (pid == 0) _exit(subtree(kDepth));
    child_calls += (2 << kDepth) - 1;
    check_exit(pid, 0, 0, "tree");
  }
}

// ---- vfork, spawn ----

static void* vfork_and_exec(void* argument) {
  char number[16];
  for (int i = 0; i < rounds; ++i) {
    snprintf(number, sizeof number, "%d", i);
    char* const argv[] = {"lifecycle", "--child", number, NULL};
    const pid_t pid = vfork();
    if (pid == 0) {
      execv("/proc/self/exe", argv);
      _exit(126);
    }
    check_exit(pid, expected_code(i), 0, "vfork");
    do_work(i);
  }
  return argument;
}

static void* spawn_some(void* argument) {
  char number[16];
  for (int i = 0; i < rounds; ++i) {
    snprintf(number, sizeof number, "%d", i);
    char* const argv[] = {"lifecycle", "--child", number, NULL};
    pid_t pid = -1;
    const int error = posix_spawn(&pid, "/proc/self/exe", NULL, NULL, argv, environ);
    if (error != 0)
      complain("posix_spawn", error, 0);
    else
      check_exit(pid, expected_code(i), 0, "spawn");
    do_work(i);
  }
  return argument;
}

static void vforks(void) { in_threads(vfork_and_exec); }
static void spawns(void) { in_threads(spawn_some); }

// ---- clones ----

static char* stack;

static int cloned(void* argument) { return exit_code((int)(long)argument); }

static void by_clone(int i, int flags, int options) {
  if (flags & CLONE_VM)
    ++calls;
  else
    ++child_calls;
  check_exit(clone(cloned, stack + kStack, flags, (void*)(long)i), expected_code(i), options, "clone");
}

// The child goes on on a copy of this stack, as after fork().
static void by_clone3(int i, uint64_t flags, int exit_signal, int options) {
  int pidfd = -1;
  struct clone_args arguments;
  memset(&arguments, 0, sizeof arguments);
  arguments.flags = flags;
  arguments.exit_signal = (unsigned)exit_signal;
  arguments.pidfd = (uint64_t)(uintptr_t)&pidfd;
  const long pid = syscall(SYS_clone3, &arguments, sizeof arguments);
  if (pid == 0) _exit(exit_code(i));
  ++child_calls;
  check_exit((pid_t)pid, expected_code(i), options, "clone3");
  if (pidfd >= 0) close(pidfd);
}

// The child's parent is ours: only its end can be seen, by way of a pipe that it holds.
static void by_clone_parent(int i) {
  int ends[2];
  if (pipe(ends) != 0) {
    complain("pipe", errno, 0);
    return;
  }
  const pid_t middle = fork();
  if (middle == 0) {
    const pid_t pid = (pid_t)syscall(SYS_clone, CLONE_PARENT | SIGCHLD, 0, 0, 0, 0);
    if (pid == 0) {
      const char code = (char)exit_code(i);
      _exit(write(ends[1], &code, 1) == 1 ? 0 : 1);
    }
    _exit(pid < 0);
  }
  ++child_calls;
  check_exit(middle, 0, 0, "middle");
  char code = -1;
  if (read(ends[0], &code, 1) != 1 || code != expected_code(i)) complain("CLONE_PARENT", code, expected_code(i));
  close(ends[0]), close(ends[1]);
  // It has become our child, and we don't know its id.
  int status = 0;
  while (waitpid(-1, &status, 0) < 0 && errno == EINTR) continue;
  if (status != 0) complain("CLONE_PARENT's end", status, 0);
}

static void clones(void) {
  stack = mmap(NULL, kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
  if (stack == MAP_FAILED) {
    complain("mmap", errno, 0);
    return;
  }
  for (int i = 0; i < rounds; ++i) {
    by_clone(i, SIGCHLD, 0);
    by_clone(i, CLONE_VM | SIGCHLD, 0);
    by_clone(i, CLONE_VM | CLONE_VFORK | SIGCHLD, 0);
    by_clone(i, CLONE_VM, __WCLONE);
    by_clone(i, CLONE_VM | CLONE_SIGHAND | CLONE_FILES | CLONE_FS | SIGCHLD, 0);
    by_clone(i, CLONE_VM | CLONE_VFORK | CLONE_FILES, __WCLONE);
    by_clone(i, CLONE_FILES | CLONE_FS | CLONE_SYSVSEM | CLONE_IO | SIGCHLD, 0);
    by_clone(i, CLONE_VFORK | SIGUSR1, __WCLONE);
    by_clone3(i, CLONE_PIDFD, SIGCHLD, 0);
    by_clone3(i, CLONE_PIDFD | CLONE_CLEAR_SIGHAND, SIGCHLD, 0);
    by_clone3(i, CLONE_PIDFD | CLONE_VFORK, 0, __WALL);
    by_clone_parent(i);
    do_work(i);
  }
}

// ---- exec ----

static atomic_bool stop_now;

static void* work_until_stopped(void* argument) {
  for (int i = 0; !atomic_load(&stop_now); ++i) do_work(i & 0xff);
  return argument;
}

static void* do_nothing(void* argument) {
  for (;;) pause();
  return argument;
}

static bool crowded;

// Up to 30, so that whoever looks at the program comes at any moment of its life.
static void some_milliseconds(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  time = (struct timespec){0, time.tv_nsec / 1000 % 30 * 1000000 + time.tv_nsec % 1000000};
  nanosleep(&time, NULL);
}

static void* exec_again(void* argument) {
  char left[24], bad[24];
  snprintf(left, sizeof left, "%ld", rounds - 1);
  snprintf(bad, sizeof bad, "%ld", (long)wrong);
  for (int i = 0; i < 20; ++i) do_work(i);
  if (crowded) some_milliseconds();
  execl("/proc/self/exe", "lifecycle", crowded ? "--crowd" : "--again", left, bad, NULL);
  complain("exec", errno, 0);
  return argument;
}

static void exec_from_thread(void) {
  if (rounds == 0) return;
  pthread_t worker, caller;
  for (int i = 0; i < (crowded ? kCrowd : kThreads); ++i)
    pthread_create(&worker, NULL, crowded ? do_nothing : work_until_stopped, NULL);
  pthread_create(&caller, NULL, exec_again, NULL);
  pthread_join(caller, NULL);  // only when the exec fails
}

static void exec_among_many(void) {
  crowded = true;
  exec_from_thread();
}

// ---- leader ----

static int finish(void) {
  printf("calls %ld\nchild_calls %ld\nwrong %ld\n", (long)calls, (long)child_calls, (long)wrong);
  return target_result(wrong == 0);
}

static pthread_t leader_thread;

static void* outlive_leader(void* argument) {
  pthread_join(leader_thread, NULL);
  in_threads(create_short_ones);
  exit(finish());
  return argument;
}

static void leader_ends(void) {
  pthread_t heir;
  leader_thread = pthread_self();
  pthread_create(&heir, NULL, outlive_leader, NULL);
  do_work(1);
  pthread_exit(NULL);
}

// ---- exits, kills ----

static void nap_us(long us) {
  const struct timespec nap = {0, us * 1000};
  nanosleep(&nap, NULL);
}

static void* work_for_ever(void* argument) {
  for (int i = 0;; ++i)
    if (work(i & 0xff, i, "busy") != expected_work(i & 0xff, i, "busy")) _exit(99);
  return argument;
}

// Doesn't outlive its parent.
static void busy_child(int i, int to_be_killed, pid_t parent) {
  pthread_t thread;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(98);
  for (int k = 0; k < kThreads; ++k) pthread_create(&thread, NULL, work_for_ever, NULL);
  if (to_be_killed) work_for_ever(NULL);
  nap_us((i * 37) % 700);
  _exit(expected_code(i));
}

static void exits(void) {
  for (int i = 0; i < rounds; ++i) {
    const pid_t own = getpid(), pid = fork();
    if (pid == 0) busy_child(i, 0, own);
    check_exit(pid, expected_code(i), 0, "exits");
    do_work(i);
  }
}

static void kills(void) {
  for (int i = 0; i < rounds; ++i) {
    const pid_t own = getpid(), pid = fork();
    if (pid == 0) busy_child(i, 1, own);
    nap_us((i * 61) % 1500);
    kill(pid, SIGKILL);
    const int status = wait_for(pid, 0);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL) complain("kills", status, SIGKILL);
    do_work(i);
  }
}

static const struct {
  const char* name;
  void (*run)(void);
} kScenarios[] = {{"threads", threads},    {"tree", tree},     {"vfork", vforks},
                  {"spawn", spawns},       {"clones", clones}, {"exec", exec_from_thread}, {"crowd", exec_among_many},
                  {"leader", leader_ends}, {"exits", exits},   {"kills", kills}};

int main(int argc, char** argv) {
  if (argc == 3 && strcmp(argv[1], "--child") == 0) return exit_code(atoi(argv[2]));
  if (argc < 3) return 2;
  rounds = atol(argv[2]);
  signal(SIGUSR1, SIG_IGN);
  crowded = strcmp(argv[1], "--crowd") == 0;
  if (crowded || strcmp(argv[1], "--again") == 0) {
    wrong = atol(argv[3]);
    exec_from_thread();
    return finish();
  }
  target_ready("lifecycle");
  target_wait_go();
  for (size_t i = 0; i < sizeof kScenarios / sizeof kScenarios[0]; ++i)
    if (strcmp(argv[1], kScenarios[i].name) == 0) kScenarios[i].run();
  return finish();
}
