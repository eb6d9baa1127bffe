// unprobeable: places where a probe must be refused, each under a name or an address. Never executes any of them.
//
// Prints, before it waits: "ready ...", then "ADDRESS-NAME 0x..." lines and "end". After a line of input: result.
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>

#include "machine.h"
#include "work.h"

// Instructions that no copy could execute for the program.
#define REFUSED(name, code, reason) \
  ".globl " name "\n.type " name ", @function\n" name ": " code "\nret\n.size " name ", . - " name "\n"
__asm__(".text\n"
#include "refused.def"
);

// Two functions of one name: see unprobeable_twin.c.
__attribute__((noinline, noipa)) static int twin(int x) {
  return x + 1;
}
int other_twin(int x);

// Where handlers return to: the C library's trampoline, or the kernel's.
static void* volatile trampoline;
static void on_signal(int number) {
  (void)number;
  trampoline = __builtin_return_address(0);
}

static void* restorer(void) {
  signal(SIGUSR1, on_signal);
  raise(SIGUSR1);
  return trampoline;
}

static const unsigned char kCode[] = CODE_OF_PLUS_TWO;

static void* code_page(int flags, int fd) {
  void* page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, flags, fd, 0);
  if (page == MAP_FAILED) return NULL;
  memcpy(page, kCode, sizeof kCode);
  made_code(page, sizeof kCode);
  return mprotect(page, 4096, PROT_READ | PROT_EXEC) == 0 ? page : NULL;
}

static void print_address(const char* name, const void* address) {
  printf("%s 0x%lx\n", name, (unsigned long)address);
}

int main(void) {
  const int memory = memfd_create("shared-code", MFD_CLOEXEC);
  if (memory < 0 || ftruncate(memory, 4096) != 0) return 2;
  int (*volatile private_code)(int);
  void* page = code_page(MAP_PRIVATE | MAP_ANONYMOUS, -1);
  memcpy((void*)&private_code, &page, sizeof page);
  void* shared = code_page(MAP_SHARED, memory);
  char* hole = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  munmap(hole, 4096);
  const void* trampoline = restorer();  // sets a handler: before anybody looks at how it is
  target_ready("unprobeable");
  print_address("unmapped", hole);
  print_address("data", &memory);
  print_address("shared", shared);
  print_address("restorer", trampoline);
  print_address("private", page);
  print_address("vdso", (const void*)getauxval(AT_SYSINFO_EHDR));
  printf("end\n");
  fflush(stdout);
  target_wait_go();
  const int ok = twin(1) == 2 && other_twin(1) == 3 && work(1, 2, "x") == expected_work(1, 2, "x");
  return target_result(ok && private_code(5) == 7);
}
