#include "daemon/tracer/tracer.hpp"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <future>
#include <optional>
#include <utility>

namespace probed::tracer {
namespace {

using namespace std::chrono_literals;

constexpr auto kIdleAfter = 100ms;  // without a stop: the tracer gives up its place on the tracees' CPU
constexpr auto kTick = 10ms;
constexpr auto kMostBefore = 10ms;
// Between two looks at commands and deadlines at most: some hundred microseconds.
constexpr unsigned kStopsBetween = 64;

using Deadline = std::optional<Waiter::Clock::time_point>;

Deadline earlier(Deadline a, Deadline b) { return a && b ? std::min(*a, *b) : a ? a : b; }

}  // namespace

Tracer::Tracer(HitSink sink, Listener& listener) {
  std::promise<void> bound;
  const pid_t consumer = gettid();
  thread_ = std::thread([&, sink, consumer, this] {
    pthread_setname_np(pthread_self(), "tracer");
    waiter_.bind_to_this_thread();
    urgency_.begin();
    bound.set_value();
    run(listener, sink, consumer);
  });
  bound.get_future().wait();
}

Tracer::~Tracer() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  waiter_.wake();
  thread_.join();
}

void Tracer::post(std::function<void(Engine&)> command) {
  {
    const std::lock_guard lock(mutex_);
    mailbox_.push_back(std::move(command));
  }
  waiter_.wake();
}

bool Tracer::run_commands(Engine& engine) {
  std::vector<std::function<void(Engine&)>> commands;
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return false;
    commands.swap(mailbox_);
  }
  urgency_.note_activity();
  if (!commands.empty()) let_interrupted_go_on(engine);
  for (auto& command : commands) command(engine);
  return true;
}

// A command may take long: 50,000 probes come or go at once. Threads that the optimiser has just asked to stop don't
// stand still meanwhile; they stop as soon as they are told to, if they have a processor.
void Tracer::let_interrupted_go_on(Engine& engine) {
  constexpr timespec kBlink{0, 20'000};
  const auto until = Waiter::Clock::now() + kMostBefore;
  while (engine.awaits_interrupted() && Waiter::Clock::now() < until) {
    if (const auto stop = waiter_.poll())
      engine.handle(*stop);
    else
      nanosleep(&kBlink, nullptr);
  }
}

// While there are stops a tick goes off every now and then, and what is due by time is looked at then: not at every
// hit. A deadline that a stop has set is so seen at the next tick, one that a command has set at once.
void Tracer::run(Listener& listener, HitSink sink, pid_t consumer) {
  Engine engine(waiter_, sink, listener);
  engine.cpu_follower().set_consumer(consumer);
  bool ticking = false;
  Waiter::Clock::time_point last_busy{};
  std::uint64_t stops = 0, stops_seen = 0;
  const auto deal_with = [&](const Stop& stop) {
    engine.handle(stop);
    ++stops;
    if (!std::exchange(ticking, true)) waiter_.wake();
  };
  while (run_commands(engine)) {
    engine.check_deadlines();
    const auto now = Waiter::Clock::now();
    if (std::exchange(stops_seen, stops) != stops) last_busy = now;
    ticking = now - last_busy < kIdleAfter;
    if (!ticking) engine.cpu_follower().idle();
    waiter_.set_alarm(earlier(engine.next_deadline(), ticking ? Deadline(now + kTick) : std::nullopt));
    for (unsigned n = 0; n < kStopsBetween; ++n) {
      const auto stop = waiter_.poll();
      if (!stop) break;
      deal_with(*stop);
    }
    while (!waiter_.take_wake())
      if (const auto stop = waiter_.wait()) deal_with(*stop);
  }
}

}  // namespace probed::tracer
