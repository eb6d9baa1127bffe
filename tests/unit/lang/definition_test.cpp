// Heads, names, arguments and types: what each production parses to. (Which texts are refused, and where, is mostly in
// kernel_agreement_test.cpp.)
#include "daemon/lang/definition.hpp"

#include <doctest/doctest.h>

#include <string>

namespace probed::lang {
namespace {

std::string show(const FetchExpr& expr);

struct Shown {
  std::string operator()(const RegisterExpr& e) const { return "reg(" + e.name + ")"; }
  std::string operator()(const AddressExpr& e) const { return "at(" + std::to_string(e.address) + ")"; }
  std::string operator()(const SymbolExpr& e) const { return "sym(" + e.name + "," + std::to_string(e.offset) + ")"; }
  std::string operator()(const FileOffsetExpr& e) const { return "file(" + std::to_string(e.offset) + ")"; }
  std::string operator()(const StackEntryExpr& e) const { return "stack(" + std::to_string(e.index) + ")"; }
  std::string operator()(const StackExpr&) const { return "stack"; }
  std::string operator()(const RetvalExpr&) const { return "retval"; }
  std::string operator()(const CommExpr&) const { return "comm"; }
  std::string operator()(const DurationExpr&) const { return "duration"; }
  std::string operator()(const ArgumentExpr& e) const { return "arg(" + std::to_string(e.number) + ")"; }
  std::string operator()(const AllArgumentsExpr&) const { return "args"; }
  std::string operator()(const DerefExpr& e) const {
    return std::string(e.user ? "user" : "deref") + "(" + std::to_string(e.offset) + "," + show(*e.inner) + ")";
  }
  std::string operator()(const ImmediateExpr& e) const { return "imm(" + std::to_string(e.value) + ")"; }
  std::string operator()(const TextExpr& e) const { return "text(" + e.text + ")"; }
  std::string operator()(const VariableExpr& e) const { return "var(" + e.path + ")"; }
  std::string operator()(const EntryExpr& e) const { return "entry(" + show(*e.inner) + ")"; }
  std::string operator()(const PlacedExpr&) const { return "placed"; }
};

std::string show(const FetchExpr& expr) { return std::visit(Shown{}, expr.node); }

std::string show_args(const std::string& text) {
  auto parsed = parse_definition(text);
  if (!parsed) return "error " + std::to_string(parsed.error().column.value_or(9999)) + ": " + parsed.error().message;
  std::string out;
  for (const FetchArg& arg : parsed->args) {
    if (!out.empty()) out += " ";
    out += arg.name + "=" + show(*arg.expr) + (arg.type_given ? ":" : "~") + to_string(arg.type);
  }
  return out;
}

struct Row {
  const char* text;
  const char* shown;
};

}  // namespace

TEST_CASE("heads give kind, group, name and maxactive") {
  struct Head {
    const char* text;
    Kind kind;
    const char *group, *name;
    unsigned max_active;
  };
  const Head rows[] = {
      {"f", Kind::probe, "", "", 0},
      {"p f", Kind::probe, "", "", 0},
      {"p:n f", Kind::probe, "", "n", 0},
      {"p:g/n f", Kind::probe, "g", "n", 0},
      {"p:g.n f", Kind::probe, "g", "n", 0},
      {"p:my-group/n f", Kind::probe, "my-group", "n", 0},
      {"p:g/ f", Kind::probe, "g", "", 0},
      {"r f", Kind::return_probe, "", "", 0},
      {"r10 f", Kind::return_probe, "", "", 10},
      {"r4096:g/n f", Kind::return_probe, "g", "n", 4096},
      {"r4097:g/n f", Kind::return_probe, "g", "n", 4097},
      {"r4294967295 f", Kind::return_probe, "", "", 4294967295},
      {"p:n /bin/true:0x1234 # the comment: of p:f", Kind::probe, "", "n", 0},
      {"p:n f a=$arg1\t# b=", Kind::probe, "", "n", 0},
      {"-:n # gone", Kind::remove, "", "n", 0},
      {"r0x10:n f", Kind::probe, "", "", 0},  // not the kernel's form: a module called r0x10
      {"-:n", Kind::remove, "", "n", 0},
      {"-:g/n", Kind::remove, "g", "n", 0},
      {"-:g/", Kind::remove, "g", "", 0},
      {" -:n ", Kind::remove, "", "n", 0},
      {"read f", Kind::probe, "", "", 0},
      {"r::f", Kind::probe, "", "", 0},  // of a namespace of that name
      {"p::f n", Kind::probe, "", "", 0},
  };
  for (const Head& row : rows) {
    CAPTURE(row.text);
    auto parsed = parse_definition(row.text);
    REQUIRE(parsed.ok());
    CHECK(parsed->kind == row.kind);
    CHECK(parsed->group == row.group);
    CHECK(parsed->name == row.name);
    CHECK(parsed->max_active == row.max_active);
    CHECK(parsed->text == row.text);
  }
}

TEST_CASE("wrong heads are refused where they are wrong") {
  struct Wrong {
    std::string text;
    std::size_t column;
  };
  const Wrong rows[] = {
      {"", 0},
      {"   ", 0},
      {"-", 0},
      {"-x", 0},
      {"-:", 2},
      {"-:1x", 2},
      {"-:n f", 4},
      {"-:g/1", 4},
      {"p3 f", 1},
      {"p3:n f", 1},
      {"r4294967296 f", 1},
      {"rx:n /bin/true:0x1234", 0},  // the head is wrong, not the argument
      {"px:n /bin/true:0x1234 %ax", 0},
      {"r-1:n /bin/true:0x1234", 0},
      {"p:n # f", 3},
      {"r08 f", 1},
      {"r99999999999999999999999 f", 1},
      {" p:1 f", 3},
      {"p:g/1 f", 4},
      {"p:g/a/b f", 4},
      {"p:/n f", 2},
      {"p: f", 2},
      {"p:1/n f", 2},
      {"p:a,b f", 2},
      {std::string(kMaxDefinition + 1, 'f'), kMaxDefinition},
  };
  for (const Wrong& row : rows) {
    CAPTURE(row.text);
    auto parsed = parse_definition(row.text);
    REQUIRE_FALSE(parsed.ok());
    CAPTURE(parsed.error().message);
    CHECK(parsed.error().reason == Reason::bad_definition);
    CHECK(parsed.error().column == row.column);
  }
}

TEST_CASE("a comment is no part of a definition, and what only looks like one is") {
  const auto parsed = parse_definition("p:n f a=$arg1 # b=$arg2");
  REQUIRE(parsed.ok());
  CHECK(parsed->args.size() == 1);
  const auto lambda = parse_definition("main::{lambda(int, char)#1}::operator()(int, char) const a=$arg1");
  REQUIRE(lambda.ok());
  CHECK(lambda->args.size() == 1);
  for (const char* none : {"# p:n f", "#p:n f", " # p:n f", "#"})
    CHECK(parse_definition(none).error().message == "the definition is empty");
  CHECK(parse_definition("rx:n /bin/true:0x1234").error().message.find("\"rx:n\"") != std::string::npos);
}

TEST_CASE("who writes the place where the event's name belongs is told how to write it") {
  CHECK(parse_definition("r:work").error().hint.ends_with("write r work, or r:NAME work"));
  CHECK(parse_definition("p:g/work").error().hint.ends_with("write p g/work, or p:NAME g/work"));
  CHECK(parse_definition("r5").error().hint == "write r5 [MODULE:]LOCATION ARGS");
}

TEST_CASE("every kind of argument parses to its node") {
  const Row rows[] = {
      {"%di", "arg1=reg(di)~x64"},
      {"%orig_ax", "arg1=reg(orig_ax)~x64"},
      {"@0x10", "arg1=at(16)~x64"},
      {"@10", "arg1=at(10)~x64"},
      {"@010", "arg1=at(8)~x64"},
      {"@+0x10", "arg1=file(16)~x64"},
      {"@server", "arg1=sym(server,0)~x64"},
      {"@server+0x10", "arg1=sym(server,16)~x64"},
      {"@server-8:u32", "arg1=sym(server,-8):u32"},
      {"@ns::x:u8", "arg1=sym(ns::x,0):u8"},
      {"+8(@ns::x):u8", "arg1=deref(8,sym(ns::x,0)):u8"},
      {"$stack", "arg1=stack~x64"},
      {"$stack0", "arg1=stack(0)~x64"},
      {"$stack010", "arg1=stack(10)~x64"},
      {"$stack4294967295", "arg1=stack(4294967295)~x64"},
      {"$comm", "arg1=comm~string"},
      {"$COMM:string", "arg1=comm:string"},
      {"$arg1", "arg1=arg(1)~x64"},
      {"$arg2048", "arg1=arg(2048)~x64"},
      {"$args", "arg1=args~x64"},
      {"$arg*", "arg1=args~x64"},
      {"+0(%di)", "arg1=deref(0,reg(di))~x64"},
      {"-8(%di)", "arg1=deref(-8,reg(di))~x64"},
      {"+u8(%di)", "arg1=user(8,reg(di))~x64"},
      {"-u0x8(%di)", "arg1=user(-8,reg(di))~x64"},
      {"+0(+8(-0x10(%di)))", "arg1=deref(0,deref(8,deref(-16,reg(di))))~x64"},
      {"+-8(%di)", "arg1=deref(-8,reg(di))~x64"},
      {"-9223372036854775808(%di)", "arg1=deref(-9223372036854775808,reg(di))~x64"},
      {"\\1", "arg1=imm(1)~x64"},
      {"\\-1", "arg1=imm(-1)~x64"},
      {"\\+7", "arg1=imm(7)~x64"},
      {"\\0xffffffffffffffff", "arg1=imm(-1)~x64"},
      {"\\\"abc\"", "arg1=text(abc)~string"},
      {"\\\"\"", "arg1=text()~string"},
      {"\\\"a:b=c\"", "arg1=text(a:b=c)~string"},
      {"t=\\\"a:b\":string", "t=text(a:b):string"},
      {"x", "x=var(x)~x64"},
      {"x:s32", "x=var(x):s32"},
      {"p->field", "field=var(p->field)~x64"},
      {"p->a.b->c[3]:u8", "c_3=var(p->a.b->c[3]):u8"},
      {"a[2]", "a_2=var(a[2])~x64"},
      {"a[-2]", "arg1=var(a[-2])~x64"},
      {"a[2]:u8[4]", "a_2=var(a[2]):u8[4]"},
      {"ns::x:u8", "x=var(ns::x):u8"},
      {"::x", "arg1=var(::x)~x64"},
      {"v=::ns::x:u8", "v=var(::ns::x):u8"},
      {"&::x", "arg1=var(&::x)~x64"},
      {"*(int*)&::x:u8", "arg1=var(*(int*)&::x):u8"},
      {"+8(::x):u8", "arg1=deref(8,var(::x)):u8"},
      {"*p", "arg1=var(*p)~x64"},
      {"&p->x", "arg1=var(&p->x)~x64"},
      {"**$arg1:u8", "arg1=var(**$arg1):u8"},
      {"(p->x).y", "y=var((p->x).y)~x64"},
      {"(t*)p", "arg1=var((t*)p)~x64"},
      {"n=((struct foo *)p)->x:u8", "n=var(((struct foo *)p)->x):u8"},
      {"((ns::foo*)$arg1)->x[2].y", "y=var(((ns::foo*)$arg1)->x[2].y)~x64"},
      {"((ns::foo*)%di)->x:s32 m=%si", "arg1=var(((ns::foo*)%di)->x):s32 m=reg(si)~x64"},
      {"*( unsigned long * )p q", "arg1=var(*( unsigned long * )p)~x64 q=var(q)~x64"},
      {"+8(((foo*)p)->q):string", "arg1=deref(8,var(((foo*)p)->q)):string"},
      {"(a*)((b*)p)->q", "q=var((a*)((b*)p)->q)~x64"},
      {"+8(p->q)", "arg1=deref(8,var(p->q))~x64"},
      {"n=%di m=%si %dx", "n=reg(di)~x64 m=reg(si)~x64 arg3=reg(dx)~x64"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.text);
    CHECK(show_args(std::string("p:e f ") + row.text) == row.shown);
    CHECK(show_args(std::string("f \t") + row.text) == row.shown);
  }
}

TEST_CASE("$duration is a return's, a number of nanoseconds") {
  CHECK(show_args("r f $duration $duration") == "duration=duration~u64 arg2=duration~u64");
  CHECK(show_args("f%return d=$duration") == "d=duration~u64");
  CHECK(show_args("f $duration").starts_with("error 2:"));
  CHECK(show_args("r f $entry($duration)").starts_with("error 11:"));
  CHECK(show_args("r f $duration:u32").starts_with("error 14:"));
  CHECK(show_args("r f +0($duration)").starts_with("error 7:"));
  CHECK(show_args("r f $durations").starts_with("error 4:"));
}

TEST_CASE("an argument without a name has that of the last part of its path, as long as that is free") {
  CHECK(show_args("f o->id") == "id=var(o->id)~x64");
  CHECK(show_args("f a->id b->id b->id") == "id=var(a->id)~x64 b_id=var(b->id)~x64 arg3=var(b->id)~x64");
  CHECK(show_args("f s.v[2] s.v[3].x") == "v_2=var(s.v[2])~x64 x=var(s.v[3].x)~x64");
  CHECK(show_args("f ((struct foo*)$arg1)->id:u8") == "id=var(((struct foo*)$arg1)->id):u8");
  CHECK(show_args("f $arg1->id &p->id") == "id=var($arg1->id)~x64 arg2=var(&p->id)~x64");
  CHECK(show_args("f id=%di o->id") == "id=reg(di)~x64 o_id=var(o->id)~x64");
  CHECK(show_args("f o->id id:u8 o->n n=%di") == "o_id=var(o->id)~x64 id=var(id):u8 o_n=var(o->n)~x64 n=reg(di)~x64");
}

TEST_CASE("what stands behind \"if\" is the filter, and what only that names is an argument") {
  const auto filter_of = [](const std::string& text) {
    auto parsed = parse_definition(text);
    return parsed ? std::to_string(parsed->filter_column) + " " + parsed->filter : parsed.error().message;
  };
  CHECK(filter_of("f if n > 5") == "5 n > 5");
  CHECK(filter_of("p:e f a=$arg1 \tif  a == 1 && comm == \"if x\"  ") == "19 a == 1 && comm == \"if x\"");
  CHECK(filter_of("f%return if $retval < 0 # if none") == "12 $retval < 0");
  CHECK(filter_of("f if") == "no filter behind \"if\"");
  CHECK(parse_definition("f x if \t").error().column == 4u);
  CHECK(show_args("f if n > 5 && !n") == "n=var(n)~x64");
  CHECK(show_args("f m if n > 5 || m & 1") == "m=var(m)~x64 n=var(n)~x64");
  CHECK(show_args("f if p->in.a == 7 && (v[2] == 1 || *q != 0x10)") ==
        "a=var(p->in.a)~x64 v_2=var(v[2])~x64 arg3=var(*q)~x64");
  CHECK(show_args("f a=p->x if p->x == 7") == "a=var(p->x)~x64");
  CHECK(show_args("f p if p.x == 7 && p[1] == 2") == "p=var(p)~x64");
  CHECK(show_args("f $args if n == 7 && p->x == 2") == "arg1=args~x64 x=var(p->x)~x64");
  CHECK(show_args("f if pid == 1 && tid == 2 && comm == \"x\" && CPU & CPUS{0-3} && $comm ~ \"b*\" && n == 1") ==
        "n=var(n)~x64");
  CHECK(show_args("f if %di == 3 && $arg2 == 4") == "di=reg(di)~x64 arg2=arg(2)~x64");
  CHECK(show_args("f if $arg3:s64 < 0 && x:u8 == 1") == "arg3=arg(3):s64 x=var(x):u8");
  CHECK(show_args("r f if $entry(o->id) == 3") == "arg1=entry(var(o->id))~x64");
  CHECK(filter_of("f if s == \"a # b\" # and more") == "5 s == \"a # b\"");
  CHECK(show_args("r f if $retval == 3 && duration > 4 && name == \"p && q\"") ==
        "$retval=retval~x64 name=var(name)~x64");
  CHECK(show_args("r f $retval if retval == 3") == "$retval=retval~x64");
  CHECK(show_args("f if $retval == 3").starts_with("error 5:"));
  CHECK(show_args("f if x-> == 3") == "x=var(x)~x64");  // what is wrong is the filter's to say
}

TEST_CASE("an unnamed $retval keeps its name, the first time") {
  CHECK(show_args("r f $retval") == "$retval=retval~x64");
  CHECK(show_args("r f $retval:s32 %ax") == "$retval=retval:s32 arg2=reg(ax)~x64");
  CHECK(show_args("f%return $retval $retval") == "$retval=retval~x64 arg2=retval~x64");
  CHECK(show_args("f%return $entry(+8($arg1)):string +0($entry(%di)):u8") ==
        "arg1=entry(deref(8,arg(1))):string arg2=deref(0,entry(reg(di))):u8");
  CHECK(show_args("r f v=$retval +0($retval):string") == "v=retval~x64 arg2=deref(0,retval):string");
  CHECK(show_args("r f $retval->len") == "len=var($retval->len)~x64");
  CHECK(show_args("f $retval").starts_with("error 2:"));
  CHECK(show_args("r f $retvalue").starts_with("error 4:"));
}

TEST_CASE("every type parses and prints as itself") {
  const char* const types[] = {"u8",       "u16",    "u32",       "u64",      "s8",       "s16",      "s32",
                               "s64",      "x8",     "x16",       "x32",      "x64",      "char",     "symbol",
                               "b1@0/8",   "b8@0/8", "b3@5/8",    "b16@0/16", "b31@1/32", "b64@0/64", "u8[1]",
                               "char[64]", "s64[3]", "b3@1/8[4]", "symbol[2]"};
  for (const char* type : types) {
    CAPTURE(type);
    auto parsed = parse_definition(std::string("f +0(%di):") + type);
    REQUIRE(parsed.ok());
    CHECK(to_string(parsed->args[0].type) == type);
    CHECK(parsed->args[0].type_given);
  }
  CHECK(show_args("f +0(%di):string[2]") == "arg1=deref(0,reg(di)):string[2]");
  CHECK(show_args("f +0(%di):ustring") == "arg1=deref(0,reg(di)):ustring");
  CHECK(show_args("f \\0x1000:string") == "arg1=imm(4096):string");
  CHECK(show_args("f @0x1000:string") == "arg1=at(4096):string");
  CHECK(show_args("f +u0(%di):u8[2]") == "arg1=user(0,reg(di)):u8[2]");  // the kernel has no user arrays
}

TEST_CASE("a bitfield's base is its container's unsigned type") {
  auto parsed = parse_definition("f %di:b0x4@010/32");
  REQUIRE(parsed.ok());
  const Type& type = parsed->args[0].type;
  CHECK(type.base == BaseType::u32);
  REQUIRE(type.bitfield);
  CHECK(type.bitfield->width == 4);
  CHECK(type.bitfield->offset == 8);
  CHECK(type.bitfield->container == 32);
}

TEST_CASE("arguments keep their text and column") {
  auto parsed = parse_definition("p:e f  a=+8(%di):u8   %si");
  REQUIRE(parsed.ok());
  CHECK(parsed->args[0].text == "+8(%di)");
  CHECK(parsed->args[0].column == 7);
  CHECK(parsed->args[0].expr->column == 9);
  CHECK(std::get<DerefExpr>(parsed->args[0].expr->node).inner->column == 12);
  CHECK(parsed->args[1].column == 22);
}

TEST_CASE("junk behind a closing brace, which the kernel ignores, is refused") {
  struct Wrong {
    const char* text;
    std::size_t column;
  };
  const Wrong rows[] = {{"f +0(%di)x", 9},
                        {"f +0(%di)+8", 9},
                        {"f +0(+8(%di)x)", 12},
                        {"f +0(%di)x:string", 9},
                        {"f \\0x1000:string[2]", 10}};
  for (const Wrong& row : rows) {
    CAPTURE(row.text);
    auto parsed = parse_definition(row.text);
    REQUIRE_FALSE(parsed.ok());
    CHECK(parsed.error().column == row.column);
  }
}

TEST_CASE("too deep, too many, too long") {
  const auto nested = [](std::size_t depth) {
    std::string text = "f ";
    for (std::size_t i = 0; i < depth; ++i) text += "+0(";
    return text + "%di" + std::string(depth, ')');
  };
  CHECK(parse_definition(nested(kMaxDereferences)).ok());
  auto deep = parse_definition(nested(kMaxDereferences + 1));
  REQUIRE_FALSE(deep.ok());
  CHECK(deep.error().column == 5);
  CHECK_FALSE(parse_definition(nested(15000)).ok());

  std::string many = "f";
  for (std::size_t i = 0; i < kMaxFetchArgs; ++i) many += " %di";
  CHECK(parse_definition(many).ok());
  auto more = parse_definition(many + " %di");
  REQUIRE_FALSE(more.ok());
  CHECK(more.error().column == 2);

  CHECK(parse_definition("f \\\"" + std::string(kMaxText, 'x') + "\"").ok());
  CHECK_FALSE(parse_definition("f \\\"" + std::string(kMaxText + 1, 'x') + "\"").ok());
}

TEST_CASE("errors say what was expected and what to do") {
  auto unknown = parse_definition("p:e f %di:i32");
  REQUIRE_FALSE(unknown.ok());
  CHECK(unknown.error().message == "unknown type \"i32\"");
  CHECK(unknown.error().hint.find("s32") != std::string::npos);
  auto pointer = parse_definition("f $arg1:string");
  REQUIRE_FALSE(pointer.ok());
  CHECK(pointer.error().hint == "for a pointer to a string write +0($arg1):string");
  CHECK(pointer.error().column == 8);
}

TEST_CASE("a probe's type that isn't one is told how it is written, where something is wrong anyway") {
  const auto hint_of = [](const char* text) {
    auto parsed = parse_definition(text);
    return parsed ? "none: " + parsed->location.text : parsed.error().hint;
  };
  for (const char* text : {"r-1 fint", "rx fint $retval", "r1x:name fint $retval", "ret fint $retval",
                           "r* fint $retval", "  return  libc:f $retval"}) {
    CAPTURE(text);
    CHECK(hint_of(text).find("r[MAXACTIVE][:[GROUP/]NAME] ") != std::string::npos);
  }
  CHECK(hint_of("px fint $retval").find("p[:[GROUP/]NAME] ") != std::string::npos);
  CHECK(hint_of("rx fint") == "none: rx");
  for (const char* text :
       {"read buffer $retval", "rx n=$arg1 $retval", "rx $retval", "r-1", "rx", "r:x f %zz", "f g $retval"}) {
    CAPTURE(text);
    CHECK(hint_of(text).find("MAXACTIVE") == std::string::npos);
  }
  CHECK(parse_definition("rx fint $retval").error().column == 8);
}

TEST_CASE("wrong variables are refused where they are wrong") {
  struct Wrong {
    const char* text;
    std::size_t column;
  };
  const Wrong rows[] = {
      {"f x-y", 3},   {"f x->", 2},     {"f p->a-b", 6},   {"f a[", 2},
      {"f a[x]", 2},  {"f x..y", 2},    {"f $args:u8", 8}, {"f +0($args)", 5},
      {"f (t)1", 2},  {"f ((t*)x", 2},  {"f (t*)", 2},     {"f (t*)$retval", 2},
      {"f (x->y", 2}, {"f (t**u)x", 2}, {"f ()x", 2},      {"f ((((((((((((((((((x))))))))))))))))))", 2}};
  for (const Wrong& row : rows) {
    CAPTURE(row.text);
    auto parsed = parse_definition(row.text);
    REQUIRE_FALSE(parsed.ok());
    CHECK(parsed.error().column == row.column);
  }
}

}  // namespace probed::lang
