// The relocator as a table: bytes in, bytes and boundaries out.
#include "arch/x86_64/relocate.hpp"

#include <doctest/doctest.h>

#include <sstream>
#include <string>

#include "arch/x86_64/decode.hpp"
#include "tests/arch/hex.hpp"

namespace probed::arch::x86_64 {
namespace {

constexpr std::uint64_t kOriginal = 0x401000;
constexpr std::uint64_t kNear = 0x501000;
constexpr std::uint64_t kFar = 0x7f00'0000'1000;

std::string render(const CopyPoint& point) {
  constexpr const char* kMeanings[] = {"before", "middle", "after"};
  std::ostringstream out;
  out << std::dec << unsigned{point.offset} << " " << kMeanings[static_cast<int>(point.meaning)] << " " << std::hex
      << point.original_pc;
  if (point.undo_sp != 0) out << " sp+" << std::dec << int{point.undo_sp} << std::hex;
  if (point.fix_link) out << " fix";
  if (point.link != 0) out << " link " << point.link;
  return out.str();
}

std::string render_points(const Copy& copy) {
  std::string text;
  for (const CopyPoint& point : copy.all_points()) text += (text.empty() ? "" : "; ") + render(point);
  return text;
}

RelocateResult relocate_hex(const std::string& hex, std::uint64_t copy_address) {
  const auto bytes = test::from_hex(hex);
  return relocate(bytes, decode(bytes, kOriginal), kOriginal, copy_address);
}

struct Row {
  std::string hex;
  std::uint64_t copy_address;
  std::string code;
  std::string points;
};

void check(const Row& row) {
  CAPTURE(row.hex);
  CAPTURE(row.copy_address);
  const RelocateResult result = relocate_hex(row.hex, row.copy_address);
  REQUIRE(describe(result.refusal) == describe(Refusal::none));
  CHECK(test::to_hex(std::span(result.copy.code).first(result.copy.size)) == test::to_hex(test::from_hex(row.code)));
  CHECK(render_points(result.copy) == row.points);
}

void check_refused(const std::string& hex, std::uint64_t copy_address, Refusal refusal) {
  CAPTURE(hex);
  CHECK(describe(relocate_hex(hex, copy_address).refusal) == describe(refusal));
}

}  // namespace

TEST_CASE("sequential instructions are copied and followed by a jump back") {
  const Row rows[] = {
      // push rbp -> push rbp; jmp 401001
      {"55", kNear, "55 e9 fb ff ef ff", "0 before 401000; 1 after 401001"},
      // mov rbp, rsp
      {"48 89 e5", kNear, "48 89 e5 e9 fb ff ef ff", "0 before 401000; 3 after 401003"},
      // push rbp, too far for rel32: jmp [rip+1]; padding; .quad 401001
      {"55", kFar, "55 ff 25 01 00 00 00 cc 01 10 40 00 00 00 00 00", "0 before 401000; 1 after 401001"},
      // rep movsb
      {"f3 a4", kNear, "f3 a4 e9 fb ff ef ff", "0 before 401000; 2 after 401002"},
      // ud2: faults at `before`
      {"0f 0b", kNear, "0f 0b e9 fb ff ef ff", "0 before 401000; 2 after 401002"},
      // nop [rax]
      {"0f 1f 00", kNear, "0f 1f 00 e9 fb ff ef ff", "0 before 401000; 3 after 401003"},
      // the longest instruction there is: lock add qword fs:[rax+rbx*8+0x11223344], 0x55667788, with spare prefixes
      {"64 64 f0 48 81 84 d8 44 33 22 11 88 77 66 55", kFar,
       "64 64 f0 48 81 84 d8 44 33 22 11 88 77 66 55 ff 25 03 00 00 00 cc cc cc 0f 10 40 00 00 00 00 00",
       "0 before 401000; 15 after 40100f"},
      // int 0x80: no link register
      {"cd 80", kNear, "cd 80 e9 fb ff ef ff", "0 before 401000; 2 after 401002"},
  };
  for (const Row& row : rows) check(row);
}

TEST_CASE("rip-relative operands are made to refer to the same address, in every encoding") {
  // The copy lies 0x100000 higher, so every displacement shrinks by that.
  const Row rows[] = {
      // mov rax, [rip+0x200000]
      {"48 8b 05 00 00 20 00", kNear, "48 8b 05 00 00 10 00 e9 fb ff ef ff", "0 before 401000; 7 after 401007"},
      // lea rdi, [rip-0x10]
      {"48 8d 3d f0 ff ff ff", kNear, "48 8d 3d f0 ff ef ff e9 fb ff ef ff", "0 before 401000; 7 after 401007"},
      // mov qword [rip+0x200000], 0x12345678: the displacement is not at the end
      {"48 c7 05 00 00 20 00 78 56 34 12", kNear, "48 c7 05 00 00 10 00 78 56 34 12 e9 fb ff ef ff",
       "0 before 401000; 11 after 40100b"},
      // cmp byte [rip+0x200000], 7
      {"80 3d 00 00 20 00 07", kNear, "80 3d 00 00 10 00 07 e9 fb ff ef ff", "0 before 401000; 7 after 401007"},
      // push [rip+0x200000]
      {"ff 35 00 00 20 00", kNear, "ff 35 00 00 10 00 e9 fb ff ef ff", "0 before 401000; 6 after 401006"},
      // vaddps ymm0, ymm0, [rip+0x200000] (VEX, two bytes)
      {"c5 fc 58 05 00 00 20 00", kNear, "c5 fc 58 05 00 00 10 00 e9 fb ff ef ff", "0 before 401000; 8 after 401008"},
      // vpalignr ymm0, ymm0, [rip+0x200000], 5 (VEX, three bytes, immediate)
      {"c4 e3 7d 0f 05 00 00 20 00 05", kNear, "c4 e3 7d 0f 05 00 00 10 00 05 e9 fb ff ef ff",
       "0 before 401000; 10 after 40100a"},
      // vpternlogd zmm0, zmm0, [rip+0x200000], 0x96 (EVEX: the displacement is not scaled)
      {"62 f3 7d 48 25 05 00 00 20 00 96", kNear, "62 f3 7d 48 25 05 00 00 10 00 96 e9 fb ff ef ff",
       "0 before 401000; 11 after 40100b"},
      // mov rax, fs:[rip+0x200000]: the segment base is added to the same sum
      {"64 48 8b 05 00 00 20 00", kNear, "64 48 8b 05 00 00 10 00 e9 fb ff ef ff", "0 before 401000; 8 after 401008"},
      // mov eax, [0x200000]: absolute, untouched
      {"8b 04 25 00 00 20 00", kNear, "8b 04 25 00 00 20 00 e9 fb ff ef ff", "0 before 401000; 7 after 401007"},
      // pfadd mm0, [rip+0x200000] (3DNow!: the opcode follows the displacement)
      {"0f 0f 05 00 00 20 00 9e", kNear, "0f 0f 05 00 00 10 00 9e e9 fb ff ef ff", "0 before 401000; 8 after 401008"},
  };
  for (const Row& row : rows) check(row);
}

TEST_CASE("direct calls push the original return address from the copy's data") {
  const Row rows[] = {
      // call 402005 -> push [rip+7]; jmp 402005; padding; .quad 401005
      {"e8 00 10 00 00", kNear, "ff 35 0a 00 00 00 e9 fa 0f f0 ff cc cc cc cc cc 05 10 40 00 00 00 00 00",
       "0 before 401000; 6 middle 401000 sp+8"},
      // the same, far away: push [rip+10]; jmp [rip+12]; .quad 401005, 402005
      {"e8 00 10 00 00", kFar,
       "ff 35 0a 00 00 00 ff 25 0c 00 00 00 cc cc cc cc 05 10 40 00 00 00 00 00 05 20 40 00 00 00 00 00",
       "0 before 401000; 6 middle 401000 sp+8"},
      // data16 data16 rex.W call 402008 (TLS): the return address is behind all eight bytes
      {"66 66 48 e8 00 10 00 00", kNear, "ff 35 0a 00 00 00 e9 fd 0f f0 ff cc cc cc cc cc 08 10 40 00 00 00 00 00",
       "0 before 401000; 6 middle 401000 sp+8"},
      // the data is aligned in the target, whatever the slot's alignment: copy at ...1003
      {"e8 00 10 00 00", kNear + 3, "ff 35 07 00 00 00 e9 f7 0f f0 ff cc cc 05 10 40 00 00 00 00 00",
       "0 before 401000; 6 middle 401000 sp+8"},
  };
  for (const Row& row : rows) check(row);
}

TEST_CASE("indirect calls through a register push, then jump through it") {
  const Row rows[] = {
      // call rax -> push [rip+2]; jmp rax; .quad 401002
      {"ff d0", kNear, "ff 35 02 00 00 00 ff e0 02 10 40 00 00 00 00 00", "0 before 401000; 6 middle 401000 sp+8"},
      // call r11
      {"41 ff d3", kNear, "ff 35 0a 00 00 00 41 ff e3 cc cc cc cc cc cc cc 03 10 40 00 00 00 00 00",
       "0 before 401000; 6 middle 401000 sp+8"},
      // call r12: rsp's number, another register
      {"41 ff d4", kFar, "ff 35 0a 00 00 00 41 ff e4 cc cc cc cc cc cc cc 03 10 40 00 00 00 00 00",
       "0 before 401000; 6 middle 401000 sp+8"},
      // notrack, bnd, data16 rex.W call rdx: prefixes kept
      {"3e ff d2", kNear, "ff 35 0a 00 00 00 3e ff e2 cc cc cc cc cc cc cc 03 10 40 00 00 00 00 00",
       "0 before 401000; 6 middle 401000 sp+8"},
      {"f2 ff d2", kNear, "ff 35 0a 00 00 00 f2 ff e2 cc cc cc cc cc cc cc 03 10 40 00 00 00 00 00",
       "0 before 401000; 6 middle 401000 sp+8"},
      {"66 48 ff d2", kNear, "ff 35 0a 00 00 00 66 48 ff e2 cc cc cc cc cc cc 04 10 40 00 00 00 00 00",
       "0 before 401000; 6 middle 401000 sp+8"},
  };
  for (const Row& row : rows) check(row);
}

TEST_CASE("indirect calls through memory try the operand, push, then jump through it") {
  // push operand; lea rsp, [rsp+8]; push [rip+data]; jmp operand; padding; .quad return address
  struct Short {
    std::string hex;
    std::string push, jump;
  };
  const Short table[] = {
      {"ff 10", "ff 30", "ff 20"},                                                        // call [rax]
      {"ff 50 10", "ff 70 10", "ff 60 10"},                                               // call [rax+0x10]
      {"ff 55 f8", "ff 75 f8", "ff 65 f8"},                                               // call [rbp-8]
      {"ff 14 c8", "ff 34 c8", "ff 24 c8"},                                               // call [rax+rcx*8]
      {"42 ff 94 e0 00 01 00 00", "42 ff b4 e0 00 01 00 00", "42 ff a4 e0 00 01 00 00"},  // call [rax+r12*8+0x100]
      {"41 ff 14 24", "41 ff 34 24", "41 ff 24 24"},                                      // call [r12]
      {"41 ff 54 24 f8", "41 ff 74 24 f8", "41 ff 64 24 f8"},                             // call [r12-8]
      {"67 ff 10", "67 ff 30", "67 ff 20"},                                               // call [eax]
      {"64 ff 14 25 10 00 00 00", "64 ff 34 25 10 00 00 00", "64 ff 24 25 10 00 00 00"},  // call fs:[0x10]
      {"ff 15 00 00 20 00", "ff 35 00 00 10 00", "ff 25 ef ff 0f 00"},                    // call [rip+0x200000]
      {"66 48 ff 15 00 00 20 00", "66 48 ff 35 00 00 10 00", "66 48 ff 25 ed ff 0f 00"},  // data16 rex.W: TLS
      {"ff 14 24", "ff 34 24", "ff 64 24 08"},                                            // call [rsp]
      {"ff 54 24 08", "ff 74 24 08", "ff 64 24 10"},                                      // call [rsp+8]
      {"ff 54 24 77", "ff 74 24 77", "ff 64 24 7f"},                                      // call [rsp+0x77]
      {"ff 54 24 78", "ff 74 24 78", "ff a4 24 80 00 00 00"},  // call [rsp+0x78] outgrows a byte
      {"ff 54 24 f0", "ff 74 24 f0", "ff 64 24 f8"},           // call [rsp-0x10]: below the pushed word
      {"ff 54 24 80", "ff 74 24 80", "ff 64 24 88"},           // call [rsp-0x80]
      {"ff 94 24 10 00 00 00", "ff b4 24 10 00 00 00", "ff a4 24 18 00 00 00"},  // call [rsp+0x10], disp32 kept
      {"ff 14 c4", "ff 34 c4", "ff 64 c4 08"},                                   // call [rsp+rax*8]
      {"42 ff 54 e4 08", "42 ff 74 e4 08", "42 ff 64 e4 10"},                    // call [rsp+r12*8+8]
      {"48 ff 54 24 08", "48 ff 74 24 08", "48 ff 64 24 10"},                    // rex.W call [rsp+8]
      {"65 ff 54 24 08", "65 ff 74 24 08", "65 ff 64 24 10"},                    // call gs:[rsp+8]
      {"67 ff 54 24 08", "67 ff 74 24 08", "67 ff 64 24 10"},                    // call [esp+8]
  };
  for (const Short& row : table) {
    CAPTURE(row.hex);
    const RelocateResult result = relocate_hex(row.hex, kNear);
    REQUIRE(describe(result.refusal) == describe(Refusal::none));
    const auto length = static_cast<std::uint8_t>(test::from_hex(row.push).size());
    const auto data_at = static_cast<std::uint8_t>((length + 11 + test::from_hex(row.jump).size() + 7) / 8 * 8);
    auto expected = test::from_hex(row.push + "48 8d 64 24 08 ff 35 00 00 00 00" + row.jump);
    expected[length + 7u] = static_cast<std::uint8_t>(data_at - (length + 11));
    expected.resize(data_at, 0xcc);
    for (const int byte : {+length, 0x10, 0x40, 0, 0, 0, 0, 0}) expected.push_back(static_cast<std::uint8_t>(byte));
    std::ostringstream points;
    points << "0 before 401000; " << +length << " middle 401000 sp+8; " << length + 5 << " middle 401000; "
           << length + 11 << " middle 401000 sp+8";
    CHECK(test::to_hex(std::span(result.copy.code).first(result.copy.size)) == test::to_hex(expected));
    CHECK(render_points(result.copy) == points.str());
  }
}

TEST_CASE("jumps and conditional branches lead where the original does") {
  const Row rows[] = {
      // jmp 401012
      {"eb 10", kNear, "e9 0d 00 f0 ff", "0 before 401000"},
      // jmp 401012, far: jmp [rip+2]; .quad 401012
      {"eb 10", kFar, "ff 25 02 00 00 00 cc cc 12 10 40 00 00 00 00 00", "0 before 401000"},
      // je 401012 -> je 401012; jmp 401002
      {"74 10", kNear, "0f 84 0c 00 f0 ff e9 f7 ff ef ff", "0 before 401000; 6 after 401002"},
      // jg rel32, hinted
      {"3e 0f 8f 00 10 00 00", kNear, "0f 8f 01 10 f0 ff e9 fc ff ef ff", "0 before 401000; 6 after 401007"},
      // je 401012, far: je +6; jmp [rip+8]; jmp [rip+10]; .quad 401002, 401012
      {"74 10", kFar, "74 06 ff 25 08 00 00 00 ff 25 0a 00 00 00 cc cc 02 10 40 00 00 00 00 00 12 10 40 00 00 00 00 00",
       "0 before 401000; 2 after 401002; 8 after 401012"},
      // loop 401000 -> loop +5; jmp 401002; jmp 401000
      {"e2 fe", kNear, "e2 05 e9 fb ff ef ff e9 f4 ff ef ff", "0 before 401000; 2 after 401002; 7 after 401000"},
      // jecxz 401013: 67h kept
      {"67 e3 10", kNear, "67 e3 05 e9 fb ff ef ff e9 06 00 f0 ff", "0 before 401000; 3 after 401003; 8 after 401013"},
      // rex.W loope 401013: the REX means nothing
      {"48 e1 10", kNear, "e1 05 e9 fc ff ef ff e9 07 00 f0 ff", "0 before 401000; 2 after 401003; 7 after 401013"},
      // repne loope, rep loopne (AMD: the prefix replaces the condition), rep jrcxz: the prefix is kept
      {"f2 4c e1 17", kNear, "f2 e1 05 e9 fc ff ef ff e9 0e 00 f0 ff",
       "0 before 401000; 3 after 401004; 8 after 40101b"},
      {"f2 f3 e0 58", kNear, "f3 e0 05 e9 fc ff ef ff e9 4f 00 f0 ff",
       "0 before 401000; 3 after 401004; 8 after 40105c"},
      {"67 f3 e3 10", kFar,
       "67 f3 e3 06 ff 25 06 00 00 00 ff 25 08 00 00 00 04 10 40 00 00 00 00 00 14 10 40 00 00 00 00 00",
       "0 before 401000; 4 after 401004; 10 after 401014"},
      // jmp rax, jmp [rip+0x200000], ret, ret 8, bnd ret: copied, nothing behind them
      {"ff e0", kNear, "ff e0", "0 before 401000"},
      {"ff 25 00 00 20 00", kNear, "ff 25 00 00 10 00", "0 before 401000"},
      {"ff 64 24 08", kNear, "ff 64 24 08", "0 before 401000"},
      {"c3", kFar, "c3", "0 before 401000"},
      {"c2 08 00", kFar, "c2 08 00", "0 before 401000"},
      {"f2 c3", kFar, "f2 c3", "0 before 401000"},
      // xbegin 401016 -> xbegin 401016; jmp 401006
      {"c7 f8 10 00 00 00", kNear, "c7 f8 10 00 f0 ff e9 fb ff ef ff", "0 before 401000; 6 after 401006"},
  };
  for (const Row& row : rows) check(row);
}

TEST_CASE("a branch is near or far by a single byte") {
  // jmp 401002 from copies around the edge of rel32's reach
  const std::uint64_t last = 0x401002 + 0x8000'0000ULL - 5;
  CHECK(relocate_hex("eb 00", last).copy.code[0] == 0xe9);
  CHECK(relocate_hex("eb 00", last + 1).copy.code[0] == 0xff);
  // jne: the target in reach but the way on only just, and then neither
  CHECK(relocate_hex("75 00", last - 6).copy.code[0] == 0x0f);
  CHECK(relocate_hex("75 00", last - 5).copy.code[6] == 0xff);
}

TEST_CASE("a system call leaves the original's address in rcx") {
  const std::string points = "0 before 401000 link 401002; 2 after 401002 fix link 401002; 12 after 401002";
  check({"0f 05", kNear, "0f 05 48 b9 02 10 40 00 00 00 00 00 e9 f1 ff ef ff", points});
  check({"0f 05", kFar,
         "0f 05 48 b9 02 10 40 00 00 00 00 00 ff 25 06 00 00 00 cc cc cc cc cc cc 02 10 40 00 00 00 00 00", points});
  // Prefixes are dropped, or a restart, which goes back 2 bytes, would not find the copy's start.
  check({"48 0f 05", kNear, "0f 05 48 b9 03 10 40 00 00 00 00 00 e9 f2 ff ef ff",
         "0 before 401000 link 401003; 2 after 401003 fix link 401003; 12 after 401003"});
}

TEST_CASE("what cannot be moved is refused") {
  check_refused("cc", kNear, Refusal::breakpoint);  // decode's refusals are kept
  check_refused("f4", kNear, Refusal::privileged);
  check_refused("48 8b 05 00 00 00 00", kFar, Refusal::out_of_range);    // mov rax, [rip]
  check_refused("ff 25 00 00 00 00", kFar, Refusal::out_of_range);       // jmp [rip]
  check_refused("ff 15 00 00 00 00", kFar, Refusal::out_of_range);       // call [rip]
  check_refused("c7 f8 00 00 00 00", kFar, Refusal::out_of_range);       // xbegin
  check_refused("ff d4", kNear, Refusal::stack_operand);                 // call rsp
  check_refused("48 ff d4", kNear, Refusal::stack_operand);              // rex.W call rsp
  check_refused("ff 54 24 f8", kNear, Refusal::stack_operand);           // call [rsp-8] reads what call writes
  check_refused("ff 54 24 f1", kNear, Refusal::stack_operand);           // call [rsp-15]
  check_refused("ff 54 24 ff", kNear, Refusal::stack_operand);           // call [rsp-1]
  check_refused("42 ff 54 e4 80", kNear, Refusal::stack_operand);        // call [rsp+r12*8-128] may do so
  check_refused("ff 94 24 f8 ff ff ff", kNear, Refusal::stack_operand);  // call [rsp-8], disp32
  check_refused("ff 94 24 f8 ff ff 7f", kNear, Refusal::stack_operand);  // call [rsp+0x7ffffff8]
  // call [rsp], its prefixes leaving no byte for a displacement
  check_refused("3e 3e 3e 3e 3e 3e 3e 3e 3e 3e 3e 3e ff 14 24", kNear, Refusal::stack_operand);
}

TEST_CASE("every copy fits its slot and its points ascend") {
  for (const std::string hex :
       {"55", "e8 00 00 00 00", "74 10", "e2 10", "67 e3 10", "0f 05", "ff 54 24 78", "c3",
        "64 64 f0 48 81 84 d8 44 33 22 11 88 77 66 55", "2e 2e 2e 2e 2e 2e 2e 41 ff 94 c4 00 00 00 00"})
    for (std::uint64_t skew = 0; skew < 8; ++skew) {
      CAPTURE(hex);
      const RelocateResult result = relocate_hex(hex, kFar + skew);
      REQUIRE(describe(result.refusal) == describe(Refusal::none));
      CHECK(result.copy.size <= kMaxCopySize);
      const auto points = result.copy.all_points();
      REQUIRE(!points.empty());
      CHECK(points[0].offset == 0);
      CHECK(points[0].meaning == CopyPoint::Meaning::before);
      for (std::size_t i = 1; i < points.size(); ++i) CHECK(points[i].offset > points[i - 1].offset);
      CHECK(result.copy.at(1) == (result.copy.point_count > 1 && points[1].offset == 1 ? &points[1] : nullptr));
    }
}

}  // namespace probed::arch::x86_64
