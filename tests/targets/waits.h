// Which system call a thread of this program waits in.
#pragma once

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

// Its number, with which /proc/self/task/TID/syscall begins; -1: in none, or the thread is gone.
static inline long waits_in(int tid) {
  char path[64], text[64] = "";
  snprintf(path, sizeof path, "/proc/self/task/%d/syscall", tid);
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return -1;
  const ssize_t got = read(fd, text, sizeof text - 1);
  close(fd);
  return got > 0 ? strtol(text, NULL, 10) : -1;
}
