// See demangle.hpp. Mangling: Itanium C++ ABI, section 5.1. Thread: any; pure.
#include "daemon/names/demangle.hpp"

#include <cxxabi.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "proto/base/characters.hpp"

namespace probed::names {
namespace {

constexpr std::uint64_t kMaxDemangled = 16u << 20;
// The longest text that one character of a mangled name stands for: "Sd" prints a basic_iostream in full, 80 bytes.
constexpr std::uint64_t kPerCharacter = 48;
constexpr std::string_view kAbiTag = "[abi:";

bool is_word(char c) { return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '$'; }

std::uint64_t saturating_add(std::uint64_t a, std::uint64_t b) {
  std::uint64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? ~0ull : sum;
}
std::uint64_t saturating_multiply(std::uint64_t a, std::uint64_t b) {
  std::uint64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? ~0ull : product;
}

// A seq-id after S or T: "_" is 0, "0_" is 1, ... in base 36. Returns the length read, 0 when there is none.
std::size_t read_sequence(std::string_view text, std::uint64_t& index) {
  index = 0;
  for (std::size_t i = 0; i < text.size() && i < 6; ++i) {
    const char c = text[i];
    if (c == '_') {
      if (i > 0) ++index;
      return i + 1;
    }
    if (!is_digit(c) && !(c >= 'A' && c <= 'Z')) return 0;
    index = index * 36 + static_cast<std::uint64_t>(is_digit(c) ? c - '0' : c - 'A' + 10);
  }
  return 0;
}

// Sizes of substitutions. They are numbered in the order in which they are complete, so number i is complete, and no
// longer than all that was printed so far, when a number j >= i is first used.
class SubstitutionSizes {
 public:
  std::uint64_t of(std::uint64_t index, std::uint64_t printed) {
    const auto known = bound_.lower_bound(index);
    if (known != bound_.end()) return known->second;
    bound_.emplace(index, printed);
    return printed;
  }

 private:
  std::map<std::uint64_t, std::uint64_t> bound_;
};

// References to template arguments may point forward, so no order helps: but n references chained in any way multiply
// a text by at most 3^(n/3), the largest product of numbers whose sum is n.
std::uint64_t reference_factor(unsigned references) {
  std::uint64_t factor = 1;
  for (unsigned i = 0; i < references; i += 3) factor = saturating_multiply(factor, 3);
  return factor;
}

// ---- Rust -----------------------------------------------------------------------------------------------------------

// Legacy Rust names end in a path element "h" and 16 hexadecimal digits.
bool is_rust(std::string_view text) {
  constexpr std::size_t kHash = 19;  // "::h" + 16
  if (text.size() <= kHash) return false;
  const std::string_view tail = text.substr(text.size() - kHash);
  const auto hex = [](char c) { return is_digit(c) || (c >= 'a' && c <= 'f'); };
  return tail.starts_with("::h") && std::all_of(tail.begin() + 3, tail.end(), hex);
}

// rustc_demangle, "legacy": the escapes its compiler writes for characters that a symbol can't have.
constexpr std::array<std::pair<std::string_view, std::string_view>, 20> kRustEscapes{{
    {"$SP$", "@"},  {"$BP$", "*"},  {"$RF$", "&"},   {"$LT$", "<"},  {"$GT$", ">"},  {"$LP$", "("},  {"$RP$", ")"},
    {"$C$", ","},   {"$u20$", " "}, {"$u22$", "\""}, {"$u27$", "'"}, {"$u2b$", "+"}, {"$u3b$", ";"}, {"$u3d$", "="},
    {"$u5b$", "["}, {"$u5d$", "]"}, {"$u7b$", "{"},  {"$u7d$", "}"}, {"$u7e$", "~"}, {"..", "::"},
}};

std::string rust_name(std::string_view text) {
  std::string out;
  text.remove_suffix(19);
  while (!text.empty()) {
    if (text.starts_with("_$") && (out.empty() || out.ends_with("::"))) text.remove_prefix(1);
    const auto escape = std::find_if(kRustEscapes.begin(), kRustEscapes.end(),
                                     [&](const auto& e) { return text.starts_with(e.first); });
    const bool found = escape != kRustEscapes.end();
    out += found ? escape->second : text.substr(0, 1);
    text.remove_prefix(found ? escape->first.size() : 1);
  }
  return out;
}

// ---- the parts of a readable name ---------------------------------------------------------------------------------

// Whether the word "operator" stands at this place.
bool operator_at(std::string_view text, std::size_t i) {
  constexpr std::string_view kWord = "operator";
  if (text.compare(i, kWord.size(), kWord) != 0 || (i > 0 && is_word(text[i - 1]))) return false;
  return i + kWord.size() >= text.size() || !is_word(text[i + kWord.size()]);
}

// Where the parameter list begins: the '(' that belongs to the last ')' after which only qualifiers stand. The last one
// of "(anonymous namespace)::f" or "f(int)::counter" ends none.
std::size_t parameters_at(std::string_view text) {
  std::size_t depth = 0;
  const std::size_t close = text.rfind(')');
  if (close == text.npos || text.substr(close).find("::") != text.npos) return text.size();
  for (std::size_t i = text.size(); i-- > 0;) {
    if (text[i] == ')') ++depth;
    if (text[i] != '(' || depth == 0) continue;
    if (--depth == 0) return i;
  }
  return text.size();
}

// Where the name begins behind a return type: after the last blank outside all brackets, and before any operator.
std::size_t name_at(std::string_view text) {
  std::size_t depth = 0, start = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (depth == 0 && operator_at(text, i)) break;
    if (c == '<' || c == '(' || c == '{' || c == '[') ++depth;
    const bool arrow = c == '>' && i > 0 && text[i - 1] == '-';
    if ((c == '>' && !arrow) || c == ')' || c == '}' || c == ']') depth -= depth > 0;
    if (c == ' ' && depth == 0) start = i + 1;
  }
  return start;
}

// Without one trailing template argument list.
std::string_view without_template(std::string_view name) {
  if (!name.ends_with('>') || name.find("operator") != std::string_view::npos) return name;
  std::size_t depth = 0;
  for (std::size_t i = name.size(); i-- > 0;) {
    if (name[i] == '>') ++depth;
    if (name[i] == '<' && --depth == 0) return i > 0 ? name.substr(0, i) : name;
  }
  return name;
}

}  // namespace

std::string_view without_clone_suffix(std::string_view name) {
  constexpr std::array<std::string_view, 7> kClones{"constprop", "isra", "part",      "cold",
                                                    "lto_priv",  "llvm", "localalias"};
  std::size_t keep = name.size();
  // Suffixes are words and numbers; a number alone (a static local variable's) says nothing.
  for (std::size_t dot; (dot = name.substr(0, keep).rfind('.')) != std::string_view::npos && dot > 0;) {
    const std::string_view part = name.substr(dot + 1, keep - dot - 1);
    const bool clone = std::find(kClones.begin(), kClones.end(), part) != kClones.end();
    const bool numeral = !part.empty() && std::all_of(part.begin(), part.end(), is_digit);
    if (!clone && !numeral) break;
    keep = dot;
    if (clone) name = name.substr(0, keep);
  }
  return name;
}

bool is_fragment(std::string_view name) {
  const std::string_view suffix = name.substr(without_clone_suffix(name).size());
  return suffix.find(".cold") != std::string_view::npos || suffix.find(".part") != std::string_view::npos;
}

std::uint64_t demangled_bound(std::string_view mangled) {
  std::uint64_t printed = 0;
  unsigned references = 0;
  SubstitutionSizes substitutions;
  for (std::size_t i = 0; i < mangled.size();) {
    std::uint64_t index = 0;
    const char c = mangled[i];
    const std::size_t used = c == 'S' || c == 'T' ? read_sequence(mangled.substr(i + 1), index) : 0;
    if (used != 0 && c == 'S') printed = saturating_add(printed, substitutions.of(index, printed));
    references += used != 0 && c == 'T';
    printed = saturating_add(printed, kPerCharacter);
    i += 1 + used;
  }
  return saturating_multiply(printed, reference_factor(references));
}

std::string demangle(std::string_view name) {
  if (!is_mangled(name)) return {};
  const std::string plain(without_clone_suffix(name));
  if (demangled_bound(plain) > kMaxDemangled) return {};
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(abi::__cxa_demangle(plain.c_str(), nullptr, nullptr, &status),
                                                    std::free);
  if (status != 0 || !text) return {};
  const std::string_view readable(text.get());
  return is_rust(readable) ? rust_name(readable) : std::string(readable);
}

NameParts split_name(std::string_view demangled) {
  // "vtable for X", "guard variable for f()::x", "non-virtual thunk to X::f()": the words belong to the name.
  const bool special =
      demangled.find(" for ") != std::string_view::npos || demangled.find(" to ") != std::string_view::npos;
  const bool rust = demangled.starts_with('<');
  const std::size_t end = rust ? demangled.size() : parameters_at(demangled);
  const std::size_t start = special || rust ? 0 : name_at(demangled.substr(0, end));
  NameParts parts;
  parts.full = demangled.substr(start);
  parts.name = demangled.substr(start, end - start);
  parts.bare = rust ? parts.name : without_template(parts.name);
  return parts;
}

std::optional<std::size_t> parameters_in(std::string_view demangled) {
  const NameParts parts = split_name(demangled);
  std::string_view rest = parts.full.substr(parts.name.size());
  if (!rest.starts_with('(')) return std::nullopt;
  std::size_t depth = 0, count = 0, begin = 1;
  for (std::size_t i = 0; i < rest.size(); ++i) {
    const char c = rest[i];
    const bool opens = c == '(' || c == '<' || c == '[' || c == '{';
    const bool closes = c == ')' || (c == '>' && rest[i - 1] != '-') || c == ']' || c == '}';
    depth += opens;
    depth -= closes;
    const bool is_end = depth == 0;
    if (!is_end && (depth != 1 || c != ',')) continue;
    std::string_view one = rest.substr(begin, i - begin);
    while (one.starts_with(' ')) one.remove_prefix(1);
    count += !one.empty() && one != "...";
    begin = i + 1;
    if (is_end) return count;
  }
  return std::nullopt;
}

bool has_abi_tag(std::string_view name) { return name.find(kAbiTag) != std::string_view::npos; }

std::string without_abi_tags(std::string_view name) {
  std::string out;
  for (std::size_t tag; (tag = name.find(kAbiTag)) != std::string_view::npos;) {
    const std::size_t end = name.find(']', tag);
    if (end == std::string_view::npos) break;
    out += name.substr(0, tag);
    name.remove_prefix(end + 1);
  }
  return out += name;
}

std::string without_unnamed(std::string_view name) {
  constexpr std::string_view kUnnamed = "(anonymous namespace)::";
  std::string out;
  for (std::size_t at; (at = name.find(kUnnamed)) != name.npos; name.remove_prefix(at + kUnnamed.size()))
    out += name.substr(0, at);
  return out += name;
}

std::string_view without_qualifiers(std::string_view full) {
  constexpr std::array<std::string_view, 4> kQualifiers{" const", " volatile", " &", " &&"};
  std::string_view rest = full;
  for (bool found = true; found && !rest.ends_with(')');) {
    const auto last = std::ranges::find_if(kQualifiers, [&](std::string_view q) { return rest.ends_with(q); });
    found = last != kQualifiers.end();
    if (found) rest.remove_suffix(last->size());
  }
  return rest.ends_with(')') ? rest : full;
}

namespace {

// The end of the type's own name that begins here: before what points or refers to it, and whatever follows.
std::size_t end_of_type_name(std::string_view text, std::size_t at) {
  std::size_t depth = 0;
  for (; at < text.size(); ++at) {
    const char c = text[at];
    if (depth == 0 && std::string_view("*&,)>([").find(c) != std::string_view::npos) break;
    depth += c == '<' || c == '(';
    depth -= c == '>' || c == ')';
  }
  while (at > 0 && text[at - 1] == ' ') --at;
  return at;
}

// "T const" for "const T", wherever a type may begin.
std::string const_behind(std::string_view text) {
  constexpr std::string_view kConst = "const ";
  std::string out(text);
  for (std::size_t at = 0; (at = out.find(kConst, at)) != out.npos; ++at) {
    std::size_t before = at;
    while (before > 0 && out[before - 1] == ' ') --before;
    if (before == 0 || std::string_view("(,<").find(out[before - 1]) == std::string_view::npos) continue;
    out.erase(at, kConst.size());
    out.insert(end_of_type_name(out, at), " const");
  }
  return out;
}

void replace_all(std::string& text, std::string_view what, std::string_view with) {
  for (std::size_t at = 0; (at = text.find(what, at)) != text.npos; at += with.size())
    text.replace(at, what.size(), with);
}

// What the source writes shorter, as names without blanks have it; in this order.
constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kSpellings{{
    {"std::__cxx11::", "std::"},
    {"std::__1::", "std::"},
    {"std::basic_string<char,std::char_traits<char>,std::allocator<char>>", "std::string"},
    {"std::basic_string<wchar_t,std::char_traits<wchar_t>,std::allocator<wchar_t>>", "std::wstring"},
    {"std::basic_string_view<char,std::char_traits<char>>", "std::string_view"},
    {"std::basic_string_view<wchar_t,std::char_traits<wchar_t>>", "std::wstring_view"},
}};

std::vector<std::string_view> scopes_of(std::string_view name) {
  std::vector<std::string_view> parts;
  std::size_t depth = 0, begin = 0;
  for (std::size_t i = 0; i < name.size(); ++i) {
    depth += name[i] == '<' || name[i] == '(';
    depth -= depth > 0 && (name[i] == '>' || name[i] == ')');
    if (depth > 0 || !name.substr(i).starts_with("::")) continue;
    parts.push_back(name.substr(begin, i - begin));
    begin = ++i + 1;
  }
  parts.push_back(name.substr(std::min(begin, name.size())));
  return parts;
}

}  // namespace

std::string as_one_word(std::string_view demangled) {
  const std::string_view full = split_name(demangled).full;
  if (full.find("operator") != std::string_view::npos) return std::string(full);  // operator< <int>
  std::string out;
  for (std::size_t i = 0; i < full.size(); ++i) {
    const bool between = i > 0 && i + 1 < full.size() && is_word(full[i - 1]) && is_word(full[i + 1]);
    if (full[i] != ' ' || between) out.push_back(full[i]);
  }
  for (const auto& [written_out, name] : kSpellings)
    for (std::size_t at = 0; (at = out.find(written_out, at)) != out.npos; at += name.size()) {
      out.replace(at, written_out.size(), name);
      if (at + name.size() < out.size() && is_word(out[at + name.size()]) && is_word(name.back()))
        out.insert(at + name.size(), " ");
    }
  return out;
}

std::string in_one_spelling(std::string_view full) {
  constexpr std::size_t kLongest = 16 << 10;  // each const and each string moves all that is behind it
  if (full.size() > kLongest) return without_blanks(full);
  std::string out = without_blanks(const_behind(full));
  for (const auto& [written_out, name] : kSpellings) replace_all(out, written_out, name);
  return out;
}

bool leaves_out_scopes(std::string_view shorter, std::string_view name) {
  if (shorter.size() >= name.size()) return false;
  const auto wanted = scopes_of(shorter), all = scopes_of(name);
  if (wanted.size() >= all.size() || wanted.back() != all.back()) return false;
  auto at = all.begin();
  for (const std::string_view part : wanted) {
    at = std::find(at, all.end(), part);
    if (at == all.end()) return false;
    ++at;
  }
  return true;
}

namespace {

// a::f for a<int>::f<char>; the same text where an operator's name may have < and >.
std::string without_template_arguments(std::string_view name) {
  if (name.find("operator") != name.npos) return std::string(name);
  std::string out;
  std::size_t depth = 0;
  for (const char c : name) {
    depth += c == '<';
    if (depth == 0) out.push_back(c);
    depth -= depth > 0 && c == '>';
  }
  return out;
}

std::string parameters_spelled(const NameParts& parts) {
  return in_one_spelling("f" + std::string(without_qualifiers(parts.full).substr(parts.name.size())));
}

}  // namespace

bool is_short_for(const NameParts& typed, const NameParts& name) {
  if (typed.name.empty() || scopes_of(typed.bare).back() != scopes_of(name.bare).back()) return false;
  const bool has_parameters = typed.full.size() > typed.name.size();
  if (has_parameters && parameters_spelled(typed) != parameters_spelled(name)) return false;
  const auto is_meant = [](std::string_view shorter, std::string_view whole) {
    return shorter == whole || leaves_out_scopes(shorter, whole);
  };
  if (typed.name.find('<') == typed.name.npos)
    return is_meant(typed.name, name.bare) || is_meant(typed.name, without_template_arguments(name.name));
  const std::string spelled = in_one_spelling(typed.name);
  return is_meant(spelled, in_one_spelling(name.name)) || is_meant(spelled, in_one_spelling(name.bare));
}

std::string without_blanks(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text)
    if (c != ' ' && c != '\t') out.push_back(c);
  return out;
}

}  // namespace probed::names
