// Programs that run another program's code as a translation of it: valgrind, Pin, DynamoRIO; qemu-user, box64, FEX; and
// Frida's Stalker, which does so for some threads.
//
// What they translate is read and never executed where it is mapped, so a breakpoint there is hit by nobody. Worse,
// they may translate the breakpoint. Known by the names of their files: nothing else tells them from an ordinary
// program.
//
// Pure. Any thread.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "daemon/symbols/maps.hpp"

namespace probed::symbols {

struct Translator {
  enum class What {
    own_process,    // all that is mapped, but for its own files
    other_program,  // one that isn't executable here
    some_threads,
  };
  What what = What::own_process;
  std::string name;
  std::string file;  // its own, as /proc/PID/maps has it

  // Whether the code of this mapping is executed as a translation only.
  bool translates(const Mapping& mapping) const;
  // What to do instead of a probe there.
  std::string hint() const;
  // What is to be known of a probe that can be had all the same; empty: nothing.
  std::string note() const;
};

// exe: where /proc/PID/exe leads. nullopt: none of those that are known.
std::optional<Translator> translator_in(std::string_view exe, std::span<const Mapping> mappings);

}  // namespace probed::symbols
