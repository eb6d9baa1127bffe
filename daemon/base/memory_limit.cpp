#include "daemon/base/memory_limit.hpp"

#include <unistd.h>

#include <algorithm>
#include <charconv>

#include "daemon/base/file.hpp"

namespace probed {
namespace {

constexpr std::size_t kSmallFile = 64 << 10;

// "max", and what can't be read, are none.
std::uint64_t limit_in(const std::string& path) {
  std::string text;
  std::uint64_t limit = UINT64_MAX;
  if (read_file(path, text, kSmallFile) == 0) std::from_chars(text.data(), text.data() + text.size(), limit);
  return limit;
}

// In a group's file of that name, and in those above it.
std::uint64_t least_upwards(const std::string& mounted, std::string group, const std::string& file) {
  std::uint64_t least = UINT64_MAX;
  while (true) {
    least = std::min(least, limit_in(mounted + group + "/" + file));
    const std::size_t parent = group.rfind('/');
    if (parent == std::string::npos) return least;
    group.resize(parent);
  }
}

}  // namespace

// A line is NUMBER:CONTROLLERS:PATH; version 2's is 0::PATH.
std::uint64_t group_memory_limit(std::string_view groups, const std::string& mounted) {
  std::uint64_t least = UINT64_MAX;
  while (!groups.empty()) {
    const std::string_view line = groups.substr(0, groups.find('\n'));
    groups.remove_prefix(std::min(line.size() + 1, groups.size()));
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string_view::npos || second == std::string_view::npos) continue;
    const std::string controllers = "," + std::string(line.substr(first + 1, second - first - 1)) + ",";
    std::string group(line.substr(second + 1));
    if (group == "/") group.clear();
    if (line.starts_with("0::"))
      least = std::min({least, least_upwards(mounted, group, "memory.max"),
                        least_upwards(mounted + "/unified", group, "memory.max")});
    else if (controllers.find(",memory,") != std::string::npos)
      least = std::min(least, least_upwards(mounted + "/memory", group, "memory.limit_in_bytes"));
  }
  return least;
}

std::uint64_t memory_limit(pid_t pid) {
  const long pages = ::sysconf(_SC_PHYS_PAGES), page = ::sysconf(_SC_PAGESIZE);
  const std::uint64_t machine =
      pages > 0 ? static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(page) : UINT64_MAX;
  std::string groups;
  if (read_file("/proc/" + std::to_string(pid) + "/cgroup", groups, kSmallFile) != 0) return machine;
  return std::min(machine, group_memory_limit(groups, "/sys/fs/cgroup"));
}

}  // namespace probed
