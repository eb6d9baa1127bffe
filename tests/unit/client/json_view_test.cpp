// Reading JSON in place: exact bytes, lone surrogates, hostile text.
#include "client/json_view.hpp"

#include <doctest/doctest.h>

namespace probed::client {
namespace {

std::string decoded(std::string_view literal) { return JsonView(literal).string(); }

TEST_CASE("members are found whatever surrounds and nests in them") {
  const JsonView view(R"( { "a" : { "b" : [1,"]}",{"b":2}] } , "b":"x\"y" , "c":true,"d":null} )");
  CHECK(view["a"].text() == R"({ "b" : [1,"]}",{"b":2}] })");
  CHECK(view["a"]["b"].text() == R"([1,"]}",{"b":2}])");
  CHECK(view["b"].string() == "x\"y");
  CHECK(view["c"].boolean_or(false));
  CHECK(view["d"].is_null());
  CHECK_FALSE(view["e"].exists());
  CHECK_FALSE(view["e"]["f"][""].exists());
}

TEST_CASE("integers are exact over all of 64 bits, and nothing else is an integer") {
  CHECK(JsonView("18446744073709551615").u64() == 18446744073709551615u);
  CHECK_FALSE(JsonView("18446744073709551616").u64());
  CHECK_FALSE(JsonView("-1").u64());
  CHECK_FALSE(JsonView("1.0").u64());
  CHECK_FALSE(JsonView("1e3").u64());
  CHECK_FALSE(JsonView("\"1\"").u64());
  CHECK_FALSE(JsonView("").u64());
}

TEST_CASE("strings decode to the bytes they stand for") {
  CHECK(decoded(R"("a\"\\\/\b\f\n\r\t")") == "a\"\\/\b\f\n\r\t");
  CHECK(decoded(R"("\u00e9\u20ac")") == "\u00e9\u20ac");
  CHECK(decoded(R"("\ud83d\ude00")") == "\U0001f600");
  CHECK(decoded(R"("\udc80x\udcff")") == "\x80x\xff");
  CHECK(decoded(R"("\u0000")") == std::string(1, '\0'));
  CHECK(decoded(R"("\ud83dx")") == "\ufffdx");
  CHECK(decoded(R"("\uzzzz")") == "\ufffdzzzz");
}

TEST_CASE("elements come in order, and a walk tells a whole array from a broken one") {
  std::string seen;
  const auto collect = [&](JsonView element) {
    seen += std::string(element.text()) + ";";
    return true;
  };
  CHECK(JsonView("[ 1 , [2,3] ,\"a,b\",{} ]").each_element(collect));
  CHECK(seen == "1;[2,3];\"a,b\";{};");
  CHECK(JsonView("[]").each_element(collect));
  CHECK_FALSE(JsonView("[1,2").each_element(collect));
  CHECK_FALSE(JsonView("[1 2]").each_element(collect));
  CHECK_FALSE(JsonView("{}").each_element(collect));
}

TEST_CASE("text cut anywhere is refused, never read past its end") {
  const std::string whole = R"({"a":[1,"b\u0041\\",{"c":null}],"d":"\ud83d\ude00","e":-5})";
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const std::string part(whole, 0, size);  // its own allocation: a sanitizer sees a read past it
    const JsonView view{std::string_view(part)};
    CHECK(view.text().empty());
    CHECK_FALSE(view.each_member([](std::string_view, JsonView value) {
      value.string();
      return value.text().size() < 1000;
    }));
  }
}

}  // namespace
}  // namespace probed::client
