// Runs machine code natively inside the test process, from a complete processor state to a complete processor state.
//
// Entering and leaving are signals: raise() gets us a signal frame to rewrite, sigreturn loads every register from it,
// and the code runs until it traps (all free code bytes are int3), faults or, on request, has taken a single step. The
// handler then reads the state off its frame and puts the test's own back. So no register needs to be kept for the
// harness, and a fault is just another outcome.
//
// One sandbox at a time, used by one thread. It replaces the handlers of the signals that an instruction can raise.
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

// Everything an instruction can read or change.
struct Machine {
  arch::x86_64::Registers regs{};
  std::array<std::array<std::uint8_t, 32>, 16> ymm{};
  std::array<std::array<std::uint8_t, 10>, 8> st{};
  std::uint16_t fpu_control = 0x37f;
  std::uint16_t fpu_status = 0;
  std::uint8_t fpu_tags = 0;  // FXSAVE's one bit a register: 1 is occupied
  std::uint32_t mxcsr = 0x1f80;
  std::array<std::uint8_t, kPage> data{};
  std::array<std::uint8_t, kPage> stack{};

  bool operator==(const Machine&) const = default;
};

struct Outcome {
  Machine machine;                  // rip: for int3 already put back onto it
  int signal = 0;                   // SIGTRAP for int3 and for steps
  bool stepped = false;             // stopped because `stop_at` said so
  std::uint64_t fault_address = 0;  // si_addr
};

class Sandbox {
 public:
  // Maps its pages around `base`, all within ±2 GiB of each other but for far_copy.
  explicit Sandbox(std::uint64_t base);
  ~Sandbox();
  Sandbox(const Sandbox&) = delete;
  Sandbox& operator=(const Sandbox&) = delete;

  std::uint64_t original() const { return base_ + 0x800; }
  std::uint64_t near_copy() const { return base_ + 0x10400; }
  std::uint64_t landing() const { return base_ + 0x20000; }  // a page of int3, read and execute only
  std::uint64_t data() const { return base_ + 0x30000; }     // unmapped on both sides
  std::uint64_t stack() const { return base_ + 0x40000; }    // unmapped on both sides
  std::uint64_t far_copy() const { return base_ + 0x10'0000'0400; }

  // Puts code somewhere in the pages of original, near_copy or far_copy; erase() makes it int3 again.
  void write(std::uint64_t address, std::span<const std::uint8_t> code);
  void erase(std::uint64_t address, std::size_t size);

  // Runs from start.regs.rip on until something traps.
  Outcome run(const Machine& start);
  // The same in single steps; after each, stop_at(pc) says whether to stop. Called in signal context.
  Outcome run_stepped(const Machine& start, const std::function<bool(std::uint64_t pc)>& stop_at);

 private:
  static void on_signal(int signal, siginfo_t* info, void* context);
  void enter(ucontext_t& context);
  bool leave(int signal, const siginfo_t& info, ucontext_t& context);
  std::uint8_t* at(std::uint64_t address);
  void map(std::uint64_t address, std::size_t size, int protection);

  std::uint64_t base_;
  const Machine* start_ = nullptr;
  const std::function<bool(std::uint64_t)>* stop_at_ = nullptr;
  Outcome outcome_;
};

}  // namespace probed::test
