// See match.hpp. Thread: any; pure.
#include "daemon/names/match.hpp"

#include <algorithm>
#include <array>
#include <optional>

#include "proto/base/characters.hpp"

namespace probed::names {
namespace {

constexpr std::size_t kMaxNearLength = 96;        // longer names are told apart by more than a slip of a finger
constexpr std::size_t kMaxNearWork = 20'000'000;  // characters looked at

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

std::string to_lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), lower);
  return out;
}

// Matches one set "[...]" at the front of the pattern; nullopt when it has no end. Sets `length` to that of the set.
std::optional<bool> match_set(std::string_view pattern, char c, std::size_t& length) {
  std::size_t i = 1;
  const bool inverted = i < pattern.size() && (pattern[i] == '!' || pattern[i] == '^');
  i += inverted;
  bool found = false;
  for (bool first = true; i < pattern.size() && (first || pattern[i] != ']'); first = false) {
    const bool range = i + 2 < pattern.size() && pattern[i + 1] == '-' && pattern[i + 2] != ']';
    const char last = range ? pattern[i + 2] : pattern[i];
    found = found || (c >= pattern[i] && c <= last);
    i += range ? 3 : 1;
  }
  if (i >= pattern.size()) return std::nullopt;
  length = i + 1;
  return found != inverted;
}

// Whether the pattern's front, which isn't a *, takes this character; `length`: how much of the pattern that uses up.
bool match_one(std::string_view pattern, char c, std::size_t& length) {
  length = 1;
  if (pattern.front() == '?') return true;
  if (pattern.front() == '[')
    if (const auto in_set = match_set(pattern, c, length)) return *in_set;
  return pattern.front() == c;
}

// Levenshtein distance, or `most` + 1 when it is more than that.
int edit_distance(std::string_view a, std::string_view b, int most) {
  std::array<int, kMaxNearLength + 1> row{};
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = static_cast<int>(j);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    int diagonal = row[0], least = row[0] = static_cast<int>(i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const int change = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({change, row[j] + 1, row[j - 1] + 1});
      least = std::min(least, row[j]);
    }
    if (least > most) return most + 1;
  }
  return std::min(row[b.size()], most + 1);
}

}  // namespace

bool has_glob(std::string_view text) { return text.find_first_of("*?[") != std::string_view::npos; }

bool glob_match(std::string_view pattern, std::string_view text) {
  std::size_t p = 0, t = 0;
  std::size_t star = std::string_view::npos, retry = 0;  // behind the last *, and where its text ends so far
  while (t < text.size()) {
    std::size_t used = 0;
    if (p < pattern.size() && pattern[p] == '*') {
      star = ++p;
      retry = t;
    } else if (p < pattern.size() && match_one(pattern.substr(p), text[t], used)) {
      p += used;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star;
      t = ++retry;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

int module_fit(std::string_view wanted, std::string_view file) {
  if (wanted.empty()) return 0;
  if (file == wanted) return 4;
  if (!file.starts_with(wanted)) return 0;
  const std::string_view rest = file.substr(wanted.size());
  const bool has_so = wanted.ends_with(".so") || wanted.find(".so.") != std::string_view::npos;
  if (has_so) return rest.starts_with('.') ? 3 : 0;         // libssl.so, libssl.so.1 -> libssl.so.1.1
  if (rest == ".so" || rest.starts_with(".so.")) return 2;  // libc -> libc.so.6
  const bool numbered = rest.size() > 1 && rest[0] == '-' && is_digit(rest[1]);
  return numbered && rest.find(".so") != std::string_view::npos ? 1 : 0;  // libc -> libc-2.31.so
}

std::string_view short_module_name(std::string_view file) {
  const std::size_t so = file.find(".so");
  const bool ends = so != std::string_view::npos && so > 0 && (so + 3 == file.size() || file[so + 3] == '.');
  return ends ? file.substr(0, so) : file;
}

NearNames::NearNames(std::string_view wanted) : wanted_(to_lower(wanted.substr(0, kMaxNearLength))) {}

int NearNames::distance(std::string_view name) const {
  constexpr int kFar = 1000;
  if (name.size() > kMaxNearLength || name.empty() || wanted_.empty()) return kFar;
  const std::string low = to_lower(name);
  if (low == wanted_) return 0;
  // A member, by its name alone.
  if (const auto scope = name.rfind("::"); scope != name.npos && wanted_.find("::") == wanted_.npos)
    if (const int member = distance(name.substr(scope + 2)); member < 4) return member;
  const int most = wanted_.size() < 4 ? 1 : wanted_.size() < 8 ? 2 : 3;
  const auto gap = static_cast<int>(low.size()) - static_cast<int>(wanted_.size());
  if (gap <= most && gap >= -most)
    if (const int edits = edit_distance(wanted_, low, most); edits <= most) return edits;
  // Part of the other: the less is left over, the nearer. Three letters are part of too many names.
  const bool within = wanted_.size() > 3 && low.find(wanted_) != std::string::npos;
  const bool around = low.size() > 3 && low.size() * 2 >= wanted_.size() && wanted_.find(low) != std::string::npos;
  return within || around ? 4 + std::abs(gap) : kFar;
}

void NearNames::consider(std::string_view name) {
  work_ += name.size() + wanted_.size();
  if (work_ > kMaxNearWork) return;
  const int far = distance(name);
  if (far >= 1000 || (kept_.size() == kKept && far >= kept_.back().first)) return;
  std::pair<int, std::string> entry(far, name);
  const auto at = std::lower_bound(kept_.begin(), kept_.end(), entry);
  if (std::any_of(kept_.begin(), kept_.end(), [&](const auto& k) { return k.second == name; })) return;
  kept_.insert(at, std::move(entry));
  if (kept_.size() > kKept) kept_.pop_back();
}

std::vector<std::string> NearNames::best() const {
  std::vector<std::string> names;
  for (const auto& [far, name] : kept_) names.push_back(name);
  return names;
}

}  // namespace probed::names
