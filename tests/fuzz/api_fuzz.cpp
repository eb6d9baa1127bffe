// Fuzz target for the socket: framing, JSON, JSON-RPC, the methods' tables and what runs behind them, against a
// controller without processes. A session of the daemon's own reads the input in pieces from one end of a socket pair.
//
// Input: the first byte chooses. Even: the rest is the stream as it is. Odd: the rest are choices from which requests
// are made that follow the methods' tables, mostly.
//
// Nothing may crash. Besides: pieces make no difference, each request is answered once, every answer has the shape its
// table says, and the session ends when its client has gone.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>  // before Asio
#include <variant>
#include <vector>

#include <boost/asio/io_context.hpp>

#include "daemon/api/session.hpp"
#include "proto/base/check.hpp"
#include "proto/schema.hpp"
#include "tests/unit/api/fake_controller.hpp"

namespace probed {
namespace {

using proto::Json;

// Numbers for decisions, out of the input; zeros when it is used up.
class Choices {
 public:
  explicit Choices(std::string_view bytes) : bytes_(bytes) {}
  bool empty() const { return bytes_.empty(); }
  std::size_t pick(std::size_t n) { return n == 0 ? 0 : byte() % n; }
  bool seldom() { return byte() >= 0xf0; }
  std::uint64_t number() {
    static constexpr std::uint64_t kLikely[] = {0,           1,           2,          10,         1000,
                                                0x7fff'ffff, 0xffff'ffff, 1ull << 53, ~0ull >> 1, ~0ull};
    const std::size_t which = pick(std::size(kLikely) + 2);
    return which < std::size(kLikely) ? kLikely[which] : byte() | static_cast<std::uint64_t>(byte()) << 8;
  }
  std::string text() {
    const std::size_t size = std::min(bytes_.size(), seldom() ? 300 : pick(12));
    const bool ascii = !seldom();
    std::string text(bytes_.substr(0, size));
    bytes_.remove_prefix(std::min(size, bytes_.size()));
    if (ascii)
      for (char& c : text) c = static_cast<char>(c & 0x7f);
    return text;
  }

 private:
  std::uint8_t byte() {
    if (bytes_.empty()) return 0;
    const auto first = static_cast<std::uint8_t>(bytes_.front());
    bytes_.remove_prefix(1);
    return first;
  }
  std::string_view bytes_;
};

std::string json_string(std::string_view text) {
  std::string out;
  proto::append_json_string(out, text);
  return out;
}

std::string any_value(Choices& choices, unsigned depth = 0) {
  switch (choices.pick(depth < 4 ? 8 : 6)) {
    case 0: return "null";
    case 1: return "true";
    case 2: return "-1";
    case 3: return std::to_string(choices.number());
    case 4: return "1e300";
    case 5: return json_string(choices.text());
    case 6: return "[" + any_value(choices, depth + 1) + "]";
    default: return "{" + json_string(choices.text()) + ":" + any_value(choices, depth + 1) + "}";
  }
}

std::string object_of(Choices& choices, std::span<const proto::Field> fields);

std::string value_of(Choices& choices, const proto::Field& field) {
  if (choices.seldom()) return any_value(choices);
  switch (field.type) {
    case proto::Type::boolean: return choices.pick(2) == 0 ? "true" : "false";
    case proto::Type::integer: return std::to_string(choices.number());
    case proto::Type::reference:
      return choices.pick(2) == 0 ? std::to_string(choices.number()) : json_string(choices.text());
    case proto::Type::object: return object_of(choices, field.fields);
    case proto::Type::array: {
      std::string items;
      for (std::size_t n = choices.pick(4); n > 0; --n)
        items += (items.empty() ? "" : ",") + (field.items ? value_of(choices, *field.items) : any_value(choices));
      return "[" + items + "]";
    }
    default: return json_string(choices.text());
  }
}

std::string object_of(Choices& choices, std::span<const proto::Field> fields) {
  std::string members;
  const auto add = [&](std::string_view name, const std::string& value) {
    members += (members.empty() ? "" : ",") + json_string(name) + ":" + value;
  };
  for (const proto::Field& field : fields)
    if (field.required ? !choices.seldom() : choices.pick(3) == 0) add(field.name, value_of(choices, field));
  if (choices.seldom()) add(choices.text(), any_value(choices));
  return "{" + members + "}";
}

std::string request_of(Choices& choices) {
  const proto::Method& method = proto::methods()[choices.pick(proto::methods().size())];
  std::string members =
      R"("jsonrpc":"2.0","method":)" + json_string(choices.seldom() ? choices.text() : std::string(method.name));
  if (!choices.seldom())
    members += ",\"id\":" + (choices.seldom() ? any_value(choices) : std::to_string(choices.number()));
  if (!choices.seldom()) members += ",\"params\":" + object_of(choices, method.params);
  return "{" + members + "}";
}

std::string stream_of(Choices choices) {
  std::string stream;
  const bool counted = choices.pick(2) == 1;
  do {
    std::string message = request_of(choices);
    if (choices.seldom()) message = "[" + message + "," + request_of(choices) + "]";
    const auto framing = counted ? proto::Framing::content_length : proto::Framing::lines;
    stream += proto::frame_header(framing, message.size()) + message;
    stream += proto::frame_trailer(framing);
  } while (!choices.empty() && stream.size() < 64 << 10);
  return stream;
}

// ---- the session and its client ----

class Owner final : public api::SessionOwner {
 public:
  const api::Services& services() const override { return services_; }
  void session_closed(ClientId) override { session.reset(); }

  test::FakeController controller;
  std::shared_ptr<api::Session> session;

 private:
  api::Authorizer authorizer_;
  api::Services services_{controller, authorizer_, 1 << 20, 16};
};

struct Client {
  UniqueFd fd;
  std::string got;
  bool ended = false;

  void read_all() {
    char room[65536];
    ssize_t n;
    while ((n = ::recv(fd.get(), room, sizeof room, MSG_DONTWAIT)) > 0) got.append(room, static_cast<std::size_t>(n));
    ended |= n == 0;
  }
};

// What the session answers to the stream, written in pieces of this size.
std::string answers_to(std::string_view stream, std::size_t piece) {
  boost::asio::io_context io;
  int ends[2];
  PROBED_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0, "a socket pair");
  Client client{UniqueFd(ends[0]), {}};
  Owner owner;
  api::Session::Socket socket(io, boost::asio::local::stream_protocol(), ends[1]);
  socket.non_blocking(true);
  auto peer = api::peer_of(ends[1], api::Procfs());
  PROBED_CHECK(peer.ok(), "its other end is known");
  owner.session = std::make_shared<api::Session>(owner, std::move(socket), std::move(peer).value(), ClientId{1},
                                                 api::SessionLimits());
  owner.session->start();
  while (!stream.empty() && owner.session && !client.ended) {
    const ssize_t n =
        ::send(client.fd.get(), stream.data(), std::min(piece, stream.size()), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n > 0) stream.remove_prefix(static_cast<std::size_t>(n));
    io.poll();
    client.read_all();
  }
  ::shutdown(client.fd.get(), SHUT_WR);
  for (int idle = 0; idle < 3 && !client.ended; ++idle) {
    const std::size_t before = client.got.size();
    while (io.poll() > 0) client.read_all();
    client.read_all();
    if (client.got.size() != before) idle = 0;
  }
  client.fd.reset();
  for (int turns = 0; owner.session && turns < 1000; ++turns) io.poll();
  PROBED_CHECK(!owner.session, "a session ends with its client");
  return client.got;
}

// ---- what must hold ----

// What is to be answered, in the order of the stream. An empty method: it makes no request.
struct Expected {
  std::string id, method;
};

// An id as a client reads it from its answer.
std::string as_read(const std::string& id) {
  const auto messages = proto::parse_server_messages(proto::make_response(id, "{}"));
  PROBED_CHECK(messages.ok(), "an id can be echoed");
  return std::get<proto::Reply>(messages->front()).id.dump();
}

// False: it ends the connection. Whoever has never sent a request speaks something else.
bool expect(std::string_view text, bool& spoke, std::vector<Expected>& expected) {
  const proto::Message message = proto::parse_message(text);
  for (const auto& item : message.items) spoke = spoke || std::holds_alternative<proto::Request>(item);
  if (!spoke) {
    expected.push_back({as_read(std::get<proto::Refused>(message.items.front()).id), ""});
    return false;
  }
  for (const auto& item : message.items) {
    const auto* request = std::get_if<proto::Request>(&item);
    if (!request)
      expected.push_back({as_read(std::get<proto::Refused>(item).id), ""});
    else if (!request->notify)
      expected.push_back({as_read(request->id), request->method});
  }
  return true;
}

std::vector<Expected> expected_of(std::string_view stream) {
  std::vector<Expected> expected;
  bool spoke = false;
  proto::FrameReader reader;
  reader.feed(stream);
  while (true) {
    const auto next = reader.next();
    if (!next) return expected.push_back({"null", ""}), expected;  // the stream breaks off
    if (!*next) break;
    if (!expect(**next, spoke, expected)) return expected;
  }
  if (const auto rest = reader.rest())
    expect(*rest, spoke, expected);
  else if (reader.buffered() > 0)
    expected.push_back({"null", ""});  // it ends within a message
  return expected;
}

void check_reply(const proto::Reply& reply, const Expected& expected) {
  PROBED_CHECK(reply.id.dump() == expected.id, "answers come in order");
  if (reply.error) {
    PROBED_CHECK(!reply.error->message.empty(), "an error has a message");
    return;
  }
  const proto::Method* method = proto::find_method(expected.method);
  PROBED_CHECK(method != nullptr, "a result answers a request for what there is");
  PROBED_CHECK(method->any_result || proto::validate_result(*method, reply.result).ok(),
               "a result has the shape its method's table says");
}

void check_answers(std::string_view stream, std::string_view got) {
  const std::vector<Expected> expected = expected_of(stream);
  std::size_t answered = 0;
  proto::FrameReader reader(64 << 20);  // answers have no limit
  reader.feed(got);
  while (true) {
    const auto next = reader.next();
    PROBED_CHECK(next.ok(), "answers are framed");
    if (!*next) break;
    const auto messages = proto::parse_server_messages(**next);
    PROBED_CHECK(messages.ok(), "answers are JSON-RPC");
    for (const auto& message : *messages) {
      const auto* reply = std::get_if<proto::Reply>(&message);
      if (!reply) continue;
      PROBED_CHECK(answered < expected.size(), "nothing is answered that wasn't asked");
      check_reply(*reply, expected[answered++]);
    }
  }
  PROBED_CHECK(answered == expected.size(), "every request is answered");
}

// Without what differs: when the server was started, and what the answer to a stream of another protocol quotes of it,
// which is as much as has come by then.
std::string what_stays(std::string answers) {
  constexpr std::string_view kStarted = "\"startedNs\":";
  for (auto at = answers.find(kStarted); at != answers.npos; at = answers.find(kStarted, at))
    for (at += kStarted.size(); at < answers.size() && answers[at] >= '0' && answers[at] <= '9'; ++at)
      answers[at] = '0';
  constexpr std::string_view kBefore = "the connection begins with ", kAfter = ", which is not this protocol";
  const auto begin = answers.find(kBefore), end = answers.rfind(kAfter);
  if (begin == answers.npos || end == answers.npos || end < begin) return answers;
  return answers.erase(begin + kBefore.size(), end - begin - kBefore.size());
}

void test_input(std::string_view input) {
  if (input.empty()) return;
  const auto first = static_cast<std::uint8_t>(input.front());
  input.remove_prefix(1);
  const std::string stream = first % 2 == 0 ? std::string(input) : stream_of(Choices(input));
  const std::string whole = answers_to(stream, stream.size() + 1);
  check_answers(stream, whole);
  const std::size_t piece = 1 + first / 2;
  if (stream.size() / piece >= 200) return;
  PROBED_CHECK(what_stays(answers_to(stream, piece)) == what_stays(whole), "pieces make no difference");
}

}  // namespace
}  // namespace probed

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  probed::test_input({reinterpret_cast<const char*>(data), size});
  return 0;
}
