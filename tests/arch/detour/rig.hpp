// Detours inside the test's own process: a channel mapped a second time where "the target" has it, an area of code that
// is writable and executable, and a SIGSEGV and SIGBUS handler that plays the tracer's part by moving a faulting load
// to its fix-up. What differs by architecture is in rig_cpu.hpp.
//
// One rig at a time, as the handlers are the process's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "arch/arch.hpp"
#include "daemon/events/channel.hpp"
#include "daemon/events/detour_plan.hpp"

namespace probed::test {

// What a probe is made of, in the probe language: "a=$arg1:u32 s=+0($arg2):string", and a filter or "".
struct Definition {
  std::string arguments;
  std::string filter;
  std::function<void(lang::FetchArg&)> change = {};  // of each argument before it is compiled
};

struct Compiled {
  events::FetchProgram program;
  lang::Filter filter;
  events::DetourPlan plan;
};

struct RigOptions {
  events::ChannelOptions channel{.bytes = 4 << 20, .lanes = 15, .probes = 256};
  std::uint64_t code = 0;    // where the area of code is to be; 0: anywhere
  bool far_channel = false;  // more than 2 GiB away from the code, which then must be where nothing else is
  arch::DetourFeatures features = arch::native::detour_features();
};

class Rig {
 public:
  static constexpr std::size_t kCodeSize = 16 << 20;

  explicit Rig(const RigOptions& options = {});
  ~Rig();
  Rig(const Rig&) = delete;
  Rig& operator=(const Rig&) = delete;

  events::Channel& channel() { return *channel_; }
  const arch::DetourRuntime& runtime() const { return runtime_; }
  // The channel as the detours see it.
  std::byte* target_view() { return target_view_; }

  // Copies code to a fresh place, 64-byte aligned, and returns where it is.
  std::uint64_t place(std::span<const std::uint8_t> code);
  // Compiles a definition; fails the test when it can't be.
  static Compiled compile(const Definition& definition);
  static events::DetourPlan plan(const Definition& definition) { return compile(definition).plan; }
  // Builds the detour for the first `region` bytes of the code at `site`, which are whole instructions.
  arch::DetourResult build(std::uint64_t site, std::size_t region, std::span<const arch::CapturedProbe> probes);
  // The same, in a place that the next one takes over; its fixups are armed.
  arch::DetourResult stage(std::uint64_t site, std::size_t region, std::span<const arch::CapturedProbe> probes);
  // The same for good; must succeed, and writes the jump.
  const arch::Detour& install(std::uint64_t site, std::size_t region, std::span<const arch::CapturedProbe> probes);
  // Adds the probe to the channel and lets it record.
  void enable(std::uint32_t index, const events::DetourPlan& plan,
              arch::channel::ProbeFlags mode = arch::channel::kRecord);

  const arch::Detour& last() const { return detour_; }
  std::uint64_t last_address() const { return detour_address_; }
  std::uint64_t code_begin() const { return code_; }

  // Gives the calling thread a lane. False: none.
  bool own_lane(std::uint64_t owner);
  void retire_own_lane();

  // Where a load that faulted at this pc goes on; 0: it may not fault.
  static std::uint64_t fixup(std::uint64_t pc);
  // How many faults were sent to a fix-up since the last call.
  static unsigned faults();

 private:
  std::uint64_t reserve(std::size_t size);

  std::unique_ptr<events::Channel> channel_;
  std::byte* target_view_ = nullptr;
  std::uint64_t code_ = 0;
  std::uint64_t next_code_ = 0;
  arch::DetourRuntime runtime_;
  arch::Detour detour_;
  std::uint64_t detour_address_ = 0;
};

}  // namespace probed::test
