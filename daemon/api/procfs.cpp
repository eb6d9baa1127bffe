// See procfs.hpp.
#include "daemon/api/procfs.hpp"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <climits>
#include <memory>

#include "daemon/base/file.hpp"

namespace probed::api {
namespace {

constexpr std::string_view kSpace = " \t";

std::string_view next_word(std::string_view& text) {
  text.remove_prefix(std::min(text.find_first_not_of(kSpace), text.size()));
  const auto word = text.substr(0, text.find_first_of(kSpace));
  text.remove_prefix(word.size());
  return word;
}

template <class T>
bool parse_number(std::string_view word, T& value, int base = 10) {
  const auto [end, ec] = std::from_chars(word.data(), word.data() + word.size(), value, base);
  return ec == std::errc() && end == word.data() + word.size();
}

std::string_view next_line(std::string_view& text) {
  const auto line = text.substr(0, text.find('\n'));
  text.remove_prefix(std::min(line.size() + 1, text.size()));
  return line;
}

// What follows "Key:" in a status file; nullopt: no such line.
std::optional<std::string_view> value_of(std::string_view text, std::string_view key) {
  while (!text.empty()) {
    const auto line = next_line(text);
    if (line.starts_with(key)) return line.substr(key.size());
  }
  return std::nullopt;
}

template <class T>
bool three_ids(std::optional<std::string_view> value, std::array<T, 3>& ids) {
  if (!value) return false;
  return std::ranges::all_of(ids, [&](T& id) { return parse_number(next_word(*value), id); });
}

template <class T>
bool one_number(std::optional<std::string_view> value, T& number, int base = 10) {
  return value && parse_number(next_word(*value), number, base);
}

std::vector<pid_t> numbered_entries(const std::string& directory) {
  std::vector<pid_t> ids;
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(opendir(directory.c_str()), closedir);
  while (const dirent* entry = dir ? readdir(dir.get()) : nullptr)
    if (pid_t id = 0; parse_number(std::string_view(entry->d_name), id)) ids.push_back(id);
  return ids;
}

}  // namespace

std::optional<StatusFile> parse_status(std::string_view text) {
  StatusFile status;
  auto state = value_of(text, "State:");
  const bool ok = three_ids(value_of(text, "Uid:"), status.credentials.uids) &&
                  three_ids(value_of(text, "Gid:"), status.credentials.gids) &&
                  one_number(value_of(text, "CapPrm:"), status.credentials.permitted, 16) &&
                  one_number(value_of(text, "PPid:"), status.parent) && state;
  if (!ok) return std::nullopt;
  if (const auto word = next_word(*state); !word.empty()) status.state = word[0];
  return status;
}

Visibility parse_visibility(std::string_view mountinfo) {
  auto result = Visibility::everything;
  while (!mountinfo.empty()) {
    auto line = next_line(mountinfo);
    const auto dash = line.find(" - ");
    if (dash == line.npos) continue;
    auto filesystem = line.substr(dash + 3);
    for (int skipped = 0; skipped < 4; ++skipped) next_word(line);
    if (next_word(line) != "/proc" || next_word(filesystem) != "proc") continue;
    next_word(filesystem);  // the source
    const auto options = next_word(filesystem);
    const auto at = options.find("hidepid=");
    const auto value = at == options.npos ? "0" : options.substr(at + 8, options.find(',', at) - at - 8);
    // A later mount covers an earlier one.
    if (value == "0" || value == "off")
      result = Visibility::everything;
    else
      result = value == "1" || value == "noaccess" ? Visibility::existence : Visibility::own_only;
  }
  return result;
}

bool maps_everything(std::string_view map) {
  std::uint32_t inside = 1, outside = 1, length = 0;
  return parse_number(next_word(map), inside) && parse_number(next_word(map), outside) &&
         parse_number(next_word(map).substr(0, 10), length) && inside == 0 && outside == 0 && length == UINT32_MAX;
}

std::optional<std::string> Procfs::read(const std::string& path) const {
  constexpr std::size_t kLimit = 4 << 20;  // mountinfo of a machine with many mounts
  std::string text;
  if (read_file(root_ + path, text, kLimit) != 0) return std::nullopt;  // ESRCH too: the process ended in between
  return text;
}

std::string Procfs::link(const std::string& path) const {
  char target[PATH_MAX];
  const ssize_t length = readlink((root_ + path).c_str(), target, sizeof target);
  return length <= 0 ? std::string() : std::string(target, static_cast<std::size_t>(length));
}

std::optional<ProcessCredentials> Procfs::credentials(pid_t pid) const {
  const std::string base = "/" + std::to_string(pid);
  const auto leader = read(base + "/status");
  const auto parsed = leader ? parse_status(*leader) : std::nullopt;
  if (!parsed || parsed->state == 'Z' || parsed->state == 'X') return std::nullopt;
  ProcessCredentials result;
  for (const pid_t tid : numbered_entries(root_ + base + "/task")) {
    const auto text = read(base + "/task/" + std::to_string(tid) + "/status");
    const auto thread = text ? parse_status(*text) : std::nullopt;
    if (thread) result.threads.push_back(thread->credentials);
  }
  struct stat file {};
  if (result.threads.empty() || stat((root_ + base + "/status").c_str(), &file) != 0) return std::nullopt;
  result.file_owner = file.st_uid;
  result.user_namespace = user_namespace(pid);
  return result;
}

std::string Procfs::user_namespace(pid_t pid) const { return link("/" + std::to_string(pid) + "/ns/user"); }
std::string Procfs::own_user_namespace() const { return link("/self/ns/user"); }

std::optional<pid_t> Procfs::parent(pid_t pid) const {
  const auto text = read("/" + std::to_string(pid) + "/status");
  const auto status = text ? parse_status(*text) : std::nullopt;
  return status ? std::optional(status->parent) : std::nullopt;
}

std::vector<pid_t> Procfs::ancestry(pid_t pid) const {
  constexpr std::size_t kLongest = 1024;  // a pid reused while we walk could make a circle
  std::vector<pid_t> chain;
  for (pid_t p = pid; p > 0 && chain.size() < kLongest;) {
    const auto above = parent(p);
    if (!above) return {};
    chain.push_back(p);
    p = *above;
  }
  return chain;
}

PtraceScope Procfs::ptrace_scope() const {
  const auto text = read("/sys/kernel/yama/ptrace_scope");
  if (!text) return PtraceScope::classic;
  unsigned value = 0;
  std::string_view digits(*text);
  digits = digits.substr(0, digits.find('\n'));
  if (!parse_number(digits, value) || value > 3) return PtraceScope::nobody;
  return static_cast<PtraceScope>(value);
}

Visibility Procfs::visibility() const {
  const auto text = read("/self/mountinfo");
  return text ? parse_visibility(*text) : Visibility::own_only;
}

std::optional<std::uint32_t> Procfs::overflow_id(const char* map, const char* file) const {
  const auto mapping = read(map);
  if (mapping && maps_everything(*mapping)) return std::nullopt;
  std::uint32_t id = 65534;
  if (const auto text = read(file)) parse_number(std::string_view(*text).substr(0, text->find('\n')), id);
  return id;
}

std::optional<uid_t> Procfs::overflow_uid() const { return overflow_id("/self/uid_map", "/sys/kernel/overflowuid"); }
std::optional<gid_t> Procfs::overflow_gid() const { return overflow_id("/self/gid_map", "/sys/kernel/overflowgid"); }

}  // namespace probed::api
