#include "daemon/base/own_processes.hpp"

#include <unistd.h>

#include <atomic>

#include "daemon/base/process.hpp"

namespace probed {
namespace {
std::atomic<pid_t> the_tracer{0}, the_daemon{0};
}

pid_t tracer_process() { return the_tracer.load(); }
pid_t daemon_process() { return the_daemon.load() != 0 ? the_daemon.load() : ::getpid(); }

void set_own_processes(pid_t daemon, pid_t tracer) {
  the_daemon.store(daemon);
  the_tracer.store(tracer);
}

pid_t daemon_of(pid_t tracer) {
  if (process::comm(tracer) != kTracerName) return tracer;
  const auto stat = process::read_stat(tracer);
  return stat && stat->parent > 1 && process::exe(stat->parent) == process::exe(tracer) ? stat->parent : tracer;
}

}  // namespace probed
