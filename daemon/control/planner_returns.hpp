// The part of planning that is about return probes and needs no place. Thread: the worker pool.
#pragma once

#include "daemon/control/planner.hpp"

namespace probed::control {

// A return probe for a definition whose code isn't loaded: its arguments and its filter are checked. Errors:
// ReturnFetch::compile()'s and Filter::compile()'s.
Result<PlannedProbe> return_without_place(std::size_t spec, const lang::Definition& definition,
                                          const std::optional<std::string>& filter,
                                          const events::CompileContext& context);

}  // namespace probed::control
