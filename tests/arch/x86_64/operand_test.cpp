// Operands as compilers write them into the notes of static probes.
#include "arch/operand.hpp"

#include <doctest/doctest.h>

#include <string>

#include "arch/x86_64/regs.hpp"

namespace probed::arch::x86_64 {
namespace {

using Kind = Operand::Kind;

Operand parsed(const char* text) {
  const auto operand = parse_operand(text);
  REQUIRE_MESSAGE(operand, text);
  return *operand;
}

}  // namespace

TEST_CASE("registers are read by every one of their names, with the part that the name means") {
  struct Row {
    const char* text;
    const char* reg;
    unsigned bits, shift;
  };
  const Row rows[] = {{"%rax", "ax", 64, 0},   {"%eax", "ax", 32, 0}, {"%ax", "ax", 16, 0}, {"%al", "ax", 8, 0},
                      {"%ah", "ax", 8, 8},     {"%dh", "dx", 8, 8},   {"%sil", "si", 8, 0}, {"%edi", "di", 32, 0},
                      {"%rbp", "bp", 64, 0},   {"%spl", "sp", 8, 0},  {"%r8", "r8", 64, 0}, {"%r8d", "r8", 32, 0},
                      {"%r15w", "r15", 16, 0}, {"%r12b", "r12", 8, 0}};
  for (const Row& row : rows) {
    CAPTURE(row.text);
    const Operand operand = parsed(row.text);
    CHECK(operand.kind == Kind::value);
    CHECK(operand.base == register_offset(row.reg));
    CHECK(operand.bits == row.bits);
    CHECK(operand.shift == row.shift);
  }
}

TEST_CASE("memory operands are base, index, scale, displacement and a symbol, each of which may lack") {
  struct Row {
    const char* text;
    const char *base, *index;
    unsigned scale;
    long long number;
    const char* symbol;
  };
  const Row rows[] = {{"(%rdi)", "di", "", 0, 0, ""},
                      {"-16(%rbp)", "bp", "", 0, -16, ""},
                      {"0x10(%rsp)", "sp", "", 0, 16, ""},
                      {"(%rax,%rbx,8)", "ax", "bx", 3, 0, ""},
                      {"-4(%rax,%rbx,4)", "ax", "bx", 2, -4, ""},
                      {"8(,%r9,2)", "", "r9", 1, 8, ""},
                      {"(%rax,%rbx)", "ax", "bx", 0, 0, ""},
                      {"NBuffers(%rip)", "", "", 0, 0, "NBuffers"},
                      {"52+CheckpointStats(%rip)", "", "", 0, 52, "CheckpointStats"},
                      {"CheckpointStats+52(%rip)", "", "", 0, 52, "CheckpointStats"},
                      {"buf-8(%rip)", "", "", 0, -8, "buf"},
                      {"table(,%rcx,8)", "", "cx", 3, 0, "table"},
                      {"absolute", "", "", 0, 0, "absolute"}};
  for (const Row& row : rows) {
    CAPTURE(row.text);
    const Operand operand = parsed(row.text);
    CHECK(operand.kind == Kind::memory);
    CHECK(operand.base == (*row.base ? register_offset(row.base) : std::nullopt));
    CHECK(operand.index == (*row.index ? register_offset(row.index) : std::nullopt));
    CHECK(operand.scale == row.scale);
    CHECK(static_cast<long long>(operand.number) == row.number);
    CHECK(operand.symbol == row.symbol);
  }
}

TEST_CASE("constants are numbers; vector registers are known for what they are") {
  CHECK(parsed("$5").number == 5);
  CHECK(static_cast<long long>(parsed("$-5").number) == -5);
  CHECK(parsed("$0x7f").number == 0x7f);
  CHECK(parsed("$5").kind == Kind::constant);
  for (const char* text : {"%xmm0", "%ymm15", "%xmm16", "%st(1)"}) CHECK(parsed(text).kind == Kind::vector);
  CHECK(parsed("%xmm3").number == 3);
  CHECK(parsed("%ymm15").number == 15);
  CHECK(parsed("%xmm15").bits == 64);
  CHECK(parsed("%xmm16").bits == 0);
  CHECK(parsed("%st(1)").bits == 0);
}

TEST_CASE("what isn't understood is refused") {
  for (const char* text : {"", "%", "%nope", "$", "$x", "(%edi)", "(%rax", "8(", "4(%rip)", "(%rax,%rbx,3)", "()",
                           "(%rax,)", "a+b(%rip)", "%ip", "(%rax,%rbx,8,1)", "--4(%rax)"}) {
    CAPTURE(std::string(text));
    CHECK_FALSE(parse_operand(text));
  }
}

}  // namespace probed::arch::x86_64
