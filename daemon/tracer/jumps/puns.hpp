// Jumps that share bytes with the instructions behind them, where no other fits.
//
// Owning thread: the tracer thread.
#pragma once

#include "daemon/tracer/room.hpp"

namespace probed::tracer {

class Puns : public Room {
 public:
  using Room::Room;

  void want_pun(AddressSpace& space, Site& site);
  static arch::RegionResult pun_instead(Site& site, const arch::RegionRequest& request,
                                        const arch::RegionResult& refused);
  static arch::PunRange pun_range(const Site& site, const arch::RegionPlan& plan);
  static void no_pun(Site& site, const char* why);
  void ask_for_pun(AddressSpace& space, const Site& site, const arch::PunRange& range);
  static bool place_pun(AddressSpace& space, RemoteAddr pun, RemoteAddr detour, const PlacedDetour& of);
  void give_up_astray(AddressSpace& space, Site& site, RemoteAddr leads_to);
  std::optional<Act> come_back_from_astray(Tracee& tracee, int signal, ptrace::Registers& regs);

 private:
  static bool unmap_unused(AddressSpace& space, RemoteSyscalls& remote);
  static const char* map_pun(AddressSpace& space, RemoteSyscalls& remote, Process& process,
                             const arch::PunRange& range);
};

}  // namespace probed::tracer
