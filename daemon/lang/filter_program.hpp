// What a compiled filter is, for the filter itself and for those who make code of it.
//
// A flat list of predicates, each with the index to go on at when it is true and when it is false; always forward, so
// evaluation ends after at most as many steps as there are predicates. Two indices behind the last stand for the
// filter's result. The kernel's filters have the same shape (predicate_parse in kernel/trace/trace_events_filter.c).
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "daemon/lang/filter.hpp"

namespace probed::lang {

enum class FilterOp : std::uint8_t { eq, ne, lt, le, gt, ge, band, glob };

// What a predicate reads: an argument, or one of the common fields. constant: nothing, it is what `value` says.
enum class FilterField : std::uint8_t { argument, pid, tid, cpu, comm, duration, constant };

struct Predicate {
  FilterField field = FilterField::argument;
  FilterOp op = FilterOp::eq;
  bool is_string = false;
  bool is_signed = false;
  bool inverted = false;  // of a glob that began with '!'
  std::uint8_t size = 8;  // bytes of the number
  std::uint16_t argument = 0;
  std::uint64_t value = 0;  // already cut to size and extended
  std::string text;
  std::uint32_t on_true = 0, on_false = 0;
};

inline constexpr std::uint32_t kFilterAccept = std::numeric_limits<std::uint32_t>::max();
inline constexpr std::uint32_t kFilterReject = kFilterAccept - 1;

struct FilterProgram {
  std::vector<Predicate> predicates;
  std::vector<Type> types;  // of the arguments up to the last one that is compared
};
struct Filter::Impl : FilterProgram {};

// Cuts value to `size` bytes and extends it again.
constexpr std::uint64_t cut(std::uint64_t value, unsigned size, bool is_signed) {
  const unsigned unused = 64 - size * 8;
  if (is_signed) return static_cast<std::uint64_t>(static_cast<std::int64_t>(value << unused) >> unused);
  return value << unused >> unused;
}

// How a predicate on a number decides.
bool number_matches(const Predicate& p, std::uint64_t value);

// The kernel's glob_match(): * ? [a-z] [!a-z] \x. Time at most |pattern| * |text|, no recursion.
bool glob_matches(std::string_view pattern, std::string_view text);

}  // namespace probed::lang
