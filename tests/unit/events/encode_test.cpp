// Events as JSON: the outside contract, byte for byte.
#include "daemon/events/encode.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <string>

#include <nlohmann/json.hpp>

#include "tests/unit/lang/support.hpp"

namespace probed::events {
namespace {

using test::Packed;

RecordHeader header() {
  RecordHeader h;
  h.probe = ProbeId{3};
  h.pid = h.tid = 1447;
  h.cpu = 1;
  h.time = 1038282286875123;
  h.ip = 0x55d0c8a4f2b0;
  std::strcpy(h.comm, "redis-server");
  return h;
}

// The "args" object of an event with one argument called v.
std::string value(const std::string& type, const Packed& packed, Symbolizer symbolize = nullptr) {
  const auto args = test::parse_args("v=@1:" + type);
  REQUIRE_FALSE(args.empty());
  std::string out;
  append_event_json(out, make_schema("g/e", "f+0x0", args), header(), packed, symbolize);
  // nlohmann's parser, unlike Python's and jq's, takes no lone surrogates: the escapes of bytes that are no UTF-8.
  if (out.find("\\udc") == std::string::npos) REQUIRE(nlohmann::json::accept(out));
  const std::string before = "\"args\":{\"v\":";
  const std::size_t start = out.find(before) + before.size();
  return out.substr(start, out.size() - start - 2);
}

std::string json(std::string_view bytes) {
  std::string out;
  append_json_string(out, bytes);
  return out;
}

}  // namespace

TEST_CASE("of alternatives the one is shown that the number in front of them says, in the place of all") {
  auto args = test::parse_args("v=@1:s8 i=@1:s32 a=@1:u8 b=@1:string l=@1:u8 m=@1:u8 behind=@1:u8");
  const auto part = [&](std::size_t i, std::vector<std::string> path, std::uint16_t chooser, std::uint64_t choice) {
    path.insert(path.begin(), "v");
    args[i].path = std::move(path);
    args[i].chooser = chooser;
    args[i].choice = choice;
  };
  part(0, {"index"}, 0, 0);
  part(1, {"value"}, 1, 0);
  part(2, {"value", "a"}, 2, 1);
  part(3, {"value", "b"}, 3, 1);
  part(4, {"value", "[0]"}, 4, 2);
  part(5, {"value", "[1]"}, 5, 2);
  const auto shown = [&](const Packed& packed) {
    std::string out;
    append_event_json(out, make_schema("g/e", "f+0x0", args), header(), packed);
    REQUIRE(nlohmann::json::accept(out));
    return out.substr(out.find("\"args\":") + 7);
  };
  CHECK(shown(Packed().number(0).number(5).null().null().null().null().number(9)) ==
        R"({"v":{"index":0,"value":5},"behind":9}})");
  CHECK(shown(Packed().number(1).null().number(6).null().null().null().number(9)) ==
        R"({"v":{"index":1,"value":{"a":6,"b":null}},"behind":9}})");
  CHECK(shown(Packed().number(2).null().null().null().number(7).number(8).number(9)) ==
        R"({"v":{"index":2,"value":[7,8]},"behind":9}})");
  CHECK(shown(Packed().number(~0ull).null().null().null().null().null().number(9)) ==
        R"({"v":{"index":-1,"value":null},"behind":9}})");
  CHECK(shown(Packed().null().number(5).number(6).text("x").null().null().null()) ==
        R"({"v":{"index":null,"value":null},"behind":null}})");
}

TEST_CASE("what an encoder keeps from one hit to the next is never another hit's") {
  const auto args = test::parse_args("c=$arg1");
  const EventSchema schema = make_schema("g/e", "f+0x0", args);
  EventEncoder encoder;
  RecordHeader h = header();
  const auto is_as_by_a_new_one = [&] {
    std::string expected;
    append_event_json(expected, schema, h, Packed().number(1));
    CHECK(encoder.encode(schema, h, Packed().number(1)) == expected);
  };
  for (const std::uint64_t time :
       {300'000'000ull, 0ull, 99'999'999ull, 100'000'000ull, 199'999'999ull, 200'000'000ull, 200'000'001ull}) {
    h.time = time;
    is_as_by_a_new_one();
  }
  h.cpu = 12;
  is_as_by_a_new_one();
  h.ip += 8;
  is_as_by_a_new_one();
  std::strcpy(h.comm, "renamed");
  is_as_by_a_new_one();
  h.tid += 64;  // which is kept in the same place
  is_as_by_a_new_one();
}

TEST_CASE("an event is exactly the contract's object") {
  const auto args = test::parse_args("c=$arg1 argc=$arg2:s32");
  std::string out = "x";
  append_event_json(out, make_schema("probes/cmd", "processCommand+0x0", args), header(),
                    Packed().number(0x7f0e5c).number(3));
  CHECK(out ==
        "x{\"probe\":\"probes/cmd\",\"id\":3,\"pid\":1447,\"tid\":1447,\"comm\":\"redis-server\",\"cpu\":1,"
        "\"time\":1038282286875123,\"ip\":\"0x55d0c8a4f2b0\",\"symbol\":\"processCommand+0x0\","
        "\"args\":{\"c\":\"0x7f0e5c\",\"argc\":3}}");
}

TEST_CASE("a return event also says where it returns to, from what, and how long it took") {
  const auto args = test::parse_args("$retval", true);
  const EventSchema schema = make_return_schema("probes/myret", "processCommand", args);
  RecordHeader h = header();
  h.ret_ip = 0x55d0c8a4f3b0;
  h.duration = 18446744073709551615u;
  const Symbolizer name = [](const void*, std::uint64_t address) -> std::string {
    return address == 0x55d0c8a4f3b0 ? "call+0x9e" : "";
  };
  std::string out;
  append_event_json(out, schema, h, Packed().number(0), name);
  const std::string front =
      "{\"probe\":\"probes/myret\",\"id\":3,\"pid\":1447,\"tid\":1447,\"comm\":\"redis-server\",\"cpu\":1,"
      "\"time\":1038282286875123,\"ip\":\"0x55d0c8a4f2b0\",\"symbol\":";
  const std::string back = "\"args\":{\"$retval\":\"0x0\"}}";
  CHECK(out == front +
                   "\"call+0x9e\",\"ret_ip\":\"0x55d0c8a4f3b0\",\"func\":\"processCommand\","
                   "\"duration\":18446744073709551615," +
                   back);
  h.ret_ip = 0x10;
  h.duration = 7;
  h.tail_call = 1;
  out.clear();
  append_event_json(out, schema, h, Packed().number(0), name);
  CHECK(out ==
        front + "\"0x10\",\"ret_ip\":\"0x10\",\"func\":\"processCommand\",\"duration\":7,\"tail_call\":true," + back);
}

TEST_CASE("an event without arguments has an empty object") {
  std::string out;
  append_event_json(out, make_schema("g/e", "f+0x0", {}), header(), {});
  CHECK(out.ends_with("\"args\":{}}"));
}

TEST_CASE("numbers are exact over 64 bits") {
  struct Row {
    const char* type;
    std::uint64_t packed;
    const char* text;
  };
  const Row rows[] = {
      {"u8", 255, "255"},
      {"u64", 0, "0"},
      {"u64", 0xffffffffffffffff, "18446744073709551615"},
      {"s64", 0x8000000000000000, "-9223372036854775808"},
      {"s64", 0x7fffffffffffffff, "9223372036854775807"},
      {"s8", 0xffffffffffffffff, "-1"},
      {"x8", 0, "\"0x0\""},
      {"x64", 0xffffffffffffffff, "\"0xffffffffffffffff\""},
      {"x16", 0xabcd, "\"0xabcd\""},
      {"b3@1/8", 5, "5"},
      {"b64@0/64", 0xffffffffffffffff, "18446744073709551615"},
      {"char", 'A', "\"A\""},
      {"char", 0, "\"\\u0000\""},
      {"char", '\n', "\"\\n\""},
      {"char", 0xff, "\"\\udcff\""},
      {"symbol", 0x401000, "\"0x401000\""},
  };
  for (const Row& row : rows) {
    CAPTURE(row.type);
    CHECK(value(row.type, Packed().number(row.packed)) == row.text);
    CHECK(value(row.type, Packed().null()) == "null");
  }
}

TEST_CASE("arrays, their nulls, and strings") {
  CHECK(value("u8[3]", Packed().array(3).number(1).null().number(3)) == "[1,null,3]");
  CHECK(value("x8[2]", Packed().array(2).number(1).number(255)) == "[\"0x1\",\"0xff\"]");
  CHECK(value("char[2]", Packed().array(2).number('a').number('"')) == "[\"a\",\"\\\"\"]");
  CHECK(value("string[2]", Packed().array(2).text("a").null()) == "[\"a\",null]");
  CHECK(value("u8[3]", Packed().null()) == "null");
  CHECK(value("string", Packed().text("")) == "\"\"");
  CHECK(value("string", Packed().text("GET /")) == "\"GET /\"");
  CHECK(value("string", Packed().null()) == "null");
}

TEST_CASE("symbols become text when somebody knows them") {
  const Symbolizer known = [](const void*, std::uint64_t) -> std::string { return "main+0x4"; };
  const Symbolizer unknown = [](const void*, std::uint64_t) -> std::string { return ""; };
  CHECK(value("symbol", Packed().number(0x401004), known) == "\"main+0x4\"");
  CHECK(value("symbol", Packed().number(0x401004), unknown) == "\"0x401004\"");
}

TEST_CASE("strings are escaped so that every byte can be got back") {
  CHECK(json("plain") == "\"plain\"");
  CHECK(json("a\"b\\c/d") == "\"a\\\"b\\\\c/d\"");
  CHECK(json("\b\t\n\f\r") == "\"\\b\\t\\n\\f\\r\"");
  CHECK(json(std::string_view("\0\x01\x0b\x1f\x7f", 5)) == "\"\\u0000\\u0001\\u000b\\u001f\\u007f\"");
  CHECK(json("m\xc3\xbc \xe2\x82\xac \xf0\x9f\x98\x80") == "\"m\xc3\xbc \xe2\x82\xac \xf0\x9f\x98\x80\"");
  CHECK(json("\xc2\x9b[1m\x7f\xc2\x80\xc2\xa0") == "\"\\u009b[1m\\u007f\\u0080\xc2\xa0\"");  // a terminal obeys these
  CHECK(json("\x80") == "\"\\udc80\"");
  CHECK(json("a\xff") == "\"a\\udcff\"");
  CHECK(json("\xc3") == "\"\\udcc3\"");             // cut off
  CHECK(json("\xe2\x82") == "\"\\udce2\\udc82\"");  // cut off
  CHECK(json("\xe2\x82z") == "\"\\udce2\\udc82z\"");
  CHECK(json("\xc0\x80") == "\"\\udcc0\\udc80\"");  // overlong
  CHECK(json("\xe0\x80\x80") == "\"\\udce0\\udc80\\udc80\"");
  CHECK(json("\xf0\x80\x80\x80") == "\"\\udcf0\\udc80\\udc80\\udc80\"");
  CHECK(json("\xed\xb2\x80") == "\"\\udced\\udcb2\\udc80\"");             // a surrogate in UTF-8
  CHECK(json("\xf4\x90\x80\x80") == "\"\\udcf4\\udc90\\udc80\\udc80\"");  // beyond U+10FFFF
  CHECK(json("\xf8\x88\x80\x80\x80").size() == 2 + 5 * 6);
}

TEST_CASE("well-formed text is what a JSON parser reads back") {
  std::uint32_t state = 99;
  for (int i = 0; i < 2000; ++i) {
    std::string text;
    for (int k = 0; k < 20; ++k) text.push_back(static_cast<char>((state = state * 1664525 + 1013904223) >> 24 & 0x7f));
    text += "\xc3\xa9\xe2\x82\xac";
    REQUIRE(nlohmann::json::parse(json(text)).get<std::string>() == text);
  }
}

TEST_CASE("comm may fill its whole field") {
  RecordHeader h = header();
  std::memset(h.comm, 'c', sizeof h.comm);
  std::string out;
  append_event_json(out, make_schema("g/e", "f+0x0", {}), h, {});
  CHECK(out.find("\"comm\":\"" + std::string(16, 'c') + "\"") != std::string::npos);
}

}  // namespace probed::events
