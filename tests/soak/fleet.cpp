// See fleet.hpp.
#include "tests/soak/fleet.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <sstream>

namespace probed::soak {
namespace {

// A target never rests; the daemon and the soak go first where it would keep them from a processor.
void be_nice(const live::Target& target) { ::setpriority(PRIO_PROCESS, static_cast<id_t>(target.pid()), 5); }

constexpr Millis kAnswer{30'000};  // for a target that shares two processors with all of this

std::string returns_input() {
  std::string input = "start\n";
  for (const char* command : {"fib 14", "throw 6", "jump 5", "sigjump", "threads 3000", "leave 3", "cancel",
                              "coroutines 40", "tail 3", "eight 2000", "children 8", "fib 12"})
    for (int i = 0; i < 3; ++i) input += std::string(command) + "\n";
  return input + "rest\nquit\n";
}

// Each is sound under a killed daemon, too: what LIMITS.md says is not saved then (signals that several threads were
// stopped for, code that the program moves, arguments behind bad pointers, children without their parent's signal
// handlers) is for actions that let the daemon live.
const std::vector<Kind>& kinds() {
  static const std::vector<std::string> work = {"work", "work a=$arg1:s32 s=+0($arg3):string",
                                                "r:back work ret=$retval:s32"};
  static const std::vector<Kind> all = {
      {"counter", {"2", "30000", "20"}, "go\n", {"work", "shape_*", "r:back work"}},
      {"counter-nopie", {"2", "30000", "20"}, "go\n", {"work", "shape_*"}},
      {"counter-static", {"2", "30000", "20"}, "go\n", {"work", "shape_*"}},
      {"forker", {"20"}, "go\n", work},
      {"threads", {"2000"}, "go\n", work},
      {"lifecycle", {"threads", "100"}, "go\n", work},
      {"lifecycle", {"vfork", "20"}, "go\n", work},
      {"lifecycle", {"exec", "20"}, "go\n", work},
      {"lifecycle", {"leader", "60"}, "go\n", work},
      {"lifecycle", {"exits", "40"}, "go\n", work},
      {"returns",
       {},
       returns_input(),
       {"r:a fib ret=$retval:s64", "r:b add", "r:c counted", "r:d step", "fib n=$arg1:s64", "catcher"}},
  };
  return all;
}

// What `returns` answers, without the line that has its pid.
std::string answers(const std::string& out) { return out.substr(out.find('\n') + 1); }

// Nobody traced this one.
const std::string& answers_untraced() {
  static const std::string reference = [] {
    live::Target target("returns");
    target.send(returns_input());
    return answers(target.finish().out);
  }();
  return reference;
}

std::string described(const live::TargetReport& report) {
  std::ostringstream out;
  out << report.exit << ", \"" << report.out.substr(0, 300) << "\"";
  return out.str();
}

}  // namespace

// ---- standing -------------------------------------------------------------------------------------------------------

Standing::Standing() {
  be_nice(watched_.target);
  watched_.target.go();
  if (!watched_.runs_threads(1 + kThreads)) throw TargetLost("the standing target did not start its threads");
}

std::string Standing::ask(const std::string& command) {
  watched_.target.send(command + "\n");
  const auto line = watched_.target.next_line(kAnswer);
  if (line) return *line;
  std::ostringstream what;
  what << "the standing target did not answer \"" << command << "\": " << watched_.target.wait(Millis{0}) << ' '
       << watched_.target.errors();
  throw TargetLost(what.str());
}

Standing::Rounds Standing::pause() {
  std::istringstream words(ask("pause"));
  std::string word;
  Rounds rounds;
  std::uint64_t wrong = 1;
  words >> word >> rounds.all >> rounds.first >> wrong;
  paused_ = true;
  if (wrong != 0) throw TargetLost("the standing target computed something else: " + watched_.target.errors());
  return rounds;
}

void Standing::resume() {
  if (!paused_) return;
  ask("resume");
  paused_ = false;
}

std::string Standing::finish() {
  watched_.target.send("quit\n");
  const live::TargetReport report = watched_.target.finish();
  return report.ok() ? "" : described(report);
}

// ---- fleet ----------------------------------------------------------------------------------------------------------

Fleet::Fleet(Ledger& ledger, Dice& dice) : ledger_(ledger), dice_(dice), standing_(std::make_unique<Standing>()) {
  ++ledger_.figures.targets;
  answers_untraced();
  start_guest();
}

void Fleet::start_guest() {
  if (deck_.empty()) {
    for (const Kind& kind : kinds()) deck_.push_back(&kind);
    dice_.shuffle(deck_);
  }
  kind_ = deck_.back();
  deck_.pop_back();
  guest_ = std::make_unique<live::Target>(kind_->name, kind_->arguments);
  be_nice(*guest_);
  guest_->send(kind_->input);
  ++ledger_.figures.targets;
}

void Fleet::judge_guest(const live::TargetReport& report) {
  const bool right =
      report.ok() && (std::string(kind_->name) != "returns" || answers(report.out) == answers_untraced());
  ++ledger_.figures.targets_ended;
  if (right) return;
  std::string name = kind_->name;
  for (const std::string& argument : kind_->arguments) name += " " + argument;
  ledger_.fail(report.exit.signal != 0 ? Wrong::target_lost : Wrong::result, name + " to end with its results right",
               described(report) + " " + guest_->errors());
}

void Fleet::tend() {
  if (!standing_->running()) lost("the standing target has ended by itself");
  if (guest_->running()) return;
  judge_guest(guest_->finish());
  start_guest();
}

void Fleet::lost(const std::string& what) {
  ledger_.fail(Wrong::target_lost, "every target to live and compute", what);
  standing_ = std::make_unique<Standing>();
  ++ledger_.figures.targets;
}

void Fleet::verify_text(pid_t pid, const char* which) {
  std::string harm;
  const auto unharmed = [&] {
    const pid_t tracer = live::tracer_of(pid);
    harm = tracer > 0 ? "traced by " + std::to_string(tracer) : "";
    if (tracer == 0) harm = live::joined(live::text_differences(pid));
    return harm.empty();
  };
  if (!live::eventually(unharmed))
    ledger_.fail(Wrong::leak, std::string("the ") + which + " target's text to be its files' and nobody to trace it",
                 harm);
}

// Only bytes, descriptors and signals: the memory that a killed daemon has mapped stays, and so does the descriptor of
// it, should the daemon die between its making and its closing (LIMITS.md).
void Fleet::verify_standing() {
  const live::TargetState& before = standing_->watched().before;
  const auto strange = [&] {
    const live::TargetState now = live::state_of(standing_->pid());
    std::string out = now.signals == before.signals ? "" : now.signals;
    for (const std::string& fd : now.fds)
      if (!before.fds.contains(fd) && fd.find("/memfd:") == fd.npos) out += fd + " ";
    for (const std::string& fd : before.fds)
      if (!now.fds.contains(fd)) out += "no " + fd + " ";
    return out;
  };
  if (!live::eventually([&] { return strange().empty(); }))
    ledger_.fail(Wrong::leak, "the standing target's descriptors and signals as they were: " + before.signals,
                 strange());
}

void Fleet::verify_recovered() {
  try {
    standing_->resume();
    verify_text(standing_->pid(), "standing");
    verify_standing();
    standing_->pause();
    standing_->resume();
  } catch (const TargetLost& loss) {
    lost(loss.what());
  }
  // It may end, or execute another program, at any moment.
  if (guest_->running()) verify_text(guest_->pid(), kind_->name);
  tend();
}

void Fleet::judge_standing() {
  try {
    ledger_.figures.rounds += standing_->pause().all;
    ledger_.figures.left_kb += injected_kb(standing_->pid());
    const live::TargetState now = live::state_of(standing_->pid());
    ledger_.figures.left_fds += static_cast<unsigned>(
        std::ranges::count_if(now.fds, [](const std::string& fd) { return fd.find("/memfd:") != fd.npos; }));
    ++ledger_.figures.targets_ended;
    const std::string wrong = standing_->finish();
    if (!wrong.empty()) ledger_.fail(Wrong::result, "the standing target to end with its results right", wrong);
  } catch (const TargetLost& loss) {
    ledger_.fail(Wrong::target_lost, "the standing target to end by itself", loss.what());
  }
}

void Fleet::renew() {
  judge_standing();
  standing_ = std::make_unique<Standing>();
  ++ledger_.figures.targets;
}

void Fleet::finish() {
  judge_guest(guest_->finish(Millis{120'000}));
  judge_standing();
}

long injected_kb(pid_t pid) {
  long bytes = 0;
  for (const std::string& line : live::state_of(pid).injected_mappings) {
    unsigned long start = 0, end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx", &start, &end) == 2) bytes += static_cast<long>(end - start);
  }
  return bytes / 1024;
}

}  // namespace probed::soak
