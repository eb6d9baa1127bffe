#include "work.h"

int work(int a, long b, const char* s) {
  return expected_work(a, b, s);
}
