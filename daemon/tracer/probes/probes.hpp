// Commands on probes: added, removed, enabled, armed, in batches that take time.
//
// Owning thread: the tracer thread.
#pragma once

#include "daemon/tracer/room.hpp"

namespace probed::tracer {

class Probes : public Room {
 public:
  using Room::Room;

  // Commands: engine.hpp says what they do.
  void add(pid_t pid, std::uint32_t execs, std::vector<SiteRequest> batch, Done done);
  void remove(std::span<const ProbeId> ids, std::function<void()> done);
  void set_enabled(std::span<const ProbeId> ids, bool enabled, std::function<void(const std::vector<NotArmed>&)> done);
  std::vector<NotArmed> set_armed(bool armed);

  // Arms a site or not, as its programs and the global switch want it. False: the target's memory has changed.
  bool update_arming(AddressSpace& space, Site& site, const Layout& layout);
  // A site at this address, which was in its neighbours' way, has gone: they may become jumps.
  void reconsider_around(AddressSpace& space, RemoteAddr address);

 private:
  struct Batch;  // of probes that are added together
  void answer(const std::shared_ptr<Batch>& batch);
  void continue_batch(std::shared_ptr<Batch> batch);
  void go_on_without_thread(std::shared_ptr<Batch> batch);
  Result<std::optional<RemoteAddr>> place_sites(Batch& batch);
  std::optional<RemoteAddr> clear_islands(Batch& batch);
  void wait_for_islands(std::shared_ptr<Batch> batch, RemoteAddr at);
  static void drop_jumps_in_the_way(Batch& batch, AddressSpace& space);
  static Result<Site*> site_for(Batch& batch, AddressSpace& space, const SitePlan& plan, const Layout& layout);
  Result<void> commit_batch(Batch& batch);
  void roll_back(Batch& batch);
  void learn_actions_first(std::shared_ptr<Batch> batch);
  void prepare_landing_first(std::shared_ptr<Batch> batch);
  void grow_xol(std::shared_ptr<Batch> batch, RemoteAddr near, std::uint64_t bytes);
  void not_armed(AddressSpace& space, const Site& site, std::vector<NotArmed>& failed);
};

}  // namespace probed::tracer
