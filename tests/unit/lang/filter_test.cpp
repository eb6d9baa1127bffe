// Filters: the kernel's filter language over arguments and common fields.
#include "daemon/lang/filter.hpp"

#include <doctest/doctest.h>

#include <string>

#include "daemon/lang/filter_program.hpp"
#include "tests/unit/lang/support.hpp"

namespace probed::lang {
namespace {

using test::Packed;

constexpr const char* kArgs =
    "u=%di:u8 s=%di:s8 x=%di u32=%di:u32 s32=%di:s32 str=@1:string ch=%di:char b=%di:b3@1/8 n=%di sn=@1:string "
    "a=@1:u8[2] sy=%di:symbol s64=%di:s64";

struct Event {
  std::vector<FetchArg> args = test::parse_args(kArgs);
  std::vector<std::byte> packed = Packed()
                                      .number(200)                              // u
                                      .number(static_cast<std::uint64_t>(-56))  // s
                                      .number(0xffffffffffffffff)               // x
                                      .number(7)                                // u32
                                      .number(static_cast<std::uint64_t>(-7))   // s32
                                      .text("GET /index.html")                  // str
                                      .number('A')                              // ch
                                      .number(5)                                // b
                                      .null()                                   // n
                                      .null()                                   // sn
                                      .array(2)
                                      .number(1)
                                      .number(2)                   // a
                                      .number(0x401000)            // sy
                                      .number(0x8000000000000000)  // s64
                                      .bytes();
  values::CommonFields common{100, 101, 3, "redis-server"};

  int operator()(const std::string& text) const {
    auto filter = Filter::compile(text, args);
    if (!filter) {
      MESSAGE(filter.error().message);
      return -1;
    }
    return filter->matches(packed, common) ? 1 : 0;
  }
};

struct Row {
  const char* text;
  bool matches;
};

}  // namespace

TEST_CASE("where the code isn't loaded yet, what debug information will say of a variable is left open") {
  const auto args = test::parse_args("k name=p->text n=%di:u8 v=q->x:u8 d=+0(q)");
  for (const std::string text : {"k == -1", "k == BLUE", "name == \"x\"", "name ~ x*", "k.part[2].x == 'c'",
                                 "k & 4 || !k", "k == -1 && n == 3", "name != CPUS{1}", "!name"}) {
    CAPTURE(text);
    const auto filter = Filter::compile(text, args);
    CHECK_MESSAGE(filter.ok(), (filter.ok() ? "" : filter.error().message));
    if (text != "!name" && text != "k & 4 || !k" && text != "name != CPUS{1}")
      CHECK_FALSE(Filter::compile(text, args, false, 0x401000).ok());
  }
  for (const std::string text :
       {"k ==", "k == \"x", "kk == 1", "k === 1", "n == -1", "v == x", "d == -1", "k == 1 &&", "(k == 1", "k[2 == 1"}) {
    CAPTURE(text);
    CHECK_FALSE(Filter::compile(text, args).ok());
  }
  const auto all = test::parse_args("$args n=%di:u8");
  CHECK(Filter::compile("whatever == -1 && n == 3", all).ok());
  CHECK_FALSE(Filter::compile("n == -1", all).ok());
  CHECK_FALSE(Filter::compile("pid == x", all).ok());
  const auto result = parse_definition("r:x f $retval").value().args;
  for (const std::string text : {"$retval == -1", "retval < -5", "arg1 == BLUE"}) {
    const auto filter = Filter::compile(text, result, true);
    CHECK_MESSAGE(filter.ok(), text << (filter.ok() ? "" : filter.error().message));
  }
  CHECK_FALSE(Filter::compile("$retval == -1", result, true, 0x401000).ok());
}

TEST_CASE("numbers compare by their argument's type") {
  const Event event;
  const Row rows[] = {
      {"u == 200", true},       {"u==0xc8", true},
      {"u == 0310", true},      {"u != 200", false},
      {"u > 199", true},        {"u >= 200", true},
      {"u < 200", false},       {"u <= 200", true},
      {"u & 0x8", true},        {"u & 0x1", false},
      {"s == -56", true},       {"s < 0", true},
      {"s > -57", true},        {"s == 127", false},
      {"s == 0xc8", true},      {"s >= 1", false},
      {"s & 0x80", true},       {"x == 0xffffffffffffffff", true},
      {"x > 1", true},          {"x == 18446744073709551615", true},
      {"u32 == 7", true},       {"s32 == -7", true},
      {"s32 < 1", true},        {"s32 == 0xfffffff9", true},
      {"b == 5", true},         {"b & 4", true},
      {"sy == 0x401000", true}, {"s64 == -9223372036854775808", true},
      {"s64 < 0", true},        {"s64 == -0x8000000000000000", true},
      {"ch == 65", true},       {"ch == 'A'", true},
      {"ch != \"B\"", true},    {"ch < 0x42", true},
  };
  for (const Row& row : rows) {
    CAPTURE(row.text);
    CHECK(event(row.text) == static_cast<int>(row.matches));
  }
}

TEST_CASE("strings compare whole or by glob") {
  const Event event;
  const Row rows[] = {
      {"str == \"GET /index.html\"", true},
      {"str == 'GET /index.html'", true},
      {"str == 'GET'", false},
      {"str != 'GET'", true},
      {"str != GET", true},
      {"str ~ 'GET*'", true},
      {"str ~ \"*index*\"", true},
      {"str ~ *html", true},
      {"str ~ 'GET /[a-z]*.htm?'", true},
      {"str ~ 'GET /[!a-z]*'", false},
      {"str ~ '!GET*'", false},
      {"str ~ '!POST*'", true},
      {"str ~ 'GET'", false},
      {"str ~ ''", false},
      {"comm == redis-server", true},
      {"comm ~ 'redis*'", true},
      {"COMM == \"redis-server\"", true},
  };
  for (const Row& row : rows) {
    CAPTURE(row.text);
    CHECK(event(row.text) == static_cast<int>(row.matches));
  }
}

TEST_CASE("common fields") {
  const Event event;
  const Row rows[] = {
      {"pid == 100", true}, {"tid == 101", true}, {"common_pid == 101", true}, {"cpu == 3", true},
      {"CPU != 3", false},  {"pid > -1", true},   {"cpu & 2", true},
  };
  for (const Row& row : rows) {
    CAPTURE(row.text);
    CHECK(event(row.text) == static_cast<int>(row.matches));
  }
}

TEST_CASE("a number alone is one that isn't 0, behind ! one that is; null is neither") {
  const Event event;
  const Row rows[] = {
      {"u", true},        {"!u", false}, {"!!u", true},      {"n", false},           {"!n", false},
      {"!(n)", true},     {"(u)", true}, {"u && s32", true}, {"!u || s32", true},    {"!u && s32", false},
      {"u && !n", false}, {"cpu", true}, {"!cpu", false},    {"!(u && s32)", false}, {" ! u || u == 3", false},
      {"b && ch", true},
  };
  for (const Row& row : rows) {
    CAPTURE(row.text);
    CHECK(event(row.text) == static_cast<int>(row.matches));
  }
  for (const char* text : {"str", "!comm", "u s", "!", "u &&", "a"}) {
    CAPTURE(text);
    CHECK_FALSE(Filter::compile(text, event.args).ok());
  }
}

TEST_CASE("sets of processors are asked for as in the kernel") {
  const Event event;  // on cpu 3
  const Row rows[] = {
      {"cpu & CPUS{3}", true},        {"CPU & CPUS{0-2}", false},  {"cpu & CPUS{0-1,3-5}", true},
      {"cpu & CPUS{0,2,4}", false},   {"cpu == CPUS{3}", true},    {"cpu != CPUS{3}", false},
      {"cpu == CPUS{3-4}", false},    {"cpu != CPUS{3-4}", true},  {"u32 & CPUS{6-8}", true},
      {"s32 & CPUS{0-8}", false},     {"s32 != CPUS{0-8}", true},  {"n & CPUS{0-8}", false},
      {"n != CPUS{0-8}", false},      {"!(cpu & CPUS{3})", false}, {"cpu & CPUS{1,3} && u == 200", true},
      {"cpu & CPUS{1-2} || u", true},
  };
  for (const Row& row : rows) {
    CAPTURE(row.text);
    CHECK(event(row.text) == static_cast<int>(row.matches));
  }
  for (const char* text : {"cpu & CPUS{}", "cpu & CPUS{3", "cpu & CPUS{5-3}", "cpu > CPUS{3}", "comm == CPUS{3}",
                           "cpu & CPUS{a}", "cpu & CPUS{1,}", "cpu & CPUS{99999}", "u & CPUS{0-300}"}) {
    CAPTURE(text);
    CHECK_FALSE(Filter::compile(text, event.args).ok());
  }
}

TEST_CASE("the probe's own address is a field; what only a kernel knows is refused with the reason") {
  const Event event;
  const auto matches = [&](const char* text, bool is_return) {
    auto filter = Filter::compile(text, event.args, is_return, 0x401000);
    REQUIRE_MESSAGE(filter.ok(), text);
    return filter->matches(event.packed, event.common);
  };
  CHECK(matches("__probe_ip == 0x401000", false));
  CHECK_FALSE(matches("__probe_ip != 0x401000", false));
  CHECK(matches("__probe_ip > 0x400fff && u == 200", false));
  CHECK_FALSE(matches("__probe_ip < 0x401000 && u == 200", false));
  CHECK(matches("__probe_func == 0x401000", true));
  CHECK_FALSE(Filter::compile("__probe_ip == 1", event.args, true).ok());
  CHECK_FALSE(Filter::compile("__probe_func == 1", event.args).ok());
  for (const char* text : {"common_type == 1", "common_flags == 0", "common_preempt_count == 0", "stacktrace == 1",
                           "__probe_ret_ip == 1"}) {
    CAPTURE(text);
    const auto refused = Filter::compile(text, event.args, true);
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.error().message.find("isn't there: ") != std::string::npos);
    CHECK(refused.error().column == 0u);
  }
}

TEST_CASE("a return's filter also knows its duration, in 64 bits") {
  Event event;
  event.common.duration = 5'000'000'000;
  const auto matches = [&](const char* text) {
    auto filter = Filter::compile(text, event.args, true);
    REQUIRE(filter.ok());
    return filter->matches(event.packed, event.common);
  };
  CHECK(matches("duration == 5000000000"));
  CHECK(matches("duration > 4999999999 && u == 200"));
  CHECK_FALSE(matches("duration < 705032704"));  // what the low 32 bits are
  CHECK(matches("duration == 5s && duration == 5000ms && duration > 4.999999999s && duration < 5000001us"));
  CHECK(matches("duration > 1.5ms && duration != 5ns && s32 < 1K"));
  for (const char* const wrong : {"duration > 1.5ns", "duration > 1.s", "duration > 5m", "duration > 1.2.3s",
                                  "duration > s", "duration > 18446744073709551616ns", "duration > 64K", "s32 < 1ms"})
    CHECK_FALSE_MESSAGE(Filter::compile(wrong, event.args, true).ok(), wrong);
  CHECK_FALSE(Filter::compile("duration > -1", event.args, true).ok());
  CHECK_FALSE(Filter::compile("duration > 1", event.args).ok());
}

TEST_CASE("arguments shadow common fields") {
  const auto args = test::parse_args("pid=%di comm=@1:u8");
  auto filter = Filter::compile("pid == 5 && comm == 6", args);
  REQUIRE(filter.ok());
  CHECK(filter->matches(Packed().number(5).number(6), {100, 101, 3, "x"}));
  CHECK_FALSE(Filter::compile("comm == 'x'", args).ok());
}

TEST_CASE("&& binds before ||, ! to what follows it") {
  const Event event;
  // T and F are comparisons that are true and false.
  const auto expand = [](std::string text) {
    std::string out;
    for (const char c : text) out += c == 'T' ? "u==200" : c == 'F' ? "u==1" : std::string(1, c);
    return out;
  };
  const Row rows[] = {
      {"T", true},
      {"F", false},
      {"!T", false},
      {"!F", true},
      {"!!T", true},
      {"! ! ! F", true},
      {"T && F", false},
      {"T || F", true},
      {"F || F", false},
      {"T&&T", true},
      {"T || F && F", true},
      {"(T || F) && F", false},
      {"F && F || T", true},
      {"F && (F || T)", false},
      {"!T || T", true},
      {"!(T || T)", false},
      {"!(T && F)", true},
      {"!F && !F", true},
      {"!(!(T))", true},
      {"((((T))))", true},
      {"T && !(F || !T) && T", true},
      {"F || F || F || T", true},
      {"T && T && T && F", false},
      {"!(F || (T && !(T && F)))", false},
      {"  T\t&&\nT  ", true},
  };
  for (const Row& row : rows) {
    CAPTURE(row.text);
    CHECK(event(expand(row.text)) == static_cast<int>(row.matches));
  }
}

TEST_CASE("random expressions evaluate as their truth table says") {
  // Built together with their value, so that the program's jumps have something to be compared with.
  const Event event;
  std::uint32_t state = 12345;
  const auto next = [&state](std::uint32_t n) {
    state = state * 1664525 + 1013904223;
    return (state >> 16) % n;
  };
  struct Built {
    std::string text;
    bool value;
  };
  const auto build = [&](auto&& self, unsigned depth) -> Built {
    if (depth == 0) return next(2) ? Built{"u==200", true} : Built{"u==1", false};
    const Built left = self(self, depth - 1), right = self(self, next(depth));
    const std::string a = "(" + left.text + ")", b = "(" + right.text + ")";
    switch (next(4)) {
      case 0: return {a + "&&" + b, left.value && right.value};
      case 1: return {a + "||" + b, left.value || right.value};
      case 2: return {"!" + a + "||" + b, !left.value || right.value};
      default: return {"!(" + a + "&&!" + b + ")", !(left.value && !right.value)};
    }
  };
  for (int i = 0; i < 2000; ++i) {
    const Built built = build(build, 1 + next(7));
    CAPTURE(built.text);
    REQUIRE(event(built.text) == static_cast<int>(built.value));
  }
}

TEST_CASE("a comparison with a null is false, != too") {
  const Event event;
  const Row rows[] = {
      {"n == 0", false},   {"n != 0", false},
      {"n < 1", false},    {"n & 1", false},
      {"sn == ''", false}, {"sn != 'x'", false},
      {"sn ~ '*'", false}, {"sn ~ '!x'", false},
      {"!(n == 0)", true}, {"n != 0 || u == 200", true},
  };
  for (const Row& row : rows) {
    CAPTURE(row.text);
    CHECK(event(row.text) == static_cast<int>(row.matches));
  }
}

TEST_CASE("a record that is cut off reads as nulls") {
  const Event event;
  auto filter = Filter::compile("str == 'GET /index.html' || s64 < 0 || u == 200", event.args);
  REQUIRE(filter.ok());
  for (std::size_t size = 0; size <= event.packed.size(); ++size)
    static_cast<void>(filter->matches(std::span(event.packed).first(size), event.common));
  CHECK_FALSE(filter->matches({}, event.common));
}

TEST_CASE("an unnamed $retval is $retval, and argN as in the kernel") {
  const auto args = test::parse_args("$retval:s32", true);
  for (const char* text : {"$retval < 0", "retval < 0", "arg1 < 0"}) {
    CAPTURE(text);
    auto filter = Filter::compile(text, args);
    REQUIRE(filter.ok());
    CHECK(filter->matches(Packed().number(static_cast<std::uint64_t>(-1)), {}));
    CHECK_FALSE(filter->matches(Packed().number(1), {}));
  }
}

TEST_CASE("sizes are written as people write them") {
  const std::vector<FetchArg> args = test::parse_args("n=%di:u64 s=%di:s32");
  const auto packed = Packed().number(64 << 10).number(64 << 10).bytes();
  for (const Row& row : {Row{"n == 64K && s == 64K", true}, Row{"n >= 1M", false}, Row{"n < 2G && n != 63K", true}})
    CHECK_MESSAGE(Filter::compile(row.text, args)->matches(packed, {}) == row.matches, row.text);
  for (const char* const wrong :
       {"n == 64k", "n == 0x4K", "n == -1K", "s == 2G", "n == K", "n == 1.5K", "n == 18014398509481984K"})
    CHECK_FALSE_MESSAGE(Filter::compile(wrong, args).ok(), wrong);
}

TEST_CASE("what events show in a number's place can be compared with") {
  auto args = test::parse_args("kind=%di:s32 ok=%si:u8");
  args[0].type.names = std::make_shared<Enumeration>(Enumeration{{{-1, "BAD"}, {2, "ns::MEDIUM"}, {3, "LARGE"}}});
  args[1].type.base = BaseType::boolean;
  const auto matches = [&](const char* text, std::int64_t kind, std::uint64_t ok) {
    auto filter = Filter::compile(text, args);
    REQUIRE_MESSAGE(filter.ok(), text);
    return filter->matches(Packed().number(static_cast<std::uint64_t>(kind)).number(ok).bytes(), {});
  };
  CHECK(matches("kind == ns::MEDIUM", 2, 0));
  CHECK(matches("kind == \"ns::MEDIUM\"", 2, 0));
  CHECK_FALSE(matches("kind == LARGE", 2, 0));
  CHECK(matches("kind > BAD && kind < LARGE", 2, 0));
  CHECK(matches("kind == BAD", -1, 0));
  CHECK(matches("ok == true", 0, 1));
  CHECK(matches("ok == false && ok != true", 0, 0));
  for (const char* text : {"kind == MEDIUM", "kind == true", "ok == BAD"})
    CHECK_FALSE(Filter::compile(text, args).ok());
  CHECK(Filter::compile("kind == SMALL", args).error().hint.find("BAD ns::MEDIUM LARGE") != std::string::npos);
}

TEST_CASE("a filter that was meant for something else says for what") {
  const Event event;
  const auto error = [&](const char* text) {
    const auto filter = Filter::compile(text, event.args);
    REQUIRE_FALSE(filter.ok());
    return filter.error().message + " | " + filter.error().hint;
  };
  const auto says = [](const std::string& text, const char* what) { return text.find(what) != text.npos; };
  CHECK(says(error("duration > 1000"), "return probes only | probe FUNCTION%return"));
  CHECK(says(error("$duration > 1000"), "return probes only"));
  CHECK(says(error("job->id == 3"), "NAME=EXPRESSION"));
  CHECK(says(error("u = 3"), "did you mean ==?"));
  CHECK(says(error("u => 3"), "did you mean >=?"));
  CHECK(says(error("u =< 3"), "did you mean <=?"));
}

TEST_CASE("a number that is too large is said to be, and what is none isn't") {
  const Event event;
  const auto says_range = [&](std::string_view text) {
    const auto filter = Filter::compile(text, event.args);
    return !filter && filter.error().message.find("out of range") != std::string::npos;
  };
  for (const char* text : {"u==99999999999999999999", "s64==-99999999999999999999", "u==0x10000000000000000",
                           "u == 456", "u < 300", "s == 200", "s > -129", "s == 0x100", "u32 < 0x1fffffff1"}) {
    CAPTURE(text);
    CHECK(says_range(text));
  }
  for (const char* text : {"u==08", "u==0x", "u==-1", "u==1x"}) CHECK_FALSE(says_range(text));
}

TEST_CASE("an argument is compared by its name, or as it is written") {
  const std::vector<FetchArg> args = test::parse_args("len=+8(%si):u32 p->in.a:s32 $arg3:u8 *q:u8");
  const auto packed = Packed().number(7).number(static_cast<std::uint64_t>(-2)).number(9).number(4).bytes();
  for (const Row& row : {Row{"len == 7", true}, Row{"a == -2", true}, Row{"p->in.a == -2", true},
                         Row{"p->in.a > 0", false}, Row{"$arg3 == 9 && arg3 == 9", true}, Row{"!(*q != 4)", true},
                         Row{"p->in.a", true}, Row{"!p->in.a || *q == 3", false}}) {
    CAPTURE(row.text);
    const auto filter = Filter::compile(row.text, args);
    REQUIRE_MESSAGE(filter.ok(), filter.error().message);
    CHECK(filter->matches(packed, {}) == row.matches);
  }
  CHECK(Filter::compile("p->in.b == 1", args).error().column == 0u);
  CHECK(Filter::compile("p->in.a:s32 == -2", args)->matches(packed, {}));
  CHECK_FALSE(Filter::compile("len == NULL || $arg3 == nullptr", args)->matches(packed, {}));
  // A structure isn't its first member.
  std::vector<FetchArg> parts = test::parse_args("a=%di b=%si");
  for (FetchArg& part : parts) part.text = "*o", part.path = {"*o", "a"};
  const auto whole = Filter::compile("*o == 7", parts);
  REQUIRE_FALSE(whole.ok());
  CHECK(whole.error().message.find("is a structure") != std::string::npos);
}

TEST_CASE("a definition's own filter and the one that a probe is added with have both to be passed") {
  const auto definition = parse_definition("f n=%di:u8 m=%si:u8 if n == 1 || m == 1");
  REQUIRE(definition.ok());
  const auto compiled = [&](const std::optional<std::string>& besides) {
    return Condition(*definition, besides).compile(definition->args, false, std::nullopt);
  };
  const auto with = [](std::uint64_t n, std::uint64_t m) { return Packed().number(n).number(m).bytes(); };
  CHECK(compiled(std::nullopt)->matches(with(0, 1), {}));
  CHECK_FALSE(compiled(std::nullopt)->matches(with(0, 0), {}));
  CHECK(compiled("n == 0 || n == 2")->matches(with(0, 1), {}));
  CHECK_FALSE(compiled("n == 2 || n == 3")->matches(with(1, 1), {}));
  CHECK_FALSE(compiled("n == 2 || n == 3")->matches(with(2, 0), {}));
  CHECK(compiled("n == 2 || n == 3")->matches(with(2, 1), {}));
  CHECK(compiled("n ==").error().reason == Reason::bad_filter);
  CHECK(compiled("n ==").error().column == 4u);
  const auto wrong = parse_definition("f n=%di:u8 if n =< 1");
  REQUIRE(wrong.ok());
  const auto error = Condition(*wrong, "n == 1").compile(wrong->args, false, std::nullopt);
  CHECK(error.error().reason == Reason::bad_definition);
  CHECK(error.error().column == 16u);
}

TEST_CASE("what people write that isn't of the language is refused with what to write instead") {
  const Event event;
  struct Row {
    const char *text, *message, *hint;
  };
  for (const Row& row : {Row{"u % 2 == 0", "it doesn't calculate", "operators: =="},
                         Row{"u+1==2", "it doesn't calculate", "operators: =="},
                         Row{"u.id == 5", "not an expression", "NAME=EXPRESSION"},
                         Row{"u->id == 5", "not an expression", "NAME=EXPRESSION"}}) {
    CAPTURE(std::string(row.text));
    const auto filter = Filter::compile(row.text, event.args);
    REQUIRE_FALSE(filter.ok());
    CHECK_MESSAGE(filter.error().message.find(row.message) != std::string::npos, filter.error().message);
    CHECK_MESSAGE(filter.error().hint.find(row.hint) != std::string::npos, filter.error().hint);
  }
}

TEST_CASE("wrong filters are refused where they are wrong") {
  const Event event;
  struct Wrong {
    std::string text;
    std::size_t column;
  };
  const Wrong rows[] = {
      {"", 0},
      {"  ", 2},
      {"u s", 2},
      {"u=1", 1},
      {"u==", 3},
      {"u===1", 3},
      {"u<>1", 2},
      {"u=<1", 1},
      {"u!1", 1},
      {"u==1x", 3},
      {"u==08", 3},
      {"u==0x", 3},
      {"u==-1", 3},
      {"u==+1", 3},
      {"x==-1", 3},
      {"u==18446744073709551616", 3},
      {"s64==9223372036854775808", 5},
      {"s==--1", 3},
      {"nope==1", 0},
      {"u==1 && nope==1", 8},
      {"str<'a'", 3},
      {"str&'a'", 3},
      {"str!~'a'", 3},
      {"str==5", 5},
      {"str=='a", 5},
      {"u=='5'", 3},
      {"u~'5'", 1},
      {"u==a", 3},
      {"u==\"1", 3},
      {"ch<'a'", 3},
      {"ch=='ab'", 4},
      {"a==1", 0},
      {"u==1 & s==1", 5},
      {"u==1 | s==1", 5},
      {"u==1 s==1", 5},
      {"u==1;", 3},
      {"u==1 &&", 7},
      {"u==1 || ", 8},
      {"|| u==1", 0},
      {"u && str", 8},
      {"(u==1", 0},
      {"u==1)", 4},
      {"(u==1 u==1)", 6},
      {"()", 1},
      {"!", 1},
      {"u==(1)", 3},
      {"0", 0},
      {std::string(kMaxFilterDepth + 1, '(') + "u==1" + std::string(kMaxFilterDepth + 1, ')'), kMaxFilterDepth},
      {std::string(50000, '('), kMaxFilterDepth},
      {std::string(kMaxFilter + 1, ' '), kMaxFilter},
      {"str=='" + std::string(513, 'x') + "'", 5},
  };
  for (const Wrong& row : rows) {
    CAPTURE(row.text);
    auto filter = Filter::compile(row.text, event.args);
    REQUIRE_FALSE(filter.ok());
    CAPTURE(filter.error().message);
    CHECK(filter.error().reason == Reason::bad_filter);
    CHECK(filter.error().column == row.column);
    CHECK_FALSE(filter.error().message.empty());
  }
}

TEST_CASE("deep and long filters within the limits work") {
  const Event event;
  CHECK(event(std::string(kMaxFilterDepth, '(') + "u==200" + std::string(kMaxFilterDepth, ')')) == 1);
  CHECK(event(std::string(10000, '!') + "u==200") == 1);
  std::string many = "u==1";
  for (int i = 0; i < 4000; ++i) many += "||u==1";
  CHECK(event(many) == 0);
  for (int i = 0; i < 200; ++i) many += "||u==1";
  CHECK_FALSE(Filter::compile(many, event.args).ok());
}

TEST_CASE("a default filter lets everything pass") { CHECK(Filter().matches({}, {})); }

TEST_CASE("globs") {
  struct Glob {
    const char *pattern, *text;
    bool matches;
  };
  const Glob rows[] = {
      {"", "", true},
      {"", "a", false},
      {"*", "", true},
      {"*", "abc", true},
      {"a*c", "abc", true},
      {"a*c", "ac", true},
      {"a*c", "ab", false},
      {"a?c", "abc", true},
      {"a?c", "ac", false},
      {"*a*b*", "xxayybzz", true},
      {"*a*b", "aab", true},
      {"[a-c]x", "bx", true},
      {"[a-c]x", "dx", false},
      {"[!a-c]x", "dx", true},
      {"[]]", "]", true},
      {"[a-]", "-", true},
      {"\\*", "*", true},
      {"\\*", "a", false},
      {"a[", "a[", true},
      {"a[b", "ab", false},
      {"**a", "a", true},
      {"a\\", "a\\", true},
      {"[\x80-\xff]", "\xc3", true},
      {"*a*a*a*a*a*a*a*a*b", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", false},
  };
  for (const Glob& row : rows) {
    CAPTURE(row.pattern);
    CAPTURE(row.text);
    CHECK(glob_matches(row.pattern, row.text) == row.matches);
  }
}

}  // namespace probed::lang
