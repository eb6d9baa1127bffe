// From a probe's compiled arguments and filter to what a detour captures, and from captured records back to packed
// arguments. Pure; any thread.
//
// What a detour can't do is left to the daemon: $comm, $duration and texts are filled in when a record is unpacked; a
// filter that compares strings, comm, tid, cpu or the duration is evaluated on the unpacked record (filter_in_daemon
// says so), with the event lost to the ring's room if it is lost. What nobody can do without a stop is refused with a
// reason.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "arch/detour.hpp"
#include "daemon/events/fetch.hpp"
#include "daemon/events/record.hpp"
#include "daemon/events/return_fetch.hpp"
#include "daemon/lang/filter.hpp"

namespace probed::events {

static_assert(arch::kMaxCapturedString == kMaxString);

struct DetourPlan {
  // Where an argument's value comes from.
  struct Source {
    enum class Kind : std::uint8_t { item, comm, text, duration, absent };
    Kind kind = Kind::item;
    std::uint16_t index = 0;          // of capture.layout.items, or of texts
    std::uint16_t limit = 0;          // bytes of a string; 0: none
    bool needs_return_value = false;  // absent after a tail call
  };

  arch::CapturePlan capture;
  std::vector<Source> sources;     // in the order of the arguments
  std::vector<std::string> texts;  // copies of the program's
  bool needs_comm = false;         // some source is the thread's name
  // All sources are items that are plain numbers: the slots in this order.
  bool only_numbers = false;
  // The detour records what the filter may reject, so its counts of hits do, too: such a probe must be in mode
  // kRecord also when it is only counted, and what filter() rejects is to be subtracted. Empty: the detour filters.
  std::string filter_in_daemon;  // why
};

// pid: the target's, known when the plan is made. Errors: unsupported, with the reason.
Result<DetourPlan> plan_detour(const FetchProgram& program, const lang::Filter& filter, std::int32_t pid);

// What the detours of a return probe capture at the function's entry and at its exits. An exit's record has what was
// kept of its call in front of its own items.
struct ReturnPlan {
  DetourPlan entry, exit;
};

// Filters: the one that belongs to the entry, and the one on all arguments that belongs to the exit; at most one isn't
// empty. Errors: as plan_detour()'s; a filter that the entry's detour can't evaluate.
Result<ReturnPlan> plan_return_detours(const ReturnFetch& fetch, const lang::Filter& entry_filter,
                                       const lang::Filter& exit_filter, std::int32_t pid);

// The arguments of a record in packed form (record.hpp), as FetchProgram::run would have written them. words: a
// ChannelRecord's, from a probe with this plan; what the target wrote there is not trusted. What the daemon knows:
// comm, of a return duration and tail_call. out: at least one byte for each argument. Returns the bytes written.
std::size_t unpack(const DetourPlan& plan, std::span<const std::uint64_t> words, const values::CommonFields& known,
                   std::span<std::byte> out);

// The same for a return's record.
struct UnpackScratch {
  std::array<std::byte, kMaxArgumentBytes> kept, at_exit;
};
std::size_t unpack_return(const ReturnFetch& fetch, const ReturnPlan& plan, std::span<const std::uint64_t> words,
                          const values::CommonFields& known, UnpackScratch& scratch, std::span<std::byte> out);

// What a return's record says besides its arguments.
struct ReturnRecord {
  std::uint64_t exit = 0;        // address of the instruction that left the function
  std::uint64_t entry_time = 0;  // time stamp counter
  std::uint64_t return_address = 0;
  bool tail_call = false;
};
ReturnRecord describe_return(std::span<const std::uint64_t> words);

}  // namespace probed::events
