// The client library against the other end of a socket pair, played by a thread.
#include "client/connection.hpp"

#include <doctest/doctest.h>
#include <sys/socket.h>

#include <functional>
#include <thread>

#include "tests/unit/client/fake_daemon.hpp"

namespace probed::client {
namespace {

// Runs `script` on the server's end while the test has the client's.
class Server {
 public:
  explicit Server(std::function<void(int)> script) {
    int ends[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    client_.reset(ends[0]);
    thread_ = std::thread([fd = ends[1], script = std::move(script)] {
      const UniqueFd server(fd);
      script(server.get());
    });
  }
  ~Server() { thread_.join(); }
  Connection connect() { return Connection(std::move(client_)); }

 private:
  UniqueFd client_;
  std::thread thread_;
};

std::string read_line(int fd) {
  std::string line;
  for (char c; ::read(fd, &c, 1) == 1 && c != '\n';) line.push_back(c);
  return line;
}

void wait_for_close(int fd) {
  char c;
  while (::read(fd, &c, 1) > 0) continue;
}

TEST_CASE("a request goes out as one line, and its result comes back byte for byte") {
  std::string request;
  Server server([&](int fd) {
    request = read_line(fd);
    test::send_all(fd, "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\": {\"z\":18446744073709551615,\"a\":\"\\udc80\"} }\n");
  });
  auto connection = server.connect();
  const auto reply = connection.call("probe.list", R"({"pid":3})");
  REQUIRE(reply);
  CHECK(request == R"({"jsonrpc":"2.0","id":1,"method":"probe.list","params":{"pid":3}})");
  CHECK(reply->view().text() == R"({"z":18446744073709551615,"a":"\udc80"})");
}

TEST_CASE("notifications before a reply are handled before call returns, in order; those after it later") {
  Server server([](int fd) {
    read_line(fd);
    test::send_all(fd,
                   "{\"jsonrpc\":\"2.0\",\"method\":\"one\",\"params\":{\"n\":1}}\n"
                   "\n"
                   "{\"params\":{\"n\":2},\"method\":\"two\",\"jsonrpc\":\"2.0\"}\n"
                   "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":null}\n"
                   "{\"jsonrpc\":\"2.0\",\"method\":\"three\",\"params\":{\"n\":3}}\n");
    wait_for_close(fd);
  });
  auto connection = server.connect();
  std::string seen;
  connection.on_notification(
      [&](const Notification& n) { seen += std::string(n.method) + std::to_string(n.params["n"].u64_or(0)); });
  REQUIRE(connection.call("m", "{}"));
  CHECK(seen == "one1two2");
  const auto woken = connection.wait({Clock::now() + std::chrono::seconds(10), -1, {}});
  REQUIRE(woken);
  CHECK(*woken == Wake::message);
  CHECK(seen == "one1two2three3");
}

TEST_CASE("an error reply is rebuilt with reason, column and hint") {
  Server server([](int fd) {
    read_line(fd);
    test::send_all(fd, proto::make_error("1", Error{Reason::bad_definition, "no such register", "see regs", 9}) + "\n");
    read_line(fd);
    test::send_all(fd,
                   "{\"jsonrpc\":\"2.0\",\"id\":2,\"error\":{\"code\":-1,\"message\":\"x\",\"data\":{\"reason\":\"new-"
                   "word\"}}}\n");
  });
  auto connection = server.connect();
  const auto refused = connection.call("probe.add", "{}");
  REQUIRE_FALSE(refused);
  CHECK(refused.error().reason == Reason::bad_definition);
  CHECK(refused.error().message == "no such register");
  CHECK(refused.error().hint == "see regs");
  CHECK(refused.error().column == 9u);
  CHECK(connection.call("m", "{}").error().reason == Reason::internal);
  CHECK(connection.alive());
}

TEST_CASE("a closed connection fails the call under way and every later one") {
  Server server([](int fd) { read_line(fd); });
  auto connection = server.connect();
  const auto first = connection.call("m", "{}");
  REQUIRE_FALSE(first);
  CHECK(first.error().message.find("closed the connection") != std::string::npos);
  CHECK_FALSE(connection.alive());
  CHECK_FALSE(connection.call("m", "{}"));
  CHECK_FALSE(connection.wait({}));
}

TEST_CASE("a message that arrives one byte at a time is whole in the end") {
  Server server([](int fd) {
    read_line(fd);
    const std::string text =
        "{\"jsonrpc\":\"2.0\",\"method\":\"n\",\"params\":{}}\n{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"a\":\"b\"}}"
        "\n";
    for (const char c : text) test::send_all(fd, {&c, 1});
  });
  auto connection = server.connect();
  int notifications = 0;
  connection.on_notification([&](const Notification&) { ++notifications; });
  const auto reply = connection.call("m", "{}");
  REQUIRE(reply);
  CHECK((*reply)["a"].string() == "b");
  CHECK(notifications == 1);
}

TEST_CASE("a huge batch of events arrives whole, every event byte for byte") {
  constexpr std::uint64_t kEvents = 200'000;
  const auto event = [](std::uint64_t n) {
    return fmt::format(R"({{"time":{},"args":{{"s":"}},{{\"[","u":18446744073709551615}}}})", n);
  };
  Server server([&](int fd) {
    std::string batch;
    for (std::uint64_t n = 0; n < kEvents; ++n) batch += (n ? "," : "") + event(n);
    read_line(fd);
    test::send_all(
        fd, proto::make_notification("events", R"({"subscription":4,"events":[)" + batch + R"(],"missed":5})") + "\n");
    test::send_all(fd, proto::make_response("1", "{}") + "\n");
  });
  auto connection = server.connect();
  EventBatch total;
  std::uint64_t wrong = 0, next = 0;
  connection.on_notification([&](const Notification& n) {
    CHECK(scan_events(
        n.params, [&](std::string_view text) { wrong += text != event(next++); }, total));
  });
  REQUIRE(connection.call("m", "{}"));
  CHECK(total.events == kEvents);
  CHECK(total.subscription == 4);
  CHECK(total.missed == 5);
  CHECK(wrong == 0);
}

TEST_CASE("a batch of events that is cut or malformed says so") {
  EventBatch batch;
  std::uint64_t seen = 0;
  const auto scan = [&](std::string_view text) {
    return scan_events(
        JsonView(text), [&](std::string_view) { ++seen; }, batch);
  };
  CHECK(scan(R"({"events":[],"missed":0})"));
  CHECK_FALSE(scan(R"({"events":[{"a":1},{"a")"));
  CHECK(seen == 1);
  CHECK_FALSE(scan(R"({"events":[{} {}]})"));
  CHECK_FALSE(scan(R"([])"));
  CHECK_FALSE(scan(""));
}

TEST_CASE("a line that is no message breaks the connection") {
  Server server([](int fd) {
    read_line(fd);
    test::send_all(fd, "hello\n");
    wait_for_close(fd);
  });
  auto connection = server.connect();
  const auto reply = connection.call("m", "{}");
  REQUIRE_FALSE(reply);
  CHECK(reply.error().reason == Reason::bad_message);
  CHECK_FALSE(connection.alive());
}

TEST_CASE("a call gives up at its deadline or when interrupted, and its late reply is dropped") {
  UniqueFd wake_read, wake_write;
  int pipe_ends[2];
  REQUIRE(::pipe(pipe_ends) == 0);
  wake_read.reset(pipe_ends[0]), wake_write.reset(pipe_ends[1]);
  Server server([](int fd) {
    read_line(fd), read_line(fd), read_line(fd);
    for (const char* id : {"1", "2", "3"})
      test::send_all(fd, proto::make_response(id, fmt::format("\"{}\"", id)) + "\n");
    wait_for_close(fd);
  });
  auto connection = server.connect();
  const auto late = connection.call("slow", "{}", {Clock::now() + std::chrono::milliseconds(1), -1, {}});
  CHECK(late.error().reason == Reason::timed_out);
  CHECK(connection.alive());
  REQUIRE(::write(wake_write.get(), "x", 1) == 1);
  CHECK_FALSE(connection.call("slow", "{}", {{}, wake_read.get(), {}}));
  CHECK(connection.alive());
  const auto reply = connection.call("m", "{}");
  REQUIRE(reply);
  CHECK(reply->view().string() == "3");
}

TEST_CASE("a request larger than the socket's buffer goes out while the other end is sending too") {
  const std::string filler(4 << 20, 'x');
  std::size_t received = 0;
  Server server([&](int fd) {
    const auto line = proto::make_notification("n", "\"" + filler + "\"") + "\n";
    test::send_all(fd, line);  // blocks until the client reads, although it is busy sending
    char part[65536] = {};
    for (ssize_t got = 1; got > 0 && part[got - 1] != '\n'; received += static_cast<std::size_t>(got))
      got = ::read(fd, part, sizeof(part));
    test::send_all(fd, proto::make_response("1", "{}") + "\n");
  });
  auto connection = server.connect();
  REQUIRE(connection.call("m", "{\"x\":\"" + filler + "\"}"));
  CHECK(received > filler.size());
}

TEST_CASE("nobody at the socket is an error that names the socket") {
  const auto connection = Connection::connect("/nonexistent/socket");
  REQUIRE_FALSE(connection);
  CHECK(connection.error().message == "cannot reach the daemon at /nonexistent/socket: No such file or directory");
  CHECK_FALSE(Connection::connect(std::string(200, 'x')));
  const auto file = Connection::connect("/etc/passwd");  // for which the kernel says "Connection refused"
  REQUIRE_FALSE(file);
  CHECK(file.error().message == "cannot reach the daemon at /etc/passwd: that is no socket");
  CHECK_FALSE(Connection::connect(""));
}

}  // namespace
}  // namespace probed::client
