// asleep N: N threads wait in calls that the kernel doesn't make again by itself, each in one of epoll_wait, sigtimedwait
// and semtimedop, without a time limit. No signal is handled, so none of these calls ever returns; one that does is
// reported. Until a line comes.
// Prints: asleep (threads that wait), returned, result.
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ipc.h>
#include <sys/sem.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "protocol.h"
#include "waits.h"

enum { kMost = 200 };
static atomic_int tids[kMost];
static atomic_long returned;
static int epoll_fd, semaphores;

static int wait_in(long which) {
  struct epoll_event event;
  struct sembuf take = {0, -1, 0};
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  if (which == 0) return epoll_wait(epoll_fd, &event, 1, -1);
  return which == 1 ? sigtimedwait(&set, NULL, NULL) : semtimedop(semaphores, &take, 1, NULL);
}

static void* run_waiter(void* argument) {
  const long which = (long)argument;
  atomic_store(&tids[which], (int)syscall(SYS_gettid));
  for (;;) {
    const int result = wait_in(which % 3);
    atomic_fetch_add(&returned, 1);
    fprintf(stderr, "call %ld returned %d: %s\n", which % 3, result, strerror(errno));
  }
  return NULL;
}

int main(int argc, char** argv) {
  const long threads = argc > 1 ? atol(argv[1]) : 8;
  if (threads < 1 || threads > kMost) return 2;
  epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  semaphores = semget(IPC_PRIVATE, 1, 0600);
  if (epoll_fd < 0 || semaphores < 0) return 2;
  sigset_t blocked;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &blocked, NULL);
  for (long t = 0; t < threads; ++t) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, run_waiter, (void*)t) != 0) return 2;
  }
  long asleep = 0;
  for (long t = 0; t < threads; ++t, ++asleep)
    while (atomic_load(&tids[t]) == 0 || waits_in(atomic_load(&tids[t])) < 0 ||
           waits_in(atomic_load(&tids[t])) == SYS_futex)
      usleep(200);
  target_ready("asleep");
  target_wait_go();
  const long all = atomic_load(&returned);
  printf("asleep %ld\nreturned %ld\n", asleep, all);
  fflush(stdout);
  target_result(all == 0);
  fflush(NULL);
  semctl(semaphores, 0, IPC_RMID);
  _exit(all == 0 ? 0 : 1);
}
