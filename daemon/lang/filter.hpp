// Event filters: the kernel's filter language (Documentation/trace/events.rst), over a probe's arguments and the common
// fields pid, tid, comm, cpu, of a return also duration. Type-checked when compiled; evaluated without allocating.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "daemon/lang/definition.hpp"
#include "daemon/values/common_fields.hpp"
#include "proto/base/result.hpp"

namespace probed::lang {

struct FilterProgram;

inline constexpr std::size_t kMaxFilter = 64 << 10;  // bytes of one filter
inline constexpr std::size_t kMaxFilterDepth = 200;  // of parentheses
inline constexpr std::size_t kMaxFilterComparisons = 4096;

// A filter is comparisons FIELD OP VALUE joined by && || ! ( ); ! binds to the comparison or parenthesis behind it, &&
// before ||. FIELD: an argument's name, or what it reads as it is written there (p->x), else a common field: pid, tid,
// cpu, comm, or the kernel's words for them: common_pid (the thread's id), CPU, COMM, __probe_ip (of a return probe
// __probe_func); of a return also duration (ns). argN names the Nth argument also when it is a lone $retval.
//   numbers: == != < <= > >= & with a decimal, 0x, leading-0 octal or negative value (negative: signed types only). The
//            value is cut to the argument's type before comparing, as in the kernel: for a u8, 256 is 0. Wider: sizes
//            (64K, 1M, 2G), and of a duration times (10ms, 1.5s, 200us).
//   char:    as u8, or == != with one quoted character.
//   strings: == != ~ with text in " or ' or a bare word that begins with no digit. ~ is a glob: * ? [a-z] [!a-z] \; a
//            leading ! turns it round.
//   FIELD alone, a number: FIELD != 0; !FIELD: FIELD == 0. Wider than the kernel.
//   FIELD & CPUS{0-3,5}, == and != too: the kernel's sets of processors.
// Stricter than the kernel: && and || need something behind them; arrays can't be compared.
class Filter {
 public:
  // Errors: bad_filter with the column (0-based byte offset) of the fault.
  // address: of the probe, of a return probe its function's entry; nullopt: not known yet, nor are the types of
  // variables by name and of $retval: what is compared with these isn't checked, and the filter is not for use.
  static Result<Filter> compile(std::string_view text, std::span<const FetchArg> args, bool is_return = false,
                                std::optional<std::uint64_t> address = std::nullopt);
  // packed: the arguments as FetchProgram::run wrote them. A comparison with a null argument is false.
  bool matches(std::span<const std::byte> packed, const values::CommonFields& common) const;

  // The compiled form (filter_program.hpp), from which another back end can be made; null: no filter. Valid as long as
  // a copy of this filter lives.
  const FilterProgram* program() const;

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

// The filter in a probe's definition, behind "if", and the one that it is added with besides: a hit has to pass both.
// Both, and the definition, have to outlive it.
class Condition {
 public:
  Condition(const Definition& definition, const std::optional<std::string>& besides)
      : own_(definition.filter), column_(definition.filter_column), besides_(besides ? *besides : std::string_view()) {}
  bool empty() const { return own_.empty() && besides_.empty(); }
  // As Filter::compile(). Of what is wrong in the definition the column is the definition's, and the reason
  // bad_definition. Precondition: not empty().
  Result<Filter> compile(std::span<const FetchArg> args, bool is_return, std::optional<std::uint64_t> address) const;

 private:
  std::string_view own_;
  std::size_t column_;
  std::string_view besides_;
};

}  // namespace probed::lang
