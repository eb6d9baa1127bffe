// JSON for the protocol: a parser stricter than the library's, and a writer that appends to a string.
//
// Thread: any; no shared state. The parser is for input from anyone who can reach the socket, so everything it does is
// bounded by the text's length and kMaxDepth.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "proto/base/result.hpp"

namespace probed::proto {

using Json = nlohmann::json;

inline constexpr std::size_t kMaxDepth = 64;  // of nested arrays and objects

// One JSON value that fills the whole text. Refused beyond what JSON itself forbids: a key twice in one object (readers
// disagree on which one counts), nesting deeper than kMaxDepth, NUL bytes, numbers outside double's range. UTF-8 must
// be valid and \u escapes of surrogates paired. Errors: bad_message; `syntax` tells a text that is no JSON from one
// that is JSON but refused here.
struct JsonError {
  bool syntax = true;
  std::string message;  // one line, no full stop
};
class JsonResult {
 public:
  JsonResult(Json value) : value_(std::move(value)) {}
  JsonResult(JsonError error) : error_(std::move(error)), ok_(false) {}
  explicit operator bool() const { return ok_; }
  Json& operator*() { return value_; }
  const JsonError& error() const { return error_; }

 private:
  Json value_;
  JsonError error_;
  bool ok_ = true;
};
JsonResult parse_json(std::string_view text);

// Appends a JSON string. Bytes that are no UTF-8 become lone surrogates "\udc80".."\udcff" for 0x80..0xff (Python's
// surrogateescape), so that names from /proc and ELF files, which may be any bytes, survive losslessly. What a terminal
// would obey (C0, DEL, C1) is escaped.
void append_json_string(std::string& out, std::string_view bytes);

// For readers whose JSON parser refuses lone surrogates (nlohmann's does): the same text with each such escape replaced
// by \ufffd.
std::string replace_lone_surrogates(std::string_view json);

// Builds JSON text front to back; commas are its business, balance is the caller's.
class JsonWriter {
 public:
  JsonWriter() = default;
  explicit JsonWriter(std::string room) : out_(std::move(room)) {}  // goes on behind what is there
  JsonWriter& begin_object() { return open('{'); }
  JsonWriter& end_object() { return close('}'); }
  JsonWriter& begin_array() { return open('['); }
  JsonWriter& end_array() { return close(']'); }
  JsonWriter& key(std::string_view name);
  JsonWriter& string(std::string_view bytes);
  JsonWriter& number(std::uint64_t value);
  JsonWriter& number(std::int64_t value);
  JsonWriter& boolean(bool value) { return raw(value ? "true" : "false"); }
  JsonWriter& address(std::uint64_t value);  // "0x…" as a string: JavaScript's numbers end at 2^53
  JsonWriter& raw(std::string_view json);    // already JSON
  const std::string& text() const& { return out_; }
  std::string text() && { return std::move(out_); }

 private:
  JsonWriter& open(char bracket);
  JsonWriter& close(char bracket);
  void separate();
  std::string out_;
  bool comma_ = false;  // the next value or key follows another
};

}  // namespace probed::proto
