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

  // What the tracer reports: tracer::Listener says it.
  void on_code_gone(pid_t root, const std::vector<ProbeId>& ids, const char* why);
  void on_libraries_changed(pid_t root, std::uint64_t ticket);

  // What waits for its code is looked for, once for however many reports; the dynamic loader is watched from then on.
  void look_for_pending(pid_t pid);
  // Ends that watch when nothing of the target waits for its code.
  void forget_watch_if_unneeded(pid_t pid);
  // Looks for the code of gone probes because somebody has asked for it. Those that wait for it anyway don't count as
  // failed as long as it isn't there.
  void revive_all(ClientId who, const std::vector<ProbeId>& ids, std::function<void(std::vector<Failed>)> done);
  // Within an operation on an attached target: the same for what another daemon had in it.
  void revive_awaited(pid_t pid, std::function<void(std::vector<Failed>)> done);
  // As clients are told of those that the tracer could not arm.
  std::vector<Failed> failed(const std::vector<tracer::NotArmed>& not_armed) const;

  // Of a glob that waits for its code: the probes that its matches have become, further places included.
  std::vector<ProbeId> matches_of(ProbeId glob) const;
  // These are enabled, or not, as the glob is.
  void set_enabled_as(const Probe& glob, const std::vector<ProbeId>& matches);
  // Somebody has removed a match: it isn't made again. `emptied`: gets the glob if it was the last one. No-op for a
  // probe that is no match.
  void forget_match(const Probe& match, std::vector<ProbeId>& emptied);

 private:
  void tell_gone(const std::vector<ProbeId>& ids, const char* why);
  void tell_returned(const std::vector<ProbeId>& ids);
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
