// See life.hpp.
#include "tests/soak/life.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <iterator>
#include <sstream>
#include <stdexcept>

namespace probed::soak {

namespace fs = std::filesystem;

std::string socket_in(const std::string& directory) { return directory + "/s"; }
std::string state_in(const std::string& directory) { return directory + "/s.state"; }

bool has_journals(const std::string& directory) {
  std::error_code error;
  const auto is_journal = [](const auto& entry) { return entry.path().extension() == ".journal"; };
  return std::ranges::any_of(fs::directory_iterator(state_in(directory), error), is_journal);
}

Daemon::Daemon(const std::string& directory) : socket_(socket_in(directory)) {
  std::array<int, 2> ready{};
  if (::pipe2(ready.data(), O_CLOEXEC) != 0) throw std::runtime_error("pipe2 failed");
  UniqueFd read(ready[0]), write(ready[1]);
  live::SpawnOptions options;
  options.pass_fds = {write.get()};
  process_ = std::make_unique<live::Process>(
      std::vector<std::string>{live::required_environment("PROBED_BIN"), "--socket", socket_, "--ready-fd", "3",
                               "--max-rate", "0", "--log-level", "warn"},
      options);
  write.reset();
  pollfd wait{read.get(), POLLIN, 0};
  char byte = 0;
  const auto patience = static_cast<int>(live::scaled(Millis{30'000}).count());
  if (::poll(&wait, 1, patience) != 1 || ::read(read.get(), &byte, 1) != 1)
    throw std::runtime_error("probed did not get ready: " + process_->errors());
  guard_ = live::guard_of(state_in(directory));
}

// ---- sampler --------------------------------------------------------------------------------------------------------

Sampler::Sampler(const std::string& socket) : thread_([this, socket] { run(socket); }) {}

void Sampler::stop() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

void Sampler::run(const std::string& socket) try {
  live::RpcClient client(socket);
  while (!stop_) {
    const Json reply = client.request("probe.list");
    if (reply.is_null()) return;
    if (reply.contains("result")) take(reply.at("result").at("probes"));
    std::this_thread::sleep_for(Millis{15});  // a look now and then, not a condition
  }
} catch (const std::exception&) {  // its daemon has been killed
}

void Sampler::take(const Json& probes) {
  for (const Json& probe : probes) {
    const std::uint64_t hits = probe.at("hits");
    std::uint64_t& last = last_[probe.at("id")];
    std::string tier = probe.at("tier");
    if (probe.at("kind") == "r") tier = "return, " + tier;
    constexpr std::uint64_t kMost = 1'000'000'000;  // in a moment; more is what somebody scribbled over its counters
    if (hits > last && hits - last < kMost) hits_[tier] += hits - last;
    last = hits;
  }
}

// ---- killer ---------------------------------------------------------------------------------------------------------

Killer::Killer(const Daemon& daemon, live::Killed whom, Micros delay)
    : thread_([this, pid = daemon.pid(), guard = daemon.guard(), whom, delay] {
        std::this_thread::sleep_for(delay);  // a random moment is the point
        fired_ = true;
        live::kill_daemon(pid, whom, guard);
      }) {}

void Killer::join() {
  if (thread_.joinable()) thread_.join();
}

Size size_of(pid_t pid) {
  const std::string proc = "/proc/" + std::to_string(pid) + "/";
  const auto entries = [&](const char* name) {
    std::error_code gone;
    fs::directory_iterator begin(proc + name, gone), end;
    return static_cast<long>(std::distance(begin, end));
  };
  Size size{0, entries("fd"), entries("task")};
  std::istringstream status(live::read_file(proc + "status"));
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmRSS:")) size.rss_kb = std::atol(line.c_str() + 6);
  return size;
}

}  // namespace probed::soak
