// proto/: words and codes, strict JSON, framing, JSON-RPC, parameter tables, the description.
#include <doctest/doctest.h>

#include <fstream>
#include <set>
#include <sstream>

#include "daemon/api/dispatch.hpp"
#include "proto/framing.hpp"
#include "proto/jsonrpc.hpp"
#include "proto/openrpc.hpp"
#include "proto/schema.hpp"

using namespace probed;
using namespace probed::proto;

namespace {

std::string repeat(std::string_view text, std::size_t times) {
  std::string out;
  for (std::size_t i = 0; i < times; ++i) out += text;
  return out;
}

std::string quoted(std::string_view bytes) {
  std::string out;
  append_json_string(out, bytes);
  return out;
}

}  // namespace

TEST_CASE("every reason has a word of its own and comes back from it") {
  std::set<std::string_view> words;
  std::set<int> codes;
  for (int i = 0; i <= static_cast<int>(Reason::internal); ++i) {
    const auto reason = static_cast<Reason>(i);
    words.insert(to_string(reason));
    codes.insert(rpc_code(reason));
    CHECK(reason_from_string(to_string(reason)) == reason);
    const int code = rpc_code(reason);
    const bool ours = code <= -32000 && code >= -32099;
    const bool standard = code <= -32600 && code >= -32603;
    CHECK((ours || standard));
  }
  const std::size_t count = static_cast<std::size_t>(Reason::internal) + 1;
  CHECK(words.size() == count);
  CHECK(codes.size() == count);
  CHECK(to_string(Reason::not_instruction_boundary) == "not-instruction-boundary");
  CHECK_FALSE(reason_from_string("no-such-thing").has_value());
}

TEST_CASE("the parser takes JSON and refuses what readers disagree on") {
  struct Row {
    std::string text;
    bool good;
    bool syntax;
  };
  const Row rows[] = {
      {R"({"a":[1,-2,3.5,"x",null,true,{}]})", true, true},
      {R"("\ud83d\ude00")", true, true},
      {"\"\xf0\x9f\x98\x80\"", true, true},
      {" [1] ", true, true},
      {"18446744073709551615", true, true},
      {"", false, true},
      {"{", false, true},
      {"{}}", false, true},
      {"{} {}", false, true},
      {"[1,]", false, true},
      {"{'a':1}", false, true},
      {"nul", false, true},
      {"NaN", false, true},
      {"01", false, true},
      {"1e400", false, true},
      {"// c\n1", false, true},
      {"\"\x80\"", false, true},
      {"\"\xc0\xaf\"", false, true},      // overlong
      {"\"\xed\xa0\x80\"", false, true},  // a surrogate in UTF-8
      {R"("\ud800")", false, true},
      {R"("\udc80")", false, true},
      {"\"a\nb\"", false, true},
      {std::string("{}\0", 3), false, true},
      {std::string("{}\0garbage", 10), false, true},
      {std::string("{\"a\0b\":1}", 9), false, true},
      {R"({"a":1,"a":1})", false, false},
      {R"([{"x":{"a":1,"b":2,"\u0061":3}}])", false, false},
      {repeat("[", 64) + repeat("]", 64), true, true},
      {repeat("[", 65) + repeat("]", 65), false, false},
      {repeat("{\"a\":", 65) + "1" + repeat("}", 65), false, false},
      {repeat("[", 1000000), false, false},
  };
  for (const Row& row : rows) {
    CAPTURE(row.text.substr(0, 80));
    auto result = parse_json(row.text);
    CHECK(static_cast<bool>(result) == row.good);
    if (result || row.good) continue;
    CHECK(result.error().syntax == row.syntax);
    CHECK_FALSE(result.error().message.empty());
    CHECK(result.error().message.size() < 400);
  }
}

TEST_CASE("the parser keeps values, order of arrays and 64-bit integers") {
  auto result = parse_json(R"({"b":[1,{"c":[2]},3],"a":9007199254740993,"n":-9223372036854775808,"z":{"k":{}}})");
  REQUIRE(result);
  CHECK((*result).dump() == R"({"a":9007199254740993,"b":[1,{"c":[2]},3],"n":-9223372036854775808,"z":{"k":{}}})");
}

TEST_CASE("strings of any bytes are written losslessly") {
  CHECK(quoted("a\"b\\c\n\t\r\x01\x7f") == R"("a\"b\\c\n\t\r\u0001\u007f")");
  CHECK(quoted("\xc2\x9b[1m\xc2\x80\xc2\x9f\xc2\xa0") ==
        "\"\\u009b[1m\\u0080\\u009f\xc2\xa0\"");  // a terminal obeys these
  CHECK(quoted("é€😀") == "\"é€😀\"");
  CHECK(quoted("\x80\xff") == R"("\udc80\udcff")");
  CHECK(quoted("\xc0\xaf") == R"("\udcc0\udcaf")");
  CHECK(quoted("\xed\xa0\x80") == R"("\udced\udca0\udc80")");
  CHECK(quoted("\xf4\x90\x80\x80") == R"("\udcf4\udc90\udc80\udc80")");
  CHECK(quoted("\xe2\x82") == R"("\udce2\udc82")");
  CHECK(quoted(std::string_view("\0", 1)) == R"("\u0000")");
}

TEST_CASE("lone surrogates are made readable for strict parsers, pairs and backslashes are left alone") {
  CHECK(replace_lone_surrogates(R"("a\udc80b")") == R"("a\ufffdb")");
  CHECK(replace_lone_surrogates(R"("\ud83d\ude00")") == R"("\ud83d\ude00")");
  CHECK(replace_lone_surrogates(R"("\\udc80")") == R"("\\udc80")");
  CHECK(replace_lone_surrogates(R"("\\\udc80")") == R"("\\\ufffd")");
  CHECK(replace_lone_surrogates(R"("\ud83dx")") == R"("\ufffdx")");
  CHECK(replace_lone_surrogates("\\") == "\\");
}

TEST_CASE("the writer puts commas where they belong") {
  JsonWriter w;
  w.begin_object().key("a").begin_array().number(std::uint64_t{1}).string("x").begin_object().end_object();
  w.end_array().key("b").boolean(false).key("c").address(0xdeadbeef).key("d").begin_object().end_object();
  w.key("e").number(std::int64_t{-1}).end_object();
  CHECK(w.text() == R"({"a":[1,"x",{}],"b":false,"c":"0xdeadbeef","d":{},"e":-1})");
}

// ---- framing ----

namespace {

// Everything a reader makes of the bytes when they come in pieces of `piece`.
std::vector<std::string> frames(std::string_view bytes, std::size_t piece, std::string* error = nullptr,
                                std::size_t max = 64) {
  FrameReader reader(max);
  std::vector<std::string> out;
  while (true) {
    auto frame = reader.next();
    if (!frame) {
      if (error) *error = to_string(frame.error().reason);
      return out;
    }
    if (*frame) {
      out.emplace_back(**frame);
      continue;
    }
    if (bytes.empty()) break;
    reader.feed(bytes.substr(0, piece));
    bytes.remove_prefix(std::min(piece, bytes.size()));
  }
  if (const auto rest = reader.rest()) out.push_back("rest:" + std::string(*rest));
  return out;
}

}  // namespace

TEST_CASE("messages are found however the bytes are cut") {
  const std::string body(70, 'x');
  struct Row {
    std::string bytes;
    std::vector<std::string> expected;
    std::string error;
  };
  const Row rows[] = {
      {"{1}\n{2}\n", {"{1}", "{2}"}, ""},
      {"\n \r\n{1}\r\n\n{2}", {"{1}\r", "rest:{2}"}, ""},
      {"Content-Length: 3\r\n\r\n{1}Content-Length: 2\r\n\r\n{}", {"{1}", "{}"}, ""},
      {"content-length:3\nContent-Type: x; charset=utf-8\n\n{1}", {"{1}"}, ""},
      {"Content-Length: 0\r\n\r\nContent-Length: 1\r\n\r\nx", {"", "x"}, ""},
      {"Content-Length: 3\r\n\r\n{1", {}, ""},
      {"content-type: x\r\nContent-Length: 3\r\n\r\n{1}", {"{1}"}, ""},
      {"C", {}, ""},
      {"[" + std::string(63, 'x') + "\n", {"[" + std::string(63, 'x')}, ""},
      {"{" + std::string(64, 'x') + "\n", {}, "message-too-long"},
      {"[" + std::string(64, 'x'), {}, "message-too-long"},
      // The first bytes decide; later ones may be anything.
      {"{1}\nPOST / HTTP/1.1\n", {"{1}", "POST / HTTP/1.1"}, ""},
      {"{1}\nContent-Length: 1\n", {"{1}", "Content-Length: 1"}, ""},
      // Another protocol: known by its first byte where that says enough.
      {"P", {}, "bad-message"},
      {"\r\n POST / HTTP/1.1\r\nHost: x\r\n\r\n{1}\n", {}, "bad-message"},
      {"GET / HTTP/1.1\r\n\r\n", {}, "bad-message"},
      {"Connect\n", {}, "bad-message"},
      {"42\n", {}, "bad-message"},
      {"\"x\"\n", {}, "bad-message"},
      {"\xef\xbb\xbf{1}\n", {}, "bad-message"},
      {std::string("\0{1}\n", 5), {}, "bad-message"},
      // A method of HTTP may be called anything.
      {"Content-X /a:b HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n{1}", {}, "bad-message"},
      {"Content-Length: 3\r\nHost: x\r\n\r\n{1}", {}, "bad-message"},
      {"{1}\n" + body + "\n{3}\n", {"{1}"}, "message-too-long"},
      {"Content-Length: 65\r\n\r\n", {}, "message-too-long"},
      {"Content-Length: 99999999999999999999999999\r\n\r\n", {}, "message-too-long"},
      {"Content-Length: -1\r\n\r\n", {}, "bad-message"},
      {"Content-Length: x\r\n\r\n", {}, "bad-message"},
      {"Content-Length: 1\r\nContent-Length: 1\r\n\r\n", {}, "bad-message"},
      {"Content-Length: 1\r\n\r\nxX-Other: 1\r\n\r\n", {"x"}, "bad-message"},
      {"Content-Length: 1\r\nnonsense\r\n\r\n", {}, "bad-message"},
      {"Content-Length: 1\r\nX: " + std::string(5000, 'y'), {}, "bad-message"},
  };
  for (const Row& row : rows)
    for (const std::size_t piece : {1, 2, 3, 7, 100000}) {
      CAPTURE(row.bytes.substr(0, 60));
      CAPTURE(piece);
      std::string error;
      CHECK(frames(row.bytes, piece, &error) == row.expected);
      CHECK(error == row.error);
    }
}

TEST_CASE("a frame reader repeats its error and gives no rest after it") {
  FrameReader reader(4);
  reader.feed("[too long]\n{}\n");
  CHECK_FALSE(reader.next().ok());
  CHECK_FALSE(reader.next().ok());
  CHECK_FALSE(reader.rest().has_value());
}

// ---- JSON-RPC ----

TEST_CASE("requests are read strictly") {
  struct Row {
    const char* text;
    const char* id;  // of the answer
    int code;        // 0: a good request
    const char* reason;
  };
  const Row rows[] = {
      {R"({"jsonrpc":"2.0","id":1,"method":"m"})", "1", 0, ""},
      {R"({"jsonrpc":"2.0","id":"a\u0001","method":"m","params":{}})", R"("a\u0001")", 0, ""},
      {R"({"jsonrpc":"2.0","id":null,"method":"m","params":[]})", "null", 0, ""},
      {R"({"jsonrpc":"2.0","id":-9223372036854775808,"method":"m"})", "-9223372036854775808", 0, ""},
      {R"({"jsonrpc":"2.0","id":18446744073709551615,"method":"m"})", "18446744073709551615", 0, ""},
      {"{", "null", -32700, "bad-message"},
      {"\"x\"", "null", -32600, "bad-message"},
      {"1", "null", -32600, "bad-message"},
      {"{}", "null", -32600, "bad-message"},
      {R"({"id":1,"method":"m"})", "1", -32600, "bad-message"},
      {R"({"jsonrpc":"1.0","id":1,"method":"m"})", "1", -32600, "bad-message"},
      {R"({"jsonrpc":2.0,"id":1,"method":"m"})", "1", -32600, "bad-message"},
      {R"({"jsonrpc":"2.0","id":1})", "1", -32600, "bad-message"},
      {R"({"jsonrpc":"2.0","id":1,"method":7})", "1", -32600, "bad-message"},
      {R"({"jsonrpc":"2.0","id":1,"method":"m","params":null})", "1", -32600, "bad-message"},
      {R"({"jsonrpc":"2.0","id":1,"method":"m","params":"p"})", "1", -32600, "bad-message"},
      {R"({"jsonrpc":"2.0","id":1.5,"method":"m"})", "null", -32600, "bad-message"},
      {R"({"jsonrpc":"2.0","id":18446744073709551616,"method":"m"})", "null", -32600, "bad-message"},
      {R"({"jsonrpc":"2.0","id":true,"method":"m"})", "null", -32600, "bad-message"},
      {R"({"jsonrpc":"2.0","id":[1],"method":"m"})", "null", -32600, "bad-message"},
      {R"({"jsonrpc":"2.0","id":1,"method":"m","extra":1})", "1", -32600, "bad-message"},
      {R"({"jsonrpc":"2.0","id":1,"result":{}})", "1", -32600, "bad-message"},
      {R"({"jsonrpc":"2.0","id":1,"id":2,"method":"m"})", "null", -32600, "bad-message"},
      {"[]", "null", -32600, "bad-message"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.text);
    const Message message = parse_message(row.text);
    REQUIRE(message.items.size() == 1);
    CHECK_FALSE(message.batch);
    if (row.code == 0) {
      REQUIRE(std::holds_alternative<Request>(message.items[0]));
      const auto& request = std::get<Request>(message.items[0]);
      CHECK(request.id == row.id);
      CHECK_FALSE(request.notify);
      CHECK(request.params == Json::object());
      continue;
    }
    REQUIRE(std::holds_alternative<Refused>(message.items[0]));
    const auto& refused = std::get<Refused>(message.items[0]);
    CHECK(refused.id == row.id);
    CHECK(refused.error.code == row.code);
    CHECK(to_string(refused.error.error.reason) == row.reason);
    CHECK_FALSE(refused.error.error.message.empty());
  }
}

TEST_CASE("a request without id is a notification, null is an id") {
  const Message message = parse_message(R"({"jsonrpc":"2.0","method":"m","params":{"a":1}})");
  REQUIRE(std::holds_alternative<Request>(message.items[0]));
  CHECK(std::get<Request>(message.items[0]).notify);
  CHECK(std::get<Request>(message.items[0]).params["a"] == 1);
}

TEST_CASE("batches keep their order and bad items in their places; oversized ones are refused whole") {
  const Message message = parse_message(R"([1,{"jsonrpc":"2.0","id":1,"method":"a"},{"jsonrpc":"2.0","method":"b"}])");
  CHECK(message.batch);
  REQUIRE(message.items.size() == 3);
  CHECK(std::holds_alternative<Refused>(message.items[0]));
  CHECK(std::get<Request>(message.items[1]).method == "a");
  CHECK(std::get<Request>(message.items[2]).notify);
  const Message large = parse_message("[1" + repeat(",1", kMaxBatch) + "]");
  REQUIRE(large.items.size() == 1);
  CHECK(std::get<Refused>(large.items[0]).error.error.reason == Reason::limit_exceeded);
}

TEST_CASE("what a server writes a client reads back") {
  const Error error{Reason::bad_definition, "no type \"q\"", "types are u8", 12};
  const std::string text = make_error("7", error);
  CHECK(
      text ==
      R"({"jsonrpc":"2.0","id":7,"error":{"code":-32010,"message":"no type \"q\"","data":{"reason":"bad-definition","column":12,"hint":"types are u8"}}})");
  auto read = parse_server_messages(text);
  REQUIRE(read.ok());
  const auto& reply = std::get<Reply>(read->at(0));
  CHECK(reply.id == 7);
  CHECK(reply.code == -32010);
  REQUIRE(reply.error.has_value());
  CHECK(reply.error->reason == Reason::bad_definition);
  CHECK(reply.error->column == 12u);
  CHECK(reply.error->hint == "types are u8");

  read = parse_server_messages("[" + make_response("\"x\"", "{\"c\":\"\\udc80\"}") + "," + make_error("null", error) +
                               "]");
  REQUIRE(read.ok());
  REQUIRE(read->size() == 2);
  CHECK(std::get<Reply>(read->at(0)).result["c"] == "\xef\xbf\xbd");
  read = parse_server_messages(make_notification("events", "{\"missed\":0}"));
  REQUIRE(read.ok());
  CHECK(std::get<Notification>(read->at(0)).params["missed"] == 0);
  CHECK(std::get<Request>(parse_message(make_request(3, "m", "{}")).items[0]).id == "3");
  for (const char* bad : {"", "1", "{}", "[1]", R"({"jsonrpc":"2.0","id":1})"})
    CHECK_FALSE(parse_server_messages(bad).ok());
}

// ---- parameter tables ----

TEST_CASE("parameters are held against the tables, and messages name the key and what is allowed") {
  struct Row {
    const char* method;
    const char* params;
    const char* message;  // a part of it; empty: good
    const char* hint;     // a part of it
  };
  const Row rows[] = {
      {"target.attach", R"({"pid":2})", "", ""},
      {"target.attach", R"({"pid":4194304,"followFork":true,"holdAtEntry":false})", "", ""},
      {"target.attach", "{}", "\"pid\" is missing", "2 to 4194304"},
      {"target.attach", R"({"pid":0})", "\"pid\" is 0", "2 to 4194304"},
      {"target.attach", R"({"pid":1})", "\"pid\" is 1", "init"},
      {"target.attach", R"({"pid":-5})", "\"pid\" is -5", "2 to 4194304"},
      {"target.attach", R"({"pid":4194305})", "4194305", "2 to 4194304"},
      {"target.attach", R"({"pid":18446744073709551615})", "18446744073709551615", "2 to 4194304"},
      {"target.attach", R"({"pid":99999999999999999999})", "fraction, or beyond 64 bits", ""},
      {"target.attach", R"({"pid":7.0})", "fraction", ""},
      {"target.attach", R"({"pid":"7"})", "\"pid\" is a string", ""},
      {"target.attach", R"({"pid":null})", "\"pid\" is null", ""},
      {"target.attach", R"({"pid":7,"followfork":true})", "unknown parameter \"followfork\"",
       "allowed are pid, followFork, holdAtEntry"},
      {"target.attach", R"({"pid":7,"x-secret":1})", "unknown parameter \"x-secret\"", ""},
      {"target.attach", R"({"pid":7,"followFork":1})", "\"followFork\" is an integer, not a boolean", ""},
      {"target.attach", "[7]", "by name", "pid"},
      {"target.list", R"({"pid":7})", "unknown parameter \"pid\"", "no parameters"},
      {"probe.add", R"({"pid":7,"probes":[{"definition":"p f"}]})", "", ""},
      {"probe.add",
       R"({"pid":7,"probes":[{"definition":"p f","filter":"","disabled":true,"optimize":false}],"persist":true,"limit":1,"followFork":true,"x-step":true})",
       "", ""},
      {"probe.add", R"({"pid":7})", "\"probes\" is missing", ""},
      {"probe.add", R"({"pid":7,"probes":[]})", "0 items", ""},
      {"probe.add", R"({"pid":7,"probes":{}})", "\"probes\" is an object", ""},
      {"probe.add", R"({"pid":7,"probes":["p f"]})", "\"probes[0]\" is a string", "definition"},
      {"probe.add", R"({"pid":7,"probes":[{"definition":"p f"},{"definitio":"q"}]})", "\"probes[1].definitio\"",
       "allowed are definition, filter, disabled, optimize"},
      {"probe.add", R"({"pid":7,"probes":[{"definition":"p f"},{"filter":"q"}]})",
       "\"probes[1].definition\" is missing", ""},
      {"probe.add", R"({"pid":7,"probes":[{"definition":""}]})", "0 bytes", ""},
      {"probe.add", R"({"pid":7,"probes":[{"definition":"p\u0000f"}]})", "NUL", ""},
      {"probe.add", R"({"pid":7,"probes":[{"definition":"f"}],"limit":0})", "\"limit\" is 0", ""},
      {"probe.add", R"({"pid":7,"probes":[{"definition":"f"}],"limit":9223372036854775808})",
       "\"limit\" is 9223372036854775808", ""},
      {"probe.remove", R"({"ids":[1,2]})", "", ""},
      {"probe.remove", R"({"ids":[]})", "", ""},
      {"probe.remove", R"({"names":["a","g/b"]})", "", ""},
      {"probe.remove", R"({"all":true})", "", ""},
      {"probe.remove", R"({"all":false})", "\"all\" can only be true", ""},
      {"probe.remove", "{}", "missing", "exactly one of ids, names, all"},
      {"probe.remove", R"({"ids":[1],"names":["a"]})", "more than once", "exactly one of ids, names, all"},
      {"probe.remove", R"({"ids":[4294967296]})", "\"ids[0]\" is 4294967296", ""},
      {"probe.remove", R"({"ids":[-1]})", "\"ids[0]\" is -1", ""},
      {"probe.remove", R"({"names":[""]})", "\"names[0]\" has 0 bytes", ""},
      {"probe.format", R"({"id":1})", "", ""},
      {"probe.format", R"({"id":1,"name":"a"})", "more than once", "exactly one of id, name"},
      {"events.subscribe", R"({"pid":7,"probes":["a",3,"4"]})", "", ""},
      {"events.subscribe", R"({"probes":[-1]})", "\"probes[0]\" is an integer, not a probe's name or id", ""},
      {"events.unsubscribe", "{}", "\"subscription\" is missing", ""},
      {"daemon.optimize", R"({"enabled":"on"})", "\"enabled\" is a string", ""},
      {"initialize", R"({"client":{"name":"x","version":"1"},"protocol":1})", "", ""},
      {"initialize", R"({"protocol":2})", "\"protocol\" is 2", "1 to 1"},
      {"initialize", R"({"client":{"name":"x"}})", "\"client.version\" is missing", ""},
      {"symbols.functions", R"({"pid":7,"glob":"*","limit":10})", "", ""},
  };
  for (const Row& row : rows) {
    CAPTURE(row.method);
    CAPTURE(row.params);
    const Method* method = find_method(row.method);
    REQUIRE(method != nullptr);
    auto params = parse_json(row.params);
    REQUIRE(params);
    const auto valid = validate(*method, *params);
    CHECK(valid.ok() == (*row.message == '\0'));
    if (valid.ok()) continue;
    CHECK(valid.error().reason == Reason::bad_params);
    CHECK_MESSAGE(valid.error().message.find(row.message) != std::string::npos, valid.error().message);
    CHECK_MESSAGE(valid.error().hint.find(row.hint) != std::string::npos, valid.error().hint);
    CHECK(valid.error().message.starts_with(row.method));
  }
}

TEST_CASE("a long unknown key is not echoed whole") {
  const auto valid = validate(*find_method("daemon.status"), Json{{std::string(100000, 'k'), 1}});
  REQUIRE_FALSE(valid.ok());
  CHECK(valid.error().message.size() < 200);
}

TEST_CASE("every method of the tables has a handler, and the other way round") {
  std::set<std::string_view> described, handled;
  for (const Method& m : methods()) described.insert(m.name);
  for (const auto name : api::handled_methods()) handled.insert(name);
  CHECK(described == handled);
  CHECK(described.size() == methods().size());
}

TEST_CASE("what has been done is told even where there is no room for answers; what only reads is refused there") {
  for (const auto name : api::handled_methods()) {
    const std::string_view verb = name.substr(name.find('.') + 1);
    const bool reads = name.starts_with("symbols.") || verb == "list" || verb == "profile" || verb == "format" ||
                       verb == "status" || verb == "initialize" || verb == "discover";
    CHECK_MESSAGE(api::changes_something(name) != reads, name);
  }
}

TEST_CASE("the description in the tree is the one the tables make") {
  std::ifstream file(PROBED_SOURCE_ROOT "/proto/openrpc.json");
  std::stringstream text;
  text << file.rdbuf();
  CHECK_MESSAGE(text.str() == openrpc_document(),
                "regenerate it: ninja proto/write-openrpc && proto/write-openrpc > proto/openrpc.json");
  CHECK(Json::parse(openrpc_text()) == Json::parse(openrpc_document()));
}

TEST_CASE("the protocol document has a section for every method, notification and reason") {
  std::ifstream file(PROBED_SOURCE_ROOT "/proto/PROTOCOL.md");
  std::stringstream stream;
  stream << file.rdbuf();
  const std::string text = stream.str();
  for (const Method& m : methods()) {
    CAPTURE(m.name);
    CHECK(text.find("### `" + std::string(m.name) + "`") != std::string::npos);
  }
  for (const NotificationInfo& n : notifications()) {
    CAPTURE(n.name);
    CHECK(text.find("### `" + std::string(n.name) + "`") != std::string::npos);
  }
  for (int i = 0; i <= static_cast<int>(Reason::internal); ++i) {
    const auto reason = static_cast<Reason>(i);
    const std::string row = "| `" + std::string(to_string(reason)) + "` | " + std::to_string(rpc_code(reason)) + " |";
    CAPTURE(row);
    CHECK(text.find(row) != std::string::npos);
  }
}
