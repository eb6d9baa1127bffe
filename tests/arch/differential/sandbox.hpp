// Runs machine code natively inside the test process, from a complete processor state to a complete processor state.
//
// Entering and leaving are signals: tgkill() gets us a signal frame to rewrite, sigreturn loads every register from it,
// and the code runs until it traps (all free code bytes are int3), faults or, on request, has taken a single step. The
// handler then reads the state off its frame and puts the test's own back. So no register needs to be kept for the
// harness, and a fault is just another outcome. What a signal frame doesn't hold (the fs and gs bases, the data
// segment selectors) is switched by the handler's first and last instructions.
//
// One sandbox at a time, used by one thread. It replaces the handlers of the signals that an instruction can raise.
// Code pages are never writable where they are executed, so that no instruction under test can damage them.
#pragma once

#include <array>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "arch/x86_64/regs.hpp"

namespace probed::test {

inline constexpr std::size_t kPage = 4096;
inline constexpr std::uint64_t kTrapFlag = 0x100;

// AVX-512's part of the state, as XSAVE lays out its components: opmask registers, upper halves of zmm0-15, zmm16-31.
// All zero on a processor without it.
struct WideState {
  std::array<std::uint8_t, 64> opmask{};
  std::array<std::uint8_t, 512> zmm_high{};
  std::array<std::uint8_t, 1024> more_zmm{};

  bool operator==(const WideState&) const = default;
};

// Everything an instruction can read or change.
struct Machine {
  arch::x86_64::Registers regs{};  // cs, ss and orig_rax are the process's own and not kept here
  std::array<std::array<std::uint8_t, 32>, 16> ymm{};
  std::array<std::array<std::uint8_t, 10>, 8> st{};
  std::uint16_t fpu_control = 0x37f;
  std::uint16_t fpu_status = 0;
  std::uint8_t fpu_tags = 0;  // FXSAVE's one bit a register: 1 is occupied
  std::uint32_t mxcsr = 0x1f80;
  WideState wide{};
  std::array<std::uint8_t, kPage> data{};
  std::array<std::uint8_t, kPage> stack{};

  bool operator==(const Machine&) const = default;
};

// What a signal handler of the program would see.
struct Outcome {
  Machine machine;                  // rip: for int3 already put back onto it
  int signal = 0;                   // SIGTRAP for int3 and for steps
  int code = 0;                     // si_code
  bool stepped = false;             // stopped because `stop_at` said so
  std::uint64_t fault_address = 0;  // si_addr; 0 for SIGTRAP
  std::uint64_t trap = 0;           // the exception's vector
  std::uint64_t error = 0;          // and its error code
};

class Sandbox {
 public:
  // Maps its pages around `base`, all within ±2 GiB of each other, and one far away from all of them at far_base.
  Sandbox(std::uint64_t base, std::uint64_t far_base);
  ~Sandbox();
  Sandbox(const Sandbox&) = delete;
  Sandbox& operator=(const Sandbox&) = delete;

  std::uint64_t original() const { return base_ + 0x800; }
  std::uint64_t near_copy() const { return base_ + 0x10400; }
  std::uint64_t landing() const { return base_ + 0x20000; }  // a page of int3
  std::uint64_t data() const { return base_ + 0x30000; }     // unmapped on both sides
  std::uint64_t stack() const { return base_ + 0x40000; }    // unmapped on both sides
  std::uint64_t far_copy() const { return far_base_ + 0x400; }

  // Whether the fs and gs bases can be chosen: FSGSBASE, and a kernel that allows it.
  static bool has_segment_bases();
  // A hypervisor that runs the guest's kernel as a user program (PVM; it has no FSGSBASE) now and then loses the nested
  // task flag at an interrupt, or makes another signal of a trap with a stack pointer that isn't canonical.
  static bool processor_is_real() { return has_segment_bases(); }
  // Whether WideState is kept.
  static bool has_wide_state();

  // Puts code somewhere in the pages of original, near_copy or far_copy; erase() makes it int3 again.
  void write(std::uint64_t address, std::span<const std::uint8_t> code);
  void erase(std::uint64_t address, std::size_t size);

  // Runs from start.regs.rip on until something traps.
  void run(const Machine& start, Outcome& outcome);
  // The same in single steps; after each, stop_at(pc) says whether to stop. Called in signal context.
  void run_stepped(const Machine& start, const std::function<bool(std::uint64_t pc)>& stop_at, Outcome& outcome);

  // Called by the signal handlers.
  void on_signal(int signal, const siginfo_t& info, void* context);

 private:
  void enter(void* context);
  void leave(int signal, const siginfo_t& info, void* context);
  void save_outcome(int signal, const siginfo_t& info, void* context, bool step);
  void map_code(std::uint64_t address, std::uint8_t*& alias);
  std::uint8_t* writable(std::uint64_t code_address);

  std::uint64_t base_, far_base_;
  std::uint8_t* original_alias_ = nullptr;
  std::uint8_t* near_alias_ = nullptr;
  std::uint8_t* landing_alias_ = nullptr;
  std::uint8_t* far_alias_ = nullptr;
  const Machine* start_ = nullptr;
  const std::function<bool(std::uint64_t)>* stop_at_ = nullptr;
  Outcome* outcome_ = nullptr;
};

}  // namespace probed::test
