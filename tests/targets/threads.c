// threads N: N threads that live for microseconds, eight at a time, each calls work() once.
//
// Prints: calls, checksum, result.
#include <pthread.h>

#include "work.h"

enum { kAtOnce = 8 };

static void* live_shortly(void* argument) {
  const long i = (long)argument;
  return (void*)(long)work((int)i, i, work_text(i));
}

int main(int argc, char** argv) {
  const long total = argc > 1 ? atol(argv[1]) : 1000;
  long calls = 0, wrong = 0;
  unsigned long checksum = 0;
  target_ready("threads");
  target_wait_go();
  while (calls < total) {
    pthread_t batch[kAtOnce];
    const long first = calls, count = total - calls < kAtOnce ? total - calls : kAtOnce;
    for (long k = 0; k < count; ++k)
      if (pthread_create(&batch[k], NULL, live_shortly, (void*)(first + k)) != 0) return 2;
    for (long k = 0; k < count; ++k, ++calls) {
      void* got = NULL;
      pthread_join(batch[k], &got);
      wrong += (int)(long)got != expected_work((int)calls, calls, work_text(calls));
      checksum += (unsigned)(long)got;
    }
  }
  printf("calls %ld\nchecksum %lu\nwrong %ld\n", calls, checksum, wrong);
  return target_result(wrong == 0);
}
