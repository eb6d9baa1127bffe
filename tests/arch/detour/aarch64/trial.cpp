// See trial.hpp.
#include "tests/arch/detour/aarch64/trial.hpp"

#include <csignal>

#include "arch/aarch64/word.hpp"

namespace probed::test {
namespace {

constexpr std::uint64_t kOwner = 7;

}  // namespace

Trial::Trial(RigOptions options)
    : rig_([&options] {
        options.code = kCode;
        return options;
      }()) {}

void Trial::own_lane(bool owned) {
  if (owned == owned_) return;
  if (owned) {
    rig_.own_lane(kOwner);
  } else {
    rig_.retire_own_lane();
    drain();
  }
  owned_ = owned;
}

arch::DetourResult Trial::prepare(std::span<const std::uint32_t> region, std::span<const arch::CapturedProbe> probes) {
  region_.clear();
  for (const std::uint32_t word : region)
    for (const std::uint8_t byte : arch::aarch64::word_bytes(word)) region_.push_back(byte);
  const NativeCpu::Patch patch(kOriginal, region_);
  return rig_.stage(kOriginal, region_.size(), probes);
}

CpuTrial Trial::run_native(CpuState start, const std::vector<std::uint8_t>& data) {
  const NativeCpu::Patch patch(kOriginal, region_);
  start.regs.program_counter = kOriginal;
  return run(start, data);
}

CpuTrial Trial::run_detour(CpuState start, const std::vector<std::uint8_t>& data) {
  start.regs.program_counter = rig_.last_address();
  CpuTrial trial = run(start, data);
  while (trial.outcome.signal == SIGSEGV || trial.outcome.signal == SIGBUS) {
    const std::uint64_t resume = Rig::fixup(trial.outcome.state.regs.pc());
    if (resume == 0) break;
    ++fixups_;
    CpuState on = trial.outcome.state;
    on.regs.program_counter = resume;
    trial = run(on, trial.data);
  }
  return trial;
}

bool Trial::translate(CpuTrial& trial) const {
  arch::aarch64::Registers& regs = trial.outcome.state.regs;
  const std::uint64_t pc = regs.pc(), begin = rig_.last_address();
  if (pc < begin || pc >= begin + detour().code.size()) return true;
  const arch::CopyPoint* const point = detour().at(pc - begin);
  if (point == nullptr || point->meaning == arch::CopyPoint::Meaning::middle) return false;
  regs.program_counter = point->original_pc;
  if (trial.outcome.address == pc) trial.outcome.address = regs.pc();
  return true;
}

void Trial::forget_frame(const CpuState& start, const CpuTrial& expected, CpuTrial& got) {
  const auto sp = static_cast<std::int64_t>(start.regs.stack_pointer - kDataBegin);
  for (std::int64_t at = sp - kDeepest; at < sp - kLeftAlone; ++at)
    if (at >= 0 && at < static_cast<std::int64_t>(kDataSize))
      got.data[static_cast<std::size_t>(at)] = expected.data[static_cast<std::size_t>(at)];
}

std::vector<Trial::Record> Trial::drain() {
  std::vector<Record> records;
  const auto take = [&records](const events::ChannelRecord& r) {
    records.push_back({r.probe, r.owner, r.thread_pointer, r.time, r.cpu, {r.words.begin(), r.words.end()}});
  };
  while (rig_.channel().drain(64, take) > 0) {
  }
  return records;
}

}  // namespace probed::test
