// The bare JSON-RPC client of the live tests. Knows nothing of libprobeclient, so that it can be wrong on purpose.
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <stdexcept>

#include "tests/live/harness.hpp"

namespace probed::live {
namespace {
// Whether something can be read before the deadline.
bool readable(int fd, Clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<Millis>(deadline - Clock::now()).count();
  pollfd wait{fd, POLLIN, 0};
  return ::poll(&wait, 1, left > 0 ? static_cast<int>(left) : 0) == 1;
}
}  // namespace

RpcClient::RpcClient(const std::string& socket_path) : fd_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (socket_path.size() >= sizeof address.sun_path) throw std::runtime_error("socket path too long: " + socket_path);
  std::memcpy(address.sun_path, socket_path.c_str(), socket_path.size() + 1);
  if (::connect(fd_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    throw std::runtime_error("nobody listens at " + socket_path + ": " + std::strerror(errno));
}

bool RpcClient::send_raw(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
  return true;
}

bool RpcClient::close_writing() { return ::shutdown(fd_.get(), SHUT_WR) == 0; }

bool RpcClient::send_urgent(char byte) { return ::send(fd_.get(), &byte, 1, MSG_NOSIGNAL | MSG_OOB) == 1; }

std::optional<std::string> RpcClient::receive_line(Millis limit) { return receive_until(Clock::now() + scaled(limit)); }

std::optional<std::string> RpcClient::receive_until(Clock::time_point deadline) {
  while (true) {
    if (const std::size_t end = buffer_.find('\n'); end != std::string::npos) {
      std::string line = buffer_.substr(0, end);
      buffer_.erase(0, end + 1);
      return line;
    }
    if (!readable(fd_.get(), deadline)) return std::nullopt;
    std::array<char, 65536> chunk;
    const ssize_t got = ::recv(fd_.get(), chunk.data(), chunk.size(), 0);
    if (got <= 0) return std::nullopt;
    buffer_.append(chunk.data(), static_cast<std::size_t>(got));
  }
}

std::optional<Json> RpcClient::receive(Clock::time_point deadline) {
  const std::optional<std::string> line = receive_until(deadline);
  if (!line) return std::nullopt;
  Json value = parse_json(*line);
  if (value.is_discarded()) throw std::runtime_error("the daemon sent something that is no JSON: " + *line);
  return value;
}

std::string request_text(std::string_view method, const Json& params, int id) {
  return Json{{"jsonrpc", "2.0"}, {"id", id}, {"method", method}, {"params", params}}.dump() + "\n";
}

Json RpcClient::request(std::string_view method, const Json& params, Millis limit) {
  const int id = next_id_++;
  if (!send_raw(request_text(method, params, id))) return {};
  const auto deadline = Clock::now() + scaled(limit);
  while (Clock::now() < deadline) {
    std::optional<Json> message = receive(deadline);
    if (!message) return {};
    if (message->contains("method"))
      notifications_.push_back(std::move(*message));
    else if (message->value("id", Json()) == id)
      return std::move(*message);
  }
  return {};
}

Json RpcClient::call(std::string_view method, const Json& params, Millis limit) {
  const Json response = request(method, params, limit);
  if (response.is_null())
    throw std::runtime_error(
        std::string(method) + ": " +
        (closed_by_peer(Millis{0}) ? "the daemon has closed the connection" : "no answer in time"));
  if (!response.is_object() || !response.contains("result"))
    throw std::runtime_error(std::string(method) + " failed: " + response.dump());
  return response.at("result");
}

std::string RpcClient::refusal(std::string_view method, const Json& params) {
  const Json response = request(method, params);
  if (!response.is_object()) return "(no answer)";
  if (!response.contains("error")) return "";
  return response.at("error").value("data", Json::object()).value("reason", "(no reason)");
}

std::optional<Json> RpcClient::notification(Millis limit) {
  if (!notifications_.empty()) {
    Json first = std::move(notifications_.front());
    notifications_.erase(notifications_.begin());
    return first;
  }
  const auto deadline = Clock::now() + scaled(limit);
  while (Clock::now() < deadline) {
    std::optional<Json> message = receive(deadline);
    if (!message || message->contains("method")) return message;
  }
  return std::nullopt;
}

bool RpcClient::closed_by_peer(Millis limit) {
  const auto deadline = Clock::now() + scaled(limit);
  while (readable(fd_.get(), deadline)) {
    std::array<char, 65536> chunk;
    if (::recv(fd_.get(), chunk.data(), chunk.size(), 0) <= 0) return true;
  }
  return false;
}

}  // namespace probed::live
