// The targets of a soak. One stands from beginning to end and counts its own calls, so that a probe's can be compared
// with them; beside it runs a guest that ends by design and is followed by one of another kind.
//
// Thread: the soak's own.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/live/probing.hpp"
#include "tests/soak/ledger.hpp"

namespace probed::soak {

// A target has died, hangs or computes something else: whatever happened to the daemon, that must not be.
struct TargetLost : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// tests/targets/soaked.c
class Standing {
 public:
  static constexpr unsigned kThreads = 2;
  Standing();
  pid_t pid() const { return watched_.pid(); }
  bool running() { return watched_.target.running(); }

  struct Rounds {
    std::uint64_t all = 0, first = 0;
  };
  Rounds pause();  // throws TargetLost when it doesn't answer, or has computed something else
  void resume();
  bool paused() const { return paused_; }
  live::Watched& watched() { return watched_; }
  // Its last word; "" when that is right.
  std::string finish();

 private:
  std::string ask(const std::string& command);
  live::Watched watched_{"soaked", {std::to_string(kThreads)}};
  bool paused_ = false;
};

// What a guest is, and what can be probed in it.
struct Kind {
  const char* name;
  std::vector<std::string> arguments;
  std::string input;  // all of it, at once
  std::vector<std::string> definitions;
};

class Fleet {
 public:
  explicit Fleet(Ledger& ledger, Dice& dice);
  Standing& standing() { return *standing_; }
  pid_t guest() const { return guest_->pid(); }
  const Kind& guest_kind() const { return *kind_; }

  // A guest that has ended is judged and followed by the next; a standing target that is gone is reported and replaced.
  void tend();
  // Everybody is alive, computes, has its own text and no tracer: nothing of a dead daemon is left.
  void verify_recovered();
  void lost(const std::string& what);  // reports it and begins with a new one
  // The standing target ends now, is judged, and followed by another.
  void renew();
  // All end now, and are judged.
  void finish();

 private:
  void start_guest();
  void judge_standing();
  void judge_guest(const live::TargetReport& report);
  void verify_text(pid_t pid, const char* which);
  void verify_standing();

  Ledger& ledger_;
  Dice& dice_;
  std::unique_ptr<Standing> standing_;
  std::unique_ptr<live::Target> guest_;
  const Kind* kind_ = nullptr;
  std::vector<const Kind*> deck_;
};

// Of the executable memory that belongs to no file, KiB.
long injected_kb(pid_t pid);

}  // namespace probed::soak
