// Hands what the tracer reports over to the Asio thread. Its functions are called on the tracer thread.
#pragma once

#include "daemon/tracer/listener.hpp"

namespace probed::control {

struct Parts;

class TracerListener final : public tracer::Listener {
 public:
  explicit TracerListener(Parts& parts) : parts_(parts) {}
  void process_gone(pid_t root, pid_t pid, std::optional<tracer::WaitStatus> how) override;
  void process_execed(pid_t root, pid_t pid, bool kept, std::string comm) override;
  void process_ready(pid_t pid) override;
  void process_forked(pid_t root, pid_t child) override;
  void child_let_go(pid_t root) override;
  void limit_reached(std::vector<ProbeId> probes) override;
  void taps_added(events::FeedPtr feed, std::vector<Tap> taps, pid_t pid, std::uint64_t ticket) override;
  void taps_unused(events::FeedPtr feed, std::vector<std::uint32_t> indices, pid_t pid) override;
  void feed_closed(events::FeedPtr feed) override;
  void longest_pause(pid_t root, std::uint64_t nanoseconds) override;
  void code_gone(pid_t root, std::vector<ProbeId> probes, const char* why) override;
  void libraries_changed(pid_t root, std::uint64_t ticket) override;

 private:
  Parts& parts_;
};

}  // namespace probed::control
