// constructors: calls functions before main: of the library it is linked with, and its own. main prints what they
// found, and ends after the first line of its input, so that a test sees its code from the first instruction on.
#include "protocol.h"

int library_began(void);

static int began;
TARGET_FUNCTION int own_begin(int x) { return x + library_began(); }
__attribute__((constructor)) static void begin(void) { began = own_begin(40); }

int main(void) {
  target_ready("constructors");
  target_wait_go();
  printf("began %d\n", began);
  return target_result(began == 41);
}
