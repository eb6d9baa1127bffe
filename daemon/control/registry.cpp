#include "daemon/control/registry.hpp"

#include <algorithm>

namespace probed::control {

Target& Registry::target(pid_t pid) {
  Target& target = targets[pid];
  target.id.pid = pid;
  return target;
}

template <class Pred>
std::size_t Registry::count_probes(Pred pred) const {
  return static_cast<std::size_t>(std::ranges::count_if(probes, [&](const auto& entry) {
    const Probe& probe = entry.second;
    const bool there = !probe.gone || (probe.pending && !probe.ended);
    return there && is_shown(probe) && probe.committed && pred(probe);
  }));
}

std::size_t Registry::probe_count(pid_t pid) const {
  return count_probes([pid](const Probe& probe) { return probe.pid == pid; });
}

std::size_t Registry::probe_count_of_user(uid_t user) const {
  return count_probes([user](const Probe& probe) { return probe.user == user; });
}

}  // namespace probed::control
