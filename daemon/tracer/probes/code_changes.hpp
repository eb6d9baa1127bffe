// Code that goes away, moves or changes under a breakpoint, and page copies that aren't needed any more.
//
// Owning thread: the tracer thread.
#pragma once

#include "daemon/tracer/room.hpp"

namespace probed::tracer {

class CodeChanges : public Room {
 public:
  using Room::Room;

  // Commands: engine.hpp says what they do.
  void look_at_code(pid_t pid);

  // These sites' code has gone: they are removed, and the listener is told of their probes. False: the process is
  // ending, and what is known of it stays. `why`: see Listener::code_gone().
  bool drop_sites(AddressSpace& space, std::span<const RemoteAddr> addresses, const Layout& layout,
                  const char* why = nullptr);
  // After breakpoints were taken out: if one wasn't there, what the program has moved is looked for, and comes out.
  void heal_if_moved(AddressSpace& space);
  // Somebody has trapped where no breakpoint should be. True: the breakpoint there was a moved one of ours; it is out.
  bool trapped_in_moved_code(Process& process, RemoteAddr address);
  // A thread has faulted where a moved jump has led it: it goes back to where the jump was. nullopt: it is no such
  // thread.
  std::optional<Act> leave_moved_jump(Tracee& tracee, int signal);
  // At a hit: the program may have rewritten the instruction since it was copied. False: the site is gone, the thread
  // has to execute what is there now.
  bool follow_rewriting(Tracee& tracee, Site& site);

  // A thread has faulted at this pc in a slot. True: the program has unmapped the slots there, which are forgotten, and
  // so are the sites that need them.
  bool injected_code_gone(const Process& process, RemoteAddr pc);
  // The same in a detour; nothing is optimised there any more.
  bool generated_code_gone(Process& process, RemoteAddr pc);
  // Before more code is put into its memory: what of ours the program has unmapped is forgotten.
  void forget_lost_code(const Process& process);

  // Gives back the private copies of text pages that only our breakpoints made, in a thread that stands in an event
  // stop. True also when nothing could be done. False: the thread has died meanwhile, or is late.
  bool give_back_copies(Tracee& tracee, AddressSpace& space);
  // Probes have been removed: give_back_soon() in a moment, in case more follow, or the detach.
  void plan_giving_back(Process& process);
  // Has some thread do that, if there are such copies.
  void give_back_soon(Process& process);

 private:
  bool forget_slots(const Process& process, const XolAreas::Area& area, const Layout& layout);
  bool renew_copy(AddressSpace& space, Site& site, const SitePlan& plan, const Layout& layout);
  void take_out_islands(AddressSpace& space);
};

}  // namespace probed::tracer
