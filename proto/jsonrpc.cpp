// See jsonrpc.hpp.
#include "proto/jsonrpc.hpp"

#include <array>

namespace probed::proto {
namespace {

constexpr std::array<std::string_view, 4> kRequestMembers{"jsonrpc", "id", "method", "params"};

RpcError invalid(std::string what) {
  return RpcError{Error{Reason::bad_message,
                        std::move(what),
                        R"(a request is {"jsonrpc":"2.0","id":1,"method":"NAME","params":{...}})",
                        {}}};
}

std::optional<RpcError> unknown_member(const Json& object) {
  for (const auto& [key, value] : object.items()) {
    bool known = false;
    for (const auto name : kRequestMembers) known = known || key == name;
    if (!known) return invalid("a request has no member \"" + key.substr(0, 64) + "\"");
  }
  return std::nullopt;
}

// Fractions are refused as ids because they can't be echoed exactly; so are integers beyond 64 bits, which the parser
// reads as floating point.
bool good_id(const Json& id) { return id.is_string() || id.is_number_integer() || id.is_null(); }

std::string id_text(const Json& id) {
  if (!id.is_string()) return id.dump();
  std::string out;
  append_json_string(out, id.get_ref<const std::string&>());
  return out;
}

std::optional<RpcError> bad_envelope(const Json& object) {
  if (auto error = unknown_member(object)) return error;
  if (const auto id = object.find("id"); id != object.end() && !good_id(*id))
    return invalid("a request's \"id\" must be a string, a whole number of at most 64 bits, or null");
  const auto version = object.find("jsonrpc");
  if (version == object.end() || *version != "2.0") return invalid("\"jsonrpc\" must be \"2.0\"");
  const auto method = object.find("method");
  if (method == object.end() || !method->is_string()) return invalid("\"method\" must be a string");
  const auto params = object.find("params");
  if (params != object.end() && !params->is_structured()) return invalid("\"params\" must be an object");
  return std::nullopt;
}

std::variant<Request, Refused> parse_request(Json& object) {
  if (!object.is_object()) return Refused{"null", invalid("a message must be an object or a batch of objects")};
  const auto id = object.find("id");
  const bool has_id = id != object.end();
  const std::string text = has_id && good_id(*id) ? id_text(*id) : "null";
  if (auto error = bad_envelope(object)) return Refused{text, std::move(*error)};
  Request request{text, !has_id, std::move(object["method"].get_ref<std::string&>()), Json::object()};
  const auto params = object.find("params");
  if (params == object.end()) return request;
  // Many libraries send an empty array for "no parameters".
  if (!params->is_array() || !params->empty()) request.params = std::move(*params);
  return request;
}

Message single(RpcError error) {
  Message message;
  message.items.emplace_back(Refused{"null", std::move(error)});
  return message;
}

Message parse_batch(Json& array) {
  if (array.empty()) return single(invalid("a batch is empty"));
  if (array.size() > kMaxBatch)
    return single(RpcError{Error{Reason::limit_exceeded,
                                 "a batch holds " + std::to_string(array.size()) + " messages; at most " +
                                     std::to_string(kMaxBatch) + " are taken",
                                 "split it; nothing of it was done",
                                 {}}});
  Message message;
  message.batch = true;
  for (Json& item : array) message.items.push_back(parse_request(item));
  return message;
}

void append_data(std::string& out, const Error& error) {
  out += R"("data":{"reason":)";
  append_json_string(out, to_string(error.reason));
  if (error.column) out += ",\"column\":" + std::to_string(*error.column);
  if (error.definition) out += ",\"definition\":" + std::to_string(*error.definition);
  if (!error.hint.empty()) {
    out += ",\"hint\":";
    append_json_string(out, error.hint);
  }
  out += '}';
}

std::string text_member(const Json& object, const char* key) {
  const auto member = object.find(key);
  return member != object.end() && member->is_string() ? member->get<std::string>() : std::string();
}

Error read_error(const Json& json) {
  Error error{Reason::internal, text_member(json, "message")};
  const auto data = json.find("data");
  if (data == json.end() || !data->is_object()) return error;
  error.reason = reason_from_string(text_member(*data, "reason")).value_or(Reason::internal);
  error.hint = text_member(*data, "hint");
  if (const auto column = data->find("column"); column != data->end() && column->is_number_unsigned())
    error.column = column->get<std::size_t>();
  if (const auto which = data->find("definition"); which != data->end() && which->is_number_unsigned())
    error.definition = which->get<std::size_t>();
  return error;
}

Error bad_answer(std::string what) { return {Reason::bad_message, "the daemon's answer " + std::move(what)}; }

Result<ServerMessage> read_server_message(Json& json) {
  if (!json.is_object()) return bad_answer("is not an object");
  if (const auto method = json.find("method"); method != json.end() && method->is_string())
    return ServerMessage(Notification{method->get<std::string>(), json.value("params", Json::object())});
  Reply reply;
  reply.id = json.value("id", Json());
  const auto error = json.find("error");
  if (error != json.end() && error->is_object()) {
    reply.error = read_error(*error);
    if (const auto code = error->find("code"); code != error->end() && code->is_number_integer())
      reply.code = code->get<int>();
  } else if (const auto result = json.find("result"); result != json.end()) {
    reply.result = std::move(*result);
  } else {
    return bad_answer("has neither result nor error");
  }
  return ServerMessage(std::move(reply));
}

}  // namespace

Message parse_message(std::string_view text) {
  auto json = parse_json(text);
  if (!json) {
    const bool syntax = json.error().syntax;
    const char* hint = syntax ? "one message is one JSON text on one line, in UTF-8" : "";
    return single(RpcError(syntax ? kParseError : kInvalidRequest,
                           Error{Reason::bad_message, "the message is refused: " + json.error().message, hint}));
  }
  if ((*json).is_array()) return parse_batch(*json);
  Message message;
  message.items.push_back(parse_request(*json));
  return message;
}

std::string make_response(std::string_view id, std::string result) {
  std::string head = R"({"jsonrpc":"2.0","id":)";
  head.append(id).append(",\"result\":");
  result.reserve(head.size() + result.size() + 1);
  return std::move(result.insert(0, head).append("}"));
}

std::string make_error(std::string_view id, const RpcError& error) {
  std::string out;
  out.append(R"({"jsonrpc":"2.0","id":)").append(id);
  out.append(R"(,"error":{"code":)").append(std::to_string(error.code)).append(",\"message\":");
  append_json_string(out, error.error.message);
  out += ',';
  append_data(out, error.error);
  out += "}}";
  return out;
}

std::string make_notification(std::string_view method, std::string_view params) {
  std::string out(R"({"jsonrpc":"2.0","method":)");
  append_json_string(out, method);
  out.append(",\"params\":").append(params).append("}");
  return out;
}

std::string make_request(std::uint64_t id, std::string_view method, std::string_view params) {
  std::string out(R"({"jsonrpc":"2.0","id":)");
  out.append(std::to_string(id)).append(",\"method\":");
  append_json_string(out, method);
  out.append(",\"params\":").append(params).append("}");
  return out;
}

Result<std::vector<ServerMessage>> parse_server_messages(std::string_view text) {
  auto json = parse_json(replace_lone_surrogates(text));
  if (!json) return bad_answer("can't be read: " + json.error().message);
  std::vector<ServerMessage> messages;
  Json batch = (*json).is_array() ? std::move(*json) : Json::array({std::move(*json)});
  for (Json& item : batch) {
    auto message = read_server_message(item);
    if (!message) return std::move(message).error();
    messages.push_back(std::move(*message));
  }
  return messages;
}

}  // namespace probed::proto
