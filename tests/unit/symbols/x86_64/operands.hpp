// Arguments of static probes as this machine's compilers write them; the same names in each architecture's folder.
#pragma once

namespace probed::symbols::test {

// Signed, of 4 bytes; of 8 in memory; of 1, a number; a float in memory; of a size that none has; of a register that
// there isn't; of no size, so of 8.
inline constexpr const char* kArguments = "-4@%edi 8@-16(%rbp)  1@$-1 4f@8(%rsp) 3@%eax 4@(%nope) %rsi";
inline constexpr const char* kSecondArgument = "8@-16(%rbp)";
inline constexpr const char* kUnreadable = "8f@%st(1)";  // "": there is no such

}  // namespace probed::symbols::test
