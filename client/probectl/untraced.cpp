// See untraced.hpp.
#include "client/probectl/untraced.hpp"

#include <fmt/format.h>

#include <cctype>

namespace probed::client {
namespace {

constexpr std::size_t kMostNames = 5;

std::string_view first_word(std::string_view& text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  const std::size_t end = std::min(text.find_first_of(" \t"), text.size());
  const std::string_view word = text.substr(0, end);
  text.remove_prefix(end);
  return word;
}

// "p", "r", "p:NAME", "r5:GROUP/NAME": a location follows.
bool is_kind(std::string_view word) {
  if (word.empty() || (word[0] != 'p' && word[0] != 'r')) return false;
  std::size_t i = 1;
  while (word[0] == 'r' && i < word.size() && std::isdigit(static_cast<unsigned char>(word[i]))) ++i;
  return i == word.size() || word[i] == ':';
}

}  // namespace

std::string Untraced::text(bool follows) const {
  std::string text;
  std::uint64_t count = 0;
  std::string names;
  std::size_t named = 0;
  for (const auto& [comm, times] : programs_) {
    count += times;
    if (++named <= kMostNames) names += (names.empty() ? "" : ", ") + comm;
  }
  if (named > kMostNames) names += ", ...";
  if (count == 1) text = fmt::format("1 process ran another program ({}) and was not traced there", names);
  if (count > 1) text = fmt::format("{} processes ran other programs ({}) and were not traced there", count, names);
  std::uint64_t children = 0;
  for (const auto& [pid, number] : let_go_) children += number;
  if (children == 0 && children_ran_ && !follows) text += " (--follow-fork traces children)";
  if (children == 0) return text;
  if (!text.empty()) text += "; ";
  return text + fmt::format("{} not traced ({})",
                            children == 1 ? "1 child was" : fmt::format("{} children were", children),
                            follows ? "could not be followed: ended at once, or out of memory"
                                    : "--follow-fork traces children");
}

bool names_address(std::string_view definition) {
  const std::string_view first = first_word(definition);
  const std::string_view location = is_kind(first) ? first_word(definition) : first;
  return location.starts_with("0x") || location.starts_with("0X");
}

}  // namespace probed::client
