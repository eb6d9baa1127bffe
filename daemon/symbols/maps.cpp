// Parser of /proc/PID/maps (proc(5), fs/proc/task_mmu.c show_map_vma). Thread: any; pure but for read_maps.
#include "daemon/symbols/maps.hpp"

#include <fcntl.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>

#include "daemon/base/file.hpp"
#include "daemon/base/out_of_descriptors.hpp"
#include "daemon/base/process.hpp"
#include "daemon/base/visits.hpp"
#include "daemon/symbols/open_maps.hpp"

namespace probed::symbols {
namespace {

// vm.max_map_count is 65,530 by default and may be raised to 2^31; a line is at most a path of 4 KiB longer than 74
// bytes.
constexpr std::size_t kMaxMapsText = 512u << 20;

// Reads numbers and separators off the front of a line; once something doesn't fit, good() stays false.
class LineReader {
 public:
  explicit LineReader(std::string_view line) : rest_(line) {}

  template <class T>
  T number(int base) {
    T value{};
    const auto [end, ec] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value, base);
    if (ec != std::errc()) good_ = false;
    if (good_) rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
    return value;
  }
  void expect(char c) {
    good_ = good_ && !rest_.empty() && rest_.front() == c;
    if (good_) rest_.remove_prefix(1);
  }
  // r, w, x, s or their absence.
  bool flag(char set) {
    good_ = good_ && !rest_.empty();
    const bool is_set = good_ && rest_.front() == set;
    if (good_) rest_.remove_prefix(1);
    return is_set;
  }
  bool good() const { return good_; }
  std::string_view rest() const { return rest_; }

 private:
  std::string_view rest_;
  bool good_ = true;
};

// The kernel escapes a newline in a path as \012 (seq_file_path(..., "\n")), and nothing else: a backslash itself isn't
// escaped, so a file whose name holds the four characters \012 can't be told apart. Whoever opens it checks the inode.
std::string unescape(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  const auto octal = [](char c) { return c >= '0' && c <= '7'; };
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 3 < text.size() && octal(text[i + 1]) && octal(text[i + 2]) && octal(text[i + 3])) {
      out.push_back(static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + (text[i + 3] - '0')));
      i += 3;
    } else {
      out.push_back(text[i]);
    }
  }
  return out;
}

void set_path(Mapping& mapping, std::string_view text) {
  constexpr std::string_view kDeleted = " (deleted)";
  const std::size_t start = text.find_first_not_of(' ');
  text.remove_prefix(start == std::string_view::npos ? text.size() : start);
  if (mapping.inode != 0 && text.ends_with(kDeleted)) {
    mapping.deleted = true;
    text.remove_suffix(kDeleted.size());
  }
  mapping.path = unescape(text);
}

// "start-end rwxp offset major:minor inode    path"
std::optional<Mapping> parse_line(std::string_view line) {
  LineReader reader(line);
  Mapping m;
  m.start.value = reader.number<std::uint64_t>(16);
  reader.expect('-');
  m.end.value = reader.number<std::uint64_t>(16);
  reader.expect(' ');
  m.readable = reader.flag('r');
  m.writable = reader.flag('w');
  m.executable = reader.flag('x');
  m.shared = reader.flag('s');
  reader.expect(' ');
  m.file_offset = reader.number<std::uint64_t>(16);
  reader.expect(' ');
  m.dev_major = reader.number<std::uint32_t>(16);
  reader.expect(':');
  m.dev_minor = reader.number<std::uint32_t>(16);
  reader.expect(' ');
  m.inode = reader.number<std::uint64_t>(10);
  if (!reader.good() || m.end <= m.start) return std::nullopt;
  set_path(m, reader.rest());
  return m;
}

}  // namespace

std::vector<Mapping> parse_maps(std::string_view text) {
  std::vector<Mapping> mappings;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    if (auto mapping = parse_line(text.substr(0, end))) mappings.push_back(*std::move(mapping));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return mappings;
}

Result<std::vector<Mapping>> read_maps(pid_t pid) {
  auto maps = open_maps(pid);
  if (!maps) return std::move(maps).error();
  return std::move(maps->mappings);
}

Result<Maps> open_maps(pid_t pid) {
  std::string text;
  const pid_t task = process::task_with_memory(pid);
  const std::string path = "/proc/" + std::to_string(task) + "/maps";
  const Visit visit(task);
  UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const int why = file ? read_rest(file.get(), text, kMaxMapsText) : errno;
  if (why == 0) return Maps{parse_maps(text), std::move(file)};
  if (why == ENOENT || why == ESRCH)
    return Error{
        Reason::no_such_process, "no process " + std::to_string(pid), "it may have ended; check the pid with ps", {}};
  if (why == EACCES || why == EPERM)
    return Error{Reason::permission_denied,
                 "cannot read " + path + ": " + std::strerror(why),
                 "run as the owner of the process or as root",
                 {}};
  if (lacks_descriptors(why)) return no_descriptors(pid);
  return Error{Reason::internal, "cannot read " + path + ": " + std::strerror(why), "", {}};
}

}  // namespace probed::symbols
