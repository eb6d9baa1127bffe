// bench-many: a program with 50,000 functions (many_x86_64.S) that calls three of them until its input ends, a thousand times a
// second; then prints how often it has, and ends.
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <unistd.h>

int many_0(int), many_25000(int), many_49999(int);

int main(void) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  printf("ready %d\n", (int)getpid());
  fflush(stdout);
  long calls = 0;
  struct pollfd input = {0, POLLIN, 0};
  for (; poll(&input, 1, 1) == 0; ++calls)
    if (many_0(1) + many_25000(1) + many_49999(1) != 99) return 1;
  printf("%ld\n", calls);
  return 0;
}
