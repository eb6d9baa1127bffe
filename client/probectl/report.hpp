// Failures as the user sees them: one clear line on stderr, or one JSON object.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "client/connection.hpp"
#include "proto/base/error.hpp"

namespace probed::client {

// What the user typed that an error's column may point into.
struct Typed {
  std::span<const std::string> definitions;
  std::string_view filter;
};

// "probectl: MESSAGE (HINT)\n", and where the error has a column and the text it points into is known, that text with a
// caret below. With json: {"error":{"reason","message","column","definition","hint"}}\n with the keys that apply.
// `word` replaces the reason's own word: failures of the client that the protocol has no reason for, such as
// "no-daemon".
std::string error_report(const Error& error, bool json, std::string_view word = {}, const Typed& typed = {});

// The word for a failure of this connection, or of making one (nullptr): empty where the error's own reason fits.
std::string_view failure_word(const Connection* connection, const Error& error);

// Prints the report to stderr; returns the exit status of a failure, 1.
int fail(const Error& error, bool json, std::string_view word = {}, const Typed& typed = {});

// "probectl: TEXT" on stderr: something worth knowing that is no failure.
void note(std::string_view text);
// Why events are missed, and what to do. No-op for none.
// of_returns: there are return probes.
void note_missed(std::uint64_t count, bool of_returns);

}  // namespace probed::client
