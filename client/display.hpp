// Text of the target's that goes to a terminal: whatever it holds, it cannot drive the terminal.
#pragma once

#include <string>
#include <string_view>

namespace probed::client {

// Appends `bytes` with C0 and C1 controls, DEL and bytes that are no UTF-8 as \xNN (each byte of theirs), and the
// backslash doubled, so that nothing is lost. Everything else stays as it is.
void append_display(std::string& out, std::string_view bytes);
std::string display(std::string_view bytes);

// The same, but for the backslash: for sentences, in which nobody looks for the exact bytes.
std::string display_sentence(std::string_view bytes);

// As append_display, in double quotes, with \" for the quote.
void append_quoted_display(std::string& out, std::string_view bytes);

// JSON, which stays JSON: what a terminal would obey, or can't show, is escaped as JSON does.
void append_json_display(std::string& out, std::string_view json);

}  // namespace probed::client
