// bench-reader SOCKET PROBE: subscribes to one probe of the daemon at SOCKET, reads its events as fast as they come and
// counts them, by their braces: an event without strings of the target's has two, and so has every other message here.
//
// Prints "ready", and when a line comes on its input, it unsubscribes and prints what it has counted, what the
// notifications said was missed, and what the answer says was delivered and missed.
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { kRoom = 1 << 20, kEnd = 256 };

static char room[kEnd + kRoom];  // the end of what came before, then what comes
static uint64_t braces, lines, missed;
static char answer[kEnd];

static int fail(const char* what) {
  perror(what);
  return 1;
}

static uint64_t count(const char* text, size_t size, char wanted) {
  uint64_t sum = 0;
  while (size > 0) {
    // In pieces that a byte can count, which is what compilers vectorise best.
    const size_t piece = size < 255 ? size : 255;
    unsigned char n = 0;
    for (size_t i = 0; i < piece; ++i) n = (unsigned char)(n + (text[i] == wanted));
    sum += n;
    text += piece;
    size -= piece;
  }
  return sum;
}

// A message ends here; `before`: how much of it is to be seen.
static void end_message(const char* end, size_t before) {
  char text[kEnd];
  const size_t size = before < sizeof text - 1 ? before : sizeof text - 1;
  memcpy(text, end - size, size);
  text[size] = '\0';
  const char* last = NULL;
  for (const char* at = text; (at = strstr(at, "\"missed\":")) != NULL; ++at) last = at;
  const char* delivered = strstr(text, "\"delivered\":");
  if (delivered != NULL)
    strcpy(answer, delivered);
  else if (last != NULL)
    missed += strtoull(last + strlen("\"missed\":"), NULL, 10);
}

// `at` holds `size` new bytes, and kEnd older ones in front of them.
static void take(char* at, size_t size) {
  braces += count(at, size, '{');
  for (char* from = at; (from = memchr(from, '\n', (size_t)(at + size - from))) != NULL; ++from) {
    ++lines;
    end_message(from, kEnd - 1);
  }
  memmove(at - kEnd, at + size - kEnd, kEnd);
}

static int connect_to(const char* path) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  strncpy(address.sun_path, path, sizeof address.sun_path - 1);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  return fd >= 0 && connect(fd, (const struct sockaddr*)&address, sizeof address) == 0 ? fd : -1;
}

static int say(int fd, const char* text) { return write(fd, text, strlen(text)) == (ssize_t)strlen(text); }

int main(int argc, char** argv) {
  if (argc != 3) return fprintf(stderr, "usage: bench-reader SOCKET PROBE\n"), 2;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int fd = connect_to(argv[1]);
  if (fd < 0) return fail("connect");
  char request[kEnd];
  snprintf(request, sizeof request,
           "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"events.subscribe\",\"params\":{\"probes\":[\"%s\"]}}\n",
           argv[2]);
  if (!say(fd, request)) return fail("write");
  unsigned long subscription = 0;
  struct pollfd both[2] = {{fd, POLLIN, 0}, {0, POLLIN, 0}};
  while (answer[0] == '\0') {
    if (poll(both, 2, -1) < 0) return fail("poll");
    if (both[1].revents != 0) {
      snprintf(request, sizeof request,
               "{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"events.unsubscribe\",\"params\":{\"subscription\":%lu}}\n",
               subscription);
      both[1].fd = -1;
      if (!say(fd, request)) return fail("write");
    }
    if (both[0].revents == 0) continue;
    const ssize_t n = recv(fd, room + kEnd, kRoom, 0);
    if (n <= 0) return fail("recv");
    if (subscription == 0) {
      const char* id = strstr(room + kEnd, "\"subscription\":");
      if (id == NULL) return fprintf(stderr, "bench-reader: no subscription: %s", room + kEnd), 1;
      subscription = strtoul(id + strlen("\"subscription\":"), NULL, 10);
      printf("ready\n");
      fflush(stdout);
    }
    take(room + kEnd, (size_t)n);
  }
  unsigned long long delivered = 0, total_missed = 0;
  sscanf(answer, "\"delivered\":%llu,\"missed\":%llu", &delivered, &total_missed);
  printf("%llu %llu %llu %llu\n", (unsigned long long)(braces - 2 * lines) / 2, (unsigned long long)missed, delivered,
         total_missed);
  return 0;
}
