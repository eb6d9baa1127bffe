// What a name means where functions are inlined into others that have the same names, and where arguments are hard to
// find: the value that the program says, or null; never another variable's.
#include <doctest/doctest.h>

#include "tests/live/telling.hpp"

namespace probed::live {
namespace {

std::vector<std::string> builds() {
  return runnable({"scopes-O0", "scopes-O2", "scopes-lto", "scopes-types", "scopes-clang-O0", "scopes-clang-O2"});
}

struct Told {
  std::vector<Json> args;
  Json truth;
};

// The events of one definition at a command, of which `count` are to come.
Told told(RpcClient& client, TellingTarget& user, const std::string& definition, const std::string& command,
          std::size_t count = 1) {
  const auto probes = add(client, user.pid(), {definition});
  Events events(client);
  Told out;
  out.truth = user.truth(command);
  CHECK(events.reach(count));
  for (const Json& event : events.all()) out.args.push_back(event.at("args"));
  remove_all(client, probes);
  REQUIRE(out.args.size() == count);
  return out;
}

TEST_CASE("in an inlined function a name is its own, then its file's, not its caller's") {
  in_both_tiers(builds(), [](const std::string&, bool, RpcClient& client, TellingTarget& user) {
    const std::string line = "scopes.c:" + user.truth("lines").at("helper").dump();
    const auto [args, truth] = told(client, user, line + " v mode state dropped", "helper 5");
    for (const std::string name : {"v", "mode", "state", "dropped"}) {
      CAPTURE(name);
      const bool is_dropped = name == "dropped" && args[0].at(name).is_null();
      CHECK((is_dropped || args[0].at(name) == truth.at(name)));
    }
  });
}

TEST_CASE("a function that is inlined is probed where its own parameters are") {
  in_both_tiers(builds(), [](const std::string&, bool, RpcClient& client, TellingTarget& user) {
    const auto [args, truth] = told(client, user, "scaled x y", "scaled 8", 2);
    for (const std::size_t i : {0, 1}) {
      CHECK((args[i].at("x") == truth.at("x")[i] || args[i].at("x").is_null()));
      CHECK((args[i].at("y") == truth.at("y")[i] || args[i].at("y").is_null()));
    }
    CHECK(args[0].at("x") == 8);
  });
}

std::string notes_of(const Json& probe) { return probe.contains("notes") ? probe.at("notes").dump() : ""; }

// A call that isn't seen is an answer that is wrong.
TEST_CASE("all calls of a function are hits, of its own code, of where it is inlined and of copies of it") {
  for (const std::string& build :
       runnable({"scopes-O0", "scopes-O2", "scopes-lto", "scopes-copies", "scopes-clang-O0", "scopes-clang-O2"})) {
    for (const std::string name : {"both", "copied"}) {
      CAPTURE(build);
      CAPTURE(name);
      Daemon daemon;
      RpcClient client(daemon.socket());
      TellingTarget user(build);
      const Json probe = add(client, user.pid(), {"p:g/mine " + name + " v"}).at(0);
      Events events(client);
      const Json truth = user.truth(name + " 5").at("v");
      REQUIRE(events.reach(3));
      for (std::size_t i = 0; i < 3; ++i) {
        const Json& v = events.all()[i].at("args").at("v");
        const bool may_be_null = build.ends_with("O0") && name == "both";  // stored by its first instructions
        CHECK((v == truth[i] || (may_be_null && v.is_null())));
      }
      CHECK(counts_of(client, probe).hits == 3);
      CHECK(list_probes(client).size() == 1);
      const bool is_further = name == "both" || build == "scopes-copies" || build == "scopes-lto";
      CHECK((notes_of(probe).find("all that is this probe") != std::string::npos) == is_further);
      // By registers only the function's own code can be read; returns are seen there only.
      const Json by_number = add(client, user.pid(), {"p:g/number " + name + " v=$arg1"}).at(0);
      const Json by_return = add(client, user.pid(), {"r:g/back " + name + " v=$retval"}).at(0);
      user.truth(name + " 6");
      for (const Json& own : {by_number, by_return}) {
        CHECK(counts_of(client, own).hits == (is_further ? 1 : 3));
        CHECK((notes_of(own).find("only") != std::string::npos) == is_further);
      }
      CHECK(counts_of(client, probe).hits == 6);
      remove_all(client, list_probes(client));
      CHECK(list_probes(client).empty());
      CHECK(user.unharmed());
      CHECK(user.ends_well());
    }
  }
}

TEST_CASE("a piece of a function that is inlined into its own code is no call of it") {
  for (const std::string& build : runnable({"scopes-O0", "scopes-O2", "scopes-lto", "scopes-clang-O2"})) {
    CAPTURE(build);
    Daemon daemon;
    RpcClient client(daemon.socket());
    TellingTarget user(build);
    const Json probe = add(client, user.pid(), {"p:g/mine halved v"}).at(0);
    Events events(client);
    for (unsigned n = 1; n <= 3; ++n) {
      const Json truth = user.truth("halved " + std::to_string(n)).at("v");
      REQUIRE(events.reach(n));
      CHECK((build == "scopes-O0" || events.all()[n - 1].at("args").at("v") == truth));  // not stored yet
    }
    CHECK(counts_of(client, probe).hits == 3);
    CHECK(user.ends_well());
  }
}

TEST_CASE("a function that exists only inlined is refused when one of its places can't be probed, not half probed") {
  for (const std::string& build : runnable({"scopes-O2", "scopes-clang-O2"})) {
    CAPTURE(build);
    Daemon daemon;
    RpcClient client(daemon.socket());
    TellingTarget user(build);
    CHECK(reason_of(add_error(client, user.pid(), {"half_odd"})) == "existing-breakpoint");
    CHECK(list_probes(client).empty());
    CHECK(user.unharmed());
    CHECK(user.ends_well());
  }
}

TEST_CASE("$args of functions that align their stack, or are given structures, are right or null") {
  in_both_tiers(builds(), [](const std::string&, bool, RpcClient& client, TellingTarget& user) {
    const Told aligned = told(client, user, "aligned $args", "aligned 3");
    CHECK(aligned.args[0] == aligned.truth);
    const Told typed = told(client, user, "typed pair colour name=chain->name last", "typed 4");
    for (const std::string name : {"colour", "name", "last"}) CHECK(typed.args[0].at(name) == typed.truth.at(name));
    const Json& pair = typed.args[0].at("pair");
    CHECK((pair == typed.truth.at("pair") || (pair.at("a").is_null() && pair.at("b").is_null())));
    const Told old = told(client, user, "old $args", "old 6");
    CHECK((old.args[0].at("y").is_null() || old.args[0].at("y") == old.truth.at("y")));
    CHECK(old.args[0].at("z") == old.truth.at("z"));
    const Told swapped = told(client, user, "swapped a=p->a z", "swapped 7");
    CHECK((swapped.args[0].at("a").is_null() || swapped.args[0].at("a") == swapped.truth.at("a")));
    CHECK(swapped.args[0].at("z") == swapped.truth.at("z"));
  });
}

// Its variables lie behind a register that its prologue sets.
TEST_CASE("arguments of a function with a sanitizer's stack are right at its entry") {
  for (const std::string& build : runnable({"scopes-asan"})) {
    CAPTURE(build);
    Daemon daemon;
    RpcClient client(daemon.socket());
    TellingTarget user(build);
    const Told typed = told(client, user, "typed pair colour name=chain->name last", "typed 4");
    CHECK(typed.args[0] == typed.truth);
    CHECK(user.unharmed());
    CHECK(user.ends_well());
  }
}

TEST_CASE("variables of a function in a function are not the outer one's") {
  for (const std::string& build : builds()) {
    CAPTURE(build);
    Daemon daemon;
    RpcClient client(daemon.socket());
    TellingTarget user(build);
    const std::string line = "scopes.c:" + user.truth("lines").at("outer").dump();
    CHECK(reason_of(add_error(client, user.pid(), {line + " hidden"})) == "bad-definition");
    CHECK(told(client, user, line + " n", "outer 3").args[0].at("n") == 3);
    CHECK(user.ends_well());
  }
}

std::vector<std::string> cpp_builds() {
  return runnable({"namespaces-O0", "namespaces-O2", "namespaces-dwarf4", "namespaces-lto", "namespaces-types",
                   "namespaces-clang-O0", "namespaces-clang-O2", "namespaces-clang-dwarf4"});
}

TEST_CASE("in C++ a name is that of the function's own scope, else of the next around it") {
  struct Case {
    std::string command, function, name;
  };
  const std::vector<Case> cases{
      {"inner", "n1::n2::inner", "g"},
      {"outward", "n1::n2::outward", "deep"},
      {"middle", "n1::middle", "g"},
      {"unnamed", "unnamed", "hidden"},
      {"by_scope", "by_scope", "g"},
      {"beside", "n1::beside", "hidden"},
      {"in_version", "in_version", "versioned"},
      {"uses_version", "n1::uses_version", "versioned"},
      {"by_class", "Base::by_class", "g"},
      {"nested", "Base::Nested::nested", "g"},
      {"derived", "Derived::derived", "inherited"},
      {"hides", "Derived::hides", "plain"},
      {"by_using", "taker::by_using", "taken"},
      {"by_directive", "directed::by_directive", "whole"},
      {"using_in_block", "using_in_block", "whole"},
      {"plain_function", "plain_function", "g"},
      {"plain_function", "plain_function", "::g"},
      {"with_lambda", "*with_lambda*operator*", "g"},
      {"inherits", "Heir::inherits", "in_ancestor"},
      {"captures", "*Capturing::captures*operator*operator*", "captured"},
      {"enumerator", "constants::enumerator", "limit:s32"},
      {"scoped", "constants::scoped", "level"},
      {"in_class", "constants::Holder::in_class", "level:s32"},
      {"constant", "constants::Holder::constant", "bound"},
      {"in_block", "constants::in_block", "limit:s32"},
  };
  for (const std::string& build : cpp_builds()) {
    CAPTURE(build);
    Daemon daemon;
    RpcClient client(daemon.socket());
    TellingTarget user(build);
    for (const Case& c : cases) {
      CAPTURE(c.function);
      std::string function = c.function;
      for (const std::string scoped : {"unnamed", "by_scope", "in_version"})
        if (function == scoped) function = "n1::*" + scoped;
      const auto [args, truth] = told(client, user, function + " v=" + c.name, c.command);
      const Json& v = args[0].at("v");
      // Where the variables of the function around a lambda are isn't followed across units.
      // GCC has a lambda's captures as variables, which its first instructions store.
      const bool may_be_null = (build == "namespaces-lto" && c.command == "with_lambda") || c.command == "inherits" ||
                               (c.command == "captures" && build.find("clang") == std::string::npos);
      const std::string plain = c.name.substr(c.name.starts_with("::") ? 2 : 0);
      CAPTURE(args[0].dump());
      CHECK((v == truth.at(plain.substr(0, plain.find(':'))) || (may_be_null && v.is_null())));
    }
    CHECK(user.unharmed());
    CHECK(user.ends_well());
  }
}

TEST_CASE("in C++ a qualified name is that variable, of whichever unit; one that may be several is refused") {
  for (const std::string& build : cpp_builds()) {
    CAPTURE(build);
    Daemon daemon;
    RpcClient client(daemon.socket());
    TellingTarget user(build);
    const auto value = [&](const std::string& function, const std::string& name) {
      return told(client, user, function + " v=" + name, function == "n1::n2::inner" ? "inner" : "plain_function")
          .args[0]
          .at("v");
    };
    CHECK(value("n1::n2::inner", "::g") == 4);
    CHECK(value("n1::n2::inner", "::n1::g") == 5);
    CHECK(value("n1::n2::inner", "n1::g") == 5);
    CHECK(value("n1::n2::inner", "n2::g") == 6);
    CHECK(value("n1::n2::inner", "Base::g") == 7);
    CHECK(value("n1::n2::inner", "*(int*)&::g") == 4);
    CHECK(value("n1::n2::inner", "::g:u8") == 4);
    CHECK(value("n1::n2::inner", "far") == 55);
    CHECK(value("plain_function", "far") == 56);
    CHECK(value("plain_function", "n1::far") == 55);
    CHECK(value("plain_function", "n1::versioned") == 12);
    CHECK(value("plain_function", "n1::v1::versioned") == 12);
    CHECK(value("plain_function", "n1::hidden") == 9);
    CHECK(value("plain_function", "only_here") == 2);
    CHECK(value("plain_function", "n2::deep") == 66);
    CHECK(told(client, user, "constants::enumerator v=limit", "enumerator").args[0].at("v") == "limit");
    CHECK(told(client, user, "n1::far_called v=g", "far_function").args[0].at("v") == 5);
    CHECK(told(client, user, "n1::far_called v=::g", "far_function").args[0].at("v") == 4);
    CHECK(told(client, user, "n1::far_called v=Base::g", "far_function").args[0].at("v") == 7);
    const Json several = add_error(client, user.pid(), {"plain_function shared_name"});
    CAPTURE(several.dump());
    CHECK(several.dump().find("one::shared_name, two::shared_name") != std::string::npos);
    CHECK(reason_of(add_error(client, user.pid(), {"plain_function ::only_here"})) == "bad-definition");
    CHECK(reason_of(add_error(client, user.pid(), {"plain_function nowhere::g"})) == "bad-definition");
    CHECK(user.unharmed());
    CHECK(user.ends_well());
  }
}

TEST_CASE("a function in a namespace without a name is found with it or without, and the hint is one that works") {
  for (const std::string& build : cpp_builds()) {
    CAPTURE(build);
    Daemon daemon;
    RpcClient client(daemon.socket());
    TellingTarget user(build);
    for (const std::string name : {"n1::(anonymous namespace)::unnamed", "n1::(anonymous namespace)::unnamed()",
                                   "n1::unnamed", "n1::unnamed()", "unnamed", "unnamed()"}) {
      CAPTURE(name);
      CHECK(told(client, user, name + " v=hidden", "unnamed").args[0].at("v") == 9);
    }
    CHECK(told(client, user, "n1::both_named", "plain_function", 0).args.empty());  // the one that has that name
    for (const std::string name : {"only_inlined", "n1::only_inlined", "n1::(anonymous namespace)::only_inlined"}) {
      CAPTURE(name);
      const Json v = told(client, user, name + " v=value", "by_scope").args[0].at("v");
      CHECK((v == 79 || v.is_null()));
    }
    const Json refused = add_error(client, user.pid(), {"n1::unnamd"});
    CHECK(refused.dump().find("did you mean n1::unnamed") != std::string::npos);
    CHECK(user.unharmed());
    CHECK(user.ends_well());
  }
}

TEST_CASE("an argument behind one that debug information leaves out is right or null, and that is said") {
  for (const std::string& build : cpp_builds()) {
    CAPTURE(build);
    Daemon daemon;
    RpcClient client(daemon.socket());
    TellingTarget user(build);
    const auto [args, truth] = told(client, user, "Lacking::method b e self=this", "lacking");
    CHECK((args[0].at("b") == truth.at("b") || args[0].at("b").is_null()));
    CHECK((args[0].at("e") == 44 || args[0].at("e").is_null()));
    CHECK_FALSE(args[0].at("self").is_null());
    CHECK(user.ends_well());
  }
}

TEST_CASE("no child is left when everything was torn down") { CHECK(joined(children_left()) == ""); }

}  // namespace
}  // namespace probed::live
