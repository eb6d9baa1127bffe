#include "daemon/tracer/tracer.hpp"

#include <pthread.h>

#include <future>
#include <utility>

namespace probed::tracer {
namespace {

using namespace std::chrono_literals;

constexpr auto kIdleAfter = 100ms;   // without a stop: the tracer gives up its place on the tracees' CPU
constexpr unsigned kStopsPerTurn = 64;  // stops handled before commands get their turn

}  // namespace

Tracer::Tracer(HitSink sink, Listener& listener) {
  std::promise<void> bound;
  thread_ = std::thread([&, sink, this] {
    pthread_setname_np(pthread_self(), "tracer");
    waiter_.bind_to_this_thread();
    bound.set_value();
    run(listener, sink);
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
  for (auto& command : commands) command(engine);
  return true;
}

void Tracer::run(Listener& listener, HitSink sink) {
  Engine engine(waiter_, sink, listener);
  bool pinned = false;
  while (run_commands(engine)) {
    unsigned handled = 0;
    while (handled < kStopsPerTurn) {
      const auto stop = waiter_.next();
      if (!stop) break;
      engine.handle(*stop);
      ++handled;
    }
    engine.check_deadlines();
    if (handled == kStopsPerTurn) continue;
    auto deadline = engine.next_deadline();
    if (handled > 0 || pinned) {
      const auto idle_at = Waiter::Clock::now() + kIdleAfter;
      deadline = deadline ? std::min(*deadline, idle_at) : idle_at;
      pinned = true;
    }
    if (!waiter_.block_until(deadline) && pinned) {
      engine.cpu_follower().idle();
      pinned = false;
    }
  }
}

}  // namespace probed::tracer
