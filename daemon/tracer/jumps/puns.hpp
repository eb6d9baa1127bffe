// Jumps that share bytes with the instructions behind them, where no other fits.
//
// Owning thread: the tracer thread.
#pragma once

#include "daemon/tracer/room.hpp"

namespace probed::tracer {

class Puns : public Room {
 public:
  using Room::Room;

  // At a hit: after many, a site that may have a punned jump is considered for it.
  void want_pun(AddressSpace& space, Site& site);
  // Instead of a region that is refused: a punned jump's, once it is wanted; else `refused`.
  static arch::RegionResult pun_instead(Site& site, const arch::RegionRequest& request,
                                        const arch::RegionResult& refused);
  // Where the punned jump of this plan may lead.
  static arch::PunRange pun_range(const Site& site, const arch::RegionPlan& plan);
  // Has memory mapped there. The site's turn comes again when it is, or, with no_pun(), when it can't be.
  void ask_for_pun(AddressSpace& space, const Site& site, const arch::PunRange& range);
  // The second jump, at `pun`, to a detour of the same site that has been written. False: it is out of reach, or can't
  // be written, or the program has unmapped its page.
  static bool place_pun(AddressSpace& space, RemoteAddr pun, RemoteAddr detour, const PlacedDetour& of);
  // The site gets no punned jump any more. `why`: of static life time.
  static void no_pun(Site& site, const char* why);

  // The program has changed what a punned jump takes as it is: the breakpoint is back. `leads_to`: where it leads now.
  void give_up_astray(AddressSpace& space, Site& site, RemoteAddr leads_to);
  // A thread has faulted where such a jump leads, or has led: it goes back to the site. nullopt: it is no such thread.
  std::optional<Act> come_back_from_astray(Tracee& tracee, int signal, ptrace::Registers& regs);

 private:
  static bool unmap_unused(AddressSpace& space, RemoteSyscalls& remote);
  static const char* map_pun(AddressSpace& space, RemoteSyscalls& remote, Process& process,
                             const arch::PunRange& range);
};

}  // namespace probed::tracer
