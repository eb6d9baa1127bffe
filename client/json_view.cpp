// See json_view.hpp.
#include "client/json_view.hpp"

#include <array>
#include <charconv>
#include <cstring>

#include "client/utf8.hpp"

namespace probed::client {

namespace json {
namespace {

enum Class : std::uint8_t { other = 0, quote = 1, open = 2, close = 3 };

constexpr std::array<std::uint8_t, 256> structural_table() {
  std::array<std::uint8_t, 256> table{};
  table['"'] = quote;
  table['{'] = table['['] = open;
  table['}'] = table[']'] = close;
  return table;
}
constexpr auto kStructural = structural_table();

constexpr std::array<bool, 256> string_stop_table() {
  std::array<bool, 256> table{};
  table['"'] = table['\\'] = true;
  return table;
}
constexpr auto kStringStop = string_stop_table();

unsigned char byte(char c) { return static_cast<unsigned char>(c); }

// Depth is counted without matching kinds of brackets: see the header's note on leniency.
const char* skip_container(const char* at, const char* end) {
  int depth = 0;
  while (at != end) {
    const auto kind = kStructural[byte(*at)];
    if (kind == other) {
      ++at;
    } else if (kind == quote) {
      at = skip_string(at, end);
      if (!at) return nullptr;
    } else {
      ++at;
      depth += kind == open ? 1 : -1;
      if (depth == 0) return at;
    }
  }
  return nullptr;
}

bool ends_scalar(char c) { return c == ',' || c == '}' || c == ']' || c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

std::optional<std::uint32_t> hex4(std::string_view text) {
  std::uint32_t value = 0;
  if (text.size() < 4) return std::nullopt;
  const auto [end, error] = std::from_chars(text.data(), text.data() + 4, value, 16);
  if (error != std::errc() || end != text.data() + 4) return std::nullopt;
  return value;
}

// text begins after "\u". Returns how many of its bytes belong to the escape.
std::size_t append_unicode_escape(std::string& out, std::string_view text) {
  const auto unit = hex4(text);
  if (!unit) {
    utf8::append(out, utf8::kReplacement);
    return 0;
  }
  const bool high = *unit >= 0xd800 && *unit < 0xdc00;
  if (high && text.substr(4, 2) == "\\u") {
    const auto low = hex4(text.substr(6));
    if (low && *low >= 0xdc00 && *low < 0xe000) {
      utf8::append(out, 0x10000 + ((*unit - 0xd800) << 10) + (*low - 0xdc00));
      return 10;
    }
  }
  if (*unit >= 0xdc80 && *unit <= 0xdcff)
    out.push_back(static_cast<char>(*unit - 0xdc00));
  else
    utf8::append(out, *unit >= 0xd800 && *unit < 0xe000 ? utf8::kReplacement : *unit);
  return 4;
}

char simple_escape(char c) {
  switch (c) {
    case 'b': return '\b';
    case 'f': return '\f';
    case 'n': return '\n';
    case 'r': return '\r';
    case 't': return '\t';
    default: return c;  // " \ /
  }
}

}  // namespace

const char* skip_space(const char* at, const char* end) {
  while (at != end && (*at == ' ' || *at == '\t' || *at == '\r' || *at == '\n')) ++at;
  return at;
}

const char* skip_string(const char* at, const char* end) {
  ++at;
  for (;;) {
    while (at != end && !kStringStop[byte(*at)]) ++at;
    if (at == end) return nullptr;
    if (*at == '"') return at + 1;
    if (end - at < 2) return nullptr;
    at += 2;
  }
}

const char* skip_value(const char* at, const char* end) {
  if (at == end) return nullptr;
  if (*at == '"') return skip_string(at, end);
  if (*at == '{' || *at == '[') return skip_container(at, end);
  const char* start = at;
  while (at != end && !ends_scalar(*at)) ++at;
  return at == start ? nullptr : at;
}

void append_decoded(std::string& out, std::string_view text) {
  for (;;) {
    const auto plain = text.find('\\');
    out.append(text.substr(0, plain));
    if (plain == std::string_view::npos || plain + 1 >= text.size()) return;
    const char escape = text[plain + 1];
    text.remove_prefix(plain + 2);
    if (escape == 'u')
      text.remove_prefix(append_unicode_escape(out, text));
    else
      out.push_back(simple_escape(escape));
  }
}

}  // namespace json

JsonView::JsonView(std::string_view text) {
  const char* end = text.data() + text.size();
  const char* at = json::skip_space(text.data(), end);
  if (at != end) *this = {at, end};
}

std::string_view JsonView::text() const {
  if (!exists()) return {};
  const char* past = json::skip_value(begin_, end_);
  return past ? std::string_view(begin_, past) : std::string_view();
}

JsonView JsonView::operator[](std::string_view key) const {
  JsonView found;
  each_member([&](std::string_view name, JsonView value) {
    if (name == key) found = value;
    return name != key;
  });
  return found;
}

std::string_view JsonView::raw_string() const {
  if (!is_string()) return {};
  const auto whole = text();
  return whole.empty() ? whole : whole.substr(1, whole.size() - 2);
}

std::string JsonView::string() const {
  std::string out;
  json::append_decoded(out, raw_string());
  return out;
}

std::optional<std::uint64_t> JsonView::u64() const {
  const auto digits = is_number() ? text() : std::string_view();
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (digits.empty() || error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return value;
}

bool JsonView::boolean_or(bool fallback) const {
  const auto word = text();
  return word == "true" || (word != "false" && fallback);
}

JsonWalker::JsonWalker(JsonView container) {
  if (!container.is_object() && !container.is_array()) return;
  at_ = container.begin_;
  end_ = container.end_;
  close_ = *at_ == '{' ? '}' : ']';
}

bool JsonWalker::close_or_fail(char c) {
  if (c == close_) finished_ = at_ + 1;
  at_ = nullptr;
  return false;
}

bool JsonWalker::read_key() {
  const char* past = at_ != end_ && *at_ == '"' ? json::skip_string(at_, end_) : nullptr;
  if (!past) return false;
  key_ = {at_ + 1, past - 1};
  at_ = json::skip_space(past, end_);
  if (at_ == end_ || *at_ != ':') return false;
  at_ = json::skip_space(at_ + 1, end_);
  return true;
}

bool JsonWalker::next() {
  if (!at_) return false;
  if (first_) {
    ++at_;
  } else {
    at_ = past_value_ ? past_value_ : json::skip_value(at_, end_);
    if (!at_) return false;
  }
  past_value_ = nullptr;
  at_ = json::skip_space(at_, end_);
  if (at_ == end_) return close_or_fail(0);
  if (*at_ == close_) return close_or_fail(*at_);
  if (!first_) {
    if (*at_ != ',') return close_or_fail(0);
    at_ = json::skip_space(at_ + 1, end_);
  }
  first_ = false;
  if (close_ == '}' && !read_key()) return close_or_fail(0);
  if (at_ == end_) return close_or_fail(0);
  return true;
}

}  // namespace probed::client
