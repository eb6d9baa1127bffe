// The recorder's part of return probes: entries and exits, matched by ReturnStacks, become events.
//
// Owning thread: the tracer thread. An entry is timed last and an exit first, so that what the two stops cost is mostly
// outside of the duration.
#include "daemon/tracer/probes/hit_recorder.hpp"

namespace probed::tracer {
namespace {

std::uint64_t now() {
  const auto t = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(std::chrono::nanoseconds(t).count());
}

// nullopt: the stack can't be read, so nothing returns by it.
std::optional<std::uint64_t> return_address(const HitRecorder::Hit& hit) {
  if (!arch::native::kCallPushesReturnAddress) return arch::native::return_address_register(hit.regs);
  std::uint64_t address = 0;
  const RemoteAddr slot{arch::native::return_slot(hit.regs)};
  if (!hit.memory.read(slot, std::as_writable_bytes(std::span(&address, 1)))) return std::nullopt;
  return address;
}

}  // namespace

bool HitRecorder::run_entry(const Hit& hit, ProbeProgram& program, ReturnStacks& calls, const StackPlace& place) {
  if (program.limit && program.limit->remaining == 0) return false;
  const auto to = return_address(hit);
  if (!to) return false;
  const ReturnProbe& probe = *program.returns;
  Activation* const call = calls.enter(program.returns, place, *to);
  if (!call) return false;
  // Those that it has found to have ended don't count.
  const bool full = probe.max_active != 0 && calls.active(probe) > probe.max_active;
  call->tid = hit.tracee.tid;
  if (program.needs_comm) refresh_comm(hit.tracee);
  const values::CommonFields common = common_fields(hit, probe.entry_filter.has_value());
  const std::size_t size = probe.fetch.entry().run(hit.regs, hit.memory, common, packed_);
  const std::span<const std::byte> kept(packed_.data(), size);
  if (probe.entry_filter && !probe.entry_filter->matches(kept, common)) {
    program.counters->filtered.fetch_add(1, std::memory_order_relaxed);
    calls.reject(*call, Activation::Kind::filtered);
    return false;
  }
  if (full) {
    program.counters->hits.fetch_add(1, std::memory_order_relaxed);
    program.counters->missed.fetch_add(1, std::memory_order_relaxed);
    calls.reject(*call, Activation::Kind::missed);
    return program.limit && --program.limit->remaining == 0;
  }
  call->kept.assign(kept.begin(), kept.end());
  call->time = now();
  return false;
}

bool HitRecorder::run_exit(const Hit& hit, ProbeProgram& program, ReturnStacks& calls, const StackPlace& place) {
  ReturnProbe& probe = *program.returns;
  const auto to = return_address(hit);
  const Activation* const call = to ? calls.leave(probe, place, *to) : nullptr;
  if (program.limit && program.limit->remaining == 0) return false;  // it has returned, and counts no more
  const bool tail_call = program.exit.kind != arch::ExitKind::ret;
  if (!call) {
    // An indirect jump of a function that leaves its stack behind (longjmp) is no return.
    if (program.exit.kind != arch::ExitKind::leap) probe.unmatched.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  if (call->kind != Activation::Kind::going_on) return false;
  if (program.needs_comm) refresh_comm(hit.tracee);
  const bool streaming = program.streaming.load(std::memory_order_relaxed);
  values::CommonFields common = common_fields(hit, streaming || probe.exit_filter);
  common.tail_call = tail_call;
  common.duration = hit.time - std::min(hit.time, call->time);
  ptrace::Registers after = hit.regs;
  arch::native::step_out(after, *to);
  const std::size_t size = probe.fetch.run_exit(after, hit.memory, common, call->kept, scratch_, packed_);
  const std::span<const std::byte> packed(packed_.data(), size);
  if (probe.exit_filter && !probe.exit_filter->matches(packed, common)) {
    program.counters->filtered.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  program.counters->hits.fetch_add(1, std::memory_order_relaxed);
  if (streaming && !send(hit, program, packed, {*to, common.duration, tail_call}))
    program.counters->missed.fetch_add(1, std::memory_order_relaxed);
  return program.limit && --program.limit->remaining == 0;
}

}  // namespace probed::tracer
