// JSON-RPC 2.0 (jsonrpc.org/specification): what a message says, and how answers are written.
//
// Thread: any; pure. Stricter than the specification in what it takes: members it doesn't name are refused, parameters
// are given by name, ids are strings, whole numbers or null.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "proto/base/result.hpp"
#include "proto/error.hpp"
#include "proto/json.hpp"

namespace probed::proto {

inline constexpr int kParseError = -32700;
inline constexpr int kInvalidRequest = -32600;
inline constexpr int kMethodNotFound = -32601;
inline constexpr int kInvalidParams = -32602;
inline constexpr int kInternalError = -32603;

inline constexpr std::size_t kMaxBatch = 1024;  // messages in one batch

// An error as it goes over the wire. The code is the reason's, except that a text which is no JSON has its own.
struct RpcError {
  RpcError(Error e) : code(rpc_code(e.reason)), error(std::move(e)) {}
  RpcError(int c, Error e) : code(c), error(std::move(e)) {}
  int code;
  Error error;
};

struct Request {
  std::string id;       // as JSON text, to be echoed; meaningless for a notification
  bool notify = false;  // no id: nobody waits for an answer
  std::string method;
  Json params = Json::object();  // an array when given by position, which validation refuses
};

struct Refused {  // not a request; it is answered even if it has no id
  std::string id = "null";
  RpcError error;
};

struct Message {
  bool batch = false;
  std::vector<std::variant<Request, Refused>> items;  // one unless a batch; never empty
};

// One message as a server reads it. Never fails: what is wrong becomes an item to answer.
Message parse_message(std::string_view text);

// Answers and messages, without framing. `id` is JSON text; `result` and `params` are JSON text.
// Around the result where that is: it may be tens of megabytes.
std::string make_response(std::string_view id, std::string result);
std::string make_error(std::string_view id, const RpcError& error);
std::string make_notification(std::string_view method, std::string_view params);
std::string make_request(std::uint64_t id, std::string_view method, std::string_view params);

// One message as a client reads it. Lone surrogates in strings (see append_json_string) are read as U+FFFD.
struct Reply {
  Json id;
  Json result;                 // meaningless when error is set
  std::optional<Error> error;  // reason internal when the word is not one this build knows
  int code = 0;                // of the error
};
struct Notification {
  std::string method;
  Json params;
};
using ServerMessage = std::variant<Reply, Notification>;
// The messages of one text: one, or a batch's answers. Errors: bad_message.
Result<std::vector<ServerMessage>> parse_server_messages(std::string_view text);

}  // namespace probed::proto
