// Which forms this processor executes, and which no test may. From /proc/cpuinfo; constant after the first call.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>

#include "tests/arch/differential/forms.hpp"

namespace probed::test {

// Whether /proc/cpuinfo lists this flag for the first processor.
bool cpu_has(std::string_view flag);

// The flag in /proc/cpuinfo that a form needs and that isn't there; empty: nothing is missing.
std::string_view missing_feature(const Form& form);

// Why a form must not be executed in a test, or can't be compared; empty: it may be.
std::string_view never_executed(ZydisMnemonic mnemonic);

// Whether cases of this form are run natively.
bool executed_here(const Form& form);

// What is not run natively: the reason, and the mnemonics in the decoder's spelling.
std::map<std::string, std::set<std::string>> not_executed();

}  // namespace probed::test
