// namespaces: C++ functions for which one name means different variables. On command, one a line, it calls one of them
// and prints what the source means by the name as a JSON object:
//   NAME    one call of the function: {"g":N}, N as the function itself reads it
//   quit
#include <cstdio>
#include <cstring>

#include "protocol.h"

#define NOINLINE __attribute__((noinline, noipa))

namespace {
volatile int said;  // what the function itself has read
__attribute__((always_inline)) inline int says(int value) {
  said = value;
  return value;
}
}  // namespace

namespace n1 {
[[gnu::used]] int g = 5;
namespace n2 {
[[gnu::used]] int g = 6;
[[gnu::used]] int deep = 66;
NOINLINE int inner() { return says(g); }
NOINLINE int outward();
}  // namespace n2
NOINLINE int middle() { return says(g); }
namespace {
[[gnu::used]] int hidden = 9;
NOINLINE int unnamed() { return says(hidden); }
[[gnu::used]] NOINLINE int both_named(int) { return says(1); }
__attribute__((always_inline)) inline int only_inlined(int value) { return says(value); }
NOINLINE int by_scope() {
  const int other = only_inlined(hidden + 70);
  return says(g) + other;
}
}  // namespace
[[gnu::used]] NOINLINE int both_named() { return says(2); }
NOINLINE int beside() { return says(hidden); }
inline namespace v1 {
[[gnu::used]] int versioned = 12;
NOINLINE int in_version() { return says(versioned) + g; }
}  // namespace v1
NOINLINE int uses_version() { return says(versioned); }
}  // namespace n1

[[gnu::used]] int g = 4;
[[gnu::used]] int deep = 44;
[[gnu::used]] int hidden = 99;
[[gnu::used]] int versioned = 13;
[[gnu::used]] int taken = 14;

namespace n1::n2 {
NOINLINE int outward() { return says(deep) + n1::g; }
}  // namespace n1::n2

struct Base {
  static int g;
  static int inherited;
  int plain = 31;
  NOINLINE static int by_class() { return says(g); }
  struct Nested {
    NOINLINE static int nested() { return says(g); }
  };
};
[[gnu::used]] int Base::g = 7;
[[gnu::used]] int Base::inherited = 8;
[[gnu::used]] int inherited = 88;

struct Derived : Base {
  static int plain;
  NOINLINE static int derived() { return says(inherited); }
  NOINLINE int hides() { return says(plain) + Base::plain; }
};
[[gnu::used]] int Derived::plain = 32;

namespace other {
[[gnu::used]] int taken = 15;
[[gnu::used]] int whole = 16;
}  // namespace other
[[gnu::used]] int whole = 17;
namespace taker {
using other::taken;
NOINLINE int by_using() { return says(taken); }
}  // namespace taker
namespace directed {
namespace inside {
[[gnu::used]] int whole = 18;
}
using namespace inside;
NOINLINE int by_directive() { return says(whole); }
}  // namespace directed
NOINLINE int using_in_block() {
  using other::whole;
  return says(whole);
}

NOINLINE int plain_function() { return says(g); }

NOINLINE int with_lambda() {
  static int g = 21;
  const auto read = []() __attribute__((noinline, noipa)) { return says(g); };
  return read() + ++g;
}

// Members, of places that are harder to find, that hide variables of the same name.
[[gnu::used]] int in_ancestor = 93, captured = 94;
struct Ancestor {
  int in_ancestor = 33;
};
struct Heir : virtual Ancestor {
  NOINLINE int inherits() { return says(in_ancestor); }
};
int inherits_called() { return Heir().inherits(); }
struct Capturing {
  int captured = 34;
  NOINLINE int captures() {
    const auto outer = [this]() __attribute__((noinline, noipa)) {
      const auto read = [this]() __attribute__((noinline, noipa)) { return says(captured); };
      return read() + captured;
    };
    return outer() + 1;
  }
};
int captures_called() { return Capturing().captures(); }

// Constants that hide variables of the same name.
[[gnu::used]] int limit = 90, level = 91, bound = 92;
namespace constants {
enum { limit = 23, level_of_nobody };
NOINLINE int enumerator() { return says(limit); }
enum class Scoped { level = 29 };
NOINLINE int scoped() { return says(level) + static_cast<int>(Scoped::level); }
struct Holder {
  enum { level = 24 };
  static constexpr int bound = 25;
  int dummy;
  NOINLINE static int in_class() { return says(level); }
  NOINLINE static int constant() { return says(bound); }
};
NOINLINE int in_block() {
  enum { limit = 26 };
  return says(limit);
}
}  // namespace constants

namespace one {
[[gnu::used]] int shared_name = 1;
[[gnu::used]] int only_here = 2;
}  // namespace one
namespace two {
[[gnu::used]] int shared_name = 3;
}
int far_function();

// Clang leaves an unused class with a destructor out of the parameters that its debug information has.
struct Owning {
  explicit Owning(int number) : value(number) {}
  Owning(const Owning& other) : value(other.value) {}
  ~Owning() {}
  int value;
};
struct Lacking {
  int own = 0;
  NOINLINE int method(Owning, int b, int c, int d, int e, const char* text) {
    return says(b) + c + d + e + own + (text != nullptr);
  }
};
int lacking_called() { return Lacking().method(Owning(7), 41, 42, 43, 44, "text"); }

struct Command {
  const char* name;
  int (*call)();
  const char* variable;
};
int hides_called() { return Derived().hides(); }

const Command kCommands[] = {
    {"inner", n1::n2::inner, "g"},
    {"outward", n1::n2::outward, "deep"},
    {"middle", n1::middle, "g"},
    {"unnamed", n1::unnamed, "hidden"},
    {"by_scope", n1::by_scope, "g"},
    {"beside", n1::beside, "hidden"},
    {"in_version", n1::in_version, "versioned"},
    {"uses_version", n1::uses_version, "versioned"},
    {"by_class", Base::by_class, "g"},
    {"nested", Base::Nested::nested, "g"},
    {"derived", Derived::derived, "inherited"},
    {"hides", hides_called, "plain"},
    {"by_using", taker::by_using, "taken"},
    {"by_directive", directed::by_directive, "whole"},
    {"using_in_block", using_in_block, "whole"},
    {"plain_function", plain_function, "g"},
    {"with_lambda", with_lambda, "g"},
    {"inherits", inherits_called, "in_ancestor"},
    {"captures", captures_called, "captured"},
    {"enumerator", constants::enumerator, "limit"},
    {"scoped", constants::scoped, "level"},
    {"in_class", constants::Holder::in_class, "level"},
    {"constant", constants::Holder::constant, "bound"},
    {"in_block", constants::in_block, "limit"},
    {"far_function", far_function, "far"},
    {"lacking", lacking_called, "b"},
};

int main() {
  target_ready("namespaces");
  for (char line[128]; target_line(line, sizeof line), strcmp(line, "quit") != 0;) {
    for (const Command& command : kCommands) {
      if (strcmp(line, command.name) != 0) continue;
      const int result = command.call();
      printf("{\"%s\":%d}\n", command.variable, strcmp(line, "far_function") == 0 ? result : said);
    }
    fflush(stdout);
  }
  return target_result(one::shared_name + one::only_here + two::shared_name + other::taken + hidden + deep + versioned +
                           taken + inherited + whole + in_ancestor + captured !=
                       0);
}
