// Pieces of machine code for the tests of the tracer; the same names in each architecture's folder.
#pragma once

#include <cstdint>
#include <vector>

namespace probed::code {

using Bytes = std::vector<std::uint8_t>;

inline const Bytes kNop{0x90}, kReturn{0xc3};
// One with an operand behind its opcode, and what may follow it: 16 bytes; where another instruction begins.
inline const Bytes kSixteen{0x48, 0x8d, 0x04, 0x7f, 0xc3, 0x90, 0x55, 0x5d, 0xc3, 1, 2, 3, 4, 5, 6, 7};
inline constexpr std::size_t kFirstLength = 4, kAnotherAt = 6;
// push %rbp; mov %rsp,%rbp; ret
inline const Bytes kFrame{0x55, 0x48, 0x89, 0xe5, 0xc3};
inline constexpr std::uint64_t kFrameStarts[] = {0, 1, 4}, kFrameMiddles[] = {2, 3};
inline constexpr const char *kBeforeMiddle = "f+0x1", *kBehindMiddle = "f+0x4";
// Ordinary, and what messages show of it where a breakpoint has taken its place.
inline const Bytes kOrdinary{0x55};
inline constexpr const char* kOrdinaryText = "0x55";
// hlt; iret
inline const Bytes kNotProbed{0xf4, 0xcf};
// Instructions that belong together: there are none here.
inline const Bytes kSequence{};
inline const std::vector<std::uint64_t> kInSequence{};
inline constexpr std::uint64_t kBehindSequence = 0;
// mov $15,%rax; syscall
inline const Bytes kSignalReturn{0x48, 0xc7, 0xc0, 0x0f, 0x00, 0x00, 0x00, 0x0f, 0x05};
inline constexpr std::uint64_t kSignalReturnCall = 7;
// What may stand in front of it and belong to another function.
inline const Bytes kBeforeSignalReturn{0x66};
// What a jump replaces, two jumps, and what else may stand there.
inline const Bytes kReplaced{0x55, 0x48, 0x89, 0xe5, 0x53}, kJump{0xe9, 1, 2, 3, 4}, kOwnJump{0xe9, 5, 6, 7, 8};
inline const Bytes kOther{0x90, 0x48, 0x89, 0xe5, 0x53};

}  // namespace probed::code
