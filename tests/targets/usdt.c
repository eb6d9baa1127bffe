// usdt: static probes of provider "probedtest", fired on command, one a line:
//   args N      one probe with an argument of every kind; answers "args done"
//   many N      three places of one probe, N times each; answers "many done"
//   guarded N   a probe that is only passed while its semaphore isn't 0; answers "guarded FIRED SEMAPHORE"
//   fork        a child looks at its own copy of the semaphore; answers "child SEMAPHORE"
//   quit
// The places that a compiler wouldn't write are written here by hand: indexed operands, %ah, a vector register.
#include <stdint.h>
#include <string.h>
#include <sys/sdt.h>
#include <sys/wait.h>

#include "machine.h"
#include "protocol.h"

unsigned short probedtest_guarded_semaphore __attribute__((section(".probes"), used));

// A note as <sys/sdt.h> writes it, with operands of our own.
#define NOTE(name, semaphore, operands)                            \
  "990: nop\n"                                                     \
  ".pushsection .note.stapsdt,\"\",\"note\"\n"                     \
  ".balign 4\n"                                                    \
  ".4byte 992f-991f, 994f-993f, 3\n"                               \
  "991: .asciz \"stapsdt\"\n"                                      \
  "992: .balign 4\n"                                               \
  "993: .8byte 990b, _.stapsdt.base, " semaphore                   \
  "\n"                                                             \
  ".asciz \"probedtest\"\n.asciz \"" name "\"\n.asciz \"" operands \
  "\"\n"                                                           \
  "994: .balign 4\n"                                               \
  ".popsection\n"

static int numbers[8] = {0, -10, -20, -30, -40, -50, -60, -70};
__attribute__((used)) int usdt_global[4] = {1, 2, 3, -44};
struct Record {
  int64_t wide;
  int32_t narrow;
  uint8_t byte;
};

TARGET_FUNCTION void fire_args(int number, const char* text, struct Record* record) {
  STAP_PROBE10(probedtest, args, number, text, record->wide, record->narrow, record->byte, 5, -6, (uint8_t)number,
               (int16_t)-number, (uint64_t)record);
}

TARGET_FUNCTION void fire_by_hand(long index) {
  PLACE_BY_HAND(NOTE("byhand", "0", OPERANDS_BY_HAND), numbers, index, usdt_global);
}

TARGET_FUNCTION void fire_floats(double wide, float narrow, const double* behind) {
  __asm__ volatile(NOTE("floats", "0", FLOATS_BY_HAND)
                   :
                   : IN_FLOAT_REGISTER(wide), IN_FLOAT_REGISTER(narrow), "m"(*behind));
}

static inline __attribute__((always_inline)) void fire_one(long value) { STAP_PROBE1(probedtest, many, value); }
TARGET_FUNCTION void fire_first(long value) { fire_one(value); }
TARGET_FUNCTION void fire_second(int value) { fire_one(value + 1000); }
TARGET_FUNCTION void fire_third(const long* value) { fire_one(*value); }

static long fired;
TARGET_FUNCTION void fire_guarded(long value) {
  if (*(volatile unsigned short*)&probedtest_guarded_semaphore == 0) return;
  ++fired;
  __asm__ volatile(NOTE("guarded", "probedtest_guarded_semaphore", "-8@%0") : : "r"(value));
}

// A second place of the same probe, and the same semaphore.
TARGET_FUNCTION void fire_guarded_too(long value) {
  if (*(volatile unsigned short*)&probedtest_guarded_semaphore == 0) return;
  __asm__ volatile(NOTE("guarded_too", "probedtest_guarded_semaphore", "-8@%0") : : "r"(value));
}

static int semaphore(void) { return *(volatile unsigned short*)&probedtest_guarded_semaphore; }

static int child_sees(void) {
  const pid_t child = fork();
  if (child == 0) {
    fire_guarded(7);
    _exit(semaphore());
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void obey(const char* line) {
  long n = 0;
  if (sscanf(line, "args %ld", &n) == 1) {
    struct Record record = {-5000000000, -3, 200};
    fire_args((int)n, "a text", &record);
    fire_by_hand(n);
    const double behind = (double)n + 0.75;
    fire_floats((double)n + 0.5, (float)n + 0.25f, &behind);
    printf("args done\n");
  } else if (sscanf(line, "many %ld", &n) == 1) {
    for (long i = 0; i < n; ++i) fire_first(i), fire_second((int)i), fire_third(&i);
    printf("many done\n");
  } else if (sscanf(line, "guarded %ld", &n) == 1) {
    fired = 0;
    for (long i = 0; i < n; ++i) fire_guarded(i), fire_guarded_too(i);
    printf("guarded %ld %d\n", fired, semaphore());
  } else if (strcmp(line, "fork") == 0) {
    printf("child %d\n", child_sees());
  } else if (strcmp(line, "go") != 0) {
    printf("unknown command\n");
  }
  fflush(stdout);
}

int main(void) {
  target_ready("usdt");
  for (char line[128]; target_line(line, sizeof line), strcmp(line, "quit") != 0;) obey(line);
  return target_result(1);
}
