// See debuginfod.hpp.
#include "daemon/symbols/debuginfod.hpp"

#include <spdlog/spdlog.h>

#include <cstdlib>

#include "daemon/elf/image.hpp"

#if PROBED_HAVE_DEBUGINFOD
#include <elfutils/debuginfod.h>

#include <memory>
#endif

namespace probed::symbols {

bool Debuginfod::available() {
  const char* urls = std::getenv("DEBUGINFOD_URLS");
  return PROBED_HAVE_DEBUGINFOD && urls && *urls != '\0';
}

bool Debuginfod::refused(const std::string& id) {
  const std::lock_guard lock(mutex_);
  const auto now = Clock::now();
  if (now < servers_rest_until_) return true;
  const auto known = ask_again_.find(id);
  return known != ask_again_.end() && now < known->second;
}

void Debuginfod::note_failure(const std::string& id, bool late) {
  const std::lock_guard lock(mutex_);
  const auto now = Clock::now();
  std::erase_if(ask_again_, [now](const auto& entry) { return now >= entry.second; });
  ask_again_[id] = now + kAskAgain;
  if (!late) return;
  servers_rest_until_ = now + kServerRest;
  spdlog::warn("debuginfod: no answer for build-id {} within {} s; its servers are left alone for {} s", id,
               kLongest.count(), kServerRest.count());
}

#if PROBED_HAVE_DEBUGINFOD
namespace {

struct Limits {
  const std::atomic<bool>& stopped;
  Debuginfod::Clock::time_point until;
  bool late = false;
};

// Called some times a second (debuginfod_set_progressfn(3)); not 0: give up.
int on_progress(debuginfod_client* client, long, long) {
  auto* limits = static_cast<Limits*>(debuginfod_get_user_data(client));
  limits->late = limits->late || Debuginfod::Clock::now() >= limits->until;
  return limits->stopped || limits->late ? 1 : 0;
}

}  // namespace

UniqueFd Debuginfod::fetch(std::span<const std::byte> build_id) {
  const std::string id = elf::to_hex(build_id);
  if (id.empty() || stopped_ || refused(id)) return {};
  const std::unique_ptr<debuginfod_client, void (*)(debuginfod_client*)> client(debuginfod_begin(), debuginfod_end);
  if (!client) return {};
  Limits limits{stopped_, Clock::now() + kLongest};
  debuginfod_set_user_data(client.get(), &limits);
  debuginfod_set_progressfn(client.get(), on_progress);
  const auto* bytes = reinterpret_cast<const unsigned char*>(build_id.data());
  UniqueFd fd(debuginfod_find_debuginfo(client.get(), bytes, static_cast<int>(build_id.size()), nullptr));
  if (!fd && !stopped_) note_failure(id, limits.late);
  return fd;
}
#else
UniqueFd Debuginfod::fetch(std::span<const std::byte>) { return {}; }
#endif

}  // namespace probed::symbols
