// Where functions are left: code as bytes, what stands there beside it.
#include "arch/x86_64/exits.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "arch/x86_64/region.hpp"
#include "tests/arch/hex.hpp"

namespace probed::arch {

namespace x86_64 {
namespace {

constexpr std::uint64_t kText = 0x1000;

// Functions of 0x40 bytes each, from kText on, filled up with int3.
struct Code {
  explicit Code(const std::vector<std::string>& functions) {
    for (const std::string& hex : functions) {
      auto code = test::from_hex(hex);
      ranges.push_back({kText + bytes.size(), kText + bytes.size() + code.size()});
      code.resize(0x40, 0xcc);
      bytes.insert(bytes.end(), code.begin(), code.end());
    }
    const CodeSegment text{kText, bytes};
    flow = analyse_code({{&text, 1}, {}, ranges, {}, false});
  }
  ExitPlan plan(std::uint64_t entry = kText) const {
    return plan_exits(flow, entry, [this](std::uint64_t a) { return named.contains(a); });
  }
  std::vector<std::uint8_t> bytes;
  std::vector<CodeRange> ranges;
  std::set<std::uint64_t> named{kText};
  CodeFlow flow;
};

std::string shown(const ExitPlan& plan) {
  std::string text;
  for (const Exit& exit : plan.exits)
    text += std::string(text.empty() ? "" : " ") + "rjbl"[static_cast<int>(exit.kind)] +
            std::to_string(exit.address - kText);
  return text;
}

TEST_CASE("every return is an exit, a return that is never reached is none") {
  // test edi,edi; je +1; ret; xor eax,eax; ret; ret
  const ExitPlan plan = Code({"85 ff 74 01 c3 31 c0 c3 c3"}).plan();
  CHECK(plan.refusal == ExitRefusal::none);
  CHECK(shown(plan) == "r4 r7");
  CHECK_FALSE(plan.loops_to_entry);
}

TEST_CASE("a jump to a function is an exit, with a condition or without") {
  Code code({"85 ff 75 3c e9 37 00 00 00", "c3"});  // test edi,edi; jne 0x1040; jmp 0x1040
  code.named.insert(kText + 0x40);
  CHECK(shown(code.plan()) == "b2 j4");
}

TEST_CASE("a jump with something on the stack leads to a part of the same function") {
  // push rbx; jmp 0x1040 | pop rbx; ret
  const Code code({"53 e9 3a 00 00 00", "5b c3"});
  const ExitPlan plan = code.plan();
  CHECK(shown(plan) == "r65");
  CHECK(plan.body.size() == 2);
}

TEST_CASE("a part that is entered with nothing on the stack is one if nobody calls it by name or otherwise") {
  const std::vector<std::string> split{"85 ff 75 3c c3",
                                       "31 c0 c3"};  // test edi,edi; jne 0x1040; ret | xor eax,eax; ret
  CHECK(shown(Code(split).plan()) == "r4 r66");
  auto called = split;
  called.push_back("e8 bb ff ff ff c3");  // call 0x1040
  CHECK(shown(Code(called).plan()) == "b2 r4");
}

TEST_CASE("an indirect jump is an exit where the stack is as the function found it") {
  CHECK(shown(Code({"48 89 f8 ff e6"}).plan()) == "l3");           // mov rax,rdi; jmp rsi
  CHECK(shown(Code({"53 ff e6 5b c3"}).plan()) != "l1");           // push rbx; jmp rsi
  CHECK(shown(Code({"53 48 89 e3 5b ff 67 08"}).plan()) == "l5");  // push rbx; mov rbx,rsp; pop rbx; jmp [rdi+8]
  CHECK(shown(Code({"55 48 89 e5 48 83 e4 e0 c9 ff e6"}).plan()) == "l9");  // a frame, aligned; leave; jmp rsi
}

TEST_CASE("a jump to the function's own first instruction is no exit") {
  const ExitPlan plan = Code({"48 ff cf 75 fb c3"}).plan();  // dec rdi; jne 0x1000; ret
  CHECK(shown(plan) == "r5");
  CHECK(plan.loops_to_entry);
}

// Functions that stand right behind each other, without padding.
struct Adjacent : Code {
  explicit Adjacent(const std::vector<std::string>& functions) : Code({}) {
    for (const std::string& hex : functions) {
      const auto code = test::from_hex(hex);
      ranges.push_back({kText + bytes.size(), kText + bytes.size() + code.size()});
      bytes.insert(bytes.end(), code.begin(), code.end());
    }
    const CodeSegment text{kText, bytes};
    flow = x86_64::analyse_code({{&text, 1}, {}, ranges, {}, false});
  }
};

TEST_CASE("a function that runs on into the next one is refused") {
  // cmp rdx,rcx; jb -> 0x1000 + 0x20; | mov rax,rdi; ret: as glibc's __memcpy_chk does
  Adjacent code({"48 39 d1 72 1b", "48 89 f8 c3"});
  code.named.insert(kText + 5);
  CHECK(code.plan().refusal == ExitRefusal::runs_on);
  CHECK(code.plan().where == kText + 3);
  CHECK(shown(code.plan(kText + 5)) == "r8");
  // test dil,1; jz +1; ret; nop | ret
  code = Adjacent({"40 f6 c7 01 74 01 c3 90", "c3"});
  code.named.insert(kText + 8);
  CHECK(code.plan().refusal == ExitRefusal::runs_on);
  CHECK(code.plan().where == kText + 7);
  // The same into padding, and into the end of the text.
  CHECK(Code({"85 ff 74 01 c3 31 c0", "c3"}).plan().refusal == ExitRefusal::runs_on);
  CHECK(Adjacent({"85 ff 74 01 c3 31 c0"}).plan().refusal == ExitRefusal::runs_on);
  // push rbx; test edi,edi; je +2; pop rbx; ret; pop rbx | ret: the height behind the last instruction counts
  code = Adjacent({"53 85 ff 74 02 5b c3 5b", "c3"});
  code.named.insert(kText + 8);
  CHECK(code.plan().refusal == ExitRefusal::runs_on);
}

TEST_CASE("what runs on into a part of the same function goes on there") {
  // push rbx; test edi,edi | pop rbx; ret
  Adjacent code({"53 85 ff", "5b c3"});
  CHECK(shown(code.plan()) == "r4");
  CHECK(code.plan().body.size() == 2);
  code.named.insert(kText + 3);
  CHECK(shown(code.plan()) == "r4");
  CHECK(shown(Adjacent({"85 ff", "31 c0 c3"}).plan()) == "r4");  // nobody calls it: test edi,edi | xor eax,eax; ret
}

TEST_CASE("a function may end in a call or a trap") {
  const auto ends = [](const std::string& hex) {
    Adjacent code({"85 ff 74 01 c3" + hex, "c3"});  // test edi,edi; je +1; ret; ...
    for (const CodeRange& range : code.ranges) code.named.insert(range.begin);
    return shown(code.plan());
  };
  CHECK(ends("e8 00 10 00 00") == "r4");     // call
  CHECK(ends("ff d0") == "r4");              // call rax
  CHECK(ends("e8 00 10 00 00 90") == "r4");  // call; nop, as in Go
  CHECK(ends("ff d0 cc") == "r4");           // call rax; int3
  CHECK(ends("ff d0 cd 03") == "r4");        // call rax; int 3
  CHECK(ends("0f 0b") == "r4");              // ud2
  CHECK(ends("f4") == "r4");                 // hlt
  CHECK(ends("ff d0 48 89 c0") != "r4");     // call rax; mov rax,rax
  CHECK(ends("74 02 ff d0 90") != "r4");     // je to the nop; call rax; nop
}

TEST_CASE("a function that jumps to where it was called from, off the stack, is refused") {
  // test edi,edi; je +1; ret; pop rcx; jmp rcx
  CHECK(Code({"85 ff 74 01 c3 59 ff e1"}).plan().refusal == ExitRefusal::odd_return);
  CHECK(Code({"85 ff 74 01 c3 59 ff e1"}).plan().where == kText + 6);
  // mov rcx,[rsp]; add rsp,8; jmp rcx
  CHECK(Code({"48 8b 0c 24 48 83 c4 08 ff e1"}).plan().refusal == ExitRefusal::odd_return);
  // pop rcx; jmp 0x1040: what is there jumps to rcx
  Code away({"59 e9 3a 00 00 00", "ff e1"});
  away.named.insert(kText + 0x40);
  CHECK(away.plan().refusal == ExitRefusal::odd_return);
  // push rbx; pop rcx; jmp rcx: a tail call
  CHECK(shown(Code({"53 59 ff e1"}).plan()) == "l2");
  // mov rax,[rsp+8]; jmp rax: to an argument
  CHECK(shown(Code({"48 8b 44 24 08 ff e0"}).plan()) == "l5");
}

TEST_CASE("a switch of stacks that jumps to what it finds on the other one is refused") {
  // push rbp; mov [rdi],rsp; mov rsp,rsi; pop rbp; pop r8; jmp r8
  CHECK(Code({"55 48 89 27 48 89 f4 5d 41 58 41 ff e0"}).plan().refusal == ExitRefusal::odd_return);
  // mov rsp,rdi; mov r8,[rsp+0x38]; lea rsp,[rsp+0x40]; mov rdx,rsi; jmp r8: as boost.context does
  CHECK(Code({"48 89 fc 4c 8b 44 24 38 48 8d 64 24 40 48 89 f2 41 ff e0"}).plan().refusal == ExitRefusal::odd_return);
  // mov rsp,rdi; pop rax; mov rcx,rax; jmp rcx
  CHECK(Code({"48 89 fc 58 48 89 c1 ff e1"}).plan().refusal == ExitRefusal::odd_return);
  // mov rsp,rdi; jmp [rsp]
  CHECK(Code({"48 89 fc ff 24 24"}).plan().refusal == ExitRefusal::odd_return);
  // mov rsp,rdi; pop rax; mov rax,rsi; jmp rax: where longjmp goes isn't on the stack
  CHECK(shown(Code({"48 89 fc 58 48 89 f0 ff e0"}).plan()) == "l7");
}

TEST_CASE("functions whose exits aren't all known are refused") {
  CHECK(Code({"0f 0b"}).plan().refusal == ExitRefusal::no_exit);                       // ud2
  CHECK(Code({"90 06 c3"}).plan().refusal == ExitRefusal::not_decoded);                // no instruction
  CHECK(Code({"c3"}).plan(kText + 0x20).refusal == ExitRefusal::no_function);          //
  CHECK(Code({"48 8d 04 f8 ff e0"}).plan().refusal == ExitRefusal::not_understood);    // lea rax,[rax+rdi*8]; jmp rax
  CHECK(Code({"85 ff 75 01 b8 c3 00 00 00 c3"}).plan().refusal != ExitRefusal::none);  // into the middle of mov
  CHECK(Code({"53 e9 fa 0f 00 00"}).plan().refusal == ExitRefusal::odd_jump);          // push rbx; jmp to nothing
}

}  // namespace
}  // namespace x86_64
}  // namespace probed::arch
