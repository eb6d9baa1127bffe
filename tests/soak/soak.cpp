// soak [--minutes N | --kills N | --seconds N] [--seed S] [--only ACTION]: everything at once, at random, for as long
// as wanted, while daemons are killed under their targets. Prints what was done and what went wrong; exit status 1 when
// anything did.
//
// Life after life of a daemon, all with one state directory: some steps (actions.hpp), then its end, mostly SIGKILL in
// the middle of the last step, with its guard before it or alone. The next life begins when the guard has cleaned up,
// or at once, or behind `probed --recover`; then every target has to be as it was. Now and then one is long and ends by
// SIGTERM.
//
// Started by tests/soak/run, and as a test with a small budget.
#define DOCTEST_CONFIG_IMPLEMENT  // the harness refers to it
#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <optional>

#include "tests/soak/actions.hpp"

namespace probed::soak {
namespace {

struct Options {
  std::optional<unsigned> kills;
  std::optional<Clock::duration> time;
  std::uint32_t seed = std::random_device()();
  std::string only;  // no other action is survived; the others are there to be killed in
  // More is done in each life; in a short run what counts is how many daemons die.
  bool thorough() const { return time || kills.value_or(0) > 100; }
};

std::optional<Options> parse(std::span<char*> arguments) {
  Options options;
  for (std::size_t i = 1; i + 1 < arguments.size(); i += 2) {
    const std::string_view name = arguments[i];
    if (name == "--only") {
      options.only = arguments[i + 1];
      if (std::ranges::find(actions(), options.only, &Action::name) == actions().end()) return std::nullopt;
      continue;
    }
    char* end = nullptr;
    const unsigned long value = std::strtoul(arguments[i + 1], &end, 10);
    if (*end != '\0' || end == arguments[i + 1]) return std::nullopt;
    if (name == "--minutes")
      options.time = std::chrono::minutes(value);
    else if (name == "--seconds")
      options.time = std::chrono::seconds(value);
    else if (name == "--kills")
      options.kills = static_cast<unsigned>(value);
    else if (name == "--seed")
      options.seed = static_cast<std::uint32_t>(value);
    else
      return std::nullopt;
  }
  if (arguments.size() % 2 == 0) return std::nullopt;
  if (!options.kills && !options.time) options.time = std::chrono::minutes(2);
  return options;
}

// How a daemon's targets are put right when it has been killed.
enum class Recovery { by_guard, by_next, by_hand };

class Soak {
 public:
  explicit Soak(const Options& options)
      : options_(options), ledger_(options.seed), dice_(options.seed), fleet_(ledger_, dice_) {}

  bool run();

 private:
  bool done() const;
  void tell_progress();
  void one_life();
  void steps(Scene& scene, unsigned count);
  void perform(Scene& scene, const Action& action, Killer* killer);
  const Action& draw(bool may_be_killed);
  void survive(Scene& scene, const Action& action);
  void kill_in_a_step(Scene& scene);
  void end_by_term(Scene& scene, const live::TargetState& before);
  void look_for_leaks(Scene& scene, const Size& warm);
  void recover(Daemon& daemon, bool guard_was_killed);

  Options options_;
  Ledger ledger_;
  Dice dice_;
  live::TempDir directory_;
  Fleet fleet_;
  Clock::time_point began_ = Clock::now(), tell_at_ = began_ + std::chrono::minutes(1);
  unsigned renew_at_ = 40;           // kills
  bool verified_ = false;            // that nothing is left of the daemon before
  std::vector<const Action*> deck_;  // each action comes once before any comes again
};

bool Soak::done() const {
  if (options_.time && Clock::now() - began_ >= *options_.time) return true;
  return options_.kills && ledger_.figures.kills >= *options_.kills;
}

const Action& Soak::draw(bool may_be_killed) {
  for (;;) {
    if (deck_.empty()) {
      for (const Action& action : actions()) deck_.push_back(&action);
      dice_.shuffle(deck_);
    }
    const auto found = std::ranges::find_if(deck_, [&](const Action* a) {
      return may_be_killed ? a->may_be_killed : options_.only.empty() || a->name == options_.only;
    });
    if (found == deck_.end()) {
      deck_.clear();
      continue;
    }
    const Action& action = **found;
    deck_.erase(found);
    return action;
  }
}

// killer: null when this step is to be survived.
void Soak::perform(Scene& scene, const Action& action, Killer* killer) {
  ledger_.count_action(action.name);
  try {
    action.run(scene);
  } catch (const TargetLost& loss) {
    fleet_.lost(loss.what());
  } catch (const std::exception& error) {
    if (killer == nullptr || !killer->fired())
      ledger_.fail(Wrong::daemon, "the daemon to live and answer",
                   std::string(error.what()) + " " + scene.daemon.process().errors());
  }
  try {
    fleet_.standing().resume();
  } catch (const TargetLost& loss) {
    fleet_.lost(loss.what());
  }
  if (killer == nullptr && !scene.daemon.process().running())
    ledger_.fail(Wrong::daemon, "the daemon to live on", scene.daemon.process().errors());
}

void Soak::survive(Scene& scene, const Action& action) {
  if (!scene.daemon.process().running()) return;
  ledger_.begin(ledger_.figures.lives, action.name);
  perform(scene, action, nullptr);
  fleet_.tend();
}

void Soak::steps(Scene& scene, unsigned count) {
  if (dice_.one_in(2)) survive(scene, {"account", account, false});
  for (unsigned i = 0; i < count; ++i) survive(scene, draw(false));
}

void Soak::kill_in_a_step(Scene& scene) {
  const Action& action = draw(true);
  const bool guard_first = dice_.one_in(3);
  const auto whom = guard_first       ? live::Killed::with_guard
                    : dice_.one_in(2) ? live::Killed::with_tracer
                                      : live::Killed::daemon;
  constexpr std::array kWhom{", daemon killed", ", daemon and tracer killed", ", guard, daemon and tracer killed"};
  ledger_.begin(ledger_.figures.lives, std::string(action.name) + kWhom.at(static_cast<std::size_t>(whom)));
  Killer killer(scene.daemon, whom, Micros{dice_.below(120'000)});
  perform(scene, action, &killer);
  killer.join();
  ++ledger_.figures.kills;
  if (guard_first) ++ledger_.figures.guard_kills;
  const auto exit = scene.daemon.process().wait();
  if (exit != live::Exit{-1, SIGKILL})
    ledger_.fail(Wrong::daemon, "the daemon to die of SIGKILL only", scene.daemon.process().errors());
  recover(scene.daemon, guard_first);
}

void Soak::recover(Daemon& daemon, bool guard_was_killed) {
  const auto how = dice_.one_in(2) ? Recovery::by_next : guard_was_killed ? Recovery::by_hand : Recovery::by_guard;
  const pid_t guard = daemon.guard();
  verified_ = how != Recovery::by_next;
  if (how == Recovery::by_next) return void(++ledger_.figures.recovered_by_next);
  if (how == Recovery::by_hand) {
    const auto result =
        live::run_command({live::required_environment("PROBED_BIN"), "--recover", "--socket", daemon.socket()});
    if (!result.ok()) ledger_.fail(Wrong::daemon, "probed --recover to put everything back", result.err);
    ++ledger_.figures.recovered_by_hand;
  } else {
    ++ledger_.figures.recovered_by_guard;
  }
  if (!live::eventually([&] { return live::guard_of(state_in(directory_.path())) == 0; }))
    ledger_.fail(Wrong::leak, "the guard to end", "it lives as " + std::to_string(guard));
  if (has_journals(directory_.path())) ledger_.fail(Wrong::leak, "no journal left", "there is one");
  fleet_.verify_recovered();
}

// Once everybody has left, a daemon is as small as it was when it had done everything once.
void Soak::look_for_leaks(Scene& scene, const Size& warm) {
  ledger_.begin(ledger_.figures.lives, "looking for leaks");
  scene.kept.clear();
  live::RpcClient client(scene.daemon.socket());
  client.call("probe.remove", {{"all", true}});
  const Json targets = client.call("target.list");
  for (const Json& target : targets.at("targets")) client.request("target.detach", {{"pid", target.at("pid")}});
  // It keeps the memory, the page map and the mappings (twice, when somebody asked for what isn't mapped) of the last
  // eight processes that it let go open (Targets::recent_spaces), and four fetchers (base/fault_in.hpp). And a worker
  // that waits for the next job, once there was one (control/workers.hpp).
  const Size most{0, warm.fds + 4 * 8 + 4, warm.threads + 1};
  Size now;
  const bool small = live::eventually([&] {
    now = size_of(scene.daemon.pid());
    return now.fds <= most.fds && now.threads <= most.threads;
  });
  if (!small) {
    const auto fds = live::state_of(scene.daemon.pid()).fds;
    ledger_.fail(Wrong::leak,
                 std::to_string(most.fds) + " descriptors and " + std::to_string(most.threads) + " threads",
                 std::to_string(now.fds) + " and " + std::to_string(now.threads) + ": " +
                     live::joined({fds.begin(), fds.end()}));
  }
  // Several times what any life here needs; a sanitizer has memory of its own.
  const long most_kb = (std::getenv("PROBED_TEST_SANITIZED") ? 4096 : 256) * 1024;
  if (now.rss_kb > most_kb)
    ledger_.fail(Wrong::leak, "a daemon of at most " + std::to_string(most_kb) + " KiB",
                 std::to_string(now.rss_kb) + " KiB");
  ledger_.figures.daemon_rss_kb = std::max(ledger_.figures.daemon_rss_kb, now.rss_kb);
  ledger_.figures.daemon_fds = std::max(ledger_.figures.daemon_fds, now.fds);
}

// Under fire: probes of every tier are in when it is told to end. Then nothing may be left, not even mappings.
void Soak::end_by_term(Scene& scene, const live::TargetState& before) {
  live::RpcClient client(scene.daemon.socket());
  ledger_.begin(ledger_.figures.lives, "SIGTERM");
  live::add(client, fleet_.standing().pid(), {"work", "leaf", "r:back nest"});
  live::add(client, fleet_.standing().pid(), {"libc:getppid"}, {{"x-step", true}});
  scene.daemon.process().signal(SIGTERM);
  const auto exit = scene.daemon.process().wait(Millis{20'000});
  ++ledger_.figures.terms;
  if (exit != live::Exit{0, 0})
    ledger_.fail(Wrong::daemon, "the daemon to end with exit code 0", scene.daemon.process().errors());
  if (!live::left_unharmed(fleet_.standing().pid(), before, live::PageCopies::may_stay))
    ledger_.fail(Wrong::leak, "the standing target as it was before",
                 live::joined(live::harm_done(fleet_.standing().pid(), before, live::PageCopies::may_stay)));
  if (!live::eventually([&] { return live::guard_of(state_in(directory_.path())) == 0; }))
    ledger_.fail(Wrong::leak, "no guard", "one is left");
  fleet_.verify_recovered();
  verified_ = true;
}

void Soak::one_life() {
  ledger_.begin(++ledger_.figures.lives, "start");
  // Each daemon that is killed leaves up to 20 MiB of addresses behind, near the code, where there are 2 GiB.
  if (ledger_.figures.kills >= renew_at_) {
    renew_at_ += 40;
    fleet_.renew();
  }
  Daemon daemon(directory_.path());
  if (!verified_) fleet_.verify_recovered();  // of what the one before has left
  const live::TargetState before = live::state_of(fleet_.standing().pid());
  const auto born = Clock::now();
  Sampler sampler(daemon.socket());
  Scene scene{daemon, fleet_, ledger_, dice_, {}};
  if (ledger_.figures.lives % (options_.thorough() ? 10 : 20) != 0) {
    steps(scene, dice_.below(options_.thorough() ? 3 : 2));
    kill_in_a_step(scene);
  } else {
    const Size warm = [&] {
      live::RpcClient client(daemon.socket());  // there is one when leaks are looked for, too
      client.call("target.attach", {{"pid", fleet_.standing().pid()}});
      client.call("target.detach", {{"pid", fleet_.standing().pid()}});
      return size_of(daemon.pid());
    }();
    steps(scene, options_.thorough() ? 30 : 8);
    if (daemon.process().running()) look_for_leaks(scene, warm);
    end_by_term(scene, before);
  }
  sampler.stop();
  ledger_.figures.alive_s += std::chrono::duration<double>(Clock::now() - born).count();
  for (const auto& [tier, hits] : sampler.hits()) ledger_.figures.hits[tier] += hits;
}

// For whoever watches: once a minute.
void Soak::tell_progress() {
  const auto now = Clock::now();
  if (now < tell_at_) return;
  tell_at_ = now + std::chrono::minutes(1);
  std::fprintf(stderr, "soak: %u daemons, %u killed, after %.0f s\n", ledger_.figures.lives, ledger_.figures.kills,
               std::chrono::duration<double>(now - began_).count());
}

bool Soak::run() {
  while (!done()) {
    try {
      one_life();
    } catch (const std::exception& error) {
      ledger_.fail(Wrong::daemon, "a daemon that can be worked with", error.what());
      if (ledger_.figures.lives > 5 && !ledger_.clean()) break;  // it won't get better
    }
    tell_progress();
  }
  ledger_.begin(ledger_.figures.lives, "end");
  const auto recovered = live::run_command(
      {live::required_environment("PROBED_BIN"), "--recover", "--socket", socket_in(directory_.path())});
  if (!recovered.ok()) ledger_.fail(Wrong::daemon, "probed --recover to put everything back", recovered.err);
  fleet_.verify_recovered();
  fleet_.finish();
  if (live::guard_of(state_in(directory_.path())) != 0) ledger_.fail(Wrong::leak, "no guard", "one is left");
  ledger_.print(std::chrono::duration<double>(Clock::now() - began_).count());
  return ledger_.clean();
}

int main(std::span<char*> arguments) {
  const auto options = parse(arguments);
  if (!options) {
    std::fprintf(stderr, "usage: soak [--minutes N | --seconds N] [--kills N] [--seed S] [--only ACTION]\n");
    return 2;
  }
  std::printf("soak: seed %u\n", options->seed);
  std::fflush(stdout);
  const bool clean = Soak(*options).run();
  const std::vector<std::string> left = live::children_left();
  if (!left.empty())
    std::printf("soak: FAILED seed %u: processes left: %s\n", options->seed, live::joined(left).c_str());
  std::printf("%s\n", clean && left.empty() ? "soak: nothing lost, nothing wrong, nothing left" : "soak: FAILED");
  return clean && left.empty() ? 0 : 1;
}

}  // namespace
}  // namespace probed::soak

int main(int argc, char** argv) { return probed::soak::main({argv, static_cast<std::size_t>(argc)}); }
