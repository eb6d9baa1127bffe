// handling: calls work() until the test sends "stop". SIGUSR1: prints "handling N" and waits in the handler for a line;
// when the program itself goes on behind it: "back N".
//
// Prints: handled, result.
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "work.h"

static atomic_long handled;
static char line[64];

static void on_signal(int number) {
  (void)number;
  char text[32];
  const int length = snprintf(text, sizeof text, "handling %ld\n", ++handled);
  if (write(1, text, (size_t)length) != length) _exit(1);
  target_line(line, sizeof line);
}

int main(void) {
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGUSR1, &action, NULL);
  target_ready("handling");
  target_wait_go();
  int ok = 1;
  long told = 0;
  for (long i = 0; strcmp(line, "stop") != 0; ++i) {
    ok &= work(1, i, work_text(i)) == expected_work(1, i, work_text(i));
    if (told == handled) continue;
    printf("back %ld\n", told = handled);
    fflush(stdout);
  }
  printf("handled %ld\n", handled);
  return target_result(ok);
}
