// Fetch programs: what every argument reads from a stopped thread, and what becomes null.
#include <doctest/doctest.h>

#include <array>
#include <limits>
#include <string>

#include "tests/unit/lang/support.hpp"

namespace probed::events {
namespace {

using test::FakeMemory;
using test::Packed;
using test::Registers;

// A thread with recognisable registers and a little memory.
struct Fixture {
  Registers regs{};
  FakeMemory memory;
  values::CommonFields common{100, 101, 3, "worker"};
  CompileContext context;

  Fixture() {
    test::set_argument(regs, 1, 0x1000);
    test::set_argument(regs, 2, 0xfffffffffffffff0);
    test::set_argument(regs, 3, 0x8182838485868788);
    regs.set_sp(0x7000);
    for (std::uint64_t i = 0; i < 8; ++i) memory.put_value<std::uint64_t>(0x7000 + i * 8, 0x100 + i);
    memory.put_value<std::uint64_t>(0x1000, 0x2000);
    memory.put_value<std::uint64_t>(0x1008, 0x2010);
    memory.put_value<std::uint64_t>(0x1010, 0x666000);  // a bad pointer
    memory.put_string(0x2000, "hello");
    memory.put_string(0x2010, "");
    memory.put_value<std::uint32_t>(0x3000, 0xfffffffe);
    context.resolve_data = [](std::string_view name) -> Result<RemoteAddr> {
      if (name == "counter") return RemoteAddr{0x3000};
      return Error{Reason::no_such_symbol, "no such symbol", "", std::nullopt};
    };
    context.file_bias = 0x2000;
  }

  std::vector<std::byte> run(const std::string& text, std::size_t room = kMaxArgumentBytes, bool is_return = false) {
    const auto args = test::parse_args(text, is_return);
    REQUIRE_FALSE(args.empty());
    context.is_return = is_return;
    auto program = FetchProgram::compile(args, context);
    REQUIRE(program.ok());
    std::vector<std::byte> out(room);
    out.resize(program->run(regs, memory, common, out));
    return out;
  }
};

std::uint64_t number_of(const std::vector<std::byte>& packed) {
  values::PackedReader reader(packed);
  REQUIRE(reader.present());
  return reader.value();
}

std::vector<FetchOp::Code> codes_of(const FetchProgram& program) {
  std::vector<FetchOp::Code> codes;
  for (const FetchOp& op : program.ops()) codes.push_back(op.code);
  return codes;
}

constexpr std::uint64_t negative(std::int64_t value) { return static_cast<std::uint64_t>(value); }

}  // namespace

TEST_CASE_FIXTURE(Fixture, "values come from registers, the stack, memory, symbols and immediates") {
  struct Row {
    std::string text;
    std::uint64_t value;
  };
  const Row rows[] = {
      {test::first_register(), 0x1000},
      {"$arg1", 0x1000},
      {"$arg2", 0xfffffffffffffff0},
      {"$stack", 0x7000},
      {"$stack0", 0x100},
      {"$stack7", 0x107},
      {"$stack1:u8", 0x01},
      {"@0x1000", 0x2000},
      {"@0x3000:s32", negative(-2)},
      {"@counter:u32", 0xfffffffe},
      {"@counter-0x1ff8", 0x2010},
      {"@+0x1000:u16", 0xfffe},
      {"+0($arg1)", 0x2000},
      {"+8($arg1)", 0x2010},
      {"-8(+8($arg1)):u8", 0},
      {"+0(+0($arg1)):u8", 'h'},
      {"+u4(+0($arg1)):u8", 'o'},
      {"+0x1010($arg2):u64", 0x2000},
      {"\\42", 42},
      {"\\-1:s8", negative(-1)},
      {"\\-1:u16", 0xffff},
      {"+0(\\0x1000)", 0x2000},
  };
  for (const Row& row : rows) {
    CAPTURE(row.text);
    if (row.text == "-8(+8($arg1)):u8" || row.text == "+0x1010($arg2):u64") continue;  // see below
    CHECK(number_of(run(row.text)) == row.value);
  }
  memory.put_value<std::uint8_t>(0x2008, 0x77);
  CHECK(number_of(run("-8(+8($arg1)):u8")) == 0x77);
  CHECK(number_of(run("+0x1010($arg2):u64")) == 0x2000);  // addresses wrap as the CPU's do
}

TEST_CASE_FIXTURE(Fixture, "$retval is the return register, on return probes only") {
  std::uint64_t value = negative(-5);
  std::memcpy(reinterpret_cast<std::byte*>(&regs) + arch::native::kReturnValueOffset, &value, sizeof value);
  CHECK(number_of(run("$retval:s32", kMaxArgumentBytes, true)) == negative(-5));
  const auto args = test::parse_args("$retval", true);
  context.is_return = false;
  auto program = FetchProgram::compile(args, context);
  REQUIRE_FALSE(program.ok());
  CHECK(program.error().reason == Reason::bad_definition);
  CHECK(program.error().column == 8);
}

TEST_CASE_FIXTURE(Fixture, "arguments beyond the registers are read from the stack") {
  const unsigned first_on_stack = arch::native::kRegisterArguments + 1;
  const auto place = arch::native::argument_place(first_on_stack);
  REQUIRE(place.memory);
  CHECK(number_of(run("$arg" + std::to_string(first_on_stack))) == 0x100 + place.offset / 8);
}

TEST_CASE_FIXTURE(Fixture, "every integer type takes its own bytes and extends them") {
  const std::uint64_t word = 0x8182838485868788;
  memory.put_value(0x4000, word);
  test::set_argument(regs, 1, word);
  struct Row {
    const char* type;
    std::uint64_t value;
  };
  const Row rows[] = {
      {"u8", 0x88},
      {"u16", 0x8788},
      {"u32", 0x85868788},
      {"u64", word},
      {"x8", 0x88},
      {"x16", 0x8788},
      {"x32", 0x85868788},
      {"x64", word},
      {"s8", 0xffffffffffffff88},
      {"s16", 0xffffffffffff8788},
      {"s32", 0xffffffff85868788},
      {"s64", word},
      {"char", 0x88},
      {"symbol", word},
      {"b1@0/8", 0},
      {"b1@3/8", 1},
      {"b4@4/8", 8},
      {"b8@0/8", 0x88},
      {"b7@1/8", 0x44},
      {"b12@4/16", 0x878},
      {"b31@1/32", 0x42c343c4},
      {"b64@0/64", word},
      {"b1@63/64", 1},
      {"b16@40/64", 0x8283},
  };
  for (const Row& row : rows) {
    CAPTURE(row.type);
    CHECK(number_of(run(std::string("$arg1:") + row.type)) == row.value);
    CHECK(number_of(run(std::string("@0x4000:") + row.type)) == row.value);
  }
}

TEST_CASE_FIXTURE(Fixture, "memory is read for exactly the type's size") {
  memory.put_value<std::uint8_t>(0x5fff, 0x7f);  // the last readable byte
  CHECK(number_of(run("@0x5fff:u8")) == 0x7f);
  CHECK(run("@0x5fff:u16") == Packed().null().bytes());
  CHECK(run("@0x5fff") == Packed().null().bytes());
}

TEST_CASE_FIXTURE(Fixture, "what can't be read is null, and the others are not touched by it") {
  CHECK(run("$arg1 @0x9999 $arg2") == Packed().number(0x1000).null().number(0xfffffffffffffff0).bytes());
  CHECK(run("+0(+0(+0($arg2))) $arg1") == Packed().null().number(0x1000).bytes());
  CHECK(run("+0(+16($arg1)):string") == Packed().null().bytes());
  CHECK(run("$stack99999") == Packed().null().bytes());
}

TEST_CASE_FIXTURE(Fixture, "strings") {
  CHECK(run("+0(+0($arg1)):string") == Packed().text("hello").bytes());
  CHECK(run("+0(+8($arg1)):ustring") == Packed().text("").bytes());
  CHECK(run("@0x2001:string") == Packed().text("ello").bytes());
  CHECK(run("\\0x2000:string") == Packed().text("hello").bytes());
  CHECK(run("$comm \\\"abc\"") == Packed().text("worker").text("abc").bytes());
  memory.put(0x6000, "runs off", 8);  // no NUL before unreadable memory
  CHECK(run("@0x6000:string") == Packed().null().bytes());
  memory.put_string(0x8000, std::string(kMaxString + 100, 'x'));
  CHECK(run("@0x8000:string") == Packed().text(std::string(kMaxString, 'x')).bytes());
}

TEST_CASE_FIXTURE(Fixture, "arrays") {
  CHECK(run("+0($arg1):u64[2]") == Packed().array(2).number(0x2000).number(0x2010).bytes());
  CHECK(run("@0x2000:char[3]") == Packed().array(3).number('h').number('e').number('l').bytes());
  CHECK(run("@0x3000:s16[2]") == Packed().array(2).number(negative(-2)).number(negative(-1)).bytes());
  CHECK(run("@0x2000:b4@4/8[2]") == Packed().array(2).number(6).number(6).bytes());
  CHECK(run("+0($arg1):string[3]") == Packed().array(3).text("hello").text("").null().bytes());
}

TEST_CASE_FIXTURE(Fixture, "an array that runs into unreadable memory keeps what can be read") {
  memory.put_value<std::uint32_t>(0x6000, 7);
  memory.put_value<std::uint32_t>(0x6008, 9);
  CHECK(run("@0x6000:u32[3] $arg1") == Packed().array(3).number(7).null().number(9).number(0x1000).bytes());
  CHECK(run("@0x9999:u8[2]") == Packed().array(2).null().null().bytes());
  CHECK(run("+0(+0($arg2)):u8[2]") == Packed().null().bytes());
  CHECK(run("@0x9998:string[2]") == Packed().array(2).null().null().bytes());
}

TEST_CASE_FIXTURE(Fixture, "a readable array costs one read") {
  const auto args = test::parse_args("@0x7000:u64[8]");
  auto program = FetchProgram::compile(args, context);
  REQUIRE(program.ok());
  std::array<std::byte, 256> out;
  memory.reads = 0;
  program->run(regs, memory, common, out);
  CHECK(memory.reads == 1);
}

TEST_CASE_FIXTURE(Fixture, "what doesn't fit is null, and later arguments still get their place") {
  const std::string text = "$arg1 +0(+0($arg1)):string @0x7000:u64[8] $arg2";
  const auto whole = run(text);
  CHECK(whole == Packed()
                     .number(0x1000)
                     .text("hello")
                     .array(8)
                     .number(0x100)
                     .number(0x101)
                     .number(0x102)
                     .number(0x103)
                     .number(0x104)
                     .number(0x105)
                     .number(0x106)
                     .number(0x107)
                     .number(0xfffffffffffffff0)
                     .bytes());
  CHECK(run(text, 4) == Packed().null().null().null().null().bytes());
  CHECK(run(text, 9 + 3) == Packed().number(0x1000).null().null().null().bytes());
  CHECK(run(text, 9 + 8 + 1 + 2) == Packed().number(0x1000).text("hello").null().null().bytes());
  CHECK(run(text, 9 + 8 + 2) == Packed().number(0x1000).null().null().null().bytes());  // might be cut: not kept
  CHECK(run(text, 9 + 9 + 1 + 9) == Packed().number(0x1000).text("hello").null().number(0xfffffffffffffff0).bytes());
  for (std::size_t room = 4; room < whole.size(); ++room) {
    CAPTURE(room);
    const auto packed = run(text, room);
    CHECK(packed.size() <= room);
    values::PackedReader reader(packed);
    const auto args = test::parse_args(text);
    for (const auto& arg : args) reader.skip(arg.type);
    CHECK(reader.rest().empty());
  }
}

TEST_CASE_FIXTURE(Fixture, "no event is larger than an event may be") {
  std::string text;
  for (int i = 0; i < 20; ++i) text += " @0x8000:string";
  memory.put_string(0x8000, std::string(kMaxString, 'x'));
  const auto packed = run(text, 100000);
  CHECK(packed.size() <= kMaxArgumentBytes);
  CHECK(packed.size() > kMaxArgumentBytes - kMaxString);
}

TEST_CASE_FIXTURE(Fixture, "what can't be compiled is refused where it stands") {
  struct Row {
    const char* text;
    Reason reason;
    std::size_t column;
  };
  const Row rows[] = {
      {"%nope", Reason::bad_definition, 8},    {"a=+8(%nope)", Reason::bad_definition, 13},
      {"@nothing", Reason::no_such_symbol, 8}, {"+0(@nothing)", Reason::no_such_symbol, 11},
      {"x", Reason::unsupported, 8},           {"n=p->len:u32", Reason::unsupported, 10},
      {"$args", Reason::unsupported, 8},
  };
  for (const Row& row : rows) {
    CAPTURE(row.text);
    const auto args = test::parse_args(row.text);
    REQUIRE_FALSE(args.empty());
    auto program = FetchProgram::compile(args, context);
    REQUIRE_FALSE(program.ok());
    CHECK(program.error().reason == row.reason);
    CHECK(program.error().column == row.column);
  }
  auto unknown = FetchProgram::compile(test::parse_args("%nope"), context);
  CHECK(unknown.error().hint.find(test::first_register()) != std::string::npos);
}

TEST_CASE_FIXTURE(Fixture, "$argN is refused away from a function's entry") {
  const auto args = test::parse_args("$arg1");
  context.at_function_entry = false;
  CHECK_FALSE(FetchProgram::compile(args, context).ok());
  context.at_function_entry = true;
  context.is_return = true;
  CHECK_FALSE(FetchProgram::compile(args, context).ok());
}

TEST_CASE_FIXTURE(Fixture, "without a file or a symbol table, what needs them is unsupported") {
  context = {};
  for (const char* text : {"@+0x10", "@counter"}) {
    CAPTURE(text);
    auto program = FetchProgram::compile(test::parse_args(text), context);
    REQUIRE_FALSE(program.ok());
    CHECK(program.error().reason == Reason::unsupported);
    CHECK(program.error().column == 8);
  }
}

TEST_CASE_FIXTURE(Fixture, "the compiled form is flat: loads, dereferences, one store for each argument") {
  using Code = FetchOp::Code;
  auto program =
      FetchProgram::compile(test::parse_args("$arg1:s8 +8(+0($arg1)):u32 $comm \\\"x\" +0($stack0):string"), context);
  REQUIRE(program.ok());
  CHECK(codes_of(*program) == std::vector<Code>{Code::load_register, Code::store_value, Code::load_register,
                                                Code::dereference, Code::store_memory, Code::store_comm,
                                                Code::store_text, Code::load_stack_pointer, Code::dereference,
                                                Code::store_string});
  CHECK(program->needs_comm());
  CHECK_FALSE(FetchProgram::compile(test::parse_args("$arg1"), context)->needs_comm());
}

namespace {

using Step = values::PlaceStep::Code;

values::Placement in_memory(std::uint64_t address) {
  values::Placement place;
  place.steps.push_back({Step::load_immediate, 8, 0, address});
  place.in_memory = true;
  return place;
}

// A vector whose two pointers lie at 0x4000 and 0x4008, of elements of 4 bytes; the index-th is at 0x5000 + 4 * index.
lang::FetchArg element(std::uint64_t index, std::shared_ptr<const values::Guard> outer = nullptr) {
  values::Placement place, begin = in_memory(0x4000), end = in_memory(0x4008);
  place.steps = {{Step::load_immediate, 8, 0, 0x4000}, {Step::dereference, 8, 0, 0}};
  place.offset = 4 * index;
  place.in_memory = true;
  end.guard = std::move(outer);
  place.guard = std::make_shared<const values::Guard>(
      values::Guard{std::move(end), 8, 4 * (index + 1), std::make_shared<const values::Placement>(std::move(begin))});
  lang::FetchArg arg;
  arg.name = "element";
  arg.type.base = values::BaseType::s32;
  lang::PlacedExpr node;
  node.place = std::make_shared<const values::Placement>(std::move(place));
  node.size = 4;
  arg.expr = std::make_shared<const lang::FetchExpr>(lang::FetchExpr{std::move(node), 0});
  return arg;
}

}  // namespace

TEST_CASE_FIXTURE(Fixture, "an element is there when its vector's end is behind it, else null; so without a vector") {
  for (std::uint64_t i = 0; i < 4; ++i) memory.put_value<std::uint32_t>(0x5000 + 4 * i, static_cast<std::uint32_t>(i));
  const auto of = [&](const lang::FetchArg& arg) -> std::optional<std::uint64_t> {
    auto program = FetchProgram::compile(std::span(&arg, 1), context);
    REQUIRE(program.ok());
    std::vector<std::byte> out(kMaxArgumentBytes);
    out.resize(program->run(regs, memory, common, out));
    values::PackedReader reader(out);
    return reader.present() ? std::optional(reader.value()) : std::nullopt;
  };
  CHECK_FALSE(of(element(0)));  // neither pointer can be read
  memory.put_value<std::uint64_t>(0x4000, 0x5000);
  CHECK_FALSE(of(element(0)));  // nor the end
  memory.put_value<std::uint64_t>(0x4008, 0x5000);
  CHECK_FALSE(of(element(0)));
  memory.put_value<std::uint64_t>(0x4008, 0x500b);  // two elements, and a part of one
  CHECK(of(element(0)) == 0);
  CHECK(of(element(1)) == 1);
  CHECK_FALSE(of(element(2)));
  memory.put_value<std::uint64_t>(0x4008, 0x500c);
  CHECK(of(element(2)) == 2);
  CHECK_FALSE(of(element(3)));
  memory.put_value<std::uint64_t>(0x4008, 0x4000);  // before its beginning
  CHECK_FALSE(of(element(0)));
  memory.put_value<std::uint64_t>(0x4008, 0x500c);
  const auto flag = [](std::uint64_t value) {
    return std::make_shared<const values::Guard>(values::Guard{in_memory(0x1000), 8, value});
  };
  CHECK(of(element(2, flag(0x2000))) == 2);
  CHECK_FALSE(of(element(2, flag(0x2001))));
}

TEST_CASE_FIXTURE(Fixture, "what says whether an element is there is compared before the element is looked at") {
  using Code = FetchOp::Code;
  const lang::FetchArg arg = element(1);
  auto program = FetchProgram::compile(std::span(&arg, 1), context);
  REQUIRE(program.ok());
  CHECK(codes_of(*program) == std::vector<Code>{Code::load_immediate, Code::dereference, Code::keep_begin,
                                                Code::load_immediate, Code::dereference, Code::require_room,
                                                Code::load_immediate, Code::dereference, Code::dereference,
                                                Code::store_value});
  CHECK(program->ops()[5].operand == 8);
}

TEST_CASE_FIXTURE(Fixture, "a program without arguments writes nothing") {
  auto program = FetchProgram::compile({}, context);
  REQUIRE(program.ok());
  CHECK(program->run(regs, memory, common, {}) == 0);
}

}  // namespace probed::events
