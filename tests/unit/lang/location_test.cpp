// Locations: how MODULE, FILE, provider and SYMBOL are told apart, and how C++ names are kept whole.
#include <doctest/doctest.h>

#include <string>

#include "daemon/lang/definition.hpp"

namespace probed::lang {
namespace {

// One line that says everything about a location.
struct Shown {
  std::string operator()(const SymbolLocation& at) const {
    return "symbol " + at.name + " +" + std::to_string(at.offset);
  }
  std::string operator()(const FileOffsetLocation& at) const { return "file +" + std::to_string(at.offset); }
  std::string operator()(const AddressLocation& at) const { return "address " + std::to_string(at.address); }
  std::string operator()(const LineLocation& at) const {
    return "line " + at.file + " " + (at.function.empty() ? std::to_string(at.line) : at.function);
  }
  std::string operator()(const UsdtLocation& at) const { return "usdt " + at.provider + " " + at.name; }
};

std::string show(std::string_view text) {
  auto parsed = parse_definition(text);
  if (!parsed) return "error " + std::to_string(parsed.error().column.value_or(9999)) + ": " + parsed.error().message;
  std::string out = parsed->kind == Kind::return_probe ? "r " : "p ";
  if (!parsed->location.module.empty()) out += "[" + parsed->location.module + "] ";
  out += std::visit(Shown{}, parsed->location.where);
  for (const FetchArg& arg : parsed->args) out += " | " + arg.text;
  return out;
}

struct Row {
  const char* text;
  const char* shown;
};

}  // namespace

TEST_CASE("plain locations") {
  const Row rows[] = {
      {"processCommand", "p symbol processCommand +0"},
      {"p processCommand", "p symbol processCommand +0"},
      {"p:cmd processCommand", "p symbol processCommand +0"},
      {"  read  ", "p symbol read +0"},
      {"read\n", "p symbol read +0"},
      {"read+4", "p symbol read +4"},
      {"read+0x10", "p symbol read +16"},
      {"read+010", "p symbol read +8"},
      {"libc:read", "p [libc] symbol read +0"},
      {"libc.so.6:read+4", "p [libc.so.6] symbol read +4"},
      {"redis-server:call", "p [redis-server] symbol call +0"},
      {"/usr/lib/x86_64-linux-gnu/libstdc++.so.6:foo", "p [/usr/lib/x86_64-linux-gnu/libstdc++.so.6] symbol foo +0"},
      {"/opt/a:b/lib.so:foo", "p [/opt/a:b/lib.so] symbol foo +0"},
      {"/home/m\xc3\xbcller/a.out:main", "p [/home/m\xc3\xbcller/a.out] symbol main +0"},
      {"libc:mem*", "p [libc] symbol mem* +0"},
      {"str[cn]*", "p symbol str[cn]* +0"},
      {"*", "p symbol * +0"},
      {"memcpy@GLIBC_2.14", "p symbol memcpy@GLIBC_2.14 +0"},
      {"foo.part.0", "p symbol foo.part.0 +0"},
      {"0x401000", "p address 4198400"},
      {"4096", "p address 4096"},
      {"/bin/true:0x1000", "p [/bin/true] file +4096"},
      {"true:0x1000", "p [true] file +4096"},
      {"/bin/true:4096", "p [/bin/true] file +4096"},
      {"libc.so.6:6", "p [libc.so.6] file +6"},
      {"server.c:120", "p line server.c 120"},
      {"src/server.cc:0120", "p line src/server.cc 120"},
      {"redis-server:server.c:120", "p [redis-server] line server.c 120"},
      {"server.c:call", "p line server.c call"},
      {"*.c:*", "p line *.c *"},
      {"src/net*.cc:ns::read*", "p line src/net*.cc ns::read*"},
      {"redis-server:server.c:call%return", "r [redis-server] line server.c call"},
      {"main.rs:7", "p line main.rs 7"},
      {"server.c:0x78", "p [server.c] file +120"},
      {"postgres:query__start", "p [postgres] symbol query__start +0"},
      {"/usr/bin/postgres:postgresql:query__start", "p [/usr/bin/postgres] usdt postgresql query__start"},
      {"[vdso]:__vdso_time", "p [[vdso]] symbol __vdso_time +0"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.text);
    CHECK(show(row.text) == row.shown);
  }
}

TEST_CASE("bpftrace's way to say what is probed is understood") {
  for (const Row& row :
       {Row{"uprobe:libc:malloc $arg1", "p [libc] symbol malloc +0 | $arg1"},
        Row{"p:m uprobe:/bin/bash:readline+4", "p [/bin/bash] symbol readline +4"},
        Row{"uretprobe:/bin/bash:readline $retval", "r [/bin/bash] symbol readline +0 | $retval"},
        Row{"usdt:/usr/bin/postgres:postgresql:query__start", "p [/usr/bin/postgres] usdt postgresql query__start"},
        Row{"usdt:/lib/libc.so.6:memory_heap_new", "p [/lib/libc.so.6] usdt * memory_heap_new"},
        Row{"usdt:provider:name", "p [usdt] usdt provider name"}, Row{"uprobe::f", "p symbol uprobe::f +0"},
        Row{"uprobe:f", "p [uprobe] symbol f +0"}}) {
    CAPTURE(row.text);
    CHECK(show(row.text) == row.shown);
  }
}

TEST_CASE("%return and r make return probes") {
  const Row rows[] = {
      {"call%return", "r symbol call +0"},
      {"call%return $retval", "r symbol call +0 | $retval"},
      {"p:x libc:read%return", "r [libc] symbol read +0"},
      {"r:x libc:read", "r [libc] symbol read +0"},
      {"r /bin/true:0x1000", "r [/bin/true] file +4096"},
      {"ns::foo(int)%return", "r symbol ns::foo(int) +0"},
      {"foo::operator%%return", "r symbol foo::operator% +0"},
      {"foo::operator()%return", "r symbol foo::operator() +0"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.text);
    CHECK(show(row.text) == row.shown);
  }
}

TEST_CASE("C++, Rust and Go names are kept whole, blanks and colons included") {
  const char* const names[] = {
      "ns::foo",
      "ns::foo(int, char const*)",
      "std::vector<int, std::allocator<int> >::push_back(int const&)",
      "foo() const",
      "foo(int) volatile &&",
      "(anonymous namespace)::foo(int)",
      "A::operator()(int) const",
      "A::operator<(A const&) const",
      "A::operator<<(int)",
      "A::operator<=>(A const&)",
      "A::operator->() const",
      "A::operator->*(int)",
      "A::operator+(int)",
      "A::operator++(int)",
      "A::operator+",
      "A::operator-=(int)",
      "A::operator[](unsigned long)",
      "A::operator==(A const&)",
      "A::operator,(int)",
      "A::operator%(int)",
      "operator new(unsigned long)",
      "operator delete[](void*)",
      "operator new",
      "A::operator unsigned long() const",
      "A::operator char const*() const",
      "A::operator< <int>(int)",
      "operator\"\" _km(long double)",
      "f(int)::{lambda(int)#1}::operator()(int) const",
      "f[abi:cxx11](int)",
      "f(int) [clone .isra.0]",
      "A::~A()",
      "_ZN3foo3barEv",
      "<alloc::vec::Vec<T> as core::ops::drop::Drop>::drop",
      "core::ptr::drop_in_place<dyn core::any::Any + Send>",
      "apply(void (*)(int), int)",
      "main.(*Server).Serve",
      "net/http.(*conn).serve",
      "operator_like(int, int)",
      "my_operator",
  };
  for (const char* name : names) {
    CAPTURE(name);
    const std::string plain = std::string("p symbol ") + name;
    CHECK(show(name) == plain + " +0");
    CHECK(show(name + std::string(" x=%di +0(%si):string")) == plain + " +0 | %di | +0(%si)");
    CHECK(show("p:e lib.so:" + std::string(name) + "+0x10 %di") ==
          "p [lib.so] symbol " + std::string(name) + " +16 | %di");
    CHECK(show(std::string(name) + "%return") == "r symbol " + std::string(name) + " +0");
  }
  CHECK(show("lib:::global(int)") == "p [lib] symbol global(int) +0");
  CHECK(show("::global(int) %di") == "p symbol global(int) +0 | %di");
  CHECK(show("std::vector<* %di") == "p symbol std::vector<* +0 | %di");
}

TEST_CASE("wrong locations are refused where they are wrong") {
  struct Wrong {
    const char* text;
    int column;
  };
  const Wrong rows[] = {
      {"p:e %di", 4},
      {"p:e", 3},
      {"p", 1},
      {"p:e   ", 3},
      {"r10:x", 5},
      {"%return", 0},
      {":foo", 0},
      {"libc:", 5},
      {"p:e libc: %di", 9},
      {"read+", 0},
      {"read+x", 0},
      {"p:e read+8x", 4},
      {"read-8", 0},
      {"read+-8", 0},
      {"read%ret", 4},
      {"read%", 4},
      {"a=%di", 2},
      {"x=5", 0},
      {"0x", 0},
      {"0x12zz", 0},
      {"libc:0xzz", 5},
      {"server.c:0", 9},
      {"foo(int", 3},
      {"p:e libc:foo(int %di", 12},
      {"foo)", 3},
      {"vector<int", 6},
      {"a::::b", 1},
      {"foo::", 0},
      {"foo;", 0},
      {"\"foo\"", 0},
      {"@foo", 0},
      {"+0(%di)", 0},
      {"r:x read+4", 4},
      {"read+4%return", 0},
      {"r server.c:12", 2},
      {"foo \x01", 4},
      {"fo\xc3", 2},
      {"f\x7foo", 1},
      {"f\xed\xa0\x80", 1},
      {"f\xc2\x80", 1},
      {"f\xf5\x80\x80\x80", 1},
      {"foo\nbar", 3},
  };
  for (const Wrong& row : rows) {
    CAPTURE(row.text);
    auto parsed = parse_definition(row.text);
    REQUIRE_FALSE(parsed.ok());
    CAPTURE(parsed.error().message);
    CHECK(parsed.error().reason == Reason::bad_definition);
    CHECK(parsed.error().column == row.column);
    CHECK_FALSE(parsed.error().message.empty());
  }
}

TEST_CASE("a uprobe's reference counter is taken as the file offset it is") {
  for (const char* text : {"p /bin/true:0x1000(0x10)", "p /bin/true:0x1000%return(0x10)"}) {
    CAPTURE(text);
    auto parsed = parse_definition(text);
    REQUIRE(parsed.ok());
    const auto* where = std::get_if<FileOffsetLocation>(&parsed->location.where);
    REQUIRE(where);
    CHECK(where->offset == 0x1000);
    CHECK(where->reference_counter == std::optional<std::uint64_t>(0x10));
  }
  auto without = parse_definition("p /bin/true:0x1000");
  REQUIRE(without.ok());
  CHECK(!std::get<FileOffsetLocation>(without->location.where).reference_counter);
}

TEST_CASE("the names of a static probe may be globs, and written with hyphens") {
  for (const char* text : {"pg:postgresql:query__*", "pg:post*:query-start"}) {
    CAPTURE(text);
    auto parsed = parse_definition(text);
    REQUIRE(parsed.ok());
    CHECK(std::holds_alternative<UsdtLocation>(parsed->location.where));
  }
}

TEST_CASE("the location's text and column are as written") {
  auto parsed = parse_definition("  p:e  libc:read+4%return $retval");
  REQUIRE_FALSE(parsed.ok());
  parsed = parse_definition("  p:e  libc:read%return $retval");
  REQUIRE(parsed.ok());
  CHECK(parsed->location.text == "libc:read");
  CHECK(parsed->location.column == 7);
}

TEST_CASE("generated names are valid event names by the kernel's recipes") {
  const Row rows[] = {
      {"read", "p_read_0"},
      {"read+0x10", "p_read_16"},
      {"read%return", "r_read_0"},
      {"/bin/true:0x1000", "p_true_0x1000"},
      {"/usr/lib/libc-2.36.so:0x1f", "p_libc_0x1f"},
      {"0x401000", "p_0x401000"},
      {"src/server.c:12", "p_server_c_12"},
      {"pg:postgresql:query__start", "p_postgresql_query__start"},
      {"ns::foo(int)", "p_ns__foo_int__0"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.text);
    auto parsed = parse_definition(row.text);
    REQUIRE(parsed.ok());
    CHECK(generated_name(*parsed) == row.shown);
    CHECK(is_identifier(generated_name(*parsed)));
  }
  auto longest = parse_definition(std::string(300, 'f'));
  REQUIRE(longest.ok());
  CHECK(generated_name(*longest).size() == kMaxEventName);
}

}  // namespace probed::lang
