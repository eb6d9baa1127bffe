// What clients are shown of probes, and of the daemon.
//
// Asio thread.
#pragma once

#include "daemon/control/part.hpp"

namespace probed::control {

class Views : public Part {
 public:
  using Part::Part;

  // Requests: controller.hpp says what they do.
  std::vector<ProbeView> probes(std::optional<pid_t> pid) const;
  Status status() const;

  // A probe with all its places.
  ProbeView view(const Probe& probe) const;

 private:
  const tracer::ProbeProgram& dearest(const Probe& probe) const;
  void put_tier(ProbeView& view, const Probe& probe) const;
  std::uint64_t places_of(const Probe& probe) const;
};

}  // namespace probed::control
