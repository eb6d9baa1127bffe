// See may_not_trace.hpp.
#include "daemon/tracer/kernel/may_not_trace.hpp"

#include <fmt/format.h>

#include <cstdlib>

#include "daemon/base/file.hpp"

namespace probed::tracer {

int yama_scope() {
  std::string text;
  if (read_file("/proc/sys/kernel/yama/ptrace_scope", text, 16) != 0) return 0;
  return std::atoi(text.c_str());
}

std::string hint_may_not_trace(bool capable, int yama) {
  constexpr int kDescendants = 1, kNobody = 3;
  const auto scope = fmt::format("kernel.yama.ptrace_scope is {}", yama);
  if (yama >= kNobody) return scope + ": nobody may trace on this machine until it starts again with another one";
  if (capable)
    return "it belongs to another user namespace, or a security module (SELinux, AppArmor, ...) forbids it: see the "
           "kernel's messages";
  if (yama == kDescendants)
    return scope + ": a user may trace only what the tracer has started (probectl trace -- CMD); run this as root";
  if (yama > kDescendants) return scope + ": only root may trace; run this as root";
  return "run this as root, or with CAP_SYS_PTRACE: it belongs to another user, holds capabilities, or isn't dumpable "
         "(prctl(2), PR_SET_DUMPABLE)";
}

}  // namespace probed::tracer
