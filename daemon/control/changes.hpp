// Probes that are chosen, removed, enabled and disabled, and the switches for all of them.
//
// Asio thread.
#pragma once

#include "daemon/control/part.hpp"

namespace probed::control {

class Changes : public Part {
 public:
  using Part::Part;

  // Requests: controller.hpp says what they do.
  void remove(Client& client, Selector which, Reply<std::vector<ProbeView>> reply);
  void set_enabled(Client& client, Selector which, bool enabled, Reply<Changed> reply);
  void set_armed(Client& client, bool armed, Reply<std::vector<Failed>> reply);
  void set_optimize(bool enabled, Reply<void> reply);

  // Takes probes out of the tracer and the registry; their targets stay attached. The answer: those that people see.
  void take_out(std::vector<ProbeId> ids, Reply<std::vector<ProbeView>> reply);
  // The same; the answer comes when targets that were only attached for these probes are free.
  void remove_ids(std::vector<ProbeId> ids, Reply<std::vector<ProbeView>> reply);
  // Takes a probe out of the registry alone, and adds what it has counted to the totals. No-op for an unknown one.
  void erase_probe(ProbeId id);
  // The process has ended, or runs another program: so have its probes, of which persistent ones are erased.
  void mark_gone(pid_t pid, std::string_view why);

 private:
  std::vector<ProbeId> select(const Client& client, const Selector& which) const;
  void tell_switched(ClientId by, const std::vector<ProbeId>& ids, bool enabled);
};

}  // namespace probed::control
