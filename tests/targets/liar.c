// liar: its debug information, liar.S, was made to keep its reader busy.
// After the go it calls liar() a hundred times. Prints: result.
#include "protocol.h"

TARGET_FUNCTION long liar(long value) { return value + 1; }

long kept[2];

int main(void) {
  target_ready("liar");
  target_wait_go();
  for (int i = 0; i < 100; ++i) kept[0] = liar(kept[0]);
  return target_result(kept[0] == 100);
}
