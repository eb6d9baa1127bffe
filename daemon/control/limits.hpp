// Probes that end by time, by number, or because they are hit too often.
//
// Asio thread.
#pragma once

#include <boost/asio/steady_timer.hpp>

#include "daemon/control/part.hpp"

namespace probed::control {

class Limits : public Part {
 public:
  explicit Limits(Parts& parts);

  // The hits that were asked for have come: these probes are disabled, and their clients are told.
  void on_limit_reached(std::vector<ProbeId> probes);
  // Rates and times are looked at then, or earlier; from then on as long as some probe has any.
  void look_at_limits_at(std::chrono::steady_clock::time_point at);

 private:
  std::uint64_t most_of(const Probe& probe) const;
  std::uint64_t passes_of(const Probe& probe) const;
  bool is_too_fast(Probe& probe, std::uint64_t most, std::chrono::steady_clock::time_point now) const;
  void look_at_limits();
  void disable(std::vector<ProbeId> ids, std::string reason);
  void tell_disabled(const std::vector<ProbeId>& ids, std::string_view reason);

  boost::asio::steady_timer limits_timer_;
  std::optional<std::chrono::steady_clock::time_point> limits_at_;  // when it goes off
};

}  // namespace probed::control
