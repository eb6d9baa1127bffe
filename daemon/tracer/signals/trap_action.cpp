#include "daemon/tracer/signals/trap_action.hpp"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <charconv>
#include <string>
#include <string_view>

#include "daemon/base/momentary.hpp"

namespace probed::tracer {
namespace {

constexpr std::uint64_t kMark = SA_NOCLDWAIT;
constexpr unsigned kSigIgnore = 33, kSigCatch = 34;  // fields of proc_pid_stat(5), low 31 bits each
constexpr std::uint64_t bit(int signal) { return 1ULL << (signal - 1); }
// By instructions.
constexpr std::uint64_t kRaised = bit(SIGILL) | bit(SIGTRAP) | bit(SIGBUS) | bit(SIGFPE) | bit(SIGSEGV);

struct Text {
  char bytes[4096];
  std::size_t size = 0;
  std::string_view view() const { return {bytes, size}; }
};

bool read_again(int fd, Text& text) {
  const ssize_t n = pread(fd, text.bytes, sizeof text.bytes, 0);
  text.size = n > 0 ? static_cast<std::size_t>(n) : 0;
  return n > 0;
}

// Where field `number` (1-based) begins, counted from the end of the parenthesised name.
std::size_t field(std::string_view text, unsigned number) {
  std::size_t at = text.rfind(')');
  for (unsigned f = 1; at != std::string_view::npos && f + 1 < number; ++f) at = text.find(' ', at + 1);
  return at;
}

std::uint64_t decimal_field(std::string_view text, unsigned number) {
  const std::size_t at = field(text, number);
  std::uint64_t value = 0;
  if (at != std::string_view::npos) std::from_chars(text.data() + at + 1, text.data() + text.size(), value);
  return value;
}

// Name: comes first and is the program's own to choose; a field is looked for at the beginning of a later line.
std::uint64_t hex_line(std::string_view text, std::string_view name) {
  const std::size_t at = text.find(std::string("\n") + std::string(name) + ":\t");
  std::uint64_t value = 0;
  if (at != std::string_view::npos)
    std::from_chars(text.data() + at + name.size() + 3, text.data() + text.size(), value, 16);
  return value;
}

std::string status_of(pid_t tid) { return "/proc/" + std::to_string(tid) + "/status"; }

std::string stat_of(pid_t tid) {
  const std::string name = std::to_string(tid);
  return "/proc/" + name + "/task/" + name + "/stat";
}

}  // namespace

Disposition disposition_of(const Action& action) {
  if (action.handler == reinterpret_cast<std::uint64_t>(SIG_DFL)) return Disposition::standard;
  if (action.handler == reinterpret_cast<std::uint64_t>(SIG_IGN)) return Disposition::ignored;
  return Disposition::handled;
}

Action marked(Action action) {
  action.flags |= kMark;
  return action;
}

Action unmarked(Action action) {
  action.flags &= ~kMark;
  return action;
}

bool was_reset(const Action& now, const Action& known) {
  if (disposition_of(known) == Disposition::standard) return false;
  Action reset = known;
  reset.handler = reinterpret_cast<std::uint64_t>(SIG_DFL);
  return now == reset;
}

bool blocked_with_all_others(std::uint64_t mask, int signal) { return (mask & kRaised) == (kRaised & ~bit(signal)); }

bool blocks_alone(std::uint64_t mask, int signal) { return (mask & bit(signal)) != 0 && (mask & kRaised) != kRaised; }

int open_thread_stat(pid_t tid) { return ::open(stat_of(tid).c_str(), O_RDONLY | O_CLOEXEC); }

std::optional<Dispositions> dispositions(int stat_fd) {
  Text text;
  if (!read_again(stat_fd, text)) return std::nullopt;
  const std::uint64_t caught = decimal_field(text.view(), kSigCatch), ignored = decimal_field(text.view(), kSigIgnore);
  Dispositions found{};
  for (const int signal : kForcedSignals) {
    const bool is_caught = (caught & bit(signal)) != 0, is_ignored = (ignored & bit(signal)) != 0;
    found[forced_index(signal)] = is_caught    ? Disposition::handled
                                  : is_ignored ? Disposition::ignored
                                               : Disposition::standard;
  }
  return found;
}

std::optional<Dispositions> dispositions_of(pid_t tid) {
  const Momentary fd(stat_of(tid).c_str(), O_RDONLY);
  return fd ? dispositions(fd.get()) : std::nullopt;
}

bool signal_in_flight(pid_t tid, int signal) {
  const Momentary fd(status_of(tid).c_str(), O_RDONLY);
  Text text;
  if (!fd || !read_again(fd.get(), text)) return false;
  if (hex_line(text.view(), "SigPnd") & ~hex_line(text.view(), "SigBlk") & bit(signal)) return true;
  return read_again(fd.get(), text) && text.view().find("\nState:\tt") != std::string_view::npos;
}

std::uint64_t blocked_by(pid_t tid) {
  const Momentary fd(status_of(tid).c_str(), O_RDONLY);
  Text text;
  return fd && read_again(fd.get(), text) ? hex_line(text.view(), "SigBlk") : 0;
}

bool signal_pending(pid_t tid, int signal) {
  const Momentary fd(status_of(tid).c_str(), O_RDONLY);
  Text text;
  if (!fd || !read_again(fd.get(), text)) return false;
  return ((hex_line(text.view(), "SigPnd") | hex_line(text.view(), "ShdPnd")) & bit(signal)) != 0;
}

}  // namespace probed::tracer
