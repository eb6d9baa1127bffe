// See advice.hpp.
#include "daemon/api/advice.hpp"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "daemon/base/file.hpp"
#include "daemon/base/own_processes.hpp"
#include "daemon/base/process.hpp"

namespace probed::api {
namespace {

constexpr std::string_view kDefaultSocket = "/run/probed/probed.sock";
constexpr std::size_t kMaxText = 64 << 10;  // of a command line, of an environment

std::vector<std::string_view> strings_of(std::string_view text) {
  std::vector<std::string_view> strings;
  while (!text.empty()) {
    const auto end = std::min(text.find('\0'), text.size());
    strings.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return strings;
}

// 0: nobody traces it, or no probed does.
pid_t tracing_daemon(pid_t pid) {
  const auto thread = process::tracer_pid(pid);
  if (!thread || *thread == 0) return 0;
  const auto group = process::thread_group(*thread);
  const pid_t tracer = daemon_of(group ? *group : *thread);
  const std::string exe = process::exe(tracer);
  return tracer != getpid() && exe.substr(exe.rfind('/') + 1) == "probed" ? tracer : 0;
}

}  // namespace

OtherDaemon describe_daemon(std::string_view cmdline, std::string_view environ) {
  constexpr std::string_view kOption = "--socket", kVariable = "PROBED_SOCKET=";
  OtherDaemon daemon{std::string(kDefaultSocket), false};
  for (const auto variable : strings_of(environ))
    if (variable.starts_with(kVariable) && variable.size() > kVariable.size())
      daemon.socket = variable.substr(kVariable.size());
  const auto arguments = strings_of(cmdline);
  for (std::size_t i = 1; i < arguments.size(); ++i) {
    daemon.for_one_trace |= arguments[i].starts_with("--lifetime-fd");
    if (!arguments[i].starts_with(kOption)) continue;
    const auto rest = arguments[i].substr(kOption.size());
    if (rest.starts_with('=')) daemon.socket = rest.substr(1);
    if (rest.empty() && i + 1 < arguments.size()) daemon.socket = arguments[i + 1];
  }
  return daemon;
}

Error with_advice(Error error, pid_t pid, uid_t asker) {
  if (error.reason == Reason::permission_denied && asker == 0 && geteuid() != 0)
    error.hint = "this daemon runs as user " + std::to_string(geteuid()) +
                 ": use one that root has started (probectl without --socket and $PROBED_SOCKET finds or starts it)";
  if (error.reason != Reason::already_traced) return error;
  const pid_t tracer = tracing_daemon(pid);
  if (tracer == 0) return error;
  const OtherDaemon other =
      describe_daemon(process::arguments(tracer, kMaxText), process::environment(tracer, kMaxText));
  std::error_code unknown;
  const auto directory = std::filesystem::read_symlink("/proc/" + std::to_string(tracer) + "/cwd", unknown);
  const std::string command = "`probectl --socket " + (directory / other.socket).string();
  const auto stat = process::read_stat(tracer);
  if (other.for_one_trace && stat)
    error.hint = "a probectl (pid " + std::to_string(stat->parent) +
                 ") is tracing it: wait for its end, or share its daemon: " + command + " trace ...`";
  else
    error.hint =
        "use that daemon: " + command + " ...`, or have it let go: " + command + " detach " + std::to_string(pid) + "`";
  return error;
}

}  // namespace probed::api
