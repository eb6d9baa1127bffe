// See workers.hpp.
#include "daemon/control/workers.hpp"

#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>
#include <thread>

#include "daemon/base/memory_limit.hpp"
#include "daemon/base/time_limit.hpp"

namespace probed::control {

// Bytes that what one user's files say may take at a time: an eighth of what this daemon may have.
static std::size_t users_memory() {
  constexpr std::uint64_t kShare = 8, kLeast = 128ull << 20, kMost = 2ull << 30;
  rlimit limit{};
  const bool limited = ::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  const std::uint64_t own = limited ? limit.rlim_cur : UINT64_MAX;
  return std::clamp(std::min(own, memory_limit(::getpid())) / kShare, kLeast, kMost);
}

// ---- whose turn it is -----------------------------------------------------------------------------------------------

void Turns::put(Job job) {
  Waiting& waiting = waiting_[job.user];
  (job.kind == Work::look ? waiting.looks : waiting.changes).push_back(std::move(job));
}

bool Turns::may_begin(uid_t user, Work kind, Clock::time_point now) const {
  const bool privileged = is_privileged(user);
  unsigned group = 0, own = 0, looks = 0;
  for (const Running& job : running_) {
    const bool same_group = is_privileged(job.user) == privileged;
    if (same_group && (privileged || now - job.since < kStuck)) ++group;
    // Root and the daemon's own user are one.
    if (privileged ? !same_group : job.user != user) continue;
    ++own;
    if (job.kind == Work::look) ++looks;
  }
  if (group >= (privileged ? kPrivileged : kUsers)) return false;
  if (!privileged && own >= kOfUser) return false;
  return kind == Work::change || looks < (privileged ? kPrivileged - 1 : kLooks);
}

std::optional<std::pair<Job, Turns::Handle>> Turns::take(Clock::time_point now) {
  // Round: from the one behind who had his turn last.
  auto at = waiting_.upper_bound(last_);
  for (std::size_t i = 0; i < waiting_.size(); ++i, ++at) {
    if (at == waiting_.end()) at = waiting_.begin();
    const uid_t user = at->first;
    for (auto* queue : {&at->second.changes, &at->second.looks}) {
      if (queue->empty() || !may_begin(user, queue->front().kind, now)) continue;
      Job job = std::move(queue->front());
      queue->pop_front();
      if (at->second.looks.empty() && at->second.changes.empty()) waiting_.erase(at);
      last_ = user;
      running_.push_back({user, job.kind, now, std::move(job.late)});
      return std::pair(std::move(job), std::prev(running_.end()));
    }
  }
  return std::nullopt;
}

// ---- threads --------------------------------------------------------------------------------------------------------

Workers::Workers() : turns_(::geteuid()) {}

Workers::~Workers() {
  std::unique_lock lock(mutex_);
  stopping_ = true;
  turns_.drop_waiting();
  more_.notify_all();
  fewer_.wait(lock, [this] { return threads_ == 0; });
}

std::size_t Workers::stop(std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  stopping_ = true;
  turns_.drop_waiting();
  more_.notify_all();
  fewer_.wait_for(lock, patience, [this] { return turns_.running().empty(); });
  return turns_.running().size();
}

void Workers::post(Job job) {
  const std::lock_guard lock(mutex_);
  if (stopping_) return;
  turns_.put(std::move(job));
  if (idle_ == 0) start_thread();
  more_.notify_one();
}

// With the lock. Detached: one that never comes back must not be waited for. Where no thread can be made, those that
// are there do the work; the first one has to be made.
void Workers::start_thread() {
  try {
    std::thread([this] { work(); }).detach();
    ++threads_;
  } catch (const std::system_error& e) {
    if (threads_ == 0) throw;
    spdlog::warn("no further thread for look-ups can be made: {}; they wait for each other", e.what());
  }
}

// One thread more than there are jobs waits here, and looks after those that don't come back.
void Workers::work() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    auto next = turns_.take(Turns::Clock::now());
    if (!next) {
      if (idle_ > 0) break;
      ++idle_;
      const bool watch = turns_.any_waits() || !turns_.running().empty();
      watch ? static_cast<void>(more_.wait_for(lock, std::chrono::seconds(1))) : more_.wait(lock);
      --idle_;
      look_for_late_ones();
      continue;
    }
    if (idle_ == 0) start_thread();
    auto share = share_of(next->first.user);
    lock.unlock();
    {
      const MemoryShare::Use use(std::move(share));
      const TimeLimit limit(turns_.is_privileged(next->first.user) ? kPrivilegedLimit : kUsersLimit);
      next->first.run();
      next->first.run = nullptr;  // what it holds ends outside of the lock
    }
    lock.lock();
    turns_.ended(next->second);
    fewer_.notify_all();
  }
  --threads_;
  fewer_.notify_all();
}

// With the lock. It lives as long as anything is charged to it.
std::shared_ptr<MemoryShare> Workers::share_of(uid_t user) {
  if (turns_.is_privileged(user)) return nullptr;
  std::erase_if(shares_, [](const auto& share) { return share.second.expired(); });
  if (auto known = shares_[user].lock()) return known;
  const auto share = std::make_shared<MemoryShare>(users_memory());
  shares_[user] = share;
  return share;
}

void Workers::look_for_late_ones() {
  constexpr std::chrono::seconds kGrace{10};  // for one that only takes long to end by itself
  const auto now = Turns::Clock::now();
  for (Turns::Running& job : turns_.running()) {
    const auto limit = turns_.is_privileged(job.user) ? kPrivilegedLimit : kUsersLimit;
    if (job.late && now - job.since > limit + kGrace) std::exchange(job.late, nullptr)();
  }
}

bool Workers::out_of_time() { return TimeLimit::passed(); }
bool Workers::out_of_memory() { return MemoryShare::refused(); }

}  // namespace probed::control
