// The tracer thread: a mailbox in front of the Engine, and the loop that feeds it stops. It is a process of its own in
// this one's memory (apart.hpp), which outlives the daemon: when that is killed, every target is let go as at any end.
//
// One immortal thread owns every tracee, because ptrace belongs to the thread that attached. Commands are closures over
// values, run on the tracer thread in order; what they answer crosses back through the caller's own post function.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "daemon/tracer/engine.hpp"
#include "daemon/tracer/kernel/urgency.hpp"

namespace probed::tracer {

class Tracer {
 public:
  // Starts the thread. Waiter::block_signals() has been called. `listener` is called on the tracer thread. The calling
  // thread is the one that consumes the sink's hits: while targets are hit all the time it is kept off their CPU.
  Tracer(HitSink sink, Listener& listener);
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;
  // Stops the loop. Targets that are still attached go free as the kernel sees fit: detach them first.
  ~Tracer();

  // Any thread: runs command(engine) on the tracer thread.
  void post(std::function<void(Engine&)> command);
  // Any thread: who goes first on a busy machine.
  Urgency& urgency() { return urgency_; }
  const Urgency& urgency() const { return urgency_; }

 private:
  void run(Listener& listener, HitSink sink, pid_t consumer);
  bool run_commands(Engine& engine);
  void let_interrupted_go_on(Engine& engine);
  template <class Proceed>
  void loop(Engine& engine, Proceed proceed);
  void let_all_go(Engine& engine);

  Waiter waiter_;
  Urgency urgency_;
  std::mutex mutex_;
  std::vector<std::function<void(Engine&)>> mailbox_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace probed::tracer
