// Proof that a target was left as it was found: tracer, text bytes, mappings, descriptors, signals.
#include <elf.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "machine.hpp"
#include "tests/live/harness.hpp"

namespace probed::live {
namespace {

namespace fs = std::filesystem;

struct MapLine {
  std::uint64_t start = 0, end = 0, offset = 0;
  std::string perms, path, text;
  bool executable() const { return perms.size() > 2 && perms[2] == 'x'; }
  bool from_file() const { return path.starts_with("/") && !path.starts_with("/memfd:"); }
};

std::vector<MapLine> maps_of(pid_t pid) {
  std::vector<MapLine> out;
  std::istringstream lines(read_file("/proc/" + std::to_string(pid) + "/maps"));
  for (std::string line; std::getline(lines, line);) {
    MapLine map;
    char dash = 0;
    std::string device, inode;
    std::istringstream fields(line);
    fields >> std::hex >> map.start >> dash >> map.end >> map.perms >> map.offset >> device >> inode;
    std::getline(fields >> std::ws, map.path);
    map.text = line;
    out.push_back(std::move(map));
  }
  return out;
}

std::string proc(pid_t pid, const std::string& name) { return "/proc/" + std::to_string(pid) + "/" + name; }

std::string read_at(const std::string& path, std::uint64_t offset, std::size_t size) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string bytes(size, '\0');
  const ssize_t got = fd ? ::pread(fd.get(), bytes.data(), size, static_cast<off_t>(offset)) : -1;
  bytes.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  return bytes;
}

std::string describe_difference(const MapLine& map, std::size_t at, char memory, char file) {
  char text[96];
  std::snprintf(text, sizeof text, "+0x%llx: %02x, file has %02x", static_cast<unsigned long long>(map.offset + at),
                static_cast<unsigned char>(memory), static_cast<unsigned char>(file));
  return fs::path(map.path).filename().string() + text;
}

void compare_mapping(pid_t pid, const MapLine& map, std::vector<std::string>& out) {
  const std::size_t size = map.end - map.start;
  const std::string memory = read_at(proc(pid, "mem"), map.start, size);
  // By the mapping: its path may be another file's by now, or nobody's. Only root may.
  std::string file = read_at(proc(pid, "map_files/" + map.text.substr(0, map.text.find(' '))), map.offset, size);
  if (file.empty()) file = read_at(proc(pid, "root" + map.path), map.offset, size);
  if (memory.size() != size) out.push_back(map.text + ": cannot be read");
  const std::size_t common = std::min(memory.size(), file.size());  // a file ends before its last page does
  if (common == 0) out.push_back(map.text + ": its file cannot be read");
  for (std::size_t i = 0; i < common && out.size() < 20; ++i) {
    if (memory[i] == file[i]) continue;
    out.push_back(describe_difference(map, i, memory[i], file[i]));
    i += kBreakpointSize - 1 - i % kBreakpointSize;
  }
}

// The number behind "KEY:" in a status file; -1: no such file or line.
pid_t status_number(const std::string& status_path, std::string_view key) {
  const std::string status = read_file(status_path);
  const std::size_t at = status.find("\n" + std::string(key) + ":");
  return at == std::string::npos ? -1 : std::atoi(status.c_str() + at + key.size() + 2);
}

std::set<std::string> fds_of(pid_t pid) {
  std::set<std::string> out;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(proc(pid, "fd"), error)) {
    std::error_code gone;
    out.insert(entry.path().filename().string() + " -> " + fs::read_symlink(entry.path(), gone).string());
  }
  return out;
}

// SigBlk, SigIgn, SigCgt without signals 32 and 33: glibc handles those itself once there are threads.
std::string signal_lines(pid_t pid) {
  constexpr std::uint64_t kOfGlibc = std::uint64_t{3} << 31;
  std::ostringstream out;
  std::istringstream lines(read_file(proc(pid, "status")));
  for (std::string key, rest; lines >> key && std::getline(lines, rest);)
    if (key == "SigBlk:" || key == "SigIgn:" || key == "SigCgt:")
      out << key << std::hex << (std::stoull(rest, nullptr, 16) & ~kOfGlibc) << ' ';
  return out.str();
}

// smaps: a mapping's header line, then "Key: N kB" lines. "Anonymous" counts the pages that were copied on write;
// "Private_Dirty" would count a freshly linked file's page cache as well.
unsigned long private_text(pid_t pid) {
  unsigned long total = 0;
  bool text = false;
  std::istringstream lines(read_file(proc(pid, "smaps")));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    std::string first, second;
    fields >> first >> second;
    if (!first.ends_with(":"))
      text = second.size() > 2 && second[2] == 'x' && line.find('/') != std::string::npos;
    else if (text && first == "Anonymous:")
      total += std::stoul(second);
  }
  return total;
}

void report_new(const char* what, const std::set<std::string>& before, const std::set<std::string>& now,
                std::vector<std::string>& out) {
  for (const std::string& item : now)
    if (!before.contains(item)) out.push_back(std::string("new ") + what + ": " + item);
  for (const std::string& item : before)
    if (!now.contains(item)) out.push_back(std::string("lost ") + what + ": " + item);
}

}  // namespace

std::map<pid_t, char> thread_states(pid_t pid) {
  std::map<pid_t, char> states;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(proc(pid, "task"), error)) {
    const std::string stat = read_file(entry.path() / "stat");
    if (const auto name_end = stat.rfind(')'); name_end != stat.npos)
      states.emplace(std::stoi(entry.path().filename()), stat[name_end + 2]);
  }
  return states;
}

pid_t tracer_of(pid_t pid) {
  std::error_code error;
  bool seen = false;
  for (const auto& task : fs::directory_iterator(proc(pid, "task"), error)) {
    const pid_t tracer = status_number(task.path() / "status", "TracerPid");
    // TracerPid is the thread that traces, which need not be its process's first one. A daemon's is a process of its
    // own, and its child.
    if (tracer > 0) {
      const bool is_apart = read_file(proc(tracer, "comm")) == "probed-tracer\n";
      return std::max(status_number(proc(tracer, "status"), is_apart ? "PPid" : "Tgid"), 1);
    }
    seen = seen || tracer == 0;
  }
  return seen ? 0 : -1;
}

std::vector<std::string> text_differences(pid_t pid) {
  std::vector<std::string> out;
  for (const MapLine& map : maps_of(pid))
    if (map.executable() && map.from_file()) compare_mapping(pid, map, out);
  return out;
}

// The kernel's code is the same in every process of a kind, so in this one, which nobody traces. A 32-bit process has
// other code there.
std::string vdso_difference(pid_t pid) {
  const auto vdso_of = [](pid_t of) {
    const auto maps = maps_of(of);
    const auto found = std::ranges::find(maps, "[vdso]", &MapLine::path);
    return found == maps.end() ? std::string() : read_at(proc(of, "mem"), found->start, found->end - found->start);
  };
  const std::string theirs = vdso_of(pid), ours = vdso_of(getpid());
  if (theirs.size() <= EI_CLASS || ours.size() <= EI_CLASS || theirs[EI_CLASS] != ours[EI_CLASS]) return "";
  const auto [at, unlike] = std::mismatch(theirs.begin(), theirs.end(), ours.begin(), ours.end());
  if (at == theirs.end() || unlike == ours.end()) return "";
  return "the vdso differs from byte " + std::to_string(at - theirs.begin()) + " on";
}

TargetState state_of(pid_t pid) {
  TargetState state;
  for (const MapLine& map : maps_of(pid)) {
    if (map.executable()) state.executable_mappings.insert(map.text);
    const bool odd = map.path.empty() ? map.executable() : map.path.find("memfd:") != std::string::npos;
    if (odd || map.path.ends_with("(deleted)")) state.injected_mappings.insert(map.text);
  }
  state.fds = fds_of(pid);
  state.signals = signal_lines(pid);
  state.private_text_kb = private_text(pid);
  return state;
}

std::vector<std::string> harm_done(pid_t pid, const TargetState& before, PageCopies copies) {
  const pid_t tracer = tracer_of(pid);
  if (tracer < 0) return {"the target is gone"};
  std::vector<std::string> out;
  if (tracer > 0) out.push_back("still traced by " + std::to_string(tracer));
  for (std::string& difference : text_differences(pid)) out.push_back("text differs: " + difference);
  if (std::string difference = vdso_difference(pid); !difference.empty()) out.push_back(std::move(difference));
  const TargetState now = state_of(pid);
  report_new("executable mapping", before.executable_mappings, now.executable_mappings, out);
  report_new("injected mapping", before.injected_mappings, now.injected_mappings, out);
  if (!before.fds.empty()) report_new("descriptor", before.fds, now.fds, out);  // empty: a busy server, not compared
  if (now.signals != before.signals) out.push_back("signals were " + before.signals + "are " + now.signals);
  if (copies == PageCopies::must_be_gone && now.private_text_kb > before.private_text_kb)
    out.push_back("private text pages left: " + std::to_string(now.private_text_kb) + " kB");
  return out;
}

bool left_unharmed(pid_t pid, const TargetState& before, PageCopies copies, Millis limit) {
  if (eventually([&] { return harm_done(pid, before, copies).empty(); }, limit)) return true;
  for (const std::string& harm : harm_done(pid, before, copies)) std::fprintf(stderr, "harm: %s\n", harm.c_str());
  return false;
}

std::vector<std::string> children_left() {
  std::vector<std::string> out;
  std::error_code error;
  for (const auto& task : fs::directory_iterator("/proc/self/task", error)) {
    std::istringstream pids(read_file(task.path() / "children"));
    for (pid_t pid = 0; pids >> pid;) {
      const std::string stat = read_file(proc(pid, "stat"));
      out.push_back(stat.substr(0, stat.find(')') + 3));
    }
  }
  return out;
}

}  // namespace probed::live
