// Targets: attached, detached, their operations in order, and what the tracer reports of their lives.
//
// Asio thread.
#pragma once

#include "daemon/control/part.hpp"

namespace probed::control {

class Attachments : public Part {
 public:
  using Part::Part;

  // Requests: controller.hpp says what they do.
  std::vector<TargetView> targets() const;
  void attach(Client& client, pid_t pid, AttachOptions options, Reply<TargetView> reply);
  void detach(pid_t pid, Reply<void> reply);
  void resume(pid_t pid, Reply<void> reply);

  // Queues an operation on a target; it calls its argument when the next one may start. `whose`: once that client has
  // gone, drop() is called instead.
  void enqueue(pid_t pid, std::function<void(std::function<void()> next)> operation, ClientId whose = ClientId::none,
               std::function<void()> drop = {});
  // Within an operation: attaches, or merges the parameters. One that is just being detached is waited for, for some
  // seconds.
  void ensure_attached(pid_t pid, tracer::AttachParams params, Reply<void> reply) {
    ensure_attached(pid, params, std::chrono::steady_clock::now() + kDetachPatience, std::move(reply));
  }
  // Queues what is to be done when the last probe of a target that nobody keeps attached has gone, or nobody keeps it
  // attached any more. `done`: it is free, or stays.
  void detach_if_unused(pid_t pid, std::function<void()> done);
  // Whoever wanted it held has gone, or may not any more: it goes on, or will not be held.
  void forget_hold(Target& target);
  // Notifies every client that is told of the target's life. `params`: JSON text.
  void notify_interested(const Target& target, std::string_view method, const std::string& params);

  // What the tracer reports: tracer::Listener says it.
  void on_process_gone(pid_t root, pid_t pid, std::optional<tracer::WaitStatus> how);
  void on_process_execed(pid_t root, pid_t pid, bool kept, std::string_view comm);
  void on_process_ready(pid_t pid);

 private:
  static constexpr std::chrono::seconds kDetachPatience{5};
  void ensure_attached(pid_t pid, tracer::AttachParams params, std::chrono::steady_clock::time_point until,
                       Reply<void> reply);
  void run_next(pid_t pid);
  void forget_if_idle(pid_t pid);
  TargetView target_view(const Target& target) const;
  void drop_target(pid_t pid);
  static std::string children_let_go(const Target& target);
  void on_child_execed(Target& parent, pid_t pid, bool kept, std::string_view comm);
};

}  // namespace probed::control
