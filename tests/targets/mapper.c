// mapper: code that is mapped, moved, unmapped, rewritten while it is traced. One command a line, each is answered:
//   map KIND      maps two pages of code; KIND: file, memfd, deleted, anon, jit (written, then made r-x), shared; own:
//                 two pages of its own text, so that a tracer knows the functions.
//                 "mapped FIRST SECOND": where first(x) = 3x+1 and second(x) = 5x+1 are, one in each page
//   call N        calls those that are mapped N times, checks what they compute; "called N"
//   jump          the same from a forked child; "child ok"
//   move | keep   mremap to another place, or MREMAP_DONTUNMAP: also leaves the old one; "moved FIRST SECOND"
//   shrink        mremap to one page: second is no more        unmap        munmap of both
//   back          maps the same again at the same addresses    over         other code with MAP_FIXED in its place
//   none | rx     mprotect of both pages                        patch K      first(x) = 3x+K from now on
//   hammer N      N threads call first where it was mapped first of all, until "rest"
//   dance N       N times: keep, call, unmap the new place (while threads hammer the old one)
//   write N       N times: make the first page writable, change a byte of it from what the file has and back, make it
//   r-x,
//                 and look whether each change is still there
//   sweep         unmaps every anonymous executable mapping of a page that it hasn't made itself
//   vacate        maps some memory below its text, and unmaps it: a tracer may want that place
//   occupy data | code   maps it again, with MAP_FIXED, readable and writable or executable, full of 0x5a
//   occupied      looks whether it is full of that still
//   replace       another file takes the place of the code's on disk
//   quit
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "machine.h"
#include "protocol.h"

enum { kPage = 4096, kAt = 0x120, kSize = 2 * kPage, kWord = 0x800 };
enum { kFar = 0x280000, kBelow = 0x270000 };  // from the text to the memory below it, and how much that is
enum { kRoom = 64 << 20 };
// `other` comes in first's place, behind a breakpoint where the probe was.
static const unsigned char kFirst[] = CODE_OF_FIRST, kSecond[] = CODE_OF_SECOND, kOther[] = CODE_OF_OTHER;

extern unsigned char own_code[];
__asm__(
    ".pushsection .own_text,\"ax\",@progbits; .balign 4096; .globl own_code; own_code: .skip 0x120," FILLING "\n"
    "own_first: .cfi_startproc; " ASSEMBLY_OF_FIRST " .cfi_endproc; .size own_first,.-own_first\n"
    ".type own_first,@function; .balign 4096," FILLING "; .skip 0x120," FILLING "\n"
    "own_second: .cfi_startproc; " ASSEMBLY_OF_SECOND " .cfi_endproc; .size own_second,.-own_second\n"
    ".type own_second,@function; .balign 4096," FILLING "; .popsection\n");

static unsigned char image[kSize];
static char path[64];
static int file = -1, size, bias = 1, threads;
static unsigned char *code, *first_place;
static const char* kind = "";
static atomic_int hammering;
static atomic_long wrong;
static pthread_t hands[64];

static void note(const char* what) {
  if (atomic_fetch_add(&wrong, 1) < 8) fprintf(stderr, "mapper: %s\n", what);
}

static int run(const unsigned char* at, int x) { return ((int (*)(int))(unsigned long)at)(x); }

static void check_first(const unsigned char* at, int x, int add) {
  if (run(at, x) != 3 * x + add) note("first computed something else");
}

static void call(long n) {
  for (long i = 0; i < n; ++i) {
    if (size >= kPage) check_first(code + kAt, (int)i, bias);
    if (size >= kSize && run(code + kPage + kAt, (int)i) != 5 * (int)i + 1) note("second computed something else");
  }
}

static void* hammer(void* unused) {
  (void)unused;
  for (int i = 0; atomic_load(&hammering); ++i) check_first(first_place + kAt, i & 0xffff, 1);
  return NULL;
}

static int write_all(int fd) { return write(fd, image, sizeof image) == (ssize_t)sizeof image; }

static int open_code(const char* what) {
  if (strcmp(what, "memfd") == 0) {
    const int fd = memfd_create("mapper", 0);
    return write_all(fd) ? fd : -1;
  }
  snprintf(path, sizeof path, "/tmp/mapper.XXXXXX");
  const int fd = mkstemp(path);
  if (fd >= 0 && !write_all(fd)) return -1;
  if (strcmp(what, "deleted") == 0) unlink(path), path[0] = '\0';
  return fd;
}

static void* map_at(void* where) {
  const int fixed = where ? MAP_FIXED : 0;
  if (strcmp(kind, "shared") == 0)
    return mmap(where, kSize, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_SHARED | fixed, file, 0);
  if (file >= 0) return mmap(where, kSize, PROT_READ | PROT_EXEC, MAP_PRIVATE | fixed, file, 0);
  void* at = mmap(where, kSize, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS | fixed, -1, 0);
  memcpy(at, image, sizeof image);
  made_code(at, sizeof image);
  if (strcmp(kind, "jit") == 0) mprotect(at, kSize, PROT_READ | PROT_EXEC);
  return at;
}

static void say_places(const char* word) {
  printf("%s 0x%lx 0x%lx\n", word, (unsigned long)code + kAt, (unsigned long)code + kPage + kAt);
}

static void map(const char* what) {
  static char kept[128];
  snprintf(kept, sizeof kept, "%s", what);
  kind = kept;
  const int own = strcmp(what, "own") == 0;
  if (!own && strcmp(what, "anon") != 0 && strcmp(what, "jit") != 0) file = open_code(what);
  code = own ? own_code : map_at(NULL);
  first_place = code;
  size = kSize;
  say_places("mapped");
}

// Far from everything else: a jump that comes along leads as far beside its detour, where nothing should be mapped.
static void* lonely_place(void) {
  unsigned char* room = mmap(NULL, 2 * kRoom, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) perror("mmap"), _exit(2);
  munmap(room, kRoom);
  munmap(room + kRoom + kSize, kRoom - kSize);
  return room + kRoom;
}

static void move(int flags) {
  void* to = lonely_place();
  void* at = mremap(code, (size_t)size, (size_t)size, MREMAP_MAYMOVE | MREMAP_FIXED | flags, to);
  if (at != to) perror("mremap"), _exit(2);
  code = at;
}

static void dance(long n) {
  for (long i = 0; i < n; ++i) {
    move(MREMAP_DONTUNMAP);
    call(3);
    munmap(code, kSize);
    code = first_place;
  }
}

static void patch(int k) {
  mprotect(code, kPage, PROT_READ | PROT_WRITE | PROT_EXEC);
  set_addend(code + kAt, k);
  mprotect(code, kPage, PROT_READ | PROT_EXEC);
  bias = k;
}

static void write_page(long n) {
  volatile unsigned char* byte = code + kWord;
  for (long i = 0; i < n; ++i) {
    const unsigned char value = (i & 1) ? image[kWord] : 0x5a;
    mprotect(code, kPage, PROT_READ | PROT_WRITE | PROT_EXEC);
    *byte = value;
    mprotect(code, kPage, PROT_READ | PROT_EXEC);
    for (int look = 0; look < 20; ++look)
      if (*byte != value) note("a write to the text page was lost");
  }
}

static void fork_and_call(void) {
  int status = 0;
  const pid_t child = fork();
  if (child == 0) {
    atomic_store(&wrong, 0);
    call(3);
    _exit(atomic_load(&wrong) != 0);
  }
  if (waitpid(child, &status, 0) != child || status != 0) note("a child was harmed");
  printf(status == 0 ? "child ok\n" : "child %#x\n", status);
}

static void over(void) {
  unsigned char* at =
      mmap(code, kSize, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  memcpy(at + kAt, kOther, sizeof kOther);
  made_code(at + kAt, sizeof kOther);
  if (run(at + kAt + kBreakpointSize, 6) != 42) note("the other code computed something else");
  size = 0;
}

// Whether the breakpoint that came with the other code is still there: it is the program's own.
static void check_over(void) {
  if (memcmp(code + kAt, kOther, kBreakpointSize) != 0 || run(code + kAt + kBreakpointSize, 6) != 42) note("the other code was changed");
}

static void replace(void) {
  char other[80];
  snprintf(other, sizeof other, "%s.new", path);
  FILE* out = fopen(other, "w");
  for (int i = 0; i < kSize; ++i) fputc(0x90, out);
  fclose(out);
  rename(other, path);
}

// As a sandbox does that keeps only what it knows.
static void sweep(void) {
  FILE* maps = fopen("/proc/self/maps", "r");
  for (char line[512]; maps && fgets(line, sizeof line, maps);) {
    unsigned long start = 0, end = 0, inode = 1;
    char perms[8] = "";
    if (sscanf(line, "%lx-%lx %7s %*s %*s %lu", &start, &end, perms, &inode) != 4 || inode != 0) continue;
    const int own = start == (unsigned long)code || strchr(line, '[') != NULL;
    if (!own && perms[2] == 'x') munmap((void*)start, end - start);
  }
  if (maps) fclose(maps);
}

static unsigned char* below_text(void) {
  return (unsigned char*)((unsigned long)own_code & ~(unsigned long)(kPage - 1)) - kFar;
}
static void map_below_text(int flags) {
  if (mmap(below_text(), kBelow, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0) != below_text())
    note("memory below the text can't be mapped");
}
static void vacate(void) {
  map_below_text(MAP_FIXED_NOREPLACE);
  munmap(below_text(), kBelow);
}
static void occupy(int protection) {
  map_below_text(MAP_FIXED);
  memset(below_text(), 0x5a, kBelow);
  mprotect(below_text(), kBelow, protection);
}
static void check_occupied(void) {
  long other = 0;
  for (long i = 0; i < kBelow; ++i) other += below_text()[i] != 0x5a;
  if (other != 0) note("somebody has written to memory of ours");
}

static void start_threads(long n) {
  atomic_store(&hammering, 1);
  for (threads = 0; threads < n && threads < 64; ++threads) pthread_create(&hands[threads], NULL, hammer, NULL);
}

static void rest(void) {
  atomic_store(&hammering, 0);
  while (threads > 0) pthread_join(hands[--threads], NULL);
}

static int obey_places(const char* line) {
  if (strncmp(line, "map ", 4) == 0) return map(line + 4), 1;
  if (strcmp(line, "move") == 0) return move(0), say_places("moved"), 1;
  if (strcmp(line, "keep") == 0) return move(MREMAP_DONTUNMAP), say_places("moved"), 1;
  if (strcmp(line, "jump") == 0) return fork_and_call(), 1;
  return 0;
}

static int obey_mapping(const char* line) {
  if (strcmp(line, "shrink") == 0) return code = mremap(code, kSize, kPage, 0), size = kPage, 1;
  if (strcmp(line, "unmap") == 0) return munmap(code, kSize), size = 0, 1;
  if (strcmp(line, "back") == 0) return code = map_at(code), size = kSize, bias = 1, 1;
  if (strcmp(line, "over") == 0) return over(), 1;
  if (strcmp(line, "check") == 0) return check_over(), 1;
  if (strcmp(line, "none") == 0) return mprotect(code, kSize, PROT_NONE), 1;
  if (strcmp(line, "rx") == 0) return mprotect(code, kSize, PROT_READ | PROT_EXEC), 1;
  if (strcmp(line, "sweep") == 0) return sweep(), 1;
  if (strcmp(line, "vacate") == 0) return vacate(), 1;
  if (strcmp(line, "occupy data") == 0) return occupy(PROT_READ | PROT_WRITE), 1;
  if (strcmp(line, "occupy code") == 0) return occupy(PROT_READ | PROT_EXEC), 1;
  if (strcmp(line, "occupied") == 0) return check_occupied(), 1;
  if (strcmp(line, "replace") == 0) return replace(), 1;
  if (strcmp(line, "rest") == 0) return rest(), 1;
  return 0;
}

static int obey_counted(const char* line) {
  long n = 0;
  if (sscanf(line, "call %ld", &n) == 1) return call(n), 1;
  if (sscanf(line, "patch %ld", &n) == 1) return patch((int)n), 1;
  if (sscanf(line, "hammer %ld", &n) == 1) return start_threads(n), 1;
  if (sscanf(line, "dance %ld", &n) == 1) return dance(n), 1;
  if (sscanf(line, "write %ld", &n) == 1) return write_page(n), 1;
  return strcmp(line, "go") == 0;
}

int main(void) {
  memset(image, kFilling, sizeof image);
  memcpy(image + kAt, kFirst, sizeof kFirst);
  memcpy(image + kPage + kAt, kSecond, sizeof kSecond);
  target_ready("mapper");
  for (char line[128]; target_line(line, sizeof line), strcmp(line, "quit") != 0; fflush(stdout))
    if (!obey_places(line)) printf("%s %s\n", obey_mapping(line) || obey_counted(line) ? "done" : "unknown", line);
  rest();
  if (path[0] != '\0') unlink(path);
  return target_result(wrong == 0);
}
