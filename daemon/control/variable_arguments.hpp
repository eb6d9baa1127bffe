// Variables by name and $args in a definition's arguments: what debug information makes of them at one place.
//
// Thread: the worker pool. Pure but for reading debug information at the first need.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "daemon/dwarf/variables.hpp"
#include "daemon/lang/definition.hpp"
#include "proto/base/result.hpp"

namespace probed::control {

// What a user should know of an argument: that it has no value at this place, and why.
using Notes = std::vector<std::string>;

// Whether some argument can only be found by debug information. static_probe: $args are the static probe's.
bool needs_variables(std::span<const lang::FetchArg> args, bool static_probe);
// Whether some argument is read by the calling convention or from named registers, which tell nothing where a function
// has been inlined.
bool reads_by_convention(std::span<const lang::FetchArg> args);
// Whether it has a $retval without a :TYPE, which may be shown by its declared type.
bool wants_result_type(std::span<const lang::FetchArg> args);

enum class At : std::uint8_t { place, function_return };

// The arguments with each variable in its place: structures become their parts, $args the function's parameters. What
// has been optimised out is null in events and said in `notes`. Errors: those of dwarf::Variables, with the column.
//
// At a function's return (the variables are those at its entry) a plain name is read at the entry, as $argN is, what a
// path leads to at the return; $entry(PATH) is all read at the entry. A plain $retval gets its declared type.
Result<std::vector<lang::FetchArg>> with_variables(std::span<const lang::FetchArg> args,
                                                   const dwarf::Variables& variables, At at, Notes& notes);

}  // namespace probed::control
