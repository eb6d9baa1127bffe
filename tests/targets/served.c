// served: a page mapped from a file of a file system in user space (FUSE) that a child of its own serves, and that
// gives no byte of the file away until it is told to. `served UID [HOW]`: the file system is that user's; HOW it looks to
// others: "numberless", its file's inode has the number 0; "protected", the page is marked as write-protected
// (userfaultfd). Commands, each is answered:
//   call N     calls work(i, PAGE) N times, without touching the page; "called N"
//   answer     reads are answered from now on, also those that wait; "answers"
//   lock       a thread touches the page, and is answered by an error first and then by nothing: the kernel waits with
//              the lock of our mappings; another one wants to change them, so that nobody else gets it; "locks"
//   quit
//   map        "mapped"; "without" where there is no such file system to be had
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "protocol.h"

enum { kPage = 4096, kFile = 2, kMostWaiting = 64 };

static volatile sig_atomic_t gives, fails;
static int numberless;
static void give(int signal) { (void)signal, gives = 1; }
static void fail(int signal) { (void)signal, fails = 1; }

static void reply(int fuse, unsigned long long to, int error, const void* data, size_t size) {
  static char message[sizeof(struct fuse_out_header) + kPage];
  const struct fuse_out_header header = {.len = (unsigned)(sizeof header + size), .error = error, .unique = to};
  memcpy(message, &header, sizeof header);
  memcpy(message + sizeof header, data, size);
  if (write(fuse, message, header.len) < 0 && errno != ENOENT) _exit(4);
}

static struct fuse_attr attributes_of(unsigned long long node) {
  const int file = node == kFile;
  return (struct fuse_attr){.ino = file && numberless ? 0 : node,
                            .size = file ? kPage : 0,
                            .mode = file ? S_IFREG | 0644 : S_IFDIR | 0755,
                            .nlink = 1,
                            .blksize = kPage};
}

// Of those whose answers are their contents.
static size_t content_of(const struct fuse_in_header* request, char* content) {
  const struct fuse_init_out init = {.major = 7, .minor = 31, .max_write = kPage};
  const struct fuse_entry_out entry = {
      .nodeid = kFile, .attr = attributes_of(kFile), .entry_valid = 1000, .attr_valid = 1000};
  const struct fuse_attr_out attributes = {.attr = attributes_of(request->nodeid), .attr_valid = 1000};
  const struct fuse_open_out opened = {.fh = 1};
  const void* from = NULL;
  size_t size = 0;
  if (request->opcode == FUSE_INIT) from = &init, size = sizeof init;
  if (request->opcode == FUSE_LOOKUP) from = &entry, size = sizeof entry;
  if (request->opcode == FUSE_GETATTR) from = &attributes, size = sizeof attributes;
  if (request->opcode == FUSE_OPEN) from = &opened, size = sizeof opened;
  if (from) memcpy(content, from, size);
  return size;
}

static void answer(int fuse, const struct fuse_in_header* request) {
  static unsigned long long waiting[kMostWaiting];
  static int count;
  static char page[kPage], content[256];
  memset(page, 'A', sizeof page);
  if (request && request->opcode == FUSE_READ && fails > 0) {
    --fails;
    reply(fuse, request->unique, -EIO, "", 0);
    return;
  }
  if (request && request->opcode == FUSE_READ && count < kMostWaiting) waiting[count++] = request->unique;
  for (; gives && count > 0; --count) reply(fuse, waiting[count - 1], 0, page, sizeof page);
  if (!request || request->opcode == FUSE_READ || request->opcode == FUSE_FORGET || request->opcode == FUSE_INTERRUPT)
    return;
  const size_t size = content_of(request, content);
  reply(fuse, request->unique, size > 0 ? 0 : -ENOSYS, content, size);
}

static void serve(int fuse) {
  static char request[FUSE_MIN_READ_BUFFER + kPage];
  const struct sigaction action = {.sa_handler = give};  // interrupts the read below
  sigaction(SIGUSR1, &action, NULL);
  const struct sigaction failing = {.sa_handler = fail};
  sigaction(SIGUSR2, &failing, NULL);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (;;) {
    const ssize_t n = read(fuse, request, sizeof request);
    if (n < 0 && errno != EINTR && errno != ENOENT) _exit(0);
    answer(fuse, n > 0 ? (const struct fuse_in_header*)request : NULL);
  }
}

// Marks the page as write-protected. False: this kernel can't.
static int protect(const char* page) {
  const int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | 1);  // faults of the program's alone
  struct uffdio_api api = {.api = UFFD_API, .features = 1 << 15 | 1 << 13};  // WP_ASYNC, WP_UNPOPULATED
  struct uffdio_register all = {.range = {(unsigned long)page, kPage}, .mode = UFFDIO_REGISTER_MODE_WP};
  struct uffdio_writeprotect marked = {.range = all.range, .mode = UFFDIO_WRITEPROTECT_MODE_WP};
  return fd >= 0 && ioctl(fd, UFFDIO_API, &api) == 0 && ioctl(fd, UFFDIO_REGISTER, &all) == 0 &&
         ioctl(fd, UFFDIO_WRITEPROTECT, &marked) == 0;
}

// The page; NULL: there can't be one.
static const char* served_page(pid_t* server, const char* user) {
  char at[] = "/tmp/served.XXXXXX", options[128], file[64];
  const int fuse = open("/dev/fuse", O_RDWR | O_CLOEXEC);
  if (fuse < 0 || unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 || !mkdtemp(at))
    return NULL;
  snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=%s,group_id=%s,allow_other", fuse, user, user);
  const int mounted = mount("served", at, "fuse", MS_NOSUID | MS_NODEV, options) == 0;
  if (mounted && (*server = fork()) == 0) serve(fuse);
  close(fuse);  // its server's end is the file system's
  snprintf(file, sizeof file, "%s/file", at);
  const int fd = mounted ? open(file, O_RDONLY) : -1;
  const char* page = fd >= 0 ? mmap(NULL, kPage, PROT_READ, MAP_PRIVATE, fd, 0) : MAP_FAILED;
  if (mounted) umount2(at, MNT_DETACH);
  rmdir(at);
  return page == MAP_FAILED ? NULL : page;
}

// Threads that wait until they are told to, for a stop may disturb what they do.
static int told[2];
static void wait_until_told(void) {
  char byte;
  while (read(told[0], &byte, 1) != 1) continue;
}
// By the kernel: what can't be read is an error then, and not a signal.
static void* touch(void* page) {
  int ends[2];
  wait_until_told();
  if (pipe(ends) != 0 || write(ends[1], page, 1) == 1) _exit(5);
  return NULL;
}
static void* change(void* none) {
  for (wait_until_told();;) munmap(mmap(NULL, kPage, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), kPage);
  return none;
}

TARGET_FUNCTION long work(long i, const char* page) {
  __asm__ volatile("" ::"r"(page));
  return 3 * i + 1;
}

int main(int argc, char** argv) {
  pid_t server = 0;
  int ok = 1;
  const char* how = argc > 2 ? argv[2] : "";
  numberless = strcmp(how, "numberless") == 0;
  const char* page = served_page(&server, argc > 1 ? argv[1] : "0");
  if (page && strcmp(how, "protected") == 0 && !protect(page)) page = NULL;
  pthread_t threads[2];
  if (pipe(told) != 0 || pthread_create(&threads[0], NULL, touch, (void*)page) != 0 ||
      pthread_create(&threads[1], NULL, change, NULL) != 0)
    _exit(6);
  target_ready("served");
  for (char line[64]; target_line(line, sizeof line), strcmp(line, "quit") != 0; fflush(stdout)) {
    long n = 0;
    if (sscanf(line, "call %ld", &n) == 1) {
      for (long i = 0; i < n; ++i) ok &= work(i, page) == 3 * i + 1;
      printf("called %ld\n", n);
    } else if (strcmp(line, "lock") == 0) {
      kill(server, SIGUSR2);
      if (write(told[1], "12", 2) != 2) _exit(6);
      printf("locks\n");
    } else if (strcmp(line, "answer") == 0) {
      kill(server, SIGUSR1);
      printf("answers\n");
    } else if (strcmp(line, "map") == 0) {
      printf("%s\n", page ? "mapped" : "without");
    }
  }
  if (server > 0) {
    kill(server, SIGKILL);
    waitpid(server, NULL, 0);
  }
  return target_result(ok);
}
