// descriptors: a thread that uses descriptors while another one, the first, computes. Reads commands, one a line, answers
// "NAME ok" or "NAME bad":
//   lowest ROUNDS  opens and closes a file; it must get the same, lowest free number each time, and stay what it is
//   end            ends with exit status 0 if everything was right
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>

#include "work.h"

static int lowest(long rounds) {
  const int first = open("/dev/null", O_RDONLY);
  struct stat is, was;
  int good = first >= 0 && fstat(first, &was) == 0;
  close(first);
  for (long i = 0; i < rounds; ++i) {
    const int now = open("/dev/null", O_RDONLY);
    good &= now == first && fstat(now, &is) == 0 && is.st_ino == was.st_ino && is.st_dev == was.st_dev;
    good &= close(now) == 0;
  }
  return good;
}

static void* use_descriptors(void* argument) {
  (void)argument;
  char name[32];
  int good = 1;
  for (long rounds; target_command(name, &rounds);) {
    const int ok = lowest(rounds);
    printf("%s %s\n", name, ok ? "ok" : "bad");
    fflush(stdout);
    good &= ok;
  }
  exit(target_result(good));
}

int main(void) {
  target_ready("descriptors");
  pthread_t other;
  pthread_create(&other, NULL, use_descriptors, NULL);
  for (int i = 0;; ++i) work(i, i, "computes");
}
