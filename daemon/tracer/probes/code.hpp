// Code that goes away, moves or changes under a breakpoint, and page copies that aren't needed any more.
//
// Owning thread: the tracer thread.
#pragma once

#include "daemon/tracer/room.hpp"

namespace probed::tracer {

class Code : public Room {
 public:
  using Room::Room;

  // Commands: engine.hpp says what they do.
  void look_at_code(pid_t pid);

  bool drop_sites(AddressSpace& space, std::span<const RemoteAddr> addresses, const Layout& layout,
                  const char* why = nullptr);
  void heal_if_moved(AddressSpace& space);
  bool trapped_in_moved_code(Process& process, RemoteAddr address);
  bool injected_code_gone(const Process& process, RemoteAddr pc);
  void forget_lost_code(const Process& process);
  bool generated_code_gone(Process& process, RemoteAddr pc);
  std::optional<Act> leave_moved_jump(Tracee& tracee, int signal);
  bool follow_rewriting(Tracee& tracee, Site& site);
  bool give_back_copies(Tracee& tracee, AddressSpace& space);
  void plan_giving_back(Process& process);
  void give_back_soon(Process& process);

 private:
  bool forget_slots(const Process& process, const XolAreas::Area& area, const Layout& layout);
  bool renew_copy(AddressSpace& space, Site& site, const SitePlan& plan, const Layout& layout);
  void take_out_islands(AddressSpace& space);
};

}  // namespace probed::tracer
