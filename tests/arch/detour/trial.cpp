// See trial.hpp.
#include "tests/arch/detour/trial.hpp"

#include <csignal>
#include <cstring>

namespace probed::test {
namespace {

constexpr std::uint64_t kOwner = 7;
constexpr std::int64_t kRedZone = 128, kDeepest = 128 + 200;

}  // namespace

Trial::Trial(RigOptions options)
    : rig_([&options] {
        options.code = kCode;
        return options;
      }()),
      sandbox_(kSandbox, kFar) {}

Machine Trial::random_state(Random& random) const {
  constexpr std::uint64_t kStatusFlags = 0x8d5;
  Machine m;
  std::uint64_t* const general[] = {&m.regs.rax, &m.regs.rbx, &m.regs.rcx, &m.regs.rdx, &m.regs.rsi,
                                    &m.regs.rdi, &m.regs.rbp, &m.regs.r8,  &m.regs.r9,  &m.regs.r10,
                                    &m.regs.r11, &m.regs.r12, &m.regs.r13, &m.regs.r14, &m.regs.r15};
  for (std::uint64_t* r : general) *r = random.word();
  m.regs.eflags = 0x202 | (random.word() & kStatusFlags) | (random.chance(20) ? 0x400 : 0);
  m.regs.rsp = stack() + 0x800 + random.below(64) * 8;
  for (auto& row : m.ymm)
    for (auto& byte : row) byte = random.byte();
  for (auto& byte : m.data) byte = random.byte();
  for (auto& byte : m.stack) byte = random.byte();
  m.regs.fs_base = thread_pointer();
  m.regs.gs_base = Sandbox::has_segment_bases() ? data() : 0;
  std::memcpy(m.data.data() + kThreadPointer, &m.regs.fs_base, sizeof m.regs.fs_base);
  return m;
}

void Trial::own_lane(bool owned) {
  if (owned == lane_.has_value()) return;
  if (owned) {
    lane_ = rig_.channel().assign(kOwner, thread_pointer(), std::nullopt);
  } else {
    rig_.channel().retire(*lane_);
    lane_.reset();
    drain();
  }
}

arch::DetourResult Trial::prepare(std::span<const std::uint8_t> region, std::span<const arch::CapturedProbe> probes) {
  if (!region_.empty()) sandbox_.erase(site(), region_.size());
  region_.assign(region.begin(), region.end());
  sandbox_.write(site(), region_);
  return rig_.stage(site(), region_.size(), probes);
}

void Trial::run_native(const Machine& start, Outcome& outcome) {
  Machine from = start;
  from.regs.rip = site();
  sandbox_.run(from, outcome);
}

void Trial::run_detour(const Machine& start, Outcome& outcome) {
  // As when a probe is armed: a tail that came back to the region would trap there.
  sandbox_.erase(site(), region_.size());
  Machine from = start;
  from.regs.rip = rig_.last_address();
  sandbox_.run(from, outcome);
  while (outcome.signal == SIGSEGV || outcome.signal == SIGBUS) {
    const std::uint64_t resume = Rig::fixup(outcome.machine.regs.rip);
    if (resume == 0) break;
    ++fixups_;
    from = outcome.machine;
    from.regs.rip = resume;
    sandbox_.run(from, outcome);
  }
  sandbox_.write(site(), region_);
}

bool Trial::translate(Outcome& outcome) const {
  arch::x86_64::Registers& regs = outcome.machine.regs;
  const std::uint64_t pc = regs.rip, begin = rig_.last_address();
  if (pc < begin || pc >= begin + detour().code.size()) return true;
  const arch::CopyPoint* const point = detour().at(pc - begin);
  if (point == nullptr) return false;
  regs.rip = point->original_pc;
  if (point->meaning == arch::CopyPoint::Meaning::after) {
    if (point->fix_link) regs.rcx = point->link;
  } else {
    regs.rsp += static_cast<std::uint64_t>(std::int64_t{point->undo_sp});
    if (point->link != 0 && regs.rcx == pc + 2) regs.rcx = point->link;
  }
  if (outcome.fault_address == pc) outcome.fault_address = regs.rip;
  return true;
}

void Trial::forget_frame(const Machine& start, const Outcome& expected, Outcome& got) const {
  const auto sp = static_cast<std::int64_t>(start.regs.rsp - stack());
  for (std::int64_t at = sp - kDeepest; at < sp - kRedZone; ++at)
    if (at >= 0 && at < static_cast<std::int64_t>(kPage))
      got.machine.stack[static_cast<std::size_t>(at)] = expected.machine.stack[static_cast<std::size_t>(at)];
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
