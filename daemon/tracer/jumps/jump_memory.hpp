// Memory that jumps take in the target: lines to record into, room for detours.
//
// Owning thread: the tracer thread.
#pragma once

#include "daemon/tracer/room.hpp"

namespace probed::tracer {

class JumpMemory : public Room {
 public:
  using Room::Room;

  // Commands: engine.hpp says what they do.
  void names_known(pid_t pid, std::uint64_t ticket);
  void indices_free(pid_t pid, const events::FeedPtr& feed, std::span<const std::uint32_t> indices);

  // Has memory mapped for the code of so many more sites, near an address; `line`: and a new line for them.
  void ask_for_memory(AddressSpace& space, bool line, RemoteAddr near, std::size_t sites);
  // Has a thread map something; an answer that isn't null ends all optimising there.
  using Mapper = std::function<const char*(AddressSpace&, RemoteSyscalls&, Process&)>;
  // The optimiser is in phase mapping until then. `alone`: while all other threads of the process stand still; when one
  // can't, it is tried again later.
  void ask_to_map(AddressSpace& space, Mapper map, bool alone = false);
  // Nobody has this memory any more: its lines' readers are told.
  void close_feeds(AddressSpace& space);

 private:
  using Phase = Optimisation::Phase;
  const char* map_line(AddressSpace& space, RemoteSyscalls& remote, Process& process, std::size_t sites);
  const char* map_code(AddressSpace& space, RemoteSyscalls& remote, Process& process, RemoteAddr near,
                       std::size_t sites);
};

}  // namespace probed::tracer
