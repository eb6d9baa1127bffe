// The rig's mappings and its fault handler.
#include "tests/arch/detour/rig.hpp"

#include <sys/mman.h>
#include <sys/rseq.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "daemon/lang/definition.hpp"
#include "daemon/lang/filter.hpp"
#include "tests/arch/detour/rig_cpu.hpp"

namespace probed::test {
namespace {

namespace native = arch::native;

// Where to go on, by the address of the load. Only added to while no thread faults.
std::map<std::uint64_t, std::uint64_t> g_fixups;
std::atomic<unsigned> g_faults{0};
std::mutex g_tracer;  // lanes come and go on one thread only, in the daemon
thread_local events::LaneId t_lane = events::LaneId::shared;

void on_fault(int signal, siginfo_t*, void* context) {
  auto& interrupted = *static_cast<ucontext_t*>(context);
  const auto row = g_fixups.find(pc_of(interrupted));
  if (row == g_fixups.end()) {
    std::fprintf(stderr, "rig: signal %d at %llx\n", signal, static_cast<unsigned long long>(pc_of(interrupted)));
    std::signal(signal, SIG_DFL);
    return;
  }
  set_pc(interrupted, row->second);
  g_faults.fetch_add(1, std::memory_order_relaxed);
}

void handle_faults() {
  struct sigaction action {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  ::sigaction(SIGSEGV, &action, nullptr);
  ::sigaction(SIGBUS, &action, nullptr);
}

[[noreturn]] void give_up(const std::string& why) {
  std::fprintf(stderr, "rig: %s\n", why.c_str());
  std::abort();
}

void* must_map(void* at, std::size_t size, int protection, int flags, int fd) {
  void* const p = ::mmap(at, size, protection, flags, fd, 0);
  if (p == MAP_FAILED) give_up("mmap");
  return p;
}

// Byte by byte: QEMU 7.2 has been seen to go on with what it had translated of older code where memcpy had written over
// that, whose stores aren't aligned.
void write_code(std::uint64_t at, std::span<const std::uint8_t> code) {
  auto* const to = reinterpret_cast<char*>(at);
  for (std::size_t i = 0; i < code.size(); ++i) const_cast<volatile char*>(to)[i] = static_cast<char>(code[i]);
  __builtin___clear_cache(to, to + code.size());
}

template <class T>
T must(Result<T> result) {
  if (!result) give_up(result.error().message);
  return std::move(*result);
}

}  // namespace

Rig::Rig(const RigOptions& options) {
  handle_faults();
  channel_ = must(events::Channel::create(options.channel));
  const std::size_t channel_size = channel_->layout().size;
  const int place = MAP_PRIVATE | MAP_ANONYMOUS | (options.code != 0 ? MAP_FIXED_NOREPLACE : 0);
  // One reservation for both, so that they are near each other.
  const std::size_t size = kCodeSize + (options.far_channel ? 0 : channel_size);
  auto* const area = static_cast<std::byte*>(
      must_map(reinterpret_cast<void*>(options.code), size, PROT_READ | PROT_WRITE | PROT_EXEC, place, -1));
  void* const near = options.far_channel ? nullptr : area + kCodeSize;
  target_view_ = static_cast<std::byte*>(must_map(near, channel_size, PROT_READ | PROT_WRITE,
                                                  MAP_SHARED | (near != nullptr ? MAP_FIXED : 0), channel_->memfd()));
  if (options.far_channel && std::abs(target_view_ - area) < 3l << 30) give_up("the channel is not far away");
  code_ = next_code_ = reinterpret_cast<std::uint64_t>(area);
  std::array<std::uint8_t, 4096> traps;
  for (std::size_t i = 0; i < traps.size(); i += native::kBreakpointSize)
    std::ranges::copy(native::kBreakpoint, traps.begin() + static_cast<std::ptrdiff_t>(i));
  for (std::size_t i = 0; i < kCodeSize; i += traps.size()) std::memcpy(area + i, traps.data(), traps.size());
  channel_->set_base({reinterpret_cast<std::uint64_t>(target_view_)});

  const auto built = native::build_runtime(next_code_, channel_->places(), options.features);
  if (built.refusal != arch::DetourRefusal::none) give_up(std::string(arch::describe(built.refusal)));
  runtime_ = built.runtime;
  write_code(code_, built.code);
  for (const arch::DetourFixup& f : built.fixups) g_fixups[code_ + f.fault] = code_ + f.resume;
  reserve(built.code.size());
}

Rig::~Rig() {
  ::munmap(reinterpret_cast<void*>(code_), kCodeSize);
  ::munmap(target_view_, channel_->layout().size);
  g_fixups.clear();
}

std::uint64_t Rig::reserve(std::size_t size) {
  const std::uint64_t at = next_code_;
  next_code_ = (next_code_ + size + 63) & ~63ull;
  if (next_code_ > code_ + kCodeSize) give_up("no more room for code");
  return at;
}

std::uint64_t Rig::place(std::span<const std::uint8_t> code) {
  const std::uint64_t at = reserve(code.size());
  write_code(at, code);
  return at;
}

Compiled Rig::compile(const Definition& definition) {
  auto parsed = must(lang::parse_definition("p:t 0x1000 " + definition.arguments));
  if (definition.change) std::ranges::for_each(parsed.args, definition.change);
  Compiled out{must(events::FetchProgram::compile(parsed.args, {})), {}, {}};
  if (!definition.filter.empty()) out.filter = must(lang::Filter::compile(definition.filter, parsed.args));
  out.plan = must(events::plan_detour(out.program, out.filter, ::getpid()));
  return out;
}

arch::DetourResult Rig::build(std::uint64_t site, std::size_t region, std::span<const arch::CapturedProbe> probes) {
  const std::span bytes(reinterpret_cast<const std::uint8_t*>(site), region);
  std::vector<arch::Insn> insns;
  for (std::size_t at = 0; at < region; at += insns.back().length) {
    insns.push_back(native::decode(bytes.subspan(at), site + at));
    if (insns.back().length == 0) give_up("the region is no code");
  }
  detour_address_ = next_code_;
  return native::build_detour({site, bytes, insns, detour_address_, probes}, runtime_, detour_);
}

arch::DetourResult Rig::stage(std::uint64_t site, std::size_t region, std::span<const arch::CapturedProbe> probes) {
  const auto result = build(site, region, probes);
  if (!result) return result;
  g_fixups.erase(g_fixups.lower_bound(detour_address_), g_fixups.end());
  write_code(detour_address_, detour_.code);
  for (const arch::DetourFixup& f : detour_.fixups) g_fixups[detour_address_ + f.fault] = detour_address_ + f.resume;
  return result;
}

const arch::Detour& Rig::install(std::uint64_t site, std::size_t region, std::span<const arch::CapturedProbe> probes) {
  const auto result = stage(site, region, probes);
  if (!result) give_up(std::string(arch::describe(result.refusal)));
  reserve(detour_.code.size());
  write_code(site, native::detour_jump(site, detour_address_));
  return detour_;
}

void Rig::enable(std::uint32_t index, const events::DetourPlan& plan, arch::channel::ProbeFlags mode) {
  channel_->add_probe(index, plan.capture.layout);
  channel_->set_mode(index, mode);
}

bool Rig::own_lane(std::uint64_t owner) {
  const std::scoped_lock lock(g_tracer);
  const std::uint64_t tp = thread_pointer();
  const auto lane = channel_->assign(owner, tp, RemoteAddr{tp + static_cast<std::uint64_t>(__rseq_offset)});
  t_lane = lane.value_or(events::LaneId::shared);
  return lane.has_value();
}

void Rig::retire_own_lane() {
  const std::scoped_lock lock(g_tracer);
  if (t_lane != events::LaneId::shared) channel_->retire(t_lane);
  t_lane = events::LaneId::shared;
}

std::uint64_t Rig::fixup(std::uint64_t pc) {
  const auto row = g_fixups.find(pc);
  return row == g_fixups.end() ? 0 : row->second;
}

unsigned Rig::faults() { return g_faults.exchange(0); }

}  // namespace probed::test
