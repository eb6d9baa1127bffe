// calls: a thread in each system call that a tracer may disturb, over and over until the "stop" line. EINTR is fatal in all
// of them, so is a wait that ends early. Timed calls are made again when they have timed out; the others are woken, in
// the end, the proper way, and must then have the proper answer.
//
// Prints, for each timed call: late_NAME MILLISECONDS (the most it was late), rounds_NAME; then changed (calls that changed
// more registers than they may), result.
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/aio_abi.h>
#include <linux/futex.h>
#include <mqueue.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>

#include "machine.h"
#include "old_calls.h"
#include "waits.h"
#include "work.h"

enum { kWaitMs = 40, kTickMs = 10, kHour = 3600 };

static atomic_bool stop_now;
static atomic_int handled;
static char directory[64];

struct Call {
  const char* name;
  int (*make)(struct Call*);  // once; whether it went as it should
  void (*wake)(struct Call*);
  int timed;                  // makes one wait of kWaitMs
  int in_ticks;               // which the kernel counts in ticks; they lag behind the clock when a tick comes late
  long number, other_number;  // the system calls it may be seen in; 0: the first only
  int fd[2];                  // set up by pair(), or whatever the call needs
  atomic_int tid, word;
  long rounds, late;
  pthread_t thread;
  pid_t child;
};

static int fail(const struct Call* c, const char* what) {
  printf("fatal %s %s: %s\n", c->name, what, strerror(errno));
  fflush(stdout);
  return 0;
}
static int expect(const struct Call* c, int ok, const char* what) {
  return ok ? 1 : fail(c, what);
}
static void must(int ok, const char* what) {
  if (ok) return;
  printf("fatal set-up %s: %s\n", what, strerror(errno));
  exit(2);
}

static double now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}
static struct timespec later(clockid_t clock, long ms) {
  struct timespec t;
  clock_gettime(clock, &t);
  t.tv_nsec += ms * 1000000;
  t.tv_sec += t.tv_nsec / 1000000000;
  t.tv_nsec %= 1000000000;
  return t;
}
static const struct timespec kWait = {0, kWaitMs * 1000000L};
static const struct timespec kLong = {kHour, 0};

static void open_pipe(struct Call* c) { must(pipe2(c->fd, O_CLOEXEC) == 0, "pipe2"); }
static void open_sockets(struct Call* c, int type) {
  must(socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, c->fd) == 0, "socketpair");
}
static void write_one(struct Call* c) {
  if (write(c->fd[1], "x", 1) != 1) fail(c, "wake");
}
static void send_usr1(struct Call* c) { pthread_kill(c->thread, SIGUSR1); }
static void send_usr2(struct Call* c) { pthread_kill(c->thread, SIGUSR2); }
static void wake_futex(struct Call* c) {
  atomic_store(&c->word, 1);
  syscall(SYS_futex, &c->word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}
static sigset_t only(int number) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, number);
  return set;
}
static sigset_t all_but(int number) {
  sigset_t set;
  sigfillset(&set);
  sigdelset(&set, number);
  return set;
}

// ---- waiting for descriptors ----------------------------------------------------------------------------------------------

static int epoll_of(struct Call* c) {
  const int fd = epoll_create1(EPOLL_CLOEXEC);
  struct epoll_event event = {.events = EPOLLIN};
  epoll_ctl(fd, EPOLL_CTL_ADD, c->fd[0], &event);
  return fd;
}
static int make_epoll_wait(struct Call* c) {
  struct epoll_event event;
  const int fd = epoll_of(c);
  return expect(c, epoll_wait(fd, &event, 1, -1) == 1, "without a limit") & (close(fd) == 0);
}
static int make_epoll_wait_timed(struct Call* c) {
  struct epoll_event event;
  const int fd = epoll_of(c);
  return expect(c, epoll_wait(fd, &event, 1, kWaitMs) == 0, "timed") & (close(fd) == 0);
}
static int make_epoll_pwait_timed(struct Call* c) {
  struct epoll_event event;
  const sigset_t mask = all_but(SIGUSR1);
  const int fd = epoll_of(c);
  return expect(c, epoll_pwait(fd, &event, 1, kWaitMs, &mask) == 0, "timed") & (close(fd) == 0);
}
static int make_epoll_pwait2_timed(struct Call* c) {
#ifdef SYS_epoll_pwait2
  struct epoll_event event;
  const int fd = epoll_of(c);
  return expect(c, syscall(SYS_epoll_pwait2, fd, &event, 1, &kWait, NULL, 0) == 0, "timed") & (close(fd) == 0);
#else
  return expect(c, nanosleep(&kWait, NULL) == 0, "");
#endif
}
static struct pollfd poll_of(struct Call* c) { return (struct pollfd){.fd = c->fd[0], .events = POLLIN}; }
static int make_poll(struct Call* c) {
  struct pollfd fd = poll_of(c);
  return expect(c, poll(&fd, 1, -1) == 1, "without a limit");
}
static int make_poll_timed(struct Call* c) {
  struct pollfd fd = poll_of(c);
  return expect(c, poll(&fd, 1, kWaitMs) == 0, "timed");
}
static int make_ppoll_timed(struct Call* c) {
  struct pollfd fd = poll_of(c);
  const sigset_t mask = all_but(SIGUSR1);
  return expect(c, ppoll(&fd, 1, &kWait, &mask) == 0, "timed");
}
// The kernel writes back what is left of the time; where it can't, it returns EINTR instead of making the call again.
static int make_ppoll_constant(struct Call* c) {
  struct pollfd fd = poll_of(c);
  return expect(c, syscall(SYS_ppoll, &fd, 1, &kWait, NULL, 0) == 0, "timed, with a constant limit");
}
static int make_select_timed(struct Call* c) {
  fd_set set;
  FD_ZERO(&set);
  FD_SET(c->fd[0], &set);
  struct timeval t = {0, kWaitMs * 1000};
  return expect(c, select(c->fd[0] + 1, &set, NULL, NULL, &t) == 0, "timed");
}
static int make_pselect(struct Call* c) {
  fd_set set;
  FD_ZERO(&set);
  FD_SET(c->fd[0], &set);
  return expect(c, pselect(c->fd[0] + 1, &set, NULL, NULL, NULL, NULL) == 1, "without a limit");
}

// ---- reading, writing, locking ----------------------------------------------------------------------------------------------

static int make_read(struct Call* c) {
  char byte[8];
  return expect(c, read(c->fd[0], byte, sizeof byte) > 0, "");
}
static int make_recv(struct Call* c) {
  char byte;
  return expect(c, recv(c->fd[0], &byte, 1, 0) == 1, "");
}
static int make_recvmsg_timed(struct Call* c) {
  char byte;
  const struct timeval t = {0, kWaitMs * 1000};
  struct iovec part = {&byte, 1};
  struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
  setsockopt(c->fd[0], SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
  return expect(c, recvmsg(c->fd[0], &message, 0) == -1 && errno == EAGAIN, "with SO_RCVTIMEO");
}
static int make_recvmmsg(struct Call* c) {
  char byte;
  const struct timeval t = {kHour, 0};
  struct iovec part = {&byte, 1};
  struct mmsghdr message = {.msg_hdr = {.msg_iov = &part, .msg_iovlen = 1}};
  setsockopt(c->fd[0], SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
  return expect(c, recvmmsg(c->fd[0], &message, 1, 0, NULL) == 1, "with SO_RCVTIMEO");
}
static void fill(int fd) {
  static const char zeros[4096];
  fcntl(fd, F_SETFL, O_NONBLOCK);
  while (write(fd, zeros, sizeof zeros) > 0) continue;
  while (write(fd, zeros, 1) > 0) continue;
  fcntl(fd, F_SETFL, 0);
}
static void drain(struct Call* c) {
  char page[4096];
  fcntl(c->fd[0], F_SETFL, O_NONBLOCK);
  while (read(c->fd[0], page, sizeof page) > 0) continue;
}
static int make_write(struct Call* c) { return expect(c, write(c->fd[1], "x", 1) == 1, "to a full pipe"); }
static int make_send_timed(struct Call* c) {
  const struct timeval t = {0, kWaitMs * 1000};
  setsockopt(c->fd[1], SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t);
  return expect(c, send(c->fd[1], "x", 1, 0) == -1 && errno == EAGAIN, "with SO_SNDTIMEO");
}
static struct sockaddr_un address_of(int listener, socklen_t* size) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  *size = sizeof address;
  getsockname(listener, (struct sockaddr*)&address, size);
  return address;
}
// Autobind: the kernel picks an abstract name.
static int new_listener(void) {
  const struct sockaddr_un any = {.sun_family = AF_UNIX};
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  must(bind(fd, (const struct sockaddr*)&any, sizeof(sa_family_t)) == 0 && listen(fd, 0) == 0, "listen");
  return fd;
}
static int connect_to(int listener) {
  socklen_t size;
  const struct sockaddr_un address = address_of(listener, &size);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connect(fd, (const struct sockaddr*)&address, size) == 0) return fd;
  close(fd);
  return -1;
}
static int make_accept(struct Call* c) { return expect(c, accept(c->fd[0], NULL, NULL) >= 0, ""); }
static int make_accept_timed(struct Call* c) {
  const struct timeval t = {0, kWaitMs * 1000};
  setsockopt(c->fd[0], SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
  return expect(c, accept(c->fd[0], NULL, NULL) == -1 && errno == EAGAIN, "with SO_RCVTIMEO");
}
static void wake_accept(struct Call* c) { connect_to(c->fd[0]); }
// The one place in the queue is taken: this waits until somebody accepts.
static int make_connect(struct Call* c) { return expect(c, connect_to(c->fd[0]) >= 0, ""); }
static void wake_connect(struct Call* c) { accept(c->fd[0], NULL, NULL); }
static int make_flock(struct Call* c) { return expect(c, flock(c->fd[0], LOCK_EX) == 0, ""); }
static void wake_flock(struct Call* c) { flock(c->fd[1], LOCK_UN); }
static int make_setlkw(struct Call* c) {
  struct flock lock = {.l_type = F_WRLCK};
  return expect(c, fcntl(c->fd[0], F_OFD_SETLKW, &lock) == 0, "");
}
static void wake_setlkw(struct Call* c) {
  struct flock lock = {.l_type = F_UNLCK};
  fcntl(c->fd[1], F_OFD_SETLK, &lock);
}
static int make_open_fifo(struct Call* c) {
  char path[128];
  snprintf(path, sizeof path, "%s/fifo", directory);
  return expect(c, open(path, O_RDONLY | O_CLOEXEC) >= 0, "of a FIFO");
}
static void wake_open_fifo(struct Call* c) {
  char path[128];
  snprintf(path, sizeof path, "%s/fifo", directory);
  c->fd[1] = open(path, O_WRONLY | O_CLOEXEC);
}
static int make_splice(struct Call* c) {
  int into[2];
  if (pipe2(into, O_CLOEXEC) != 0) return 0;
  return expect(c, splice(c->fd[0], NULL, into[1], NULL, 1, 0) == 1, "");
}
static void wake_inotify(struct Call* c) {
  char path[128];
  snprintf(path, sizeof path, "%s/file", directory);
  c->fd[1] = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
}
static int make_inotify(struct Call* c) {
  char event[512];
  return expect(c, read(c->fd[0], event, sizeof event) > 0, "");
}
static void wake_eventfd(struct Call* c) { eventfd_write(c->fd[0], 1); }
static int make_timerfd(struct Call* c) {
  const struct itimerspec once = {.it_value = kWait};
  uint64_t times;
  timerfd_settime(c->fd[0], 0, &once, NULL);
  return expect(c, read(c->fd[0], &times, sizeof times) == sizeof times, "");
}
static int make_signalfd(struct Call* c) {
  struct signalfd_siginfo info;
  return expect(c, read(c->fd[0], &info, sizeof info) == sizeof info, "");
}

// ---- sleeping, signals, other processes -----------------------------------------------------------------------------------

static int make_nanosleep(struct Call* c) { return expect(c, nanosleep(&kWait, NULL) == 0, ""); }
static atomic_long changed;
static int make_nanosleep_inline(struct Call* c) {
  long number = 0;
  const long result = sleep_inline(&kWait, &number);
  if (number != SYS_nanosleep) atomic_fetch_add(&changed, 1);
  return expect(c, result == 0, "");
}
static int make_clock_nanosleep(struct Call* c) {
  const struct timespec at = later(CLOCK_MONOTONIC, kWaitMs);
  return expect(c, clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == 0, "absolute");
}
static int make_futex_timed(struct Call* c) {
  return expect(c, syscall(SYS_futex, &c->word, FUTEX_WAIT_PRIVATE, 0, &kWait, NULL, 0) == -1 && errno == ETIMEDOUT,
                "timed");
}
static int make_futex(struct Call* c) {
  const long got = syscall(SYS_futex, &c->word, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
  return expect(c, got == 0 || errno == EAGAIN, "without a limit");
}
static int make_sigtimedwait(struct Call* c) {
  const sigset_t set = only(SIGUSR2);
  return expect(c, sigtimedwait(&set, NULL, &kWait) == -1 && errno == EAGAIN, "timed");
}
static int make_sigwaitinfo(struct Call* c) {
  const sigset_t set = only(SIGUSR2);
  return expect(c, sigwaitinfo(&set, NULL) == SIGUSR2, "");
}
// These two return EINTR, and only when a handler has run.
static int make_sigsuspend(struct Call* c) {
  const sigset_t mask = all_but(SIGUSR1);
  const int before = atomic_load(&handled);
  const int got = sigsuspend(&mask);
  return expect(c, got == -1 && errno == EINTR && atomic_load(&handled) > before, "without a signal");
}
static int make_pause(struct Call* c) {
  const sigset_t set = only(SIGUSR1);
  const int before = atomic_load(&handled);
  pthread_sigmask(SIG_UNBLOCK, &set, NULL);
  const int got = pause();
  pthread_sigmask(SIG_BLOCK, &set, NULL);
  return expect(c, got == -1 && errno == EINTR && atomic_load(&handled) > before, "without a signal");
}
static void on_usr1(int number) {
  (void)number;
  atomic_fetch_add(&handled, 1);
}
static int make_wait4(struct Call* c) {
  int status = 0;
  return expect(c, wait4(c->child, &status, 0, NULL) == c->child, "");
}
static int make_waitid(struct Call* c) {
  siginfo_t info;
  return expect(c, waitid(P_PID, (id_t)c->child, &info, WEXITED) == 0, "");
}
static void wake_parent(struct Call* c) { kill(c->child, SIGKILL); }

// ---- System V, POSIX queues, asynchronous I/O -----------------------------------------------------------------------------

static int make_semop(struct Call* c) {
  struct sembuf take = {0, -1, 0};
  return expect(c, semop(c->fd[0], &take, 1) == 0, "");
}
static int make_semtimedop(struct Call* c) {
  struct sembuf take = {0, -1, 0};
  return expect(c, semtimedop(c->fd[0], &take, 1, &kWait) == -1 && errno == EAGAIN, "timed");
}
static void wake_semop(struct Call* c) {
  struct sembuf give = {0, 1, 0};
  semop(c->fd[0], &give, 1);
}
struct Message {
  long type;
  char text[8];
};
static int make_msgrcv(struct Call* c) {
  struct Message m;
  return expect(c, msgrcv(c->fd[0], &m, sizeof m.text, 0, 0) == 4, "");
}
static void wake_msgrcv(struct Call* c) {
  const struct Message m = {1, "wake"};
  msgsnd(c->fd[0], &m, 4, 0);
}
static int make_mq_receive(struct Call* c) {
  char text[16];
  return expect(c, mq_receive(c->fd[0], text, sizeof text, NULL) == 4, "");
}
static int make_mq_timedreceive(struct Call* c) {
  char text[16];
  const struct timespec at = later(CLOCK_REALTIME, kWaitMs);
  return expect(c, mq_timedreceive(c->fd[0], text, sizeof text, NULL, &at) == -1 && errno == ETIMEDOUT, "timed");
}
static void wake_mq(struct Call* c) { mq_send(c->fd[0], "wake", 4, 0); }
static mqd_t new_queue(const char* name) {
  char full[64];
  snprintf(full, sizeof full, "/probed-%d-%s", (int)getpid(), name);
  struct mq_attr attributes = {.mq_maxmsg = 2, .mq_msgsize = 16};
  const mqd_t queue = mq_open(full, O_CREAT | O_RDWR, 0600, &attributes);
  must(queue >= 0, "mq_open");
  mq_unlink(full);
  return queue;
}
static aio_context_t aio_context;
static int make_io_getevents(struct Call* c) {
  struct io_event event;
  if (aio_context == 0) return expect(c, nanosleep(&kWait, NULL) == 0, "");  // a kernel without it
  return expect(c, syscall(SYS_io_getevents, aio_context, 1, 1, &event, &kWait) == 0, "timed");
}

// ---- all of them ------------------------------------------------------------------------------------------------------------

static struct Call calls[] = {
    {.name = "epoll_wait", .make = make_epoll_wait, .wake = write_one, .number = SYS_epoll_wait, .other_number = SYS_epoll_pwait},
    {.name = "epoll_wait_timed", .make = make_epoll_wait_timed, .timed = 1, .number = SYS_epoll_wait, .other_number = SYS_epoll_pwait},
    {.name = "epoll_pwait_timed", .make = make_epoll_pwait_timed, .timed = 1, .number = SYS_epoll_pwait},
    {.name = "epoll_pwait2_timed", .make = make_epoll_pwait2_timed, .timed = 1},
    {.name = "poll", .make = make_poll, .wake = write_one, .number = SYS_poll, .other_number = SYS_ppoll},
    {.name = "poll_timed", .make = make_poll_timed, .timed = 1, .number = SYS_poll, .other_number = SYS_ppoll},
    {.name = "ppoll_timed", .make = make_ppoll_timed, .timed = 1, .number = SYS_ppoll},
    {.name = "ppoll_constant", .make = make_ppoll_constant, .timed = 1, .number = SYS_ppoll},
    {.name = "select_timed", .make = make_select_timed, .timed = 1, .number = SYS_select, .other_number = SYS_pselect6},
    {.name = "pselect", .make = make_pselect, .wake = write_one, .number = SYS_pselect6},
    {.name = "read_pipe", .make = make_read, .wake = write_one, .number = SYS_read},
    {.name = "read_tty", .make = make_read, .number = SYS_read},
    {.name = "recv", .make = make_recv, .wake = write_one, .number = SYS_recvfrom},
    {.name = "recvmsg_timed", .make = make_recvmsg_timed, .timed = 1, .in_ticks = 1, .number = SYS_recvmsg},
    {.name = "recvmmsg", .make = make_recvmmsg, .wake = write_one, .number = SYS_recvmmsg},
    {.name = "write_pipe", .make = make_write, .wake = drain, .number = SYS_write},
    {.name = "send_timed", .make = make_send_timed, .timed = 1, .in_ticks = 1, .number = SYS_sendto},
    {.name = "accept", .make = make_accept, .wake = wake_accept, .number = SYS_accept, .other_number = SYS_accept4},
    {.name = "accept_timed", .make = make_accept_timed, .timed = 1, .in_ticks = 1, .number = SYS_accept, .other_number = SYS_accept4},
    {.name = "connect", .make = make_connect, .wake = wake_connect, .number = SYS_connect},
    {.name = "flock", .make = make_flock, .wake = wake_flock, .number = SYS_flock},
    {.name = "setlkw", .make = make_setlkw, .wake = wake_setlkw, .number = SYS_fcntl},
    {.name = "open_fifo", .make = make_open_fifo, .wake = wake_open_fifo, .number = SYS_openat},
    {.name = "splice", .make = make_splice, .wake = write_one, .number = SYS_splice},
    {.name = "inotify", .make = make_inotify, .wake = wake_inotify, .number = SYS_read},
    {.name = "eventfd", .make = make_read, .wake = wake_eventfd, .number = SYS_read},
    {.name = "timerfd", .make = make_timerfd, .timed = 1, .number = SYS_read},
    {.name = "signalfd", .make = make_signalfd, .wake = send_usr2, .number = SYS_read},
    {.name = "nanosleep", .make = make_nanosleep, .timed = 1, .number = SYS_nanosleep, .other_number = SYS_clock_nanosleep},
    {.name = "nanosleep_inline", .make = make_nanosleep_inline, .timed = 1, .number = SYS_nanosleep},
    {.name = "clock_nanosleep", .make = make_clock_nanosleep, .timed = 1, .number = SYS_clock_nanosleep},
    {.name = "futex", .make = make_futex, .wake = wake_futex, .number = SYS_futex},
    {.name = "futex_timed", .make = make_futex_timed, .timed = 1, .number = SYS_futex},
    {.name = "sigtimedwait", .make = make_sigtimedwait, .timed = 1, .number = SYS_rt_sigtimedwait},
    {.name = "sigwaitinfo", .make = make_sigwaitinfo, .wake = send_usr2, .number = SYS_rt_sigtimedwait},
    {.name = "sigsuspend", .make = make_sigsuspend, .wake = send_usr1, .number = SYS_rt_sigsuspend},
    {.name = "pause", .make = make_pause, .wake = send_usr1, .number = SYS_pause, .other_number = SYS_ppoll},
    {.name = "wait4", .make = make_wait4, .wake = wake_parent, .number = SYS_wait4},
    {.name = "waitid", .make = make_waitid, .wake = wake_parent, .number = SYS_waitid},
    {.name = "semop", .make = make_semop, .wake = wake_semop, .number = SYS_semop, .other_number = SYS_semtimedop},
    {.name = "semtimedop", .make = make_semtimedop, .timed = 1, .number = SYS_semtimedop},
    {.name = "msgrcv", .make = make_msgrcv, .wake = wake_msgrcv, .number = SYS_msgrcv},
    {.name = "mq_receive", .make = make_mq_receive, .wake = wake_mq, .number = SYS_mq_timedreceive},
    {.name = "mq_timedreceive", .make = make_mq_timedreceive, .timed = 1, .number = SYS_mq_timedreceive},
    {.name = "io_getevents", .make = make_io_getevents, .timed = 1, .number = SYS_io_getevents},
};
enum { kCount = sizeof calls / sizeof calls[0] };

static struct Call* find(const char* name) {
  for (int i = 0; i < kCount; ++i)
    if (strcmp(calls[i].name, name) == 0) return &calls[i];
  must(0, name);
  return NULL;
}
static int open_file(const char* name) {
  char path[128];
  snprintf(path, sizeof path, "%s/%s", directory, name);
  return open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
}
static pid_t sleeping_child(void) {
  const pid_t child = fork();
  if (child != 0) return child;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (;;) nanosleep(&kLong, NULL);
}

static struct Call* terminal;
static int terminal_master;
static void wake_terminal(struct Call* c) {
  if (write(terminal_master, "line\n", 5) != 5) fail(c, "wake");
}

static void set_up_files(void) {
  struct Call* c;
  char path[128];
  snprintf(directory, sizeof directory, "/tmp/probed-calls-%d", (int)getpid());
  must(mkdir(directory, 0700) == 0, "mkdir");
  snprintf(path, sizeof path, "%s/fifo", directory);
  must(mkfifo(path, 0600) == 0, "mkfifo");
  c = find("flock");
  c->fd[0] = open_file("locked");
  c->fd[1] = open_file("locked");
  must(flock(c->fd[1], LOCK_EX) == 0, "flock");
  c = find("setlkw");
  c->fd[0] = open_file("locked too");
  c->fd[1] = open_file("locked too");
  struct flock lock = {.l_type = F_WRLCK};
  must(fcntl(c->fd[1], F_OFD_SETLK, &lock) == 0, "F_OFD_SETLK");
  c = find("inotify");
  c->fd[0] = inotify_init1(IN_CLOEXEC);
  inotify_add_watch(c->fd[0], directory, IN_CREATE);
  terminal = find("read_tty");
  terminal_master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  must(grantpt(terminal_master) == 0 && unlockpt(terminal_master) == 0, "posix_openpt");
  terminal->fd[0] = open(ptsname(terminal_master), O_RDWR | O_NOCTTY | O_CLOEXEC);
  terminal->wake = wake_terminal;
}

static void set_up_others(void) {
  for (int i = 0; i < kCount; ++i) {
    struct Call* c = &calls[i];
    if (strncmp(c->name, "recv", 4) == 0)
      open_sockets(c, SOCK_STREAM);
    else if (c->fd[0] == 0)
      open_pipe(c);
  }
  fill(find("write_pipe")->fd[1]);
  open_sockets(find("send_timed"), SOCK_STREAM);
  fill(find("send_timed")->fd[1]);
  find("accept")->fd[0] = new_listener();
  find("accept_timed")->fd[0] = new_listener();
  find("connect")->fd[0] = new_listener();
  must(connect_to(find("connect")->fd[0]) >= 0, "connect");
  find("eventfd")->fd[0] = eventfd(0, EFD_CLOEXEC);
  find("timerfd")->fd[0] = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
  const sigset_t usr2 = only(SIGUSR2);
  find("signalfd")->fd[0] = signalfd(-1, &usr2, SFD_CLOEXEC);
  find("semop")->fd[0] = semget(IPC_PRIVATE, 1, 0600);
  find("semtimedop")->fd[0] = semget(IPC_PRIVATE, 1, 0600);
  find("msgrcv")->fd[0] = msgget(IPC_PRIVATE, 0600);
  syscall(SYS_io_setup, 1, &aio_context);
  find("mq_receive")->fd[0] = new_queue("a");
  find("mq_timedreceive")->fd[0] = new_queue("b");
}

static void clean_up(void) {
  semctl(find("semop")->fd[0], 0, IPC_RMID);
  semctl(find("semtimedop")->fd[0], 0, IPC_RMID);
  msgctl(find("msgrcv")->fd[0], IPC_RMID, NULL);
  static const char* const names[] = {"fifo", "locked", "locked too", "file"};
  for (int i = 0; i < 4; ++i) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", directory, names[i]);
    unlink(path);
  }
  rmdir(directory);
}

static void* run_call(void* argument) {
  struct Call* c = argument;
  atomic_store(&c->tid, (int)syscall(SYS_gettid));
  int ok = 1;
  do {
    const double start = now_ms();
    errno = 0;
    ok = c->make(c);
    const double took = now_ms() - start;
    ++c->rounds;
    if (c->timed && took < kWaitMs - (c->in_ticks ? kTickMs : 0.5)) {
      char what[64];
      snprintf(what, sizeof what, "ended early, after %.2f ms", took);
      errno = 0, ok = fail(c, what);
    }
    if (c->timed && (long)took - kWaitMs > c->late) c->late = (long)took - kWaitMs;
  } while (ok && c->timed && !atomic_load(&stop_now));
  if (!ok) {
    clean_up();
    _exit(1);
  }
  return NULL;
}

static int asleep(const struct Call* c) {
  const long number = waits_in(atomic_load(&c->tid));
  return number == c->number || (c->other_number && number == c->other_number);
}

static void start(void) {
  for (int i = 0; i < kCount; ++i)
    if (pthread_create(&calls[i].thread, NULL, run_call, &calls[i]) != 0) _exit(2);
  for (int i = 0; i < kCount;) {
    const struct timespec blink = {0, 1000000};
    if (calls[i].timed || asleep(&calls[i]))
      ++i;
    else
      nanosleep(&blink, NULL);
  }
}

int main(void) {
  const sigset_t usr1 = only(SIGUSR1), usr2 = only(SIGUSR2);
  pthread_sigmask(SIG_BLOCK, &usr1, NULL);
  pthread_sigmask(SIG_BLOCK, &usr2, NULL);
  signal(SIGUSR1, on_usr1);
  find("wait4")->child = sleeping_child();
  find("waitid")->child = sleeping_child();
  set_up_files();
  set_up_others();
  start();
  target_ready("calls");
  char c = 0;
  while (c != '\n')
    if (read(STDIN_FILENO, &c, 1) != 1) {  // the test is gone, or the main thread was disturbed as well
      clean_up();
      kill(find("wait4")->child, SIGKILL);
      kill(find("waitid")->child, SIGKILL);
      return errno == EINTR ? 1 : 3;
    }
  atomic_store(&stop_now, 1);
  for (int i = 0; i < kCount; ++i)
    if (calls[i].wake) calls[i].wake(&calls[i]);
  for (int i = 0; i < kCount; ++i) pthread_join(calls[i].thread, NULL);
  clean_up();
  for (int i = 0; i < kCount; ++i)
    if (calls[i].timed) printf("late_%s %ld\nrounds_%s %ld\n", calls[i].name, calls[i].late, calls[i].name, calls[i].rounds);
  printf("changed %ld\n", atomic_load(&changed));
  return target_result(work(1, 2, "x") == expected_work(1, 2, "x"));
}
