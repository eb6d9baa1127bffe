// The sentences behind refusals of return probes.
#include "arch/exits.hpp"

#include <algorithm>

#include "proto/base/check.hpp"

namespace probed::arch {
namespace {

constexpr ExitRefusalRow kRows[] = {
    {ExitRefusal::none, "none", "all of the function's exits are known"},
    {ExitRefusal::no_function, "no_function", "neither a symbol nor the unwind table says where the function ends"},
    {ExitRefusal::not_decoded, "not_decoded",
     "something in the function is not an instruction, so exits may be missed"},
    {ExitRefusal::not_understood, "not_understood",
     "the function has an indirect jump to a computed address, or a branch into the middle of an instruction, so not "
     "all of its exits are known"},
    {ExitRefusal::odd_jump, "odd_jump",
     "the function jumps, with something of its own on the stack, to a place of which it is not known what it is"},
    {ExitRefusal::odd_return, "odd_return",
     "the function takes a return address off the stack and jumps, so not all of its exits are known"},
    {ExitRefusal::runs_on, "runs_on",
     "the function runs on into what stands behind it, another function or none, so not all of its exits are known"},
    {ExitRefusal::no_exit, "no_exit", "the function never returns"},
    {ExitRefusal::loops, "loops",
     "a loop of the function's own begins at its first instruction, where a new call can't be told from another round "
     "of the one before"},
    {ExitRefusal::too_large, "too_large", "the function is too large to be looked through"},
    {ExitRefusal::unsupported, "unsupported", "return probes are not supported yet on this architecture"},
};

}  // namespace

std::span<const ExitRefusalRow> exit_refusals() { return kRows; }

const ExitRefusalRow& describe(ExitRefusal refusal) {
  const auto row = std::ranges::find(kRows, refusal, &ExitRefusalRow::refusal);
  PROBED_CHECK(row != std::end(kRows), "every refusal has a row");
  return *row;
}

}  // namespace probed::arch
