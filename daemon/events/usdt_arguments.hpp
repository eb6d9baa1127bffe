// $argN and $args of a static probe: what the definition says, with the probe's own types. Pure.
#pragma once

#include <span>
#include <vector>

#include "daemon/elf/usdt.hpp"
#include "daemon/lang/definition.hpp"
#include "proto/base/result.hpp"

namespace probed::events {

// The arguments of a definition for the static probe it names: $args becomes arg1, arg2, ...; a bare $argN without a
// type gets its size and sign from the probe. Errors: bad_definition when a name is used twice or there are too many.
Result<std::vector<lang::FetchArg>> with_usdt_arguments(std::span<const lang::FetchArg> args,
                                                        const elf::UsdtSite& usdt);

}  // namespace probed::events
