// sleeper: one thread sits in each system call that ptrace is known to disturb (signal(7) lists those that fail with
// EINTR after a mere stop). EINTR is fatal here, and so is a sleep that ends early. Ready once every thread sleeps.
//
// After the go each thread is woken the proper way and must have the proper answer. Prints: sleepers, result.
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>

#include "old_calls.h"
#include "waits.h"
#include "work.h"

static atomic_bool stop_now;
static int epoll_fd, wake_pipe[8][2], semaphore_set, message_queue, listener, stream[2], datagram[2];
static atomic_int futex_word;
static struct sockaddr_un listen_address;
static socklen_t listen_length;

static int fail(const char* what) {
  printf("fatal %s %s\n", what, strerror(errno));
  fflush(stdout);
  return 0;
}
static int expect(int ok, const char* what) {
  return ok ? 1 : fail(what);
}

static long now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static int in_epoll_wait(void) {
  struct epoll_event event;
  return expect(epoll_wait(epoll_fd, &event, 1, -1) == 1, "epoll_wait");
}
static int in_epoll_wait_timed(void) {
  const int empty = epoll_create1(EPOLL_CLOEXEC);
  struct epoll_event event;
  int ok = 1;
  while (ok && !atomic_load(&stop_now)) {
    const long start = now_ms();
    const int got = epoll_wait(empty, &event, 1, 100);
    if (got == 0 && now_ms() - start < 99) errno = 0, ok = fail("epoll_wait ended early");
    if (got != 0) ok = fail("epoll_wait timed");
  }
  return ok;
}
static int in_nanosleep(void) {
  int ok = 1;
  while (ok && !atomic_load(&stop_now)) {
    const struct timespec nap = {0, 100000000};
    const long start = now_ms();
    ok = expect(nanosleep(&nap, NULL) == 0, "nanosleep");
    if (now_ms() - start < 99) errno = 0, ok = fail("nanosleep ended early");
  }
  return ok;
}
static int in_sigtimedwait(void) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR2);
  const struct timespec hour = {3600, 0};
  return expect(sigtimedwait(&set, NULL, &hour) == SIGUSR2, "sigtimedwait");
}
static int in_semop(void) {
  struct sembuf take = {0, -1, 0};
  return expect(semop(semaphore_set, &take, 1) == 0, "semop");
}
static int in_msgrcv(void) {
  struct {
    long type;
    char text[8];
  } message;
  return expect(msgrcv(message_queue, &message, sizeof message.text, 0, 0) == 4, "msgrcv");
}
static int in_futex(void) {
  while (atomic_load(&futex_word) == 0)
    if (syscall(SYS_futex, &futex_word, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0) != 0 && errno != EAGAIN)
      return fail("futex");
  return 1;
}
static int in_accept(void) {
  const int fd = accept(listener, NULL, NULL);
  close(fd);
  return expect(fd >= 0, "accept");
}
static int in_read(void) {
  char c;
  return expect(read(wake_pipe[0][0], &c, 1) == 1, "read");
}
static int in_poll(void) {
  struct pollfd fd = {.fd = wake_pipe[1][0], .events = POLLIN};
  return expect(poll(&fd, 1, -1) == 1, "poll");
}
static int in_select(void) {
  fd_set set;
  FD_ZERO(&set);
  FD_SET(wake_pipe[2][0], &set);
  return expect(select(wake_pipe[2][0] + 1, &set, NULL, NULL, NULL) == 1, "select");
}
static int in_recv(void) {
  char c;
  return expect(recv(stream[0], &c, 1, 0) == 1, "recv");
}
// A socket with a receive time limit: interrupted, it always fails with EINTR.
static int in_recv_timed(void) {
  const struct timeval hour = {3600, 0};
  setsockopt(datagram[0], SOL_SOCKET, SO_RCVTIMEO, &hour, sizeof hour);
  char c;
  return expect(recv(datagram[0], &c, 1, 0) == 1, "recv with SO_RCVTIMEO");
}

struct Sleeper {
  const char* name;
  int (*run)(void);
  long calls[2];  // the system calls it may be seen in
};
static const struct Sleeper sleepers[] = {
    {"epoll_wait", in_epoll_wait, {SYS_epoll_wait, SYS_epoll_pwait}},
    {"epoll_wait_timed", in_epoll_wait_timed, {SYS_epoll_wait, SYS_epoll_pwait}},
    {"nanosleep", in_nanosleep, {SYS_nanosleep, SYS_clock_nanosleep}},
    {"sigtimedwait", in_sigtimedwait, {SYS_rt_sigtimedwait, SYS_rt_sigtimedwait}},
    {"semop", in_semop, {SYS_semop, SYS_semtimedop}},
    {"msgrcv", in_msgrcv, {SYS_msgrcv, SYS_msgrcv}},
    {"futex", in_futex, {SYS_futex, SYS_futex}},
    {"accept", in_accept, {SYS_accept, SYS_accept4}},
    {"read", in_read, {SYS_read, SYS_read}},
    {"poll", in_poll, {SYS_poll, SYS_ppoll}},
    {"select", in_select, {SYS_select, SYS_pselect6}},
    {"recv", in_recv, {SYS_recvfrom, SYS_recvfrom}},
    {"recv_timed", in_recv_timed, {SYS_recvfrom, SYS_recvfrom}},
};
enum { kCount = sizeof sleepers / sizeof sleepers[0] };
static pthread_t threads[kCount];
static atomic_int tids[kCount];

static void* run_sleeper(void* argument) {
  const long i = (long)argument;
  atomic_store(&tids[i], (int)syscall(SYS_gettid));
  const int ok = sleepers[i].run();
  if (!ok) _exit(1);
  return NULL;
}

static int asleep(int i) {
  const long number = waits_in(atomic_load(&tids[i]));
  return number == sleepers[i].calls[0] || number == sleepers[i].calls[1];
}

static void set_up(void) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR2);
  pthread_sigmask(SIG_BLOCK, &set, NULL);
  for (int i = 0; i < 8; ++i)
    if (pipe2(wake_pipe[i], O_CLOEXEC) != 0) _exit(2);
  epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  struct epoll_event event = {.events = EPOLLIN};
  epoll_ctl(epoll_fd, EPOLL_CTL_ADD, wake_pipe[3][0], &event);
  semaphore_set = semget(IPC_PRIVATE, 1, 0600);
  message_queue = msgget(IPC_PRIVATE, 0600);
  listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  listen_address.sun_family = AF_UNIX;
  listen_length = sizeof(sa_family_t);  // autobind: the kernel picks an abstract name
  bind(listener, (struct sockaddr*)&listen_address, listen_length);
  listen_length = sizeof listen_address;
  getsockname(listener, (struct sockaddr*)&listen_address, &listen_length);
  if (listen(listener, 1) != 0) _exit(2);
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, stream) != 0 || socketpair(AF_UNIX, SOCK_DGRAM, 0, datagram) != 0) _exit(2);
}

static void start_and_wait_asleep(void) {
  for (long i = 0; i < kCount; ++i)
    if (pthread_create(&threads[i], NULL, run_sleeper, (void*)i) != 0) _exit(2);
  for (int i = 0; i < kCount;) {
    if (asleep(i)) {
      ++i;
    } else {
      const struct timespec blink = {0, 1000000};
      nanosleep(&blink, NULL);
    }
  }
}

static void wake_all(void) {
  atomic_store(&stop_now, 1);
  for (int i = 0; i < 4; ++i)
    if (write(wake_pipe[i][1], "x", 1) != 1) _exit(2);
  pthread_kill(threads[3], SIGUSR2);
  struct sembuf give = {0, 1, 0};
  semop(semaphore_set, &give, 1);
  const struct {
    long type;
    char text[8];
  } message = {1, "wake"};
  msgsnd(message_queue, &message, 4, 0);
  atomic_store(&futex_word, 1);
  syscall(SYS_futex, &futex_word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connect(fd, (struct sockaddr*)&listen_address, listen_length) != 0) _exit(2);
  if (send(stream[1], "x", 1, 0) != 1 || send(datagram[1], "x", 1, 0) != 1) _exit(2);
}

static void remove_ipc(void) {
  semctl(semaphore_set, 0, IPC_RMID);
  msgctl(message_queue, IPC_RMID, NULL);
}

int main(void) {
  set_up();
  start_and_wait_asleep();
  target_ready("sleeper");
  char c = 0;
  while (c != '\n')
    if (read(STDIN_FILENO, &c, 1) != 1) {  // the test is gone, or the main thread was disturbed as well
      remove_ipc();
      return errno == EINTR ? !fail("main read") : 3;
    }
  wake_all();
  for (int i = 0; i < kCount; ++i) pthread_join(threads[i], NULL);
  remove_ipc();
  printf("sleepers %d\n", (int)kCount);
  return target_result(work(1, 2, "x") == expected_work(1, 2, "x"));
}
