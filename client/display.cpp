// See display.hpp.
#include "client/display.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "client/utf8.hpp"

namespace probed::client {
namespace {

// Text that needs no look at its characters: nearly all of it.
bool is_plain(std::string_view bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](char c) { return c >= 0x20 && c < 0x7f && c != '\\' && c != '"'; });
}

void append_hex_escapes(std::string& out, std::string_view bytes) {
  static constexpr char kHex[] = "0123456789abcdef";
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    out.append({'\\', 'x', kHex[byte >> 4], kHex[byte & 15]});
  }
}

// What a terminal obeys, and what turns the order of the text around it (Unicode UAX #9: bidirectional formatting).
bool is_control(std::uint32_t code) {
  return code < 0x20 || (code >= 0x7f && code < 0xa0) || code == 0x61c || code == 0x200e || code == 0x200f ||
         (code >= 0x202a && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
}

struct Escaped {
  bool backslash = true, quote = false;
};

void append_escaped(std::string& out, std::string_view bytes, Escaped escaped) {
  while (!bytes.empty()) {
    const auto character = utf8::decode(bytes);
    const auto itself = bytes.substr(0, character.length);
    if (!character.valid || is_control(character.code)) {
      append_hex_escapes(out, itself);
    } else {
      const bool marked = (escaped.backslash && character.code == '\\') || (escaped.quote && character.code == '"');
      if (marked) out.push_back('\\');
      out.append(itself);
    }
    bytes.remove_prefix(character.length);
  }
}

}  // namespace

void append_display(std::string& out, std::string_view bytes) {
  if (is_plain(bytes))
    out.append(bytes);
  else
    append_escaped(out, bytes, {});
}

std::string display(std::string_view bytes) {
  std::string out;
  append_display(out, bytes);
  return out;
}

std::string display_sentence(std::string_view bytes) {
  std::string out;
  append_escaped(out, bytes, {.backslash = false, .quote = false});
  return out;
}

// Escapes that are there already stay what they are.
void append_json_display(std::string& out, std::string_view json) {
  while (!json.empty()) {
    const auto character = utf8::decode(json);
    const auto first = static_cast<unsigned char>(json.front());
    if (!character.valid)
      fmt::format_to(std::back_inserter(out), "\\udc{:02x}", first);  // as the daemon writes bytes that are no UTF-8
    else if (is_control(character.code))
      fmt::format_to(std::back_inserter(out), "\\u{:04x}", character.code);
    else
      out.append(json.substr(0, character.length));
    json.remove_prefix(character.length);
  }
}

void append_quoted_display(std::string& out, std::string_view bytes) {
  out.push_back('"');
  if (is_plain(bytes))
    out.append(bytes);
  else
    append_escaped(out, bytes, {.backslash = true, .quote = true});
  out.push_back('"');
}

}  // namespace probed::client
