// The protocol every target speaks with the test that started it.
//
//   target -> "ready PID NAME"    everything is set up; the test may attach
//   test   -> "go"                (any line) start
//   target -> "KEY VALUE" lines   what was done
//   target -> "result ok" | "result bad"
//
// A target checks its own work, so that harm shows even when nobody looks at the numbers. It ends quietly when its
// standard input is closed before the go: a test that dies leaves nothing behind.
#pragma once

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// Visible in .dynsym (with export_dynamic), never inlined, cloned or reasoned about by the compiler.
#define TARGET_FUNCTION __attribute__((noinline, noipa, visibility("default")))

static inline void target_ready(const char* name) {
  printf("ready %d %s\n", (int)getpid(), name);
  fflush(stdout);
}

// The next line of the test, without its newline; ends the process at end of file.
static inline void target_line(char* line, size_t size) {
  size_t used = 0;
  for (char c; used + 1 < size;) {
    if (read(STDIN_FILENO, &c, 1) != 1) _exit(3);
    if (c == '\n') break;
    line[used++] = c;
  }
  line[used] = '\0';
}

// The next command: "NAME ROUNDS", or "NAME" with 0 rounds. Returns 0 at "end".
static inline int target_command(char name[32], long* rounds) {
  for (char line[64];;) {
    target_line(line, sizeof line);
    *rounds = 0;
    if (sscanf(line, "%31s %ld", name, rounds) < 1) continue;
    return strcmp(name, "end") != 0;
  }
}

static inline void target_wait_go(void) {
  char line[64];
  target_line(line, sizeof line);
}

static inline int target_result(int ok) {
  printf("result %s\n", ok ? "ok" : "bad");
  fflush(stdout);
  return ok ? 0 : 1;
}
