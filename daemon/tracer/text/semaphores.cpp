// The semaphores of static probes (USDT): counters of 16 bits in the target's data that are above 0 while somebody
// listens. See address_space.hpp.
//
// Owning thread: the tracer thread. The program runs on meanwhile: it only reads them. Other tracers add to them and
// take away as we do (the kernel: kernel/events/uprobes.c, __update_ref_ctr), so a value is changed by one and never
// set; what can't be ours, or isn't there any more, is left alone.
#include <algorithm>

#include "daemon/tracer/text/address_space.hpp"

namespace probed::tracer {
namespace {

std::optional<std::uint16_t> read_counter(const TargetMemory& memory, RemoteAddr at) {
  std::uint16_t value = 0;
  const auto bytes = std::as_writable_bytes(std::span(&value, 1));
  return memory.read_some(at, bytes) == bytes.size() ? std::optional(value) : std::nullopt;
}

void write_counter(TargetMemory& memory, RemoteAddr at, std::uint16_t value) {
  memory.write(at, std::as_bytes(std::span(&value, 1)));
}

// Whether the counter's memory is still what it was when the probe was planned, for this process alone.
bool still_there(const Layout& layout, RemoteAddr at, const symbols::Backing& backing) {
  if (!layout.known()) return true;
  const symbols::Mapping* mapping = layout.at(at);
  return mapping && mapping->writable && !mapping->shared && mapping->backing(at) == backing;
}

}  // namespace

// Each program that is enabled at an armed site counts once.
void AddressSpace::settle_semaphores(Site& site, const Layout& layout) {
  std::vector<RemoteAddr> wanted;
  for (const ProgramPtr& program : site.programs) {
    if (!site.armed || !program->enabled || !program->semaphore) continue;
    wanted.push_back(program->semaphore);
    semaphores_.try_emplace(program->semaphore, Semaphore{program->semaphore_backing, 0, 0});
  }
  if (wanted == site.raised) return;
  std::map<RemoteAddr, int> change;
  for (const RemoteAddr at : wanted) ++change[at];
  for (const RemoteAddr at : site.raised) --change[at];
  for (const auto& [at, by] : change)
    for (int i = 0; i != by; i += by > 0 ? 1 : -1) move_semaphore(at, by > 0, layout);
  site.raised = std::move(wanted);
}

void AddressSpace::move_semaphore(RemoteAddr at, bool up, const Layout& layout) {
  Semaphore& semaphore = semaphores_.at(at);
  if (up) {
    ++semaphore.ours;
    semaphore.most = std::max(semaphore.most, semaphore.ours);
  } else if (semaphore.ours > 0) {
    --semaphore.ours;
  }
  const auto now = still_there(layout, at, semaphore.backing) ? read_counter(memory_, at) : std::nullopt;
  if (!now || (!up && *now == 0) || (up && *now == 0xffff)) return;
  const auto value = static_cast<std::uint16_t>(up ? *now + 1 : *now - 1);
  if (journal()) journal()->begin_semaphore(at, semaphore.backing, semaphore.ours, value);
  write_counter(memory_, at, value);
  if (journal()) journal()->end_semaphore(at);
}

// In a copy of this memory that nobody runs in: the counters are to be what this memory's are, without our part unless
// `keep`. What lies between the fork and now is in the difference, which is never more than what was ever ours.
void AddressSpace::clean_semaphores(TargetMemory& copy, const Layout& layout, bool keep) const {
  for (const auto& [at, semaphore] : semaphores_) {
    if (!still_there(layout, at, semaphore.backing)) continue;
    const auto here = read_counter(memory_, at), there = read_counter(copy, at);
    if (!here || !there || *here < semaphore.ours) continue;
    const int wanted = keep ? *here : *here - semaphore.ours;
    const int excess = *there - wanted;
    if (excess == 0 || excess > semaphore.most || -excess > semaphore.most) continue;
    write_counter(copy, at, static_cast<std::uint16_t>(wanted));
  }
}

}  // namespace probed::tracer
