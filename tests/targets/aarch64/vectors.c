// vectors: two threads keep numbers in what is only the Scalable Vector Extension's of their vector registers, and in
// predicate registers, until the next line of input. Exits with 77 where the processor hasn't got it.
//
// Prints: rounds, result.
#include <pthread.h>
#include <stdatomic.h>
#include <sys/auxv.h>

#include "../work.h"

enum { kLacking = 77, kThreads = 2 };

static atomic_int stop_now;
static atomic_long rounds, wrong;

// Counts down between writing the registers and looking at them: no call, which may change them, is in between.
static void* keep_numbers(void* unused) {
  (void)unused;
  while (!atomic_load(&stop_now)) {
    long turns = 20000, different, active, length;
    __asm__ volatile(
        ".arch_extension sve\n"
        "ptrue p0.b\n"
        "index z0.b, #0, #1\n"
        "1: subs %[turns], %[turns], #1\n"
        "b.ne 1b\n"
        "index z1.b, #0, #1\n"
        "ptrue p1.b\n"
        "cmpne p2.b, p1/z, z0.b, z1.b\n"
        "cntp %[different], p1, p2.b\n"
        "cntp %[active], p1, p0.b\n"
        "rdvl %[length], #1\n"
        : [turns] "+r"(turns), [different] "=r"(different), [active] "=r"(active), [length] "=r"(length)
        :
        : "cc", "memory", "v0", "v1");
    if (different != 0 || active != length) atomic_fetch_add(&wrong, 1);
    atomic_fetch_add(&rounds, 1);
  }
  return NULL;
}

int main(void) {
  if ((getauxval(AT_HWCAP) & HWCAP_SVE) == 0) return kLacking;
  target_ready("vectors");
  target_wait_go();
  pthread_t threads[kThreads];
  for (int i = 0; i < kThreads; ++i) pthread_create(&threads[i], NULL, keep_numbers, NULL);
  target_wait_go();
  atomic_store(&stop_now, 1);
  for (int i = 0; i < kThreads; ++i) pthread_join(threads[i], NULL);
  const int ok = work(1, 2, "x") == expected_work(1, 2, "x");
  printf("rounds %ld\nwrong %ld\n", (long)rounds, (long)wrong);
  return target_result(ok && wrong == 0);
}
