// The execution-out-of-line areas of one address space: pages injected into the target that hold relocated
// instructions.
//
// Owning thread: the tracer thread. A slot belongs to one site. A thread can only be inside a slot if the tracer sent
// it there, so each slot counts the threads that were sent in and haven't been seen outside since; a retired slot is
// reused when that count is zero. No thread has to be stopped to find out.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "arch/arch.hpp"
#include "daemon/base/types.hpp"
#include "daemon/symbols/maps.hpp"
#include "daemon/tracer/kernel/memory.hpp"

namespace probed::tracer {

class Layout;

inline constexpr std::uint64_t kSlotSize = arch::kMaxCopySize;  // of the largest slots
inline constexpr std::uint64_t kSlotUnit = 8;                   // every slot has a multiple of this
constexpr std::uint64_t slot_size(std::size_t copy_room) { return (copy_room + kSlotUnit - 1) / kSlotUnit * kSlotUnit; }
// How far from its site a slot may be.
inline constexpr std::uint64_t kSlotReach = arch::native::kCopyReach;

struct Slot {
  RemoteAddr original;  // the probed instruction
  arch::Insn insn;
  arch::Copy copy;
  std::uint32_t threads = 0;  // sent in, not seen outside since
  bool retired = false;
};

// Bytes in injected memory by which it is known to be ours still: a program may unmap what it doesn't know, and map
// something of its own in its place.
struct Mark {
  static constexpr std::size_t kSize = 16;
  std::uint64_t offset = 0;  // from the beginning of the area
  std::array<std::uint8_t, kSize> bytes{};
};

class XolAreas {
 public:
  // How an area is mapped, as far as nobody but the program changes it.
  enum class Access : std::uint8_t { code, constant, data };  // r-x, r--, rw-
  struct Area {
    RemoteAddr base;
    std::uint64_t size = 0;  // bytes
    std::uint64_t used = 0;  // bytes handed out at least once
    bool shared = false;     // mapped from a memory file
    Access access = Access::code;
    std::optional<Mark> mark{};
    // By size / kSlotUnit: slots that are unused.
    std::array<std::vector<RemoteAddr>, kSlotSize / kSlotUnit + 1> free{};
    // For each unit of `used`: how many units of its slot are in front of it, and how many the slot has.
    struct Unit {
      std::uint8_t behind = 0, of = 0;
    };
    std::vector<Unit> units{};
  };

  // The bytes of a mark are no slot; they are the caller's to write.
  void add_area(RemoteAddr base, std::uint64_t size, const std::optional<Mark>& mark = {});
  // Injected memory that holds no slots, but is taken out like the rest.
  void add_data(RemoteAddr base, std::uint64_t size, bool shared, Access access, const std::optional<Mark>& mark = {}) {
    areas_.push_back({base, size, size, shared, access, mark});
  }
  const std::vector<Area>& areas() const { return areas_; }
  // The area that holds an address has gone: it and its slots are forgotten. Its sites have been removed before.
  void forget_area(RemoteAddr a);
  bool contains(RemoteAddr a) const { return area_of(a) != nullptr; }
  // nullptr: none holds it.
  const Area* area_of(RemoteAddr a) const;

  // A slot within reach of `near`; nullopt: another area is needed. size: what slot_size() says.
  std::optional<RemoteAddr> allocate(RemoteAddr near, std::uint64_t size = kSlotSize);
  void publish(RemoteAddr slot, Slot content) { slots_.insert_or_assign(slot.value, content); }
  // Gives back a slot that was never published or never entered.
  void release(RemoteAddr slot);
  // No thread will be sent there any more; reused once empty.
  void retire(RemoteAddr slot);

  // The slot whose bytes hold this address, and its base; nullptr: none.
  Slot* find(RemoteAddr pc, RemoteAddr& base);
  void enter(RemoteAddr slot);
  void leave(RemoteAddr slot);

  // In a fork's copy: the parent's threads are not there. Retired slots become free.
  void forget_threads();

  std::size_t live_slots() const { return slots_.size(); }

 private:
  std::vector<Area> areas_;
  std::unordered_map<std::uint64_t, Slot> slots_;
};

// Whether what is mapped there is like the area; what the layout doesn't know may be.
bool is_mapped(const XolAreas::Area& area, const Layout& layout);

// The heap grows up from its end, the main thread's stack down from its start: they are left this much room.
inline constexpr std::uint64_t kGrowth = 1ULL << 30;
// What the stack of this process is left: kGrowth, or, where copies have to be nearer than that, what its limit
// (RLIMIT_STACK) says and eight times the usual one.
std::uint64_t stack_room(pid_t pid);

// An address for `size` new bytes within reach of `near`, in a gap of the address space, preferring the nearest one
// below `near` that leaves the heap and the stack room to grow. Skips the first `attempt` candidates.
std::optional<RemoteAddr> choose_hole(std::span<const symbols::Mapping> maps, RemoteAddr near, std::uint64_t size,
                                      unsigned attempt, std::uint64_t stack_room = kGrowth);

// Whether nothing is mapped in these pages, nor so near that it could grow into them.
bool is_hole(std::span<const symbols::Mapping> maps, RemoteAddr start, std::uint64_t size);

}  // namespace probed::tracer
