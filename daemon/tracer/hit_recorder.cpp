#include "daemon/tracer/hit_recorder.hpp"

#include <fcntl.h>
#include <sched.h>
#include <time.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <string>

namespace probed::tracer {
namespace {

constexpr std::uint64_t kRseqCpuId = 4;              // offset of cpu_id in struct rseq, linux/rseq.h
constexpr std::uint32_t kFollowAfter = 16;           // consecutive hits on another CPU before we move
constexpr auto kCommAge = std::chrono::milliseconds(10);  // prctl(PR_SET_NAME) may change it at any time
constexpr unsigned kStatCpuField = 39;               // proc_pid_stat(5): processor

std::uint64_t now_ns() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(t.tv_nsec);
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

// The kernel keeps the current CPU in a thread's rseq area whenever it returns to user mode; reading it there costs a
// tenth of reading /proc.
std::uint32_t current_cpu(Tracee& tracee, TargetMemory& memory) {
  if (!tracee.rseq) tracee.rseq = ptrace::rseq_area(tracee.tid).value_or(0);
  std::uint32_t cpu = 0;
  if (*tracee.rseq != 0 && memory.read(RemoteAddr{*tracee.rseq + kRseqCpuId}, std::as_writable_bytes(std::span(&cpu, 1))))
    return cpu;
  return cpu_from_stat(tracee);
}

void read_comm(Tracee& tracee) {
  const UniqueFd fd(::open(task_path(tracee, "comm").c_str(), O_RDONLY | O_CLOEXEC));
  char text[64];
  const ssize_t n = fd ? ::read(fd.get(), text, sizeof text) : 0;
  if (n <= 0) return;
  std::size_t size = static_cast<std::size_t>(n);
  if (text[size - 1] == '\n') --size;
  size = std::min(size, sizeof tracee.comm - 1);
  std::memset(tracee.comm, 0, sizeof tracee.comm);
  std::memcpy(tracee.comm, text, size);
}

}  // namespace

void CpuFollower::hit_on(std::uint32_t cpu) {
  if (cpu == pinned_) {
    streak_ = 0;
    return;
  }
  streak_ = cpu == candidate_ ? streak_ + 1 : 1;
  candidate_ = cpu;
  if (streak_ < kFollowAfter || cpu >= CPU_SETSIZE) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  // The tracee may be confined to CPUs that we are not allowed on: then we stay where we are.
  if (sched_setaffinity(0, sizeof set, &set) == 0) pinned_ = cpu;
  streak_ = 0;
}

void CpuFollower::idle() {
  if (pinned_ == ~0u) return;
  cpu_set_t set;
  std::memset(&set, 0xff, sizeof set);  // the kernel takes away what our cpuset doesn't allow
  sched_setaffinity(0, sizeof set, &set);
  pinned_ = ~0u;
  streak_ = 0;
}

HitRecorder::Hit HitRecorder::begin(Tracee& tracee, const ptrace::Registers& regs, TargetMemory& memory) {
  const auto now = std::chrono::steady_clock::now();
  if (now - tracee.comm_read > kCommAge) {
    read_comm(tracee);
    tracee.comm_read = now;
  }
  const std::uint32_t cpu = current_cpu(tracee, memory);
  follower_.hit_on(cpu);
  return {tracee, regs, memory, cpu, now_ns()};
}

bool HitRecorder::send(const Hit& hit, ProbeProgram& program, std::span<const std::byte> packed) {
  events::RecordHeader header;
  header.probe = program.id;
  header.pid = hit.tracee.process->id.pid;
  header.tid = hit.tracee.tid;
  header.cpu = hit.cpu;
  header.time = hit.time;
  header.ip = hit.regs.pc();
  std::memcpy(header.comm, hit.tracee.comm, sizeof header.comm);
  if (!sink_.queue.push(header, packed)) return false;
  if (sink_.queue.take_wakeup()) {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = ::write(sink_.bell, &one, sizeof one);  // only fails when it is ringing already
  }
  return true;
}

bool HitRecorder::run(const Hit& hit, ProbeProgram& program) {
  if (program.limit && program.limit->remaining == 0) return false;
  if (program.needs_comm) read_comm(hit.tracee);
  const events::CommonFields common{hit.tracee.process->id.pid, hit.tracee.tid, hit.cpu, hit.tracee.comm};
  const std::size_t size = program.fetch.run(hit.regs, hit.memory, common, packed_);
  const std::span<const std::byte> packed(packed_.data(), size);
  if (program.filter && !program.filter->matches(packed, common)) {
    program.counters.filtered.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  program.counters.hits.fetch_add(1, std::memory_order_relaxed);
  if (program.streaming.load(std::memory_order_relaxed) && !send(hit, program, packed))
    program.counters.missed.fetch_add(1, std::memory_order_relaxed);
  return program.limit && --program.limit->remaining == 0;
}

}  // namespace probed::tracer
