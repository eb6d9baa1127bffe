// The tracer proper: every tracee, every stop, every site. Single-threaded; see tracer.hpp for the thread around it.
//
// Owning thread: the tracer thread. It waits for stopped threads only: the microseconds of a remote system call, and,
// bounded, until others have stopped (attach(), stop_others(), others_stopped()).
// The code is split by what it reacts to:
//   engine.cpp        processes: attach, detach, jobs, deadlines
//   engine_sites.cpp  commands on probes: add, remove, enable, arm
//   engine_stops.cpp  stops of threads: signals, breakpoints, interrupts; what becomes of them (act.hpp)
//   engine_slots.cpp  threads in slots: signals there, steps
//   engine_memory.cpp code that goes away, moves or changes under a breakpoint; page copies given back
//   engine_traps.cpp  what our own traps and faults do to the program's signals, undone
//   engine_landing.cpp  where threads are to go on when this daemon is killed
//   engine_masks.cpp  whose signal masks have to be known for that, and how they are
//   engine_events.cpp clone, fork, vfork, exec, exit
//   engine_loader.cpp the dynamic loader: held when it has loaded something, and before a program's constructors
//   engine_optimise.cpp  from breakpoints to jumps, in the background
//   engine_puns.cpp      jumps that borrow bytes, where no other fits
//   engine_channels.cpp  memory that this takes in the target
//   engine_rounds.cpp    every thread seen outside of what is to be overwritten
//   engine_detours.cpp   threads in detours; who records into which lane
//   engine_blocked_loads.cpp  loads of detours that wait for their memory
//   engine_returns.cpp   return probes at breakpoints
//   engine_calls.cpp     the calls that detours keep, and what they leave to the tracer
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "daemon/tracer/act.hpp"
#include "daemon/tracer/hit_recorder.hpp"
#include "daemon/tracer/program.hpp"
#include "daemon/tracer/remote_syscall.hpp"
#include "daemon/tracer/tick_rate.hpp"
#include "daemon/tracer/tracee.hpp"
#include "daemon/tracer/wait.hpp"
#include "proto/base/result.hpp"

namespace probed::tracer {

// What the rest of the daemon learns from the tracer. Called on the tracer thread; implementations hand over and
// return.
class Listener {
 public:
  virtual ~Listener() = default;
  // A process of root's family ended or was released after an exec. `how`: its exit, if it ended.
  virtual void process_gone(pid_t root, pid_t pid, std::optional<WaitStatus> how) = 0;
  // The process runs a new program, of that name: its probes are gone. `kept`: it is still attached.
  virtual void process_execed(pid_t root, pid_t pid, bool kept, std::string comm) = 0;
  // A held process stands at the entry point of its new program.
  virtual void process_ready(pid_t pid) = 0;
  // A followed child, which is to carry root's probes. Told before anything else of it, and before its creator's end.
  virtual void process_forked(pid_t root, pid_t child) = 0;
  // A child of root's family that isn't followed was let go.
  virtual void child_let_go(pid_t root) = 0;
  // A batch has used up its hit limit.
  virtual void limit_reached(std::vector<ProbeId> probes) = 0;
  // These probes are about to record into a feed, by index; Engine::names_known(pid, ticket) when the feed's reader
  // knows.
  struct Tap {
    std::uint32_t index;
    ProgramPtr program;
  };
  virtual void taps_added(events::FeedPtr feed, std::vector<Tap> taps, pid_t pid, std::uint64_t ticket) = 0;
  // Nobody can record under these indices any more; Engine::indices_free(pid, feed, ...) when what they have recorded
  // has been taken.
  virtual void taps_unused(events::FeedPtr feed, std::vector<std::uint32_t> indices, pid_t pid) = 0;
  // Nobody writes into it any more.
  virtual void feed_closed(events::FeedPtr feed) = 0;
  // Some thread was kept stopped by the optimiser for so long, which is longer than any before.
  virtual void longest_pause(pid_t root, std::uint64_t nanoseconds) = 0;
  // The code of these probes of root has gone or been rewritten: nothing of them is left in the target. `why`, of
  // static life time: it is no code for probes, and they don't come back; null otherwise.
  virtual void code_gone(pid_t root, std::vector<ProbeId> probes, const char* why) = 0;
  // The dynamic loader of root has loaded or unloaded something (ProbeProgram::watches_loader). The thread waits for
  // Engine::loader_may_go_on(root, ticket); tickets ascend.
  virtual void libraries_changed(pid_t root, std::uint64_t ticket) = 0;
};

struct AttachParams {
  bool follow_fork = false;
  bool keep_after_exec = false;
  bool hold_at_entry = false;
  bool hold_at_execs = false;  // likewise at each exec, of the children it is followed into, too
};

struct AttachResult {
  TargetId id;
  std::uint32_t threads = 0;
  std::uint32_t execs = 0;                     // tells this program of the process from the next one
  std::shared_ptr<const TextOverlay> overlay;  // what its text may hold of ours
};

// What is known of the code around a site.
struct SiteCode {
  RemoteAddr site;
  std::shared_ptr<const arch::CodeFlow> flow;  // null: nothing
  std::uint64_t bias = 0;
  const char* why_not = nullptr;  // set: it isn't optimised, and why; of static life time
  bool in_frame = false;          // an unwind table covers it: it is native code
};

struct SiteRequest {
  SitePlan plan;
  ProgramPtr program;
  std::optional<SiteCode> code;  // nullopt: it isn't known yet, know_code() will tell
};

// A probe that couldn't be armed again: the program has changed its memory meanwhile.
struct NotArmed {
  ProbeId id{};
  Error why;
};

using Done = std::function<void(Result<void>)>;

class Engine : private Waiter::Guardian {
 public:
  Engine(Waiter& waiter, HitSink sink, Listener& listener) : waiter_(waiter), recorder_(sink), listener_(listener) {
    waiter_.set_guardian(this);
  }
  ~Engine() override { waiter_.set_guardian(nullptr); }
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Where journals are kept (journal.hpp), before the first attach(); empty: nowhere.
  void set_state_directory(std::string directory) { state_directory_ = std::move(directory); }

  // ---- commands ----

  // Seizes every thread; those that run or clone are stopped for a moment. Again for an attached process: merges the
  // parameters.
  Result<AttachResult> attach(pid_t pid, const AttachParams& params);
  bool is_detaching(pid_t pid) {
    const Process* process = find_process(pid);
    return process && process->detaching;
  }
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
  void look_after_jobs(Process& process, Waiter::Clock::time_point now, std::vector<std::function<void()>>& late);
  void check_deadlines();
  // Whether the optimiser has asked threads to stop for a moment that haven't stopped yet.
  bool awaits_interrupted();
  bool idle() const { return tracees_.empty(); }
  CpuFollower& cpu_follower() { return recorder_.cpu_follower(); }

 private:
  // Whether threads are stopped, too, that wait in calls which may fail because of it.
  enum class Sleepers : std::uint8_t { stop, leave };

  // engine.cpp
  Process* find_process(pid_t pid);
  Process* process_of(pid_t tid);
  // Runs f(RemoteSyscalls&) in a thread that stands in an event stop. False: the thread died meanwhile.
  // `put_back`, `trapped_at`: see RemoteSyscalls.
  template <class F>
  bool with_remote_calls(Tracee& tracee, AddressSpace& space, F f, int put_back = 0, RemoteAddr trapped_at = {});
  Result<void> check_attachable(pid_t pid) const;
  Result<AttachResult> try_attach(pid_t pid, const AttachParams& params);
  Result<std::size_t> seize_threads(Process& process);
  bool forget_replaced_leader(Process& process);
  Result<void> seize_sharers(Process& process);
  void settle(pid_t pid);
  std::optional<pid_t> handle_next(Waiter::Clock::duration at_most);
  Tracee& add_tracee(pid_t tid, Process& process);
  void forget_tracee(pid_t tid);
  void forget_process(Process& process);
  // It has no threads any more: whoever is concerned learns of it, and it is forgotten. how: nullopt: not known.
  void tell_end(Process& process, std::optional<WaitStatus> how);
  std::vector<Process*> family_of(pid_t root);
  void start_detach(Process& process);
  void ask_to_leave(Process& process, std::size_t count);
  void forget_vanished(Process& process);
  bool some_still_run(const Process& process) const;
  void leave_if_complete(Process& process);
  void leave_together(Process& process);
  void finish_detach_if_empty(Process& process);
  std::size_t tracees_sharing(const AddressSpace& space) const;
  void request_job(Process& process, Job job);
  void run_jobs(Tracee& tracee);
  using Ask = Process::Ask;
  void interrupt_some(Process& process, Ask whom);
  static Waiter::Clock::time_point widens_at(const Process& process, const Job& job);
  void resume_held_threads(const Process& process);
  bool leave_no_trace(Tracee& tracee, AddressSpace& space);

  // engine_sites.cpp
  struct Batch;
  void continue_batch(std::shared_ptr<Batch> batch);
  void go_on_without_thread(std::shared_ptr<Batch> batch);
  void answer(const std::shared_ptr<Batch>& batch);
  Result<std::optional<RemoteAddr>> place_sites(Batch& batch);
  std::optional<RemoteAddr> clear_islands(Batch& batch);
  void wait_for_islands(std::shared_ptr<Batch> batch, RemoteAddr at);
  static void drop_jumps_in_the_way(Batch& batch, AddressSpace& space);
  static Result<Site*> site_for(Batch& batch, AddressSpace& space, const SitePlan& plan, const Layout& layout);
  Result<void> commit_batch(Batch& batch);
  void roll_back(Batch& batch);
  void learn_actions_first(std::shared_ptr<Batch> batch);
  void prepare_landing_first(std::shared_ptr<Batch> batch);
  void grow_xol(std::shared_ptr<Batch> batch, RemoteAddr near, std::uint64_t bytes);
  bool update_arming(AddressSpace& space, Site& site, const Layout& layout);
  void not_armed(AddressSpace& space, const Site& site, const Layout& layout, std::vector<NotArmed>& failed);
  std::vector<Process*> one_for_each_space();
  void reconsider_around(AddressSpace& space, RemoteAddr address);

  // engine_memory.cpp
  bool drop_sites(AddressSpace& space, std::span<const RemoteAddr> addresses, const Layout& layout,
                  const char* why = nullptr);
  void heal_if_moved(AddressSpace& space);
  bool trapped_in_moved_code(Process& process, RemoteAddr address);
  bool injected_code_gone(const Process& process, RemoteAddr pc);
  bool forget_slots(const Process& process, const XolAreas::Area& area, const Layout& layout);
  void forget_lost_code(const Process& process);
  bool generated_code_gone(Process& process, RemoteAddr pc);
  std::optional<Act> leave_moved_jump(Tracee& tracee, int signal);
  bool follow_rewriting(Tracee& tracee, Site& site);
  bool renew_copy(AddressSpace& space, Site& site, const SitePlan& plan, const Layout& layout);
  bool others_stopped(const Tracee& tracee, Sleepers sleepers = Sleepers::stop);
  void take_out_islands(AddressSpace& space);
  bool give_back_copies(Tracee& tracee, AddressSpace& space);
  bool alone_in_memory(const Tracee& tracee) const;
  void plan_giving_back(Process& process);
  void give_back_soon(Process& process);

  // engine_stops.cpp
  Act on_stop(Tracee& tracee, const WaitStatus& status);
  Act on_call(Tracee& tracee);
  bool give_back(Tracee& tracee, const WaitStatus& status);
  void carry_out(pid_t tid, Act act, std::string_view facts = {});
  void let_go_on(Tracee& tracee, int signal);
  std::optional<Act> leave_our_code(Tracee& tracee, ptrace::Registers& regs, int signal);
  int end_step(Tracee& tracee, int signal);
  Act prepare_to_leave(Tracee& tracee, const Act& wanted);
  static Act go_on_or_leave(const Tracee& tracee, const char* why, int signal = 0);
  Act on_signal(Tracee& tracee, int signal);
  bool secure(pid_t tid, int signal) override;
  void keep_call(pid_t tid) override;
  static bool take_trapped(Tracee& tracee, Tracee::Trapped& trapped);
  std::optional<Act> on_trap(Tracee& tracee);
  std::optional<Act> deal_with_trap(Tracee& tracee, const Tracee::Trapped& trapped);
  std::optional<Act> pass_step_of_copy(Tracee& tracee, const ptrace::Registers& regs);
  struct AfterTrap;
  bool ran_into(const Tracee& tracee, const ptrace::Registers& regs, const SitePlan& plan, bool armed) const;
  Act on_hit(Tracee& tracee, Site& site, ptrace::Registers& regs, const AfterTrap& after);
  void give_up_other_code(AddressSpace& space, RemoteAddr address);
  Act continue_past(Tracee& tracee, Site& site, ptrace::Registers& regs, bool step, int signal, bool hold = false);
  Act on_step(Tracee& tracee, int signal);
  Act finish_step(Tracee& tracee, ptrace::Registers& regs);
  bool may_hold_signals(Tracee& tracee, std::uint64_t mask);
  void hold_signals(const Tracee& tracee, std::uint64_t mask, std::uint64_t ours);
  void note_taken(const Tracee& tracee, int signal, const siginfo_t& info);
  void let_signals(const Tracee& tracee, std::uint64_t mask);
  static void send_again(Tracee& tracee, siginfo_t info);
  void mend_sent_again(Tracee& tracee, int signal);
  static bool gets_sent_again(const Tracee& tracee);
  static Journal* journal_of(const Tracee& tracee);
  static void move_fault(const Tracee& tracee, siginfo_t& info, std::uint64_t from, std::uint64_t to);
  Act deliver(Tracee& tracee, int signal);
  Act deliver_in_slot(Tracee& tracee, int signal, ptrace::Registers& regs, const Slot& slot, RemoteAddr base);
  Act on_interrupt(Tracee& tracee, bool group_stop);
  void put_back_interrupted_call(Tracee& tracee);
  void make_call_again(Tracee& tracee, ptrace::Registers& regs);
  void note_restart(Tracee& tracee, const WaitStatus& status);
  void mend_restart(Tracee& tracee);
  void hide_from_core_dump(Tracee& tracee);
  void show_again(Tracee& tracee);
  void enter_slot(Tracee& tracee, RemoteAddr slot);
  void leave_slot(Tracee& tracee);
  static bool has_filter(const Tracee& tracee);
  void show_filtered_call(Tracee& tracee);
  bool move_out_of_slot(Tracee& tracee, ptrace::Registers& regs);
  Act on_entry_breakpoint(Tracee& tracee, ptrace::Registers& regs);

  // engine_returns.cpp
  StackPlace stack_place(Tracee& tracee, const ptrace::Registers& regs, bool is_go);
  using OwnStacks = std::map<std::uint64_t, Optimisation::OwnStack>;
  void claim_stack(Tracee& tracee);
  void settle_dispute(const Tracee& tracee, const StackPlace& place);
  void limit_stack(AddressSpace& space, OwnStacks::const_iterator stack, const arch::CodeRange& rest);
  void run_return_probes(const HitRecorder::Hit& hit, Site& site);
  void run_return_probe(const HitRecorder::Hit& hit, const Site& site, ProbeProgram& program);
  void forget_calls(const ProbeProgram& program);

  // engine_calls.cpp
  std::optional<Act> on_call_trap(Tracee& tracee, ptrace::Registers& regs);
  void run_call(Tracee& tracee, const ptrace::Registers& regs);
  std::optional<std::uint32_t> tag_of_calls(const std::shared_ptr<ReturnProbe>& probe);
  Tracee* keeper_of_calls(Tracee& tracee, const ptrace::Registers& regs);
  void take_calls(Tracee& tracee, const ptrace::Registers& regs, const StackPlace& place);
  void take_call(AddressSpace& space, pid_t tid, const events::ChannelCall& call, bool left);
  void take_all_calls(Tracee& tracee);
  void limit_kept_calls(Tracee& tracee);
  void mark_call(Tracee& tracee, const ptrace::Registers& regs, const StackPlace& place);
  void abandon_calls(const Tracee& tracee);

  // engine_loader.cpp
  bool plant_entry_breakpoint(Process& process);
  bool loader_is_at_work(Tracee& tracee, const ptrace::Registers& regs);
  bool loader_has_report(const Tracee& tracee, const ProbeProgram& program);
  Act hold_for_loader(Tracee& tracee);
  void release_late_loaders();

  // engine_landing.cpp
  bool lacks_landing(const Process& process, std::size_t more) const;
  void prepare_landing(Tracee& tracee, std::size_t more);
  void begin_journal(const Process& process);

  // engine_traps.cpp
  struct AfterTrap {
    bool alive = true;
    bool blocks = false;         // the thread blocks the signal; its mask says so again
    bool exact = false;          // that is known, not inferred
    bool with_all = false;       // if it does, it blocks everything
    bool may_step = true;        // a step's trap would reset nothing
    bool in_handler = false;     // it is in its SIGTRAP handler
    bool program_first = false;  // a signal of the program's own has come before ours: deliver it first
    int signal = 0;              // a signal of the program's own that is to be pending again: resume with it
  };
  template <class F>
  bool with_actions(Tracee& tracee, int put_back, F f, RemoteAddr trapped_at = {}, bool* refused = nullptr);
  bool suspect_others(const Tracee& tracee, int signal);
  bool others_may_reset(const Tracee& tracee, int signal) const;
  void stop_few_others(const Tracee& tracee);
  bool stop_others(const Tracee& tracee, Sleepers sleepers = Sleepers::stop);
  void see_into_handler(Tracee& tracee, int signal);
  std::optional<Dispositions> actions_now(Tracee& tracee);
  std::optional<Dispositions> look_at_actions(Tracee& tracee);
  bool must_learn_actions(const Process& process) const;
  static void will_look_behind_traps(Process& process);
  void look_behind_traps(Process& process);
  bool put_actions_back(Tracee& tracee);
  void settle_actions(Process& process);
  void learn_actions(Tracee& tracee);
  static bool must_mend_landing(Process& process, int signal, const AfterTrap& after);
  AfterTrap mend_after_trap(Tracee& tracee, const ptrace::Registers& regs, int signal, bool merged);
  bool queue_trap_again(Tracee& tracee, RemoteAddr breakpoint);
  void mend_action(Tracee& tracee, const ptrace::Registers& regs, int signal, bool merged, AfterTrap& after);
  std::optional<Act> before_own_signal(Tracee& tracee, int signal);
  void note_own_signal(Tracee& tracee, int signal);
  void actions_after_exec(Tracee& tracee);
  bool owes_actions(const Process& process) const;
  bool must_leave_actions(const Process& process) const;
  enum class Leaves : std::uint8_t { yes, no, away };  // no: it may make no calls; away: it has died, or is late
  Leaves leave_actions(Tracee& tracee);
  void mend_entry_mask(Tracee& tracee);

  // engine_masks.cpp
  bool has_just_raised(const Tracee& tracee) const;
  std::optional<std::uint64_t> known_mask(const Tracee& tracee) const;
  void note_mask(Tracee& tracee, const WaitStatus& status);
  bool must_watch(const Tracee& tracee);
  bool watches(Tracee& tracee);
  void watch_at_first(Process& process);
  void watch_first_faults(Process& process);
  void watch_everybody(const Tracee& tracee);
  bool anybody_to_watch(const Process& process) const;
  void stop_to_watch(const Tracee& tracee);
  void remember_watch(const Process& process);

  // engine_optimise.cpp
  using Phase = Optimisation::Phase;
  void consider(AddressSpace& space, Site& site);
  void learn_code(AddressSpace& space, Site& site, const SiteCode& known);
  void note_waiting(AddressSpace& space, Site& site);
  void when_fast(std::vector<Process*> touched, std::function<void()> done);
  void answer_fast(AddressSpace& space, bool all);
  void gather_batch(AddressSpace& space);
  void put_off_rest(AddressSpace& space);
  void wake_optimiser(AddressSpace& space, Waiter::Clock::duration in);
  Process* anybody_in(const AddressSpace& space);
  void optimise(AddressSpace& space);
  bool start_batch(AddressSpace& space);
  bool refuse_all(AddressSpace& space, const char* why);
  void note_other_code(AddressSpace& space);
  bool eligible(const AddressSpace& space, const Site& site);
  bool wants_jump(const AddressSpace& space, const Site& site);
  void build_some(AddressSpace& space);
  void take_back(AddressSpace& space, std::size_t from);
  // Of a site that is to be built: there is more to do; it is built or given up; it waits for memory.
  enum class Turn : std::uint8_t { goes_on, over, waits };
  struct JumpPlan;
  struct DetourRoom;
  Turn choose_region(AddressSpace& space, Site& site, JumpPlan& plan);
  static std::optional<std::size_t> line_for(const DetourSpace& detours, const Site& site);
  Turn build_detour(AddressSpace& space, arch::DetourRequest request, DetourRoom& room);
  Jump make_jump(const Site& site, const JumpPlan& plan, RemoteAddr at) const;
  static std::size_t left_to_build(const AddressSpace& space);
  bool build_one(AddressSpace& space, Site& site, std::vector<Listener::Tap>& taps);
  bool connect_taps(AddressSpace& space, Site& site, std::vector<arch::CapturedProbe>& probes,
                    std::vector<Listener::Tap>& taps);
  bool describe_call(const ProbeProgram& program, arch::CapturedProbe& probe);
  void write_tails(AddressSpace& space);
  void write_heads(AddressSpace& space);
  void give_up(AddressSpace& space, RemoteAddr site, const char* why, Waiter::Clock::duration again);

  // engine_channels.cpp
  void ask_for_memory(AddressSpace& space, bool line, RemoteAddr near, std::size_t sites);
  // Has a thread map something; an answer that isn't null ends all optimising there.
  using Mapper = std::function<const char*(AddressSpace&, RemoteSyscalls&, Process&)>;
  void ask_to_map(AddressSpace& space, Mapper map, bool alone = false);
  const char* map_line(AddressSpace& space, RemoteSyscalls& remote, Process& process, std::size_t sites);
  const char* map_code(AddressSpace& space, RemoteSyscalls& remote, Process& process, RemoteAddr near,
                       std::size_t sites);
  void close_feeds(AddressSpace& space);

  // engine_puns.cpp
  void want_pun(AddressSpace& space, Site& site);
  static arch::RegionResult pun_instead(Site& site, const arch::RegionRequest& request,
                                        const arch::RegionResult& refused);
  static arch::PunRange pun_range(const Site& site, const arch::RegionPlan& plan);
  void ask_for_pun(AddressSpace& space, const Site& site, const arch::PunRange& range);
  static const char* map_pun(AddressSpace& space, RemoteSyscalls& remote, Process& process,
                             const arch::PunRange& range);
  static bool unmap_unused(AddressSpace& space, RemoteSyscalls& remote);
  static void no_pun(Site& site, const char* why);
  void give_up_astray(AddressSpace& space, Site& site, RemoteAddr leads_to);
  std::optional<Act> come_back_from_astray(Tracee& tracee, int signal, ptrace::Registers& regs);
  static bool place_pun(AddressSpace& space, RemoteAddr pun, RemoteAddr detour, const PlacedDetour& of);

  // engine_rounds.cpp
  void start_round(AddressSpace& space, bool scan);
  void go_on_with_round(AddressSpace& space);
  void look_at(AddressSpace& space, pid_t tid);
  bool passes(AddressSpace& space, const Tracee& tracee, std::uint64_t pc, std::uint64_t sp);
  void round_is_over(AddressSpace& space);
  void answer_waiting(AddressSpace& space, std::uint64_t over);
  void when_unused(std::vector<Process*> touched, std::function<void()> done);

  // engine_detours.cpp
  void meet(Tracee& tracee);
  void give_lanes(Tracee& tracee, const ptrace::Registers& regs);
  void take_lanes(Tracee& tracee);
  void meet_soon(AddressSpace& space);
  void meet_the_rest(AddressSpace& space);
  bool looked_at(Tracee& tracee);
  std::optional<Act> stand_in_for_clock(Tracee& tracee, int signal);
  std::optional<Act> pass_key(Tracee& tracee, int signal);
  static void give_keys_back(Tracee& tracee);
  void note_absent_load(AddressSpace& space, RemoteAddr address);
  void give_up_load(Tracee& tracee);
  bool has_loads() const;
  void look_for_blocked_loads();
  std::optional<Act> skip_absent_load(Tracee& tracee, int signal);
  std::optional<Act> turn_back(Tracee& tracee, int signal);
  Act deliver_in_detour(Tracee& tracee, int signal, ptrace::Registers& regs, const DetourPlace& place);
  void leave_tail(Tracee& tracee, ptrace::Registers& regs, const DetourPlace& place, bool fault = false);
  void keep_from_jump(AddressSpace& space, Site& site);
  Act start_leaving(Tracee& tracee, int signal);
  std::optional<Act> waits_to_leave(Tracee& tracee);
  Act let_leave(Tracee& tracee, const char* why);
  Act call_while_leaving(Tracee& tracee);
  Act go_on_with_own_mask(Tracee& tracee, int signal, const char* why);
  int send_mark(const Tracee& tracee);
  std::optional<Act> unmark(Tracee& tracee, int& signal);
  void note_pause(const Tracee& tracee);

  // engine_events.cpp
  Tracee* tracee_of(const Stop& stop);
  Act on_new_task(Tracee& parent);
  void lend_lanes(Tracee& parent, pid_t child);
  Act on_vfork_done(Tracee& parent);
  void claim(Tracee& child, Process& parent);
  void inherit_slot(Tracee& child, const Tracee& creator);
  void leave_birth_place(Tracee& child);
  Act adopt_child(Tracee& child, Process& parent);
  bool forget_detours(Tracee& child, const AddressSpace& parent_space);
  Act release_copy(Tracee& child, AddressSpace& parent_space);
  Act on_exec(Tracee& tracee);
  void bury(Tracee& tracee, const WaitStatus& status);
  void release_orphan(pid_t tid);

  Waiter& waiter_;
  std::string state_directory_;
  HitRecorder recorder_;
  Listener& listener_;
  bool armed_ = true;
  bool optimize_ = true;
  std::uint64_t last_loader_ticket_ = 0;
  const arch::DetourFeatures features_ = arch::native::detour_features();
  std::vector<std::uint8_t> code_;  // of detours on their way into a target
  arch::Detour detour_;
  std::unordered_map<std::uint32_t, std::weak_ptr<ReturnProbe>> calls_by_tag_;
  std::uint32_t last_tag_ = 0;
  TickRate ticks_;
  std::array<std::byte, events::kMaxArgumentBytes> kept_;
  Waiter::Clock::time_point look_for_loads_at_ = Waiter::Clock::time_point::max();
  std::unordered_map<pid_t, Tracee> tracees_;
  std::map<pid_t, std::unique_ptr<Process>> processes_;
  std::unordered_map<std::uint32_t, ProgramPtr> programs_;
  // What the last processes we let go had in their text: a copy of it may still turn up.
  std::deque<std::shared_ptr<AddressSpace>> recent_spaces_;
  std::deque<TargetId> watched_before_;  // processes with threads that were seen to block SIGTRAP, the latest of them
  std::vector<std::function<void()>> all_detached_;
  std::vector<Stop> ended_meanwhile_;  // threads that died while making a call for us; handled after the current stop
};

}  // namespace probed::tracer
