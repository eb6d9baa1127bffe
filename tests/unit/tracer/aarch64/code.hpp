// Pieces of machine code for the tests of the tracer; the same names in each architecture's folder.
#pragma once

#include <cstdint>
#include <vector>

namespace probed::code {

using Bytes = std::vector<std::uint8_t>;

inline const Bytes kNop{0x1f, 0x20, 0x03, 0xd5}, kReturn{0xc0, 0x03, 0x5f, 0xd6};
// add x0, x0, x0, lsl #1; ret; nop; mov x29, sp: 16 bytes; where another instruction begins.
inline const Bytes kSixteen{0x00, 0x04, 0x00, 0x8b, 0xc0, 0x03, 0x5f, 0xd6,
                            0x1f, 0x20, 0x03, 0xd5, 0xfd, 0x03, 0x00, 0x91};
inline constexpr std::size_t kFirstLength = 4, kAnotherAt = 8;
// stp x29, x30, [sp, #-16]!; mov x29, sp; ret
inline const Bytes kFrame{0xfd, 0x7b, 0xbf, 0xa9, 0xfd, 0x03, 0x00, 0x91, 0xc0, 0x03, 0x5f, 0xd6};
inline constexpr std::uint64_t kFrameStarts[] = {0, 4, 8}, kFrameMiddles[] = {5, 6, 7};
inline constexpr const char *kBeforeMiddle = "f+0x4", *kBehindMiddle = "f+0x8";
// Ordinary, and what messages show of it where a breakpoint has taken its place.
inline const Bytes kOrdinary{0xfd, 0x03, 0x00, 0x91};
inline constexpr const char* kOrdinaryText = "0xfd,0x03,0x00,0x91";
// hlt #0; eret
inline const Bytes kNotProbed{0x00, 0x00, 0x40, 0xd4, 0xe0, 0x03, 0x9f, 0xd6};
// Instructions that belong together: ldxr x0, [x1]; add x0, x0, #1; stxr w2, x0, [x1]; cbnz w2, -12; where they begin,
// and the first that is none of them.
inline const Bytes kSequence{0x20, 0x7c, 0x5f, 0xc8, 0x00, 0x04, 0x00, 0x91,
                             0x20, 0x7c, 0x02, 0xc8, 0xa2, 0xff, 0xff, 0x35};
inline const std::vector<std::uint64_t> kInSequence{0, 4, 8};
inline constexpr std::uint64_t kBehindSequence = 0xc;
// mov x8, #139; svc #0
inline const Bytes kSignalReturn{0x68, 0x11, 0x80, 0xd2, 0x01, 0x00, 0x00, 0xd4};
inline constexpr std::uint64_t kSignalReturnCall = 4;
// What may stand in front of it and belong to another function.
inline const Bytes kBeforeSignalReturn{0x1f, 0x20, 0x03, 0xd5};
// What a jump replaces, two jumps (b), and what else may stand there.
inline const Bytes kReplaced{0xfd, 0x7b, 0xbf, 0xa9}, kJump{1, 2, 3, 0x14}, kOwnJump{5, 6, 7, 0x14};
inline const Bytes kOther{0x1f, 0x20, 0x03, 0xd5};

}  // namespace probed::code
