// What the shapes of aarch64 need from C.
#include <sys/auxv.h>

#include <string.h>

#include "../shapes.h"

// Signatures are hints that do nothing where the processor doesn't have them; retaa is not.
int shape_usable(const struct Shape* shape) {
  const unsigned long features = getauxval(AT_HWCAP);
  if (strcmp(shape->name, "shape_retaa") == 0) return (features & HWCAP_PACA) != 0;
  if (strcmp(shape->name, "shape_ldadd") == 0) return (features & HWCAP_ATOMICS) != 0;
  return 1;
}
