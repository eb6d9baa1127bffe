// Readers of /proc/PID/{stat,status,task,exe}. Thread: any; no state.
#include "daemon/base/process.hpp"

#include <dirent.h>
#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <optional>

#include "daemon/base/fault_in.hpp"
#include "daemon/base/file.hpp"
#include "daemon/base/momentary.hpp"
#include "daemon/base/mounts.hpp"
#include "daemon/base/out_of_descriptors.hpp"
#include "daemon/base/visits.hpp"
#include "proto/base/fd.hpp"

namespace probed::process {
namespace {

constexpr std::size_t kSmallFile = 256 * 1024;
constexpr std::uint64_t kMostOfStart = 16 << 20;  // bytes of arguments and environment; the kernel's own limit is 6 MiB

std::string proc_path(pid_t pid, std::string_view name) {
  return "/proc/" + std::to_string(pid) + "/" + std::string(name);
}

Error proc_error(pid_t pid, std::string_view name, int why) {
  const std::string who = "process " + std::to_string(pid);
  if (why == ENOENT || why == ESRCH || pid <= 0)
    return {Reason::no_such_process, "no " + who, "it may have ended; check the pid with ps", {}};
  if (why == EACCES || why == EPERM)
    return {Reason::permission_denied,
            "cannot read " + proc_path(pid, name) + ": " + std::strerror(why),
            "run as the owner of the process or as root",
            {}};
  if (lacks_descriptors(why)) return no_descriptors(pid);
  return {Reason::internal, "cannot read " + proc_path(pid, name) + ": " + std::strerror(why), "", {}};
}

template <class T>
std::optional<T> to_number(std::string_view text) {
  T value{};
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (ec != std::errc() || end == text.data()) return std::nullopt;
  return value;
}

// Takes the next blank-separated word off the front.
std::string_view next_word(std::string_view& rest) {
  const std::size_t start = std::min(rest.find_first_not_of(" \t\n"), rest.size());
  const std::size_t end = std::min(rest.find_first_of(" \t\n", start), rest.size());
  const std::string_view word = rest.substr(start, end - start);
  rest.remove_prefix(end);
  return word;
}

// The rest of the line "KEY:..." of a status file.
std::optional<std::string_view> status_line(std::string_view text, std::string_view key) {
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    if (line.size() > key.size() && line.starts_with(key) && line[key.size()] == ':')
      return line.substr(key.size() + 1);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return std::nullopt;
}

Result<std::string> read_status(pid_t pid) {
  std::string text;
  if (const int why = read_file(proc_path(pid, "status"), text, kSmallFile)) return proc_error(pid, "status", why);
  return text;
}

Error garbled(pid_t pid, std::string_view name) {
  return {Reason::internal, proc_path(pid, name) + " is not what proc(5) describes", "", {}};
}

Result<pid_t> status_pid(pid_t pid, std::string_view key) {
  Result<std::string> text = read_status(pid);
  if (!text) return std::move(text).error();
  std::string_view rest = status_line(*text, key).value_or("");
  const std::optional<pid_t> value = to_number<pid_t>(next_word(rest));
  if (!value) return garbled(pid, "status");
  return *value;
}

// Real, effective, saved, file system.
std::optional<std::array<std::uint32_t, 4>> four_ids(std::string_view status, std::string_view key) {
  std::string_view rest = status_line(status, key).value_or("");
  std::array<std::uint32_t, 4> ids{};
  for (std::uint32_t& id : ids) {
    const auto value = to_number<std::uint32_t>(next_word(rest));
    if (!value) return std::nullopt;
    id = *value;
  }
  return ids;
}

// The entries of a directory of tasks. nullopt: it can't be read (errno).
std::optional<std::vector<pid_t>> ids_in(const std::string& directory) {
  const auto closer = [](DIR* d) { ::closedir(d); };
  Momentary fd(directory.c_str(), O_RDONLY | O_DIRECTORY);
  const std::unique_ptr<DIR, decltype(closer)> dir(fd ? ::fdopendir(fd.get()) : nullptr, closer);
  if (!dir) return std::nullopt;
  fd.release();
  std::vector<pid_t> ids;
  while (const dirent* entry = ::readdir(dir.get()))
    if (const auto id = to_number<pid_t>(entry->d_name)) ids.push_back(*id);
  return ids;
}

}  // namespace

Result<Stat> parse_stat(std::string_view text) {
  const Error bad{Reason::internal, "not the text of a /proc/PID/stat file", "", {}};
  // comm is the program's own to choose, so only the last ')' can be trusted as its end.
  const std::size_t open = text.find('('), close = text.rfind(')');
  if (open == std::string_view::npos || close == std::string_view::npos || close < open) return bad;
  Stat stat;
  stat.comm = text.substr(open + 1, close - open - 1);
  std::string_view rest = text.substr(close + 1);
  std::array<std::string_view, 20> field{};  // fields 3 (state) to 22 (starttime) of proc(5)
  for (std::string_view& word : field) word = next_word(rest);
  const auto parent = to_number<pid_t>(field[1]);
  const auto flags = to_number<std::uint32_t>(field[6]);
  const auto threads = to_number<std::uint32_t>(field[17]);
  const auto start = to_number<std::uint64_t>(field[19]);
  if (field[0].size() != 1 || !parent || !flags || !threads || !start) return bad;
  stat.state = field[0][0];
  stat.parent = *parent;
  stat.flags = *flags;
  stat.threads = *threads;
  stat.start_time = *start;
  return stat;
}

Result<Stat> read_stat(pid_t pid) {
  std::string text;
  if (pid <= 0) return proc_error(pid, "stat", ENOENT);
  if (const int why = read_file(proc_path(pid, "stat"), text, kSmallFile)) return proc_error(pid, "stat", why);
  return parse_stat(text);
}

Result<TargetId> target_id(pid_t pid) {
  Result<Stat> stat = read_stat(pid);
  if (!stat) return std::move(stat).error();
  return TargetId{pid, stat->start_time};
}

bool is_exiting(pid_t tid) {
  constexpr std::uint32_t kExiting = 0x4;  // PF_EXITING, include/linux/sched.h
  const auto stat = read_stat(tid);
  return !stat || stat->zombie() || (stat->flags & kExiting) != 0;
}

std::uint64_t program_mark(pid_t pid) {
  const pid_t task = task_with_memory(pid);
  std::string vector;
  if (read_file(proc_path(task, "auxv"), vector, kSmallFile) != 0) return 0;
  const UniqueFd memory(::open(proc_path(task, "mem").c_str(), O_RDONLY | O_CLOEXEC));
  Elf64_auxv_t entry{};
  for (std::size_t at = 0; memory && at + sizeof entry <= vector.size(); at += sizeof entry) {
    std::memcpy(&entry, vector.data() + at, sizeof entry);
    if (entry.a_type != AT_RANDOM) continue;
    std::array<std::uint8_t, 16> random{};
    if (PresentPages(pid, task).count(entry.a_un.a_val, random.size()) != random.size()) return 0;
    const Visit visit(task);
    if (::pread(memory.get(), random.data(), random.size(), static_cast<off_t>(entry.a_un.a_val)) != 16) return 0;
    // FNV-1a: the bytes themselves are the program's secret.
    std::uint64_t mark = 0xcbf29ce484222325;
    for (const std::uint8_t byte : random) mark = (mark ^ byte) * 0x100000001b3;
    return mark;
  }
  return 0;
}

std::string boot_id() {
  std::string text;
  if (read_file("/proc/sys/kernel/random/boot_id", text, 64) != 0) return {};
  return text.substr(0, text.find('\n'));
}

std::string comm(pid_t pid) {
  Result<Stat> stat = read_stat(pid);
  return stat ? stat->comm : std::string();
}

// Both stand one behind the other on the stack, and a program may have written its arguments over both.
// proc_pid_stat(5): arg_start is the 48th field, env_end the 51st.
static std::string strings_of_start(pid_t pid, const char* name, std::size_t most) {
  std::string stat, text;
  if (read_file(proc_path(pid, "stat"), stat, kSmallFile) != 0) return {};
  std::istringstream fields(stat.substr(std::min(stat.rfind(')'), stat.size())));
  std::string skipped;
  for (int field = 2; field < 48; ++field) fields >> skipped;
  std::uint64_t start = 0, arguments_end = 0, environment_start = 0, end = 0;
  fields >> start >> arguments_end >> environment_start >> end;
  if (start == 0 || end < start || end - start > kMostOfStart) return {};
  const std::size_t size = static_cast<std::size_t>(end - start);
  if (PresentPages(pid, pid).count(start, size) != size) return {};
  const Visit visit(pid);
  return read_file(proc_path(pid, name), text, most) == 0 ? text : std::string();
}

std::string arguments(pid_t pid, std::size_t most) { return strings_of_start(pid, "cmdline", most); }
std::string environment(pid_t pid, std::size_t most) { return strings_of_start(pid, "environ", most); }

// A thread of the process that hasn't ended, its main one if that is so; nullopt: there is none. A list of threads of
// which some end meanwhile may lack others (fs/proc/base.c, next_tid), and one that executes another program gets the
// process's id, its own being gone then. So nobody is believed to be there until two looks at all of them have said so.
static std::optional<pid_t> living_task(pid_t pid) {
  constexpr unsigned kMostLooks = 64;
  unsigned nobody = 0;
  for (unsigned look = 0; look < kMostLooks && nobody < 2; ++look) {
    const auto main = read_stat(pid);
    if (!main) return std::nullopt;
    if (!main->zombie()) return pid;
    const auto others = thread_ids(pid);
    if (!others) continue;
    for (const pid_t tid : *others)
      if (const auto stat = read_stat(tid); stat && !stat->zombie()) return tid;
    nobody = others->size() >= main->threads ? nobody + 1 : 0;
  }
  return std::nullopt;
}

pid_t task_with_memory(pid_t pid) { return living_task(pid).value_or(pid); }

bool is_without_memory(pid_t tid) {
  std::string text;
  return read_file(proc_path(tid, "statm"), text, 256) == 0 && text.starts_with("0 ");
}

std::string exe(pid_t pid) {
  std::array<char, 4097> buffer{};
  const ssize_t n = ::readlink(proc_path(task_with_memory(pid), "exe").c_str(), buffer.data(), buffer.size());
  std::string path(buffer.data(), n > 0 ? static_cast<std::size_t>(n) : 0);
  constexpr std::string_view kDeleted = " (deleted)";
  if (path.ends_with(kDeleted)) path.resize(path.size() - kDeleted.size());
  return path;
}

char state(pid_t tid) {
  Result<Stat> stat = read_stat(tid);
  return stat ? stat->state : '\0';
}

bool has_ended(pid_t pid) { return !living_task(pid); }

bool is_dead_task(pid_t tid) {
  const auto stat = read_stat(tid);
  return !stat || stat->zombie();
}

bool is_kernel_thread(pid_t pid) {
  Result<Stat> stat = read_stat(pid);
  return stat.ok() && stat->kernel_thread();
}

Result<std::vector<pid_t>> thread_ids(pid_t pid) {
  if (pid <= 0) return proc_error(pid, "task", ENOENT);
  auto tids = ids_in(proc_path(pid, "task"));
  if (!tids) return proc_error(pid, "task", errno);
  if (tids->empty()) return proc_error(pid, "task", ESRCH);
  std::ranges::sort(*tids);
  return std::move(*tids);
}

std::vector<pid_t> process_ids() { return ids_in("/proc").value_or(std::vector<pid_t>()); }

Result<pid_t> tracer_pid(pid_t pid) { return status_pid(pid, "TracerPid"); }
Result<pid_t> thread_group(pid_t tid) { return status_pid(tid, "Tgid"); }
bool is_thread_of(pid_t tid, pid_t pid) { return syscall(SYS_tgkill, pid, tid, 0) == 0 || errno == EPERM; }

Result<Credentials> credentials(pid_t pid) {
  Result<std::string> text = read_status(pid);
  if (!text) return std::move(text).error();
  const auto uid = four_ids(*text, "Uid"), gid = four_ids(*text, "Gid");
  if (!uid || !gid) return garbled(pid, "status");
  return Credentials{(*uid)[0], (*uid)[1], (*uid)[2], (*uid)[3], (*gid)[0], (*gid)[1], (*gid)[2], (*gid)[3]};
}

Error no_longer_there(pid_t pid) {
  const std::string who = "process " + std::to_string(pid);
  if (has_ended(pid)) return {Reason::target_gone, who + " has ended", "", {}};
  return {Reason::target_gone,
          who + " has just started another program",
          "see whether that is the one to trace, and try again",
          {}};
}

bool lacks_privileges_of_program(pid_t pid) {
  Mounts mounts(pid);
  const Opened program = open_link(proc_path(pid, "exe"), mounts);
  struct stat file {};
  struct statvfs mount {};
  if (!program || ::fstat(program.fd.get(), &file) != 0 || ::fstatvfs(program.fd.get(), &mount) != 0) return false;
  const auto text = read_status(pid);
  if (!text) return false;
  const auto uid = four_ids(*text, "Uid"), gid = four_ids(*text, "Gid");
  if (!uid || !gid) return false;
  constexpr std::size_t kSaved = 2;
  const auto is_zero = [&](std::string_view key) {
    const auto value = status_line(*text, key);
    return value && value->find_first_not_of(" \t0") == std::string_view::npos;
  };
  if ((mount.f_flag & ST_NOSUID) != 0 || !is_zero("NoNewPrivs")) return false;
  if ((file.st_mode & S_ISUID) != 0 && (*uid)[kSaved] != file.st_uid) return true;
  // Without the group's execute bit it means mandatory locking (fs/exec.c, bprm_fill_uid()).
  constexpr mode_t kSetGroup = S_ISGID | S_IXGRP;
  if ((file.st_mode & kSetGroup) == kSetGroup && (*gid)[kSaved] != file.st_gid) return true;
  return ::fgetxattr(program.fd.get(), "security.capability", nullptr, 0) > 0 && is_zero("CapPrm");
}

Result<bool> is_32bit(pid_t pid) {
  const pid_t task = task_with_memory(pid);
  Mounts mounts(task);
  const Opened program = open_link(proc_path(task, "exe"), mounts);
  const int why = program.error;
  const std::string who = "process " + std::to_string(pid);
  // Kernel threads and zombies have a stat file but no program.
  if (!program && why == 0)
    return Error{Reason::unsupported_target, "the program of " + who + " isn't read: " + program.why,
                 "install it on a disk's file system and start it anew"};
  if (!program && why == ENOENT && read_stat(pid))
    return Error{Reason::unsupported_target, who + " has no program (no /proc/PID/exe)", "", {}};
  if (!program) return proc_error(pid, "exe", why);
  std::array<unsigned char, EI_NIDENT> ident{};
  const ssize_t n = ::pread(program.fd.get(), ident.data(), ident.size(), 0);
  if (n != EI_NIDENT || std::memcmp(ident.data(), ELFMAG, SELFMAG) != 0)
    return Error{Reason::unsupported_target, "the program of " + who + " is not an ELF file", "", {}};
  return ident[EI_CLASS] != ELFCLASS64;
}

}  // namespace probed::process
