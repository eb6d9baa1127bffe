// The optimised tier's part of one address space: channels, areas of generated code, the detours in them, and the jumps
// that lead there.
//
// Owning thread: the tracer thread. Book-keeping only: what is written into the target is written by AddressSpace, what
// is mapped there by JumpMemory (jumps/jump_memory.cpp).
//
// A detour is retired when its jump has been taken out. Threads may still be in it, so its memory is used again only
// after every thread has been seen elsewhere once (a round, quiesce.hpp). Nothing else can lead into it: no signal is
// ever delivered to a thread in a detour, so no signal frame refers to one, and calls that it makes itself have
// returned by then.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "arch/arch.hpp"
#include "daemon/base/types.hpp"
#include "daemon/events/feed.hpp"
#include "daemon/tracer/program.hpp"
#include "daemon/tracer/text/text_overlay.hpp"

namespace probed::tracer {

// What leads from a site to its detour, or will.
struct Jump {
  enum class State : std::uint8_t {
    planned,  // the text has only the breakpoint; who runs into it goes on in the detour's tail
    tail,     // all but what the breakpoint stands on is written
    whole,    // the jump is there
  };
  State state = State::planned;
  Patch head;                     // at the site
  std::optional<Patch> island;    // in padding: written before, taken out after
  std::optional<Patch> borrowed;  // bytes behind the head that are the jump's last ones, as they are
  RemoteAddr pun;                 // where such a jump leads, and another one from there to the detour; 0: none
  arch::CodeRange region;         // in the target
  RemoteAddr detour, tail;
  // Whether another probe at this address would be in the way, or would be overwritten.
  bool hinders(RemoteAddr site) const;
};

struct PlacedDetour {
  RemoteAddr site;
  std::uint32_t size = 0, room = 0;  // bytes of code, and of memory set aside for it
  arch::Detour facts;                // without the code
  std::uint64_t retired = 0;         // number of the round that was last begun when it was; 0: in use
};

// A channel and who records into it.
struct Line {
  events::FeedPtr feed;
  RemoteAddr base;
  std::uint64_t size = 0;
  std::vector<ProgramPtr> taps;     // by index; null: free, or never used
  std::vector<std::uint32_t> free;  // indices
  struct Leaving {
    std::uint32_t index = 0;
    std::uint64_t round = 0;
  };
  std::vector<Leaving> leaving;  // disabled; threads may still be in their detours
};

// One area of code, with the routines for one line; or one where punned jumps lead.
struct CodeArea {
  static constexpr std::size_t kNoLine = ~std::size_t{0};
  RemoteAddr base;
  std::uint64_t size = 0, used = 0;
  std::size_t line = 0;
  std::uint64_t runtime_size = 0;
  arch::DetourRuntime runtime;
  std::vector<arch::DetourFixup> fixups;  // of the runtime
  std::multimap<std::uint32_t, RemoteAddr> free;
  // Of an area for punned jumps, which has no line: what is in use, by address, with its size.
  std::map<std::uint64_t, std::uint64_t> puns{};
  bool contains(RemoteAddr a) const { return a >= base && a < base + size; }
};

// The second jump of two, in padding.
struct Island {
  Patch patch;
  RemoteAddr site;
  std::uint64_t retired = 0;  // as PlacedDetour's
};

// What a pc in generated code is.
struct DetourPlace {
  RemoteAddr base;                       // of the detour, or of the runtime
  const PlacedDetour* detour = nullptr;  // null: the runtime
  bool capture = false;                  // the registers are not the program's
  std::optional<RemoteAddr> resume;      // where to go on after a fault of a load here
  const arch::CopyPoint* point = nullptr;
};

// Where a thread asks for what a detour can't do for a return probe.
struct CallTrap {
  std::size_t line = 0;
  RemoteAddr done;  // where it goes on
};

class DetourSpace {
 public:
  // ---- lines ----
  std::vector<Line>& lines() { return lines_; }
  const std::vector<Line>& lines() const { return lines_; }
  // Where a program (recorder_of()) records; nullopt: nowhere yet.
  struct Tap {
    std::size_t line = 0;
    std::uint32_t index = 0;
  };
  std::optional<Tap> tap_of(ProbeId id) const;
  // An index for a program in a line that has one. Precondition: it has none yet.
  std::optional<std::uint32_t> add_tap(std::size_t line, ProgramPtr program);
  // Disables it; its index is free again after a round and once its last records have been taken.
  void drop_tap(ProbeId id);
  void free_index(std::size_t line, std::uint32_t index);
  // Sets the mode of a program's tap according to what is wanted of it now.
  void refresh_mode(const ProbeProgram& program, bool armed);

  // nullopt: no breakpoint of the routines of calls is there.
  std::optional<CallTrap> call_trap(RemoteAddr pc) const;

  // ---- code ----
  std::vector<CodeArea>& areas() { return areas_; }
  const std::vector<CodeArea>& areas() const { return areas_; }
  bool areas_empty() const { return areas_.empty(); }
  bool in_code(RemoteAddr pc) const;
  // nullopt: not in generated code, or in no detour that there is.
  std::optional<DetourPlace> find(RemoteAddr pc) const;
  struct Room {
    RemoteAddr address;
    std::uint32_t size = 0;
  };
  // Where a detour of about this size may lie, in memory that was used before: `fits` builds it for a room, and says
  // whether it is large enough. nullopt: nowhere.
  template <class Fits>
  static std::optional<Room> reuse(CodeArea& area, std::uint32_t size, Fits&& fits) {
    constexpr unsigned kMostTried = 4;
    auto it = area.free.lower_bound(size);
    for (unsigned i = 0; i < kMostTried && it != area.free.end(); ++i, ++it) {
      const Room room{it->second, it->first};
      if (!fits(room)) continue;
      area.free.erase(it);
      return room;
    }
    return std::nullopt;
  }
  PlacedDetour& place(RemoteAddr address, PlacedDetour detour);
  void retire(RemoteAddr detour);
  const std::map<std::uint64_t, PlacedDetour>& detours() const { return detours_; }

  // ---- puns ----
  // Where a punned jump can lead, in memory that has been mapped for that; nullopt: nowhere yet.
  std::optional<RemoteAddr> room_for_pun(const arch::PunRange& range) const;
  // Whether it could lead there once nobody is in jumps any more that have been taken out.
  bool awaits_pun(const arch::PunRange& range) const;
  // Sets it aside; it is retired as a detour is, besides that of its site.
  void place_pun(RemoteAddr pun, PlacedDetour jump);
  std::size_t pun_areas() const;

  // ---- islands ----
  void add_island(const Patch& patch, RemoteAddr site);
  void retire_island(RemoteAddr island);
  // By address, those that are to be taken out included.
  const std::map<std::uint64_t, Island>& islands() const { return islands_; }
  // The site whose island begins at this pc.
  std::optional<RemoteAddr> site_of_island(RemoteAddr pc) const;
  // Retired in this round or before, but for those that somebody stands at; they are forgotten.
  std::vector<Patch> islands_to_restore(std::uint64_t round, const std::set<RemoteAddr>& occupied);

  // ---- rounds ----
  std::uint64_t rounds_begun() const { return rounds_begun_; }
  std::uint64_t begin_round() { return ++rounds_begun_; }
  bool awaits_round() const { return retired_ > 0 || leaving(); }
  // Every thread has been seen outside of generated code since round `number` began. The indices that no thread can use
  // any more, by line.
  std::vector<std::pair<std::size_t, std::uint32_t>> round_done(std::uint64_t number);

 private:
  bool leaving() const;
  std::optional<RemoteAddr> room_for_pun(const arch::PunRange& range, bool later) const;

  std::vector<Line> lines_;
  std::vector<CodeArea> areas_;
  std::map<std::uint64_t, PlacedDetour> detours_;  // by address
  std::map<std::uint64_t, Island> islands_;
  std::unordered_map<std::uint32_t, Tap> taps_;  // by probe
  std::size_t retired_ = 0;
  std::uint64_t rounds_begun_ = 0;
};

}  // namespace probed::tracer
