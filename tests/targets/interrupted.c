// interrupted: a thread in each of some system calls that fail with EINTR whenever a handler has interrupted them, half of
// the handlers on a stack of their own. Each thread is sent SIGUSR1 again and again while it waits. A call that fails in
// any other way is reported, and its thread ends: it was made again in another way than the program's. One that fails with
// EINTR without a handler having run was interrupted by somebody else, and is counted; with an argument it is reported,
// too. Runs until a line comes, or a second after the first report.
//
// Prints: interrupted (calls that handlers have interrupted), otherwise (those that somebody else has), unnoticed (signals
// sent to a thread that waited, of which its call didn't fail: it may have been in front of the call just then), result.
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/ipc.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>

#include "old_calls.h"
#include "waits.h"
#include "work.h"

static int is_strict;
static atomic_long otherwise;
static atomic_bool stop_now, failed_otherwise;
static int epoll_fd, semaphores, sockets[2];

static int in_epoll_wait(void) {
  struct epoll_event event;
  return epoll_wait(epoll_fd, &event, 1, -1);
}
static int in_semop(void) {
  struct sembuf take = {0, -1, 0};
  return semop(semaphores, &take, 1);
}
static int in_recv(void) {  // with SO_RCVTIMEO
  char c;
  return (int)recv(sockets[0], &c, 1, 0);
}
static int in_poll(void) {
  return poll(NULL, 0, -1);
}

struct Waiter {
  int (*call)(void);
  long numbers[2];
  atomic_int tid;
  atomic_long handled, failed;
  atomic_bool ended;
  pthread_t thread;
};
static struct Waiter waiters[] = {
    {in_epoll_wait, {SYS_epoll_wait, SYS_epoll_pwait}, 0, 0, 0, 0, 0}, {in_semop, {SYS_semop, SYS_semtimedop}, 0, 0, 0, 0, 0},
    {in_recv, {SYS_recvfrom, SYS_recvfrom}, 0, 0, 0, 0, 0},            {in_poll, {SYS_poll, SYS_ppoll}, 0, 0, 0, 0, 0},
    {in_epoll_wait, {SYS_epoll_wait, SYS_epoll_pwait}, 0, 0, 0, 0, 0}, {in_semop, {SYS_semop, SYS_semtimedop}, 0, 0, 0, 0, 0},
    {in_recv, {SYS_recvfrom, SYS_recvfrom}, 0, 0, 0, 0, 0},            {in_poll, {SYS_poll, SYS_ppoll}, 0, 0, 0, 0, 0},
};
enum { kCount = sizeof waiters / sizeof waiters[0] };
static _Thread_local struct Waiter* self;

static void on_usr1(int number) {
  (void)number;
  atomic_fetch_add(&self->handled, 1);
}

static void* run_waiter(void* argument) {
  self = argument;
  if ((self - waiters) >= kCount / 2) {
    const stack_t stack = {.ss_sp = malloc(65536), .ss_size = 65536};
    if (sigaltstack(&stack, NULL) != 0) _exit(2);
  }
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  pthread_sigmask(SIG_UNBLOCK, &set, NULL);
  atomic_store(&self->tid, (int)syscall(SYS_gettid));
  while (!atomic_load(&stop_now)) {
    const long before = atomic_load(&self->handled);
    const int got = self->call();
    const int error = errno;
    const int by_handler = atomic_load(&self->handled) != before;
    if (got != -1 || error != EINTR || (is_strict && !by_handler)) {
      printf("fatal call %d: %d (%s), %ld signals handled before, %ld now\n", (int)(self - waiters), got, strerror(error),
             before, atomic_load(&self->handled));
      atomic_store(&failed_otherwise, 1);
      break;
    }
    atomic_fetch_add(by_handler ? &self->failed : &otherwise, 1);
  }
  atomic_store(&self->ended, 1);
  return NULL;
}

// A poll that was stopped is gone on with in another's name.
static int asleep(struct Waiter* w) {
  const long number = waits_in(atomic_load(&w->tid));
  return number == w->numbers[0] || number == w->numbers[1] || number == SYS_restart_syscall;
}

static void blink(void) {
  const struct timespec some = {0, 200000};
  nanosleep(&some, NULL);
}

// Sends the waiter a signal while it waits; whether its call has failed of it, soon.
static int interrupt(struct Waiter* w) {
  enum { kLooks = 5000 };
  while (!asleep(w))
    if (blink(), atomic_load(&failed_otherwise)) return 1;
  const long failed = atomic_load(&w->failed);
  pthread_kill(w->thread, SIGUSR1);
  for (int i = 0; i < kLooks; ++i, blink())
    if (atomic_load(&w->failed) != failed || atomic_load(&failed_otherwise)) return 1;
  return 0;
}

static void set_up(void) {
  struct sigaction action = {.sa_handler = on_usr1, .sa_flags = SA_ONSTACK};
  sigaction(SIGUSR1, &action, NULL);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &set, NULL);
  epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  const int first = semget(IPC_PRIVATE, 1, 0600);  // may be number 0, which something else may be, too
  semaphores = semget(IPC_PRIVATE, 1, 0600);
  semctl(first, 0, IPC_RMID);
  if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, sockets) != 0) _exit(2);
  const struct timeval hour = {3600, 0};
  setsockopt(sockets[0], SOL_SOCKET, SO_RCVTIMEO, &hour, sizeof hour);
  for (int i = 0; i < kCount; ++i)
    if (pthread_create(&waiters[i].thread, NULL, run_waiter, &waiters[i]) != 0) _exit(2);
  for (int i = 0; i < kCount; ++i)
    while (!asleep(&waiters[i])) blink();
}

int main(int argc, char** argv) {
  (void)argv;
  is_strict = argc > 1;
  set_up();
  target_ready("interrupted");
  fcntl(STDIN_FILENO, F_SETFL, O_NONBLOCK);
  long unnoticed = 0, interrupted = 0;
  for (char c = 0; c != '\n';) {
    for (int i = 0; i < kCount; ++i) unnoticed += !interrupt(&waiters[i]);
    if (atomic_load(&failed_otherwise)) {
      sleep(1);  // let others say so, too
      fflush(stdout);
      semctl(semaphores, 0, IPC_RMID);
      return 1;
    }
    if (read(STDIN_FILENO, &c, 1) == 0) break;  // the test is gone
  }
  atomic_store(&stop_now, 1);
  for (int i = 0; i < kCount; ++i) {
    for (; !atomic_load(&waiters[i].ended); blink()) pthread_kill(waiters[i].thread, SIGUSR1);
    pthread_join(waiters[i].thread, NULL);
  }
  semctl(semaphores, 0, IPC_RMID);
  for (int i = 0; i < kCount; ++i) interrupted += atomic_load(&waiters[i].failed);
  printf("interrupted %ld\notherwise %ld\nunnoticed %ld\n", interrupted, atomic_load(&otherwise), unnoticed);
  return target_result(work(1, 2, "x") == expected_work(1, 2, "x"));
}
