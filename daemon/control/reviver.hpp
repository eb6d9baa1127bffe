// Probes that wait: for code that has gone, for libraries that are not loaded yet.
//
// Asio thread.
#pragma once

#include "daemon/control/part.hpp"

namespace probed::control {

class Reviver : public Part {
 public:
  using Part::Part;

  // Requests: controller.hpp says what they do.
  void look(std::optional<pid_t> pid, std::function<void()> done);

  std::vector<Failed> failed(const std::vector<tracer::NotArmed>& not_armed) const;
  void on_code_gone(pid_t root, const std::vector<ProbeId>& ids, const char* why);
  void on_libraries_changed(pid_t root, std::uint64_t ticket);
  void look_for_pending(pid_t pid);
  void forget_watch_if_unneeded(pid_t pid);
  void revive_all(ClientId who, const std::vector<ProbeId>& ids, std::function<void(std::vector<Failed>)> done);
  void revive_awaited(pid_t pid, std::function<void(std::vector<Failed>)> done);
  std::vector<ProbeId> matches_of(ProbeId glob) const;
  void set_enabled_as(const Probe& glob, const std::vector<ProbeId>& matches);
  void forget_match(const Probe& match, std::vector<ProbeId>& emptied);

 private:
  void notify_owners(const std::vector<ProbeId>& ids, std::string_view method, const char* message = nullptr);
  void take_along(const Probe& lost);
  Item item_of(const Probe& leader) const;
  std::optional<Error> why_not_revivable(const Probe& probe) const;
  void revive(std::shared_ptr<Revival> revival);
  uid_t user_of(const Revival& revival) const;
  Result<PlannedAgain> plan_again(const Revival& revival);
  Probe& add_place(const Item& item);
  void place_one(const Revival& revival, Item& item, std::size_t index, Step& step);
  void place(std::shared_ptr<Revival> revival);
  void place_step(tracer::Engine& engine, const std::shared_ptr<Revival>& revival, const Step& step);
  bool place_halves(const std::shared_ptr<Revival>& revival, const Step& together);
  void tell_unplaced(Probe& probe, const Error& why);
  void finish(const std::shared_ptr<Revival>& revival);
  void note_taken(Item& item, const Probe& glob) const;
  void place_matches(Revival& revival, Item& item, std::vector<Step>& steps);
  void finish_matches(const Revival& revival, Item& item, std::vector<ProbeId>& ownerless,
                      std::vector<RemoteAddr>& sites);
  void tell_added(const Probe& glob, const std::vector<ProbeId>& added, const std::vector<Skipped>& skipped);
};

}  // namespace probed::control
