// The dynamic loader's hook for debuggers, found in the loader's own file.
//
// Thread: any. Reads the file's dynamic symbols only, which are some dozens: cheap enough for the tracer thread.
#pragma once

#include <sys/types.h>

#include <optional>

#include "daemon/base/types.hpp"
#include "daemon/symbols/maps.hpp"

namespace probed::symbols {

struct LoaderHook {
  RemoteAddr function;  // _dl_debug_state: called when the list of libraries changes
  RemoteAddr state;     // r_debug.r_state, an int
};

// `mapping`: the one with the file's first byte. nullopt: the file can't be read, or has no such hook or state.
std::optional<LoaderHook> find_loader_hook(pid_t pid, const Mapping& mapping);

}  // namespace probed::symbols
