#include "daemon/tracer/probes/hit_recorder.hpp"

#include <fcntl.h>
#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <string>

#include "daemon/base/momentary.hpp"

namespace probed::tracer {
namespace {

constexpr std::uint64_t kRseqCpuId = 4;                   // offset of cpu_id in struct rseq, linux/rseq.h
constexpr std::uint32_t kFollowAfter = 16;                // consecutive sightings on another CPU before we move
constexpr unsigned kLookForCpuEvery = 8;                  // hits, when nobody else wants to know the CPU
constexpr auto kCommAge = std::chrono::milliseconds(10);  // prctl(PR_SET_NAME) may change the name at any time
constexpr unsigned kStatCpuField = 39;                    // proc_pid_stat(5): processor

// libstdc++'s steady_clock is CLOCK_MONOTONIC.
std::uint64_t nanoseconds(std::chrono::steady_clock::time_point t) {
  return static_cast<std::uint64_t>(std::chrono::nanoseconds(t.time_since_epoch()).count());
}

std::string task_path(const Tracee& tracee, const char* file) {
  return "/proc/" + std::to_string(tracee.tid) + "/" + file;
}

// Field `number` (1-based) of a stat file, counted from the end of the parenthesised name.
std::uint32_t stat_field(std::string_view text, unsigned number) {
  std::size_t at = text.rfind(')');
  for (unsigned field = 2; at != std::string_view::npos && field < number; ++field) at = text.find(' ', at + 1);
  std::uint32_t value = 0;
  if (at != std::string_view::npos) std::from_chars(text.data() + at + 1, text.data() + text.size(), value);
  return value;
}

std::uint32_t cpu_from_stat(Tracee& tracee) {
  if (!tracee.stat) tracee.stat.reset(::open(task_path(tracee, "stat").c_str(), O_RDONLY | O_CLOEXEC));
  char text[1024];
  const ssize_t n = pread(tracee.stat.get(), text, sizeof text, 0);
  return n > 0 ? stat_field({text, static_cast<std::size_t>(n)}, kStatCpuField) : 0;
}

// The only CPU the thread may run on, if there is just one.
std::optional<std::uint32_t> only_cpu(pid_t tid) {
  cpu_set_t set;
  if (sched_getaffinity(tid, sizeof set, &set) != 0 || CPU_COUNT(&set) != 1) return std::nullopt;
  std::uint32_t cpu = 0;
  while (!CPU_ISSET(cpu, &set)) ++cpu;
  return cpu;
}

// The kernel keeps the current CPU in a thread's rseq area whenever it returns to user mode; reading it there costs a
// tenth of reading /proc.
std::uint32_t current_cpu(Tracee& tracee, TargetMemory& memory) {
  // Asking where it may run costs a quarter of reading where it runs.
  if (tracee.one_cpu)
    if (const auto cpu = only_cpu(tracee.tid)) return *cpu;
  if (!tracee.rseq) tracee.rseq = ptrace::rseq_area(tracee.tid).value_or(0);
  std::uint32_t cpu = 0;
  if (*tracee.rseq != 0 &&
      memory.read(RemoteAddr{*tracee.rseq + kRseqCpuId}, std::as_writable_bytes(std::span(&cpu, 1))))
    return cpu;
  return cpu_from_stat(tracee);
}

}  // namespace

void HitRecorder::refresh_comm(Tracee& tracee) {
  const Momentary fd(task_path(tracee, "comm").c_str(), O_RDONLY);
  char text[64];
  const ssize_t n = fd ? ::read(fd.get(), text, sizeof text) : 0;
  if (n <= 0) return;
  std::size_t size = static_cast<std::size_t>(n);
  if (text[size - 1] == '\n') --size;
  size = std::min(size, sizeof tracee.comm - 1);
  std::memset(tracee.comm, 0, sizeof tracee.comm);
  std::memcpy(tracee.comm, text, size);
}

bool CpuFollower::move_to(std::uint32_t cpu) {
  if (!home_) {
    cpu_set_t set;
    // More CPUs than a cpu_set_t has (EINVAL): we never move.
    if (sched_getaffinity(0, sizeof set, &set) != 0) CPU_ZERO(&set);
    home_ = set;
  }
  if (cpu >= CPU_SETSIZE || !CPU_ISSET(cpu, &*home_)) return false;
  cpu_set_t ours, others;
  CPU_ZERO(&ours);
  CPU_SET(cpu, &ours);
  CPU_XOR(&others, &*home_, &ours);
  if (sched_setaffinity(0, sizeof ours, &ours) != 0) return false;
  // Fails when there is no other CPU: then they share.
  if (consumer_ != 0) sched_setaffinity(consumer_, sizeof others, &others);
  return true;
}

void CpuFollower::hit_on(std::uint32_t cpu) {
  if (cpu == pinned_) {
    streak_ = 0;
    return;
  }
  streak_ = cpu == candidate_ ? streak_ + 1 : 1;
  candidate_ = cpu;
  if (streak_ < kFollowAfter) return;
  streak_ = 0;
  // The tracee may be confined to CPUs that we are not allowed on: then we stay where we are.
  if (move_to(cpu)) pinned_ = cpu;
}

void CpuFollower::idle() {
  if (pinned_ == ~0u) return;
  sched_setaffinity(0, sizeof *home_, &*home_);
  if (consumer_ != 0) sched_setaffinity(consumer_, sizeof *home_, &*home_);
  pinned_ = ~0u;
  streak_ = 0;
}

HitRecorder::Hit HitRecorder::begin(Tracee& tracee, const ptrace::Registers& regs, TargetMemory& memory) {
  const auto now = std::chrono::steady_clock::now();
  if (now - tracee.comm_read > kCommAge) {
    refresh_comm(tracee);
    tracee.one_cpu = only_cpu(tracee.tid).has_value();
    tracee.comm_read = now;
  }
  const Hit hit{tracee, regs, memory, nanoseconds(now)};
  if (++hits_since_cpu_ >= kLookForCpuEvery) cpu_of(hit);
  return hit;
}

std::uint32_t HitRecorder::cpu_of(const Hit& hit) {
  if (!hit.cpu) {
    hit.cpu = current_cpu(hit.tracee, hit.memory);
    follower_.hit_on(*hit.cpu);
    hits_since_cpu_ = 0;
  }
  return *hit.cpu;
}

values::CommonFields HitRecorder::common_fields(const Hit& hit, bool with_cpu) {
  values::CommonFields common;
  common.pid = hit.tracee.process->id.pid;
  common.tid = hit.tracee.tid;
  common.cpu = with_cpu ? cpu_of(hit) : 0;
  common.comm = hit.tracee.comm;
  return common;
}

bool HitRecorder::send(const Hit& hit, ProbeProgram& program, std::span<const std::byte> packed,
                       const Returned& returned) {
  events::RecordHeader header;
  header.probe = program.id;
  header.pid = hit.tracee.process->id.pid;
  header.tid = hit.tracee.tid;
  header.cpu = cpu_of(hit);
  header.time = hit.time;
  header.ip = hit.regs.pc();
  std::memcpy(header.comm, hit.tracee.comm, sizeof header.comm);
  header.ret_ip = returned.to;
  header.duration = returned.duration;
  header.tail_call = returned.tail_call ? 1 : 0;
  if (!sink_.queue.push(header, packed)) return false;
  if (sink_.queue.take_wakeup()) {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = ::write(sink_.bell, &one, sizeof one);  // only fails when it is ringing already
  }
  return true;
}

bool HitRecorder::run(const Hit& hit, ProbeProgram& program) {
  if (program.limit && program.limit->remaining == 0) return false;
  if (program.needs_comm) refresh_comm(hit.tracee);
  const bool streaming = program.streaming.load(std::memory_order_relaxed);
  const values::CommonFields common = common_fields(hit, streaming || program.filter);
  const std::size_t size = program.fetch.run(hit.regs, hit.memory, common, packed_);
  const std::span<const std::byte> packed(packed_.data(), size);
  if (program.filter && !program.filter->matches(packed, common)) {
    program.counters->filtered.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  program.counters->hits.fetch_add(1, std::memory_order_relaxed);
  if (streaming && !send(hit, program, packed, Returned{}))
    program.counters->missed.fetch_add(1, std::memory_order_relaxed);
  return program.limit && --program.limit->remaining == 0;
}

}  // namespace probed::tracer
