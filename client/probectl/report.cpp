// See report.hpp.
#include "client/probectl/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "client/display.hpp"
#include "client/utf8.hpp"
#include "client/views.hpp"
#include "proto/error.hpp"
#include "proto/json.hpp"

namespace probed::client {
namespace {

std::string error_json(const Error& error, std::string_view word) {
  proto::JsonWriter json;
  json.begin_object().key("error").begin_object();
  json.key("reason").string(word.empty() ? to_string(error.reason) : word);
  json.key("message").string(error.message);
  if (error.column) json.key("column").number(std::uint64_t{*error.column});
  if (error.definition) json.key("definition").number(std::uint64_t{*error.definition});
  if (!error.hint.empty()) json.key("hint").string(error.hint);
  json.end_object().end_object();
  return json.text() + "\n";
}

// A terminal column for each character, as far as that can be known here.
std::size_t width_of(std::string_view text) {
  std::size_t width = 0;
  for (; !text.empty(); ++width) text.remove_prefix(utf8::decode(text).length);
  return width;
}

std::string with_caret(std::string_view text, std::size_t column) {
  const auto before = display_sentence(text.substr(0, std::min(column, text.size())));
  return fmt::format("  {}\n  {}^\n", display_sentence(text), std::string(width_of(before), ' '));
}

std::string_view text_at_fault(const Error& error, const Typed& typed) {
  if (error.reason == Reason::bad_filter) return typed.filter;
  if (typed.definitions.size() == 1) return typed.definitions.front();
  const bool known = error.definition && *error.definition < typed.definitions.size();
  return known ? std::string_view(typed.definitions[*error.definition]) : std::string_view();
}

}  // namespace

std::string error_report(const Error& error, bool json, std::string_view word, const Typed& typed) {
  if (json) return error_json(error, word);
  auto text = "probectl: " + display_sentence(error.message);
  if (!error.hint.empty()) text += " (" + display_sentence(error.hint) + ")";
  text += '\n';
  const auto fault = text_at_fault(error, typed);
  return error.column && !fault.empty() ? text + with_caret(fault, *error.column) : text;
}

std::string_view failure_word(const Connection* connection, const Error& error) {
  const bool unreachable = !connection || !connection->alive();
  return unreachable && error.reason == Reason::internal ? "no-daemon" : "";
}

int fail(const Error& error, bool json, std::string_view word, const Typed& typed) {
  std::fputs(error_report(error, json, word, typed).c_str(), stderr);
  return 1;
}

void note_missed(std::uint64_t count, bool of_returns) {
  if (count > 0)
    note(
        fmt::format("{} missed: faster than they could be sent and written (--filter, or fewer probes, make them "
                    "fewer){}",
                    count == 1 ? "1 event is" : fmt::format("{} events are", count),
                    of_returns ? ", or of calls beyond the N of rN" : ""));
}

void note(std::string_view text) { std::fputs(fmt::format("probectl: {}\n", display_sentence(text)).c_str(), stderr); }

}  // namespace probed::client
