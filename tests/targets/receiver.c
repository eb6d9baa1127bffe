// receiver: calls work() until the test sends "stop", while it is sent queued signals with values that rise by one.
// "count": prints "received N missing M", M being the values that were left out so far.
//
// Prints: received, missing, late (came behind greater ones), wrong (came twice, or with a siginfo that isn't the
// sender's), result.
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "work.h"

enum { kMostMissing = 256 };

static atomic_long received, missing, late, wrong;
static long last, left_out[kMostMissing];
static pid_t sender;

static int was_left_out(long value) {
  for (int i = 0; i < kMostMissing; ++i) {
    if (left_out[i] != value) continue;
    left_out[i] = 0;
    return 1;
  }
  return 0;
}

static void leave_out(long value) {
  for (int i = 0; i < kMostMissing; ++i) {
    if (left_out[i] != 0) continue;
    left_out[i] = value;
    break;
  }
  ++missing;
}

// The first time only; says what.
static void go_wrong(const char* what, long got, long wanted, int code, pid_t from) {
  if (wrong++ > 0) return;
  char line[160];
  const int length = snprintf(line, sizeof line, "%s: %ld behind %ld, si_code %d, from %d\n", what, got, wanted, code, from);
  if (write(2, line, (size_t)length) != length) ++wrong;
}

static void on_signal(int number, siginfo_t* info, void* context) {
  (void)number;
  (void)context;
  const long value = info->si_value.sival_int;
  const int is_late = value <= last && was_left_out(value);
  if ((value <= last && !is_late) || info->si_code != SI_QUEUE || info->si_pid != sender) {
    go_wrong("a signal", value, last, info->si_code, info->si_pid);
    return;
  }
  ++received;
  if (is_late) {
    --missing;
    ++late;
    return;
  }
  while (++last < value) leave_out(last);
}

// Whether a whole line has come; it is read as it comes, for the program is busy meanwhile.
static int line_came(char* line, size_t size) {
  static size_t used;
  const ssize_t n = read(0, line + used, size - 1 - used);
  if (n > 0) used += (size_t)n;
  line[used] = '\0';
  if (strchr(line, '\n') == NULL) return n == 0;
  used = 0;
  return 1;
}

int main(void) {
  sender = getppid();
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  sigaction(SIGRTMIN + 2, &action, NULL);
  target_ready("receiver");
  target_wait_go();
  fcntl(0, F_SETFL, O_NONBLOCK);
  char line[64] = "";
  for (long i = 0;; ++i) {
    const long got = work(1, i, work_text(i)), wanted = expected_work(1, i, work_text(i));
    if (got != wanted) go_wrong("work", got, wanted, 0, 0);
    if (i % 256 != 0 || !line_came(line, sizeof line)) continue;
    if (strcmp(line, "count\n") != 0) break;
    printf("received %ld missing %ld\n", atomic_load(&received), atomic_load(&missing));
    fflush(stdout);
  }
  printf("received %ld\nmissing %ld\nlate %ld\nwrong %ld\n", received, missing, late, wrong);
  return target_result(wrong == 0);
}
