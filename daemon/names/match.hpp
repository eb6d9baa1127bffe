// How what people type is compared with names: globs, module names, near misses. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace probed::names {

// The longest glob that is taken; matching costs the product of both lengths at worst.
inline constexpr std::size_t kMaxGlob = 256;

// Whether the text has any of *, ? and [.
bool has_glob(std::string_view text);
// * any text, ? any character, [a-z] [!a-z] [^a-z] one of a set; a [ without its ] is itself.
bool glob_match(std::string_view pattern, std::string_view text);

// How well a module's file name fits what was asked for, which has no '/': 0 not at all; higher is better. `libc` and
// `libc.so` fit libc.so.6 and libc-2.31.so.
int module_fit(std::string_view wanted, std::string_view file_name);
// The short form to write a module by: libc for libc.so.6.
std::string_view short_module_name(std::string_view file_name);

// Gathers the names that come nearest to one that wasn't found: by letters without regard to case, by edit distance, by
// one being part of the other. The work is bounded however many names are shown.
class NearNames {
 public:
  explicit NearNames(std::string_view wanted);
  void consider(std::string_view name);
  // At most five, nearest first.
  std::vector<std::string> best() const;

 private:
  static constexpr std::size_t kKept = 5;
  int distance(std::string_view name) const;

  std::string wanted_;  // lower case
  std::size_t work_ = 0;
  std::vector<std::pair<int, std::string>> kept_;  // sorted
};

}  // namespace probed::names
