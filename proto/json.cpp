// See json.hpp. The parser is the library's, driven through its SAX interface so that depth and duplicates are refused
// while reading, before anything of the offending size is built.
#include "proto/json.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <vector>

namespace probed::proto {
namespace {

// "[json.exception.parse_error.101] parse error at line 1, column 5: syntax error while parsing value - invalid
// literal; last read: '…'" without the library's own prefix and without the echo, which may be a megabyte long.
std::string reason_of(const nlohmann::detail::exception& e) {
  std::string_view text = e.what();
  if (const auto end = text.find("] "); end != text.npos) text.remove_prefix(end + 2);
  if (const auto colon = text.find(": "); text.starts_with("parse error at ") && colon != text.npos)
    text.remove_prefix(colon + 2);
  text = text.substr(0, text.find("; last read"));
  return std::string(text.substr(0, 160));
}

class Builder {
 public:
  using number_integer_t = Json::number_integer_t;
  using number_unsigned_t = Json::number_unsigned_t;
  using number_float_t = Json::number_float_t;
  using string_t = Json::string_t;
  using binary_t = Json::binary_t;

  bool null() { return put(nullptr); }
  bool boolean(bool value) { return put(value); }
  bool number_integer(number_integer_t value) { return put(value); }
  bool number_unsigned(number_unsigned_t value) { return put(value); }
  bool number_float(number_float_t value, const string_t&) { return put(value); }
  bool string(string_t& value) { return put(std::move(value)); }
  bool binary(binary_t&) { return false; }
  bool start_object(std::size_t) { return push(Json::object()); }
  bool start_array(std::size_t) { return push(Json::array()); }
  bool end_object() { return pop(); }
  bool end_array() { return pop(); }

  bool key(string_t& name) {
    auto& object = stack_.back()->get_ref<Json::object_t&>();
    const auto [slot, fresh] = object.try_emplace(std::move(name));
    if (!fresh) return refuse("a key occurs twice in one object: \"" + slot->first.substr(0, 64) + "\"");
    slot_ = &slot->second;
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& e) {
    error_ = {true, "not JSON: " + reason_of(e) + ", at byte " + std::to_string(position)};
    return false;
  }

  Json take() { return std::move(root_); }
  const JsonError& error() const { return error_; }

 private:
  bool refuse(std::string why) {
    error_ = {false, std::move(why)};
    return false;
  }
  Json* place(Json value) {
    if (stack_.empty()) return &(root_ = std::move(value));
    if (stack_.back()->is_array()) {
      auto& array = stack_.back()->get_ref<Json::array_t&>();
      return &array.emplace_back(std::move(value));
    }
    return &(*slot_ = std::move(value));
  }
  bool put(Json value) {
    place(std::move(value));
    return true;
  }
  bool push(Json value) {
    if (stack_.size() == kMaxDepth)
      return refuse("nested deeper than " + std::to_string(kMaxDepth) + " arrays and objects");
    stack_.push_back(place(std::move(value)));
    return true;
  }
  bool pop() {
    stack_.pop_back();
    return true;
  }

  Json root_;
  std::vector<Json*> stack_;  // open arrays and objects; each is the last child of the one before, so none moves
  Json* slot_ = nullptr;      // where the value of the key just read goes
  JsonError error_;
};

constexpr std::array<char, 16> kHex{'0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f'};

void append_escape(std::string& out, unsigned unit) {
  out += "\\u";
  for (int shift = 12; shift >= 0; shift -= 4) out += kHex[(unit >> shift) & 15];
}

void append_ascii(std::string& out, unsigned char c) {
  switch (c) {
    case '"': out += "\\\""; return;
    case '\\': out += "\\\\"; return;
    case '\n': out += "\\n"; return;
    case '\r': out += "\\r"; return;
    case '\t': out += "\\t"; return;
    default: break;
  }
  if (c < 0x20 || c == 0x7f)
    append_escape(out, c);
  else
    out += static_cast<char>(c);
}

// RFC 3629's table: what the second byte may be for each lead byte.
struct Lead {
  unsigned char first, last, second_min, second_max;
  unsigned length;
};
constexpr std::array kLeads{
    Lead{0xc2, 0xdf, 0x80, 0xbf, 2}, Lead{0xe0, 0xe0, 0xa0, 0xbf, 3}, Lead{0xe1, 0xec, 0x80, 0xbf, 3},
    Lead{0xed, 0xed, 0x80, 0x9f, 3}, Lead{0xee, 0xef, 0x80, 0xbf, 3}, Lead{0xf0, 0xf0, 0x90, 0xbf, 4},
    Lead{0xf1, 0xf3, 0x80, 0xbf, 4}, Lead{0xf4, 0xf4, 0x80, 0x8f, 4},
};

// Bytes of the well-formed multi-byte sequence at the front; 0: none is there.
std::size_t utf8_sequence(std::string_view s) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(s[i]); };
  for (const Lead& lead : kLeads) {
    if (byte(0) < lead.first || byte(0) > lead.last) continue;
    if (s.size() < lead.length || byte(1) < lead.second_min || byte(1) > lead.second_max) return 0;
    for (std::size_t i = 2; i < lead.length; ++i)
      if ((byte(i) & 0xc0) != 0x80) return 0;
    return lead.length;
  }
  return 0;
}

// The unit of a \uXXXX escape at the front; -1: none is there.
int escape_unit(std::string_view s) {
  unsigned unit = 0;
  if (s.size() < 6 || s[0] != '\\' || s[1] != 'u') return -1;
  const auto [end, ec] = std::from_chars(s.data() + 2, s.data() + 6, unit, 16);
  return ec == std::errc() && end == s.data() + 6 ? static_cast<int>(unit) : -1;
}

}  // namespace

JsonResult parse_json(std::string_view text) {
  // The library's scanner takes a NUL for the end of its input and would ignore whatever follows.
  if (const auto nul = text.find('\0'); nul != text.npos)
    return JsonError{true, "not JSON: a NUL byte, at byte " + std::to_string(nul + 1)};
  Builder builder;
  if (!Json::sax_parse(text.begin(), text.end(), &builder)) return builder.error();
  return builder.take();
}

// Nearly every byte of nearly every string.
constexpr bool stands_for_itself(char c) { return c >= 0x20 && c < 0x7f && c != '"' && c != '\\'; }

void append_json_string(std::string& out, std::string_view bytes) {
  out += '"';
  while (!bytes.empty()) {
    const auto plain = static_cast<std::size_t>(std::ranges::find_if_not(bytes, stands_for_itself) - bytes.begin());
    out.append(bytes.substr(0, plain));
    bytes.remove_prefix(plain);
    if (bytes.empty()) break;
    const auto c = static_cast<unsigned char>(bytes[0]);
    std::size_t used = 1;
    if (c < 0x80) {
      append_ascii(out, c);
    } else if (const std::size_t length = utf8_sequence(bytes)) {
      const bool is_control = c == 0xc2 && static_cast<unsigned char>(bytes[1]) < 0xa0;  // U+0080 to U+009F
      if (is_control)
        append_escape(out, static_cast<unsigned char>(bytes[1]));
      else
        out.append(bytes.substr(0, length));
      used = length;
    } else {
      append_escape(out, 0xdc00u + c);
    }
    bytes.remove_prefix(used);
  }
  out += '"';
}

std::string replace_lone_surrogates(std::string_view json) {
  std::string out;
  out.reserve(json.size());
  while (!json.empty()) {
    std::size_t take = json[0] == '\\' ? std::min<std::size_t>(2, json.size()) : 1;
    const int unit = escape_unit(json);
    const bool high = unit >= 0xd800 && unit < 0xdc00, low = unit >= 0xdc00 && unit < 0xe000;
    const int next = high ? escape_unit(json.substr(6)) : -1;
    if (high && next >= 0xdc00 && next < 0xe000) take = 12;
    if ((high && take != 12) || low) {
      out += "\\ufffd";
      take = 6;
    } else {
      out.append(json.substr(0, take));
    }
    json.remove_prefix(take);
  }
  return out;
}

void JsonWriter::separate() {
  if (comma_) out_ += ',';
  comma_ = true;
}

JsonWriter& JsonWriter::open(char bracket) {
  separate();
  out_ += bracket;
  comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::close(char bracket) {
  out_ += bracket;
  comma_ = true;
  return *this;
}

JsonWriter& JsonWriter::key(std::string_view name) {
  separate();
  append_json_string(out_, name);
  out_ += ':';
  comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::string(std::string_view bytes) {
  separate();
  append_json_string(out_, bytes);
  return *this;
}

JsonWriter& JsonWriter::number(std::uint64_t value) { return raw(std::to_string(value)); }
JsonWriter& JsonWriter::number(std::int64_t value) { return raw(std::to_string(value)); }

JsonWriter& JsonWriter::address(std::uint64_t value) {
  char digits[16];
  const auto end = std::to_chars(std::begin(digits), std::end(digits), value, 16).ptr;
  separate();
  out_.append("\"0x").append(digits, end).append("\"");
  return *this;
}

JsonWriter& JsonWriter::raw(std::string_view json) {
  separate();
  out_ += json;
  return *this;
}

}  // namespace probed::proto
