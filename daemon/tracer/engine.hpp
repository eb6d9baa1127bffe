// The tracer proper: every tracee, every stop, every site. Single-threaded; see tracer.hpp for the thread around it.
// What it does is done by its rooms (rooms.hpp).
//
// Owning thread: the tracer thread. It waits for stopped threads only: the microseconds of a remote system call, and,
// bounded, until others have stopped (attach(), Jobs::stop_others(), Jobs::others_stopped()).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "daemon/tracer/kernel/wait.hpp"
#include "daemon/tracer/listener.hpp"
#include "daemon/tracer/probes/hit_recorder.hpp"
#include "daemon/tracer/requests.hpp"

namespace probed::tracer {

struct Rooms;

class Engine : private Waiter::Guardian {
 public:
  Engine(Waiter& waiter, HitSink sink, Listener& listener);
  ~Engine() override;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Where journals are kept (journal.hpp), before the first attach(); empty: nowhere.
  void set_state_directory(std::string directory);

  // ---- commands ----

  // Seizes every thread; those that run or clone are stopped for a moment. Again for an attached process: merges the
  // parameters.
  Result<AttachResult> attach(pid_t pid, const AttachParams& params);
  bool is_detaching(pid_t pid) const;
  // Restores the text, lets every thread go, with its followed and vforked family. `done` when the last one is free.
  void detach(pid_t pid, Done done);
  // Every process; `done` when all are free.
  void detach_all(std::function<void()> done);
  // Lets a held process go on.
  Result<void> resume_held(pid_t pid);
  // Whoever wanted it held has gone: it goes on, or will not be held.
  void forget_hold(pid_t pid);
  // Whoever wanted it to stay attached has gone: its next program is let go.
  void forget_keep(pid_t pid);

  // All or none. Enabled programs are armed when `done` is called; of many at once those that are hit all the time are
  // jumps by then, unless that takes long. `execs`: as attach() answered before the batch was
  // planned; target_gone when the process has started another program since.
  void add(pid_t pid, std::uint32_t execs, std::vector<SiteRequest> batch, Done done);
  // `done` (may be null): no thread counts a hit of theirs any more.
  void remove(std::span<const ProbeId> ids, std::function<void()> done);
  // Arming may fail where the target changed its own memory; those probes are the answer, and code_gone() has told of
  // them before. It comes when no thread counts a hit any more that was disabled.
  void set_enabled(std::span<const ProbeId> ids, bool enabled, std::function<void(const std::vector<NotArmed>&)> done);
  // The global switch; each program keeps its own state. As for set_enabled().
  std::vector<NotArmed> set_armed(bool armed);
  // For one that /proc doesn't have any more: forgets it unless its end is still to be told of by the kernel.
  void forget_if_gone(pid_t pid);
  // Looks whether the process still has the code it is probed in; what it hasn't is told to code_gone() before this
  // returns. No-op for a process that isn't attached.
  void look_at_code(pid_t pid);

  // The threads of root's family that reported up to this ticket go on (Listener::libraries_changed).
  void loader_may_go_on(pid_t root, std::uint64_t ticket);

  // Jumps in place of breakpoints, wherever that can be, or nowhere.
  void set_optimize(bool optimize);
  // The sites may be optimised from now on. Ignored when the process has started another program since.
  void know_code(pid_t pid, std::uint32_t execs, std::span<const SiteCode> code);
  // Somebody has begun or ceased to listen to these.
  void refresh_modes(std::span<const ProbeId> ids);
  // See Listener.
  void names_known(pid_t pid, std::uint64_t ticket);
  void indices_free(pid_t pid, const events::FeedPtr& feed, std::span<const std::uint32_t> indices);
  // The feed has records of threads that nobody knows yet.
  void find_threads(pid_t pid);

  // ---- the loop's part ----

  void handle(const Stop& stop);
  std::optional<Waiter::Clock::time_point> next_deadline() const;
  void check_deadlines();
  // Whether the optimiser has asked threads to stop for a moment that haven't stopped yet.
  bool awaits_interrupted();
  bool idle() const;
  CpuFollower& cpu_follower();

 private:
  bool secure(pid_t tid, int signal) override;
  void keep_call(pid_t tid) override;

  std::unique_ptr<Rooms> rooms_;
};

}  // namespace probed::tracer
