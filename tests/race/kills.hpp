// What the tests that kill daemons share.
//
// PROBED_TEST_SEED=N repeats a run; PROBED_TEST_KILLS=N says how often.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/live/probing.hpp"
#include "tests/race/environment.hpp"

namespace probed::live {

unsigned kills(unsigned otherwise);

struct Mode {
  const char* name;
  bool optimize;
  std::vector<std::string> definitions;
  Json options;
  std::vector<std::string> program = {"counter", "3", "0"};
  std::string last_word = "stop";
};

// Sends a process signals that carry values from 1 on, without losing any.
class Sender {
 public:
  explicit Sender(pid_t pid, std::chrono::microseconds pause = std::chrono::microseconds(20));
  ~Sender() { sent(); }
  // Ends it; how many there were.
  int sent();
  static int signal();

 private:
  void run(pid_t pid, std::chrono::microseconds pause);

  std::atomic<bool> stop_ = false;
  int sent_ = 0;
  std::thread thread_;
};

// One of the sets in /proc/PID/status, of the main thread; 0: it has ended.
std::uint64_t signals_of(pid_t pid, const std::string& name);
// What the main thread blocks, but for the signal whose handler it may be in.
std::uint64_t blocked_but(pid_t pid, int handled);

// A daemon that has its guard and takes clients.
std::unique_ptr<Process> start_daemon(const std::string& socket);
bool has_journals(const std::string& state);
// What a killed guard has left undone.
void recover(const std::string& socket);
// The guard has done its work: nobody traces the target, its text is whole, and it runs. False: it doesn't, or has
// computed something else.
bool is_unharmed(Target& target, const std::string& state);

}  // namespace probed::live
