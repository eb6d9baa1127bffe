// Arguments of static probes as this machine's compilers write them; the same names in each architecture's folder.
#pragma once

namespace probed::symbols::test {

// Signed, of 4 bytes; of 8 in memory; of 1, a number; a float in memory; of a size that none has; of a register that
// there isn't; of no size, so of 8.
inline constexpr const char* kArguments = "-4@w0 8@[x29, -16]  1@-1 4f@[sp, 8] 3@w1 4@[nope] x1";
inline constexpr const char* kSecondArgument = "8@[x29, -16]";
inline constexpr const char* kUnreadable = "";  // there is no such

}  // namespace probed::symbols::test
