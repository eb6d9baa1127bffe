// Evaluating a filter: once per hit, on the tracer thread. No allocation.
#include <array>

#include "daemon/lang/filter_program.hpp"
#include "daemon/values/packed.hpp"

namespace probed::lang {
namespace {

using values::PackedReader;

template <class T>
bool compare(FilterOp op, T left, T right) {
  switch (op) {
    case FilterOp::eq: return left == right;
    case FilterOp::ne: return left != right;
    case FilterOp::lt: return left < right;
    case FilterOp::le: return left <= right;
    case FilterOp::gt: return left > right;
    case FilterOp::ge: return left >= right;
    case FilterOp::band: return (left & right) != 0;
    case FilterOp::glob: break;
  }
  return false;
}

bool text_matches(const Predicate& p, std::string_view text) {
  switch (p.op) {
    case FilterOp::eq: return text == p.text;
    case FilterOp::ne: return text != p.text;
    default: return glob_matches(p.text, text) != p.inverted;
  }
}

bool argument_matches(const Predicate& p, std::span<const std::byte> packed) {
  PackedReader reader(packed);
  if (!reader.present()) return false;  // a comparison with a null is false, != too
  return p.is_string ? text_matches(p, reader.string()) : number_matches(p, reader.value());
}

bool common_matches(const Predicate& p, const values::CommonFields& common) {
  const auto extended = [](std::int32_t value) { return static_cast<std::uint64_t>(std::int64_t{value}); };
  switch (p.field) {
    case FilterField::pid: return number_matches(p, extended(common.pid));
    case FilterField::tid: return number_matches(p, extended(common.tid));
    case FilterField::cpu: return number_matches(p, common.cpu);
    case FilterField::duration: return number_matches(p, common.duration);
    case FilterField::constant: return p.value != 0;
    default: return text_matches(p, common.comm);
  }
}

// '[' ... at pattern[i]: whether c is in the class; i is moved behind it. An unclosed '[' stands for itself.
bool class_matches(std::string_view pattern, std::size_t& i, char c) {
  std::size_t k = i + 1;
  const bool inverted = k < pattern.size() && pattern[k] == '!';
  if (inverted) ++k;
  bool found = false;
  for (bool first = true; k < pattern.size() && (first || pattern[k] != ']'); first = false) {
    const auto low = static_cast<unsigned char>(pattern[k++]);
    auto high = low;
    if (k + 1 < pattern.size() && pattern[k] == '-' && pattern[k + 1] != ']') {
      high = static_cast<unsigned char>(pattern[k + 1]);
      k += 2;
    }
    const auto byte = static_cast<unsigned char>(c);
    found = found || (low <= byte && byte <= high);
  }
  if (k >= pattern.size()) return ++i, c == '[';
  i = k + 1;
  return found != inverted;
}

// Whether the pattern's element at i (not '*') matches c; i is moved behind it.
bool element_matches(std::string_view pattern, std::size_t& i, char c) {
  if (pattern[i] == '?') return ++i, true;
  if (pattern[i] == '[') return class_matches(pattern, i, c);
  if (pattern[i] == '\\' && i + 1 < pattern.size()) ++i;
  return pattern[i++] == c;
}

}  // namespace

bool number_matches(const Predicate& p, std::uint64_t value) {
  if (!p.is_signed) return compare(p.op, value, p.value);
  return compare(p.op, static_cast<std::int64_t>(value), static_cast<std::int64_t>(p.value));
}

bool glob_matches(std::string_view pattern, std::string_view text) {
  constexpr std::size_t kNone = std::string_view::npos;
  std::size_t i = 0, star = kNone, resume = 0;
  for (std::size_t k = 0; k < text.size();) {
    if (i < pattern.size() && pattern[i] == '*') {
      star = ++i;
      resume = k;
    } else if (i < pattern.size() && element_matches(pattern, i, text[k])) {
      ++k;
    } else if (star != kNone) {
      i = star;  // let the last star take one byte more
      k = ++resume;
    } else {
      return false;
    }
  }
  while (i < pattern.size() && pattern[i] == '*') ++i;
  return i == pattern.size();
}

const FilterProgram* Filter::program() const { return impl_.get(); }

bool Filter::matches(std::span<const std::byte> packed, const values::CommonFields& common) const {
  if (!impl_ || impl_->predicates.empty()) return true;
  std::array<std::span<const std::byte>, kMaxFetchArgs> arguments;
  PackedReader reader(packed);
  for (std::size_t k = 0; k < impl_->types.size(); ++k) {
    arguments[k] = reader.rest();
    reader.skip(impl_->types[k]);
  }
  std::uint32_t at = 0;
  while (at < kFilterReject) {
    const Predicate& p = impl_->predicates[at];
    const bool match =
        p.field == FilterField::argument ? argument_matches(p, arguments[p.argument]) : common_matches(p, common);
    at = match ? p.on_true : p.on_false;
  }
  return at == kFilterAccept;
}

}  // namespace probed::lang
