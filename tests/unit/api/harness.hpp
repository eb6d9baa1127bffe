// A real server on a private socket, its event loop in a thread of its own, and a tiny blocking client.
#pragma once

#include <doctest/doctest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <future>
#include <thread>
#include <utility>  // before Asio

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>

#include "daemon/api/server.hpp"
#include "proto/json.hpp"
#include "tests/unit/api/fake_controller.hpp"

namespace probed::test {

using proto::Json;
using namespace std::chrono_literals;

// Waits until the condition holds; false after ten seconds.
template <class Condition>
bool eventually(Condition condition) {
  const auto deadline = std::chrono::steady_clock::now() + 10s;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(1ms);
  }
  return true;
}

// Tests that need files and processes of other users say so where they can't run.
inline bool as_root() {
  if (geteuid() == 0) return true;
  MESSAGE("NOT RUN: needs root");
  return false;
}

class TempDir {
 public:
  TempDir() {
    char name[] = "/tmp/probed-api-XXXXXX";
    path_ = mkdtemp(name);
  }
  ~TempDir() { std::filesystem::remove_all(path_); }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline UniqueFd connect_to(const std::string& path) {
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return UniqueFd();
  const timeval patience{20, 0};
  setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  return fd;
}

class TestClient {
 public:
  explicit TestClient(const std::string& path) : fd_(connect_to(path)) { REQUIRE(fd_); }
  explicit TestClient(UniqueFd fd) : fd_(std::move(fd)) { REQUIRE(fd_); }

  void send_raw(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return;  // the server has closed: the answer says why
      bytes.remove_prefix(static_cast<std::size_t>(n));
    }
  }
  void send_line(std::string_view text) { send_raw(std::string(text) + "\n"); }

  // nullopt: the end of the stream (or nothing for twenty seconds, which fails the test).
  std::optional<std::string> read_line() {
    while (true) {
      if (const auto lf = buffer_.find('\n', scanned_); lf != buffer_.npos) {
        std::string line = buffer_.substr(0, lf);
        buffer_.erase(0, lf + 1);
        scanned_ = 0;
        return line;
      }
      scanned_ = buffer_.size();
      if (!fill()) return std::nullopt;
    }
  }
  std::optional<std::string> read_exactly(std::size_t size) {
    while (buffer_.size() < size)
      if (!fill()) return std::nullopt;
    std::string text = buffer_.substr(0, size);
    buffer_.erase(0, size);
    scanned_ = 0;
    return text;
  }
  // Everything up to the end.
  std::string read_all() {
    while (fill()) continue;
    return std::exchange(buffer_, {});
  }
  Json read_json() {
    const auto line = read_line();
    REQUIRE(line.has_value());
    auto json = proto::parse_json(*line);
    REQUIRE_MESSAGE(json, *line);
    return *json;
  }
  // The answer to the next request, notifications put aside.
  Json read_answer() {
    while (true) {
      Json message = read_json();
      if (!message.is_object() || !message.contains("method")) return message;
      notifications.push_back(std::move(message));
    }
  }
  Json read_notification() {
    if (!notifications.empty()) {
      Json first = notifications.front();
      notifications.erase(notifications.begin());
      return first;
    }
    Json message = read_json();
    REQUIRE(message.contains("method"));
    return message;
  }
  Json call(const std::string& method, const Json& params = Json::object()) {
    const int id = ++last_id_;
    send_line(Json{{"jsonrpc", "2.0"}, {"id", id}, {"method", method}, {"params", params}}.dump());
    Json answer = read_answer();
    CHECK(answer["id"] == id);
    return answer;
  }
  Json result(const std::string& method, const Json& params = Json::object()) {
    Json answer = call(method, params);
    REQUIRE_MESSAGE(answer.contains("result"), answer.dump());
    return answer["result"];
  }
  Json error(const std::string& method, const Json& params = Json::object()) {
    Json answer = call(method, params);
    REQUIRE_MESSAGE(answer.contains("error"), answer.dump());
    return answer["error"];
  }
  void half_close() { shutdown(fd_.get(), SHUT_WR); }
  void close() { fd_.reset(); }
  int fd() const { return fd_.get(); }
  // The stream has ended in order, not by a reset.
  bool clean_end() const { return clean_end_; }

  std::vector<Json> notifications;

 private:
  bool fill() {
    char chunk[65536];
    const ssize_t n = recv(fd_.get(), chunk, sizeof chunk, 0);
    const bool timed_out = n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
    REQUIRE_FALSE_MESSAGE(timed_out, "the server says nothing");
    clean_end_ = n == 0;
    if (n <= 0) return false;
    buffer_.append(chunk, static_cast<std::size_t>(n));
    return true;
  }
  UniqueFd fd_;
  std::string buffer_;
  std::size_t scanned_ = 0;
  int last_id_ = 0;
  bool clean_end_ = false;
};

class LiveServer {
 public:
  explicit LiveServer(api::ServerOptions options = {}, mode_t mode = 0600) : path_(dir_ / "sock") {
    auto listener = api::Listener::at({path_, mode, std::nullopt});
    REQUIRE(listener.ok());
    server_.emplace(io_, controller_, std::move(*listener), std::move(options));
    server_->start();
    thread_ = std::thread([this] { io_.run(); });
  }
  LiveServer(const LiveServer&) = delete;
  LiveServer& operator=(const LiveServer&) = delete;

  // Runs f on the event loop and waits for it.
  template <class F>
  auto loop(F f) {
    std::packaged_task<decltype(f())()> task(std::move(f));
    auto future = task.get_future();
    boost::asio::post(io_, [&task] { task(); });
    return future.get();
  }
  ~LiveServer() {
    loop([this] { server_->stop(); });
    work_.reset();
    thread_.join();
  }

  FakeController& controller() { return controller_; }  // from loop() only
  std::size_t sessions() {
    return loop([this] { return server_->session_count(); });
  }
  std::vector<std::string> calls() {
    return loop([this] { return controller_.calls; });
  }
  const std::string& path() const { return path_; }
  const TempDir& dir() const { return dir_; }
  api::Server& server() { return *server_; }

 private:
  TempDir dir_;
  std::string path_;
  FakeController controller_;
  boost::asio::io_context io_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_{io_.get_executor()};
  std::optional<api::Server> server_;
  std::thread thread_;
};

}  // namespace probed::test
