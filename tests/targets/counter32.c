// A 32-bit process, for what a 64-bit tracer says to one. Freestanding: Debian installs no 32-bit libc by default.
// Calls work() N = 1000 times after the go; prints calls, checksum, result like counter.
typedef unsigned int u32;

static int system_call(int number, int a, const void* b, u32 c) {
  int result;
  __asm__ volatile("int $0x80" : "=a"(result) : "a"(number), "b"(a), "c"(b), "d"(c) : "memory");
  return result;
}

static void write_text(const char* text) {
  u32 length = 0;
  while (text[length]) ++length;
  system_call(4, 1, text, length);
}

static void write_number(u32 n) {
  char digits[12];
  int at = 11;
  digits[at] = '\0';
  do digits[--at] = (char)('0' + n % 10);
  while ((n /= 10) != 0);
  write_text(digits + at);
}

__attribute__((noinline, noipa)) int work(int a, int b) {
  return (int)((u32)a * 31u + (u32)b * 17u);
}

__attribute__((noreturn)) static void quit(int code) {
  for (;;) system_call(1, code, 0, 0);
}

static void wait_line(void) {
  for (char c = 0; c != '\n';)
    if (system_call(3, 0, &c, 1) != 1) quit(3);
}

__attribute__((force_align_arg_pointer, noreturn)) void _start(void) {
  write_text("ready ");
  write_number((u32)system_call(20, 0, 0, 0));
  write_text(" counter32\n");
  wait_line();
  u32 checksum = 0, wrong = 0;
  for (int i = 0; i < 1000; ++i) {
    const int got = work(1, i);
    wrong += got != (int)(31u + (u32)i * 17u);
    checksum += (u32)got;
  }
  write_text("calls 1000\nchecksum ");
  write_number(checksum);
  write_text(wrong ? "\nresult bad\n" : "\nresult ok\n");
  quit(wrong != 0);
}
