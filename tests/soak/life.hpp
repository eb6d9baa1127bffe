// One daemon's life: started on the directory that the one before has left, looked at while it lives, and ended.
//
// Thread: the soak's own; the sampler and the killer have one each.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "tests/live/probing.hpp"
#include "tests/soak/ledger.hpp"

namespace probed::soak {

// A daemon with a socket and a state directory that outlive it.
class Daemon {
 public:
  explicit Daemon(const std::string& directory);  // listening when this returns
  const std::string& socket() const { return socket_; }
  pid_t pid() const { return process_->pid(); }
  pid_t guard() const { return guard_; }
  live::Process& process() { return *process_; }

 private:
  std::string socket_;
  std::unique_ptr<live::Process> process_;
  pid_t guard_ = 0;
};

std::string socket_in(const std::string& directory);
std::string state_in(const std::string& directory);
// What targets need so that they can be put right; none: all are.
bool has_journals(const std::string& directory);

// Looks at a daemon's probes every few milliseconds, so that something is known of its hits when it is killed.
class Sampler {
 public:
  explicit Sampler(const std::string& socket);
  ~Sampler() { stop(); }
  void stop();
  std::map<std::string, std::uint64_t> hits() const { return hits_; }  // by tier; once stopped

 private:
  void run(const std::string& socket);
  void take(const Json& probes);
  std::atomic<bool> stop_{false};
  std::map<std::string, std::uint64_t> hits_;
  std::map<std::uint64_t, std::uint64_t> last_;  // by probe
  std::thread thread_;
};

// Kills a daemon, and whoever it is asked to with it, at its moment, which is not the soak's to wait for.
class Killer {
 public:
  Killer(const Daemon& daemon, live::Killed whom, Micros delay);
  ~Killer() { join(); }
  bool fired() const { return fired_; }
  void join();

 private:
  std::atomic<bool> fired_{false};
  std::thread thread_;
};

struct Size {
  long rss_kb = 0, fds = 0, threads = 0;
};
Size size_of(pid_t pid);

}  // namespace probed::soak
