// See return_stacks.hpp.
#include "daemon/tracer/calls/return_stacks.hpp"

#include <limits>
#include <utility>

namespace probed::tracer {
namespace {

constexpr std::size_t kMostCalls = 1 << 20;  // some 150 bytes each
constexpr std::size_t kMostPresumed = 1 << 16;
constexpr std::size_t kMostSpare = 1024;

}  // namespace

ReturnStacks::ReturnStacks(const ReturnStacks& other)
    : calls_(other.calls_), presumed_(other.presumed_), active_(other.active_) {
  for (auto& [key, call] : calls_) call.tid = 0;
}

std::uint32_t ReturnStacks::active(const ReturnProbe& probe) const {
  const auto it = active_.find(&probe);
  return it == active_.end() ? 0 : it->second;
}

void ReturnStacks::keep_spare(Calls::node_type node) {
  if (spare_.size() < kMostSpare) spare_.push_back(std::move(node));
}

void ReturnStacks::note_abandoned(const Activation& call) {
  if (!counts(call)) return;
  call.probe->abandoned.fetch_add(1, std::memory_order_relaxed);
  --active_[call.probe.get()];
}

// Returns the next one.
ReturnStacks::Calls::iterator ReturnStacks::presume(Calls::iterator call) {
  const auto next = std::next(call);
  note_abandoned(call->second);
  auto node = calls_.extract(call);
  if (presumed_.size() >= kMostPresumed) presumed_.erase(presumed_.begin());
  if (auto inserted = presumed_.insert(std::move(node)); !inserted.inserted) {
    inserted.position->second = std::move(inserted.node.mapped());
    keep_spare(std::move(inserted.node));
  }
  return next;
}

// itself: also what was entered at the place.
void ReturnStacks::presume_below(const StackPlace& place, Itself itself) {
  const std::uint64_t end = place.slot + (itself == Itself::yes ? 1 : 0);
  auto call = calls_.lower_bound(Key{place.stack, place.lowest, nullptr});
  while (call != calls_.end() && call->first.stack == place.stack && call->first.slot < end) {
    const pid_t tid = call->second.tid;
    const bool others = place.stack == 0 && tid != 0 && place.tid != 0 && tid != place.tid;
    call = others ? std::next(call) : presume(call);
  }
}

Activation* ReturnStacks::enter(const std::shared_ptr<ReturnProbe>& probe, const StackPlace& place,
                                std::uint64_t return_address) {
  presume_below(place, Itself::no);
  const Key key{place.stack, place.slot, probe.get()};
  if (auto stale = presumed_.extract(key)) keep_spare(std::move(stale));
  auto it = calls_.find(key);
  if (it != calls_.end()) {
    if (probe->loops_to_entry && it->second.return_address == return_address) return nullptr;
    note_abandoned(it->second);
  } else {
    if (calls_.size() >= kMostCalls) return nullptr;
    if (spare_.empty()) {
      it = calls_.try_emplace(key).first;
    } else {
      auto node = std::move(spare_.back());
      spare_.pop_back();
      node.key() = key;
      it = calls_.insert(std::move(node)).position;
    }
  }
  Activation& call = it->second;
  call.kind = Activation::Kind::going_on;
  call.probe = probe;
  call.return_address = return_address;
  call.kept.clear();
  ++active_[probe.get()];
  return &call;
}

void ReturnStacks::reject(Activation& call, Activation::Kind why) {
  call.kind = why;
  --active_[call.probe.get()];
}

const Activation* ReturnStacks::leave(const ReturnProbe& probe, const StackPlace& place, std::uint64_t return_address) {
  const Key key{place.stack, place.slot, &probe};
  auto node = calls_.extract(key);
  const bool presumed = !node;
  if (presumed) node = presumed_.extract(key);
  // Others that were entered there have been left without us, or are about to return, which takes that back.
  presume_below(place, Itself::yes);
  if (!node) return nullptr;
  const bool same = node.mapped().return_address == return_address;
  if (!presumed && same && counts(node.mapped())) --active_[&probe];
  if (!presumed && !same) note_abandoned(node.mapped());
  if (presumed && same && counts(node.mapped())) node.mapped().probe->abandoned.fetch_sub(1, std::memory_order_relaxed);
  std::swap(left_, node.mapped());
  keep_spare(std::move(node));
  return same ? &left_ : nullptr;
}

void ReturnStacks::take_over(std::uint64_t slot, Activation call, bool left) {
  const Key key{0, slot, call.probe.get()};
  if (auto stale = presumed_.extract(key)) keep_spare(std::move(stale));
  if (auto before = calls_.extract(key)) {
    if (before.mapped().tid != call.tid && before.mapped().time > call.time) {
      if (counts(call)) call.probe->abandoned.fetch_add(1, std::memory_order_relaxed);
      calls_.insert(std::move(before));
      return;
    }
    note_abandoned(before.mapped());
    keep_spare(std::move(before));
  }
  if (calls_.size() >= kMostCalls) return;
  if (counts(call)) ++active_[call.probe.get()];
  const auto it = calls_.emplace(key, std::move(call)).first;
  if (left) presume(it);
}

void ReturnStacks::thread_ended(pid_t tid) {
  for (auto call = calls_.begin(); call != calls_.end();)
    call = call->second.tid == tid ? presume(call) : std::next(call);
}

void ReturnStacks::program_ended() {
  for (const auto& [key, call] : calls_) note_abandoned(call);
  forget_all();
}

void ReturnStacks::forget(const ReturnProbe& probe) {
  const auto is_its = [&](const auto& entry) { return entry.first.probe == &probe; };
  std::erase_if(calls_, is_its);
  std::erase_if(presumed_, is_its);
  active_.erase(&probe);
}

void ReturnStacks::forget_all() {
  calls_.clear();
  presumed_.clear();
  active_.clear();
}

}  // namespace probed::tracer
