#include "daemon/tracer/recovery/recover.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <thread>

#include "daemon/base/own_files.hpp"
#include "daemon/base/process.hpp"
#include "daemon/tracer/kernel/interrupted_calls.hpp"
#include "daemon/tracer/kernel/left_calls.hpp"
#include "daemon/tracer/kernel/quiesce.hpp"
#include "daemon/tracer/kernel/sharing.hpp"
#include "daemon/tracer/kernel/wait.hpp"
#include "daemon/tracer/recovery/journal_owner.hpp"
#include "daemon/tracer/recovery/left_landings.hpp"
#include "daemon/tracer/signals/action_calls.hpp"
#include "daemon/tracer/stops.hpp"
#include "daemon/tracer/text/journal.hpp"
#include "daemon/tracer/text/layout.hpp"
#include "daemon/tracer/text/text_pages.hpp"

namespace probed::tracer {
namespace {

namespace native = arch::native;
using namespace std::chrono_literals;
using ptrace::Outcome;
using Clock = Waiter::Clock;
using Kind = WaitStatus::Kind;

constexpr std::uint64_t kNeverBlocked = signal_bit(SIGKILL) | signal_bit(SIGSTOP);
constexpr auto kStopPatience = 2s;       // until every thread stands still
constexpr auto kMostPatience = 5s;       // for threads that only wait for a processor, on a machine that is full
constexpr auto kTryAgain = 2ms;          // a process that can't be had yet
constexpr auto kLookAgain = 5ms;         // for threads that are new, or haven't stopped
constexpr auto kMaskPatience = 200ms;    // for what the program does with a mask of ours
constexpr auto kInjectPatience = 100ms;  // a stopped thread that goes on

SitePlan plan_of(const JournalRecord& record) {
  SitePlan plan;
  plan.address = {record.address};
  plan.insn.length = record.size;
  std::copy_n(record.before.begin(), plan.bytes.size(), plan.bytes.begin());
  plan.context = record.context;
  plan.backing = record.backing;
  return plan;
}

Patch patch_of(const JournalRecord& record) {
  Patch patch;
  patch.at = {record.address};
  patch.size = std::min<std::uint8_t>(record.size, Patch::kMaxSize);
  std::copy_n(record.before.begin(), patch.before.size(), patch.before.begin());
  std::copy_n(record.after.begin(), patch.after.size(), patch.after.begin());
  return patch;
}

// ---- memory ---------------------------------------------------------------------------------------------------------

// The text of one target, put back. Breakpoints at once, while its threads run; then jumps, which do no harm as they
// are, when all of them stand still: nobody has to run into a breakpoint for one, which ends a thread that blocks
// SIGTRAP.
class Text {
 public:
  Text(TargetMemory& memory, std::span<const JournalRecord> records)
      : memory_(memory), layout_(Layout::of(memory)), records_(records) {
    for (const JournalRecord& record : records)
      if (record.kind == JournalRecord::Kind::breakpoint) breakpoints_.insert(record.address);
  }

  // Behind a breakpoint may be the rest of a jump: the program's bytes come first.
  void take_out_breakpoints() {
    for_each(JournalRecord::Kind::patch, [this](const JournalRecord& r) { take_out_jump(r, Jumps::begun); });
    for_each(JournalRecord::Kind::breakpoint, [this](const JournalRecord& r) { take_out_breakpoint(r); });
  }

  // Every thread stands still: many by the page.
  void take_out_jumps() {
    const auto take_out = [this](const JournalRecord& r) { take_out_jump(r, Jumps::standing); };
    layout_ = Layout::of(memory_);
    bool failed = true;
    if (layout_.known() && records_.size() >= TextPages::kLargeBatch) {
      TextPages pages(memory_, layout_.mappings());
      for_each(JournalRecord::Kind::patch, take_out);
      failed = pages.flush().has_value();
    }
    if (failed) for_each(JournalRecord::Kind::patch, take_out);
  }

  // Some thread runs, or may: by way of breakpoints. Who runs into one lands in the detour's tail.
  void take_out_running_jumps() {
    for_each(JournalRecord::Kind::patch, [this](const JournalRecord& r) { take_out_jump(r, Jumps::running); });
    for_each(JournalRecord::Kind::breakpoint, [this](const JournalRecord& r) { take_out_breakpoint(r); });
  }

  std::size_t places() const { return restored_.size(); }

  // Whether anything that the records tell of is there: then it is the process that they were written for.
  bool holds_ours() const {
    return std::ranges::any_of(records_, [this](const JournalRecord& r) {
      if (r.kind == JournalRecord::Kind::patch) return is_there(patch_of(r));
      return r.kind == JournalRecord::Kind::breakpoint && r.in_text && holds_breakpoint(memory_, plan_of(r));
    });
  }

  // The second jumps of two, in padding, that nobody stands at. Every thread stands still.
  void put_back_islands(const std::set<std::uint64_t>& occupied) {
    for_each(JournalRecord::Kind::patch, [&](const JournalRecord& r) {
      if (!is_island(r) || occupied.contains(r.address)) return;
      if (is_there(patch_of(r))) memory_.write(RemoteAddr{r.address}, std::as_bytes(before(patch_of(r))));
    });
  }

  // Says so in the journal, step by step as the daemon did: whoever recovers next lowers none of them again.
  void lower_semaphores(const FoundJournal& journal) {
    for (std::size_t i = 0; i < records_.size(); ++i)
      if (records_[i].kind == JournalRecord::Kind::semaphore) lower_semaphore(journal, i);
  }

 private:
  enum class Jumps : std::uint8_t { begun, standing, running };  // those that have a breakpoint for their first byte

  template <class F>
  void for_each(JournalRecord::Kind kind, F f) {
    for (const JournalRecord& record : records_)
      if (record.kind == kind) f(record);
  }
  bool is_island(const JournalRecord& record) const { return !breakpoints_.contains(record.address); }

  bool is_there(const Patch& patch) const {
    std::array<std::uint8_t, Patch::kMaxSize> now{};
    const auto bytes = std::span(now).first(patch.size);
    return memory_.read_some(patch.at, std::as_writable_bytes(bytes)) == bytes.size() &&
           std::ranges::equal(bytes, after(patch));
  }

  void take_out_jump(const JournalRecord& record, Jumps which) {
    if (is_island(record)) return;
    const SitePlan plan = plan_of(record);
    const Patch patch = patch_of(record);
    if (!layout_.holds(plan) && !(layout_.may_hold_copy(plan) && is_there(patch))) return;
    std::array<std::uint8_t, Patch::kMaxSize> now{};
    const auto bytes = std::span(now).first(patch.size);
    if (memory_.read_some(patch.at, std::as_writable_bytes(bytes)) != bytes.size()) return;
    // Ours have been taken out first: one that stands there still is the program's.
    if (native::is_breakpoint(bytes) ? which == Jumps::standing : which == Jumps::begun) return;
    if (!settle(bytes, patch, which != Jumps::standing)) return;
    if (which == Jumps::standing) {
      if (memory_.write(patch.at, std::as_bytes(bytes))) restored_.insert(record.address);
      return;
    }
    constexpr std::size_t kTrap = native::kBreakpointSize;
    memory_.write(patch.at, std::as_bytes(std::span<const std::uint8_t>(native::kBreakpoint)));
    memory_.write(patch.at + kTrap, std::as_bytes(bytes.subspan(kTrap)));
  }

  void take_out_breakpoint(const JournalRecord& record) {
    const SitePlan plan = plan_of(record);
    if (!record.in_text || !holds_breakpoint(memory_, plan)) return;
    if (!layout_.holds(plan) && !is_copy(memory_, layout_, {&plan, {}, {}})) return;
    if (memory_.write(plan.address, std::as_bytes(plan.code()).first(native::kBreakpointSize)))
      restored_.insert(record.address);
  }

  void lower_semaphore(const FoundJournal& journal, std::size_t index) {
    JournalRecord record = records_[index];
    const RemoteAddr at{record.address};
    const symbols::Mapping* mapping = layout_.known() ? layout_.at(at) : nullptr;
    if (layout_.known() &&
        (!mapping || !mapping->writable || mapping->shared || mapping->backing(at) != record.backing))
      return;
    std::uint16_t value = 0;
    const auto bytes = std::as_writable_bytes(std::span(&value, 1));
    if (memory_.read_some(at, bytes) != bytes.size()) return;
    const bool changed = record.changing != 0 && value == record.after_value;
    const std::uint16_t ours = changed ? record.after_count : record.count;
    value = static_cast<std::uint16_t>(value - std::min(value, ours));
    record.count = ours;
    record.after_count = 0;
    record.after_value = value;
    record.changing = 1;
    rewrite_record(journal, index, record);
    memory_.write(at, bytes);
  }

  TargetMemory& memory_;
  Layout layout_;
  std::span<const JournalRecord> records_;
  std::set<std::uint64_t> breakpoints_, restored_;
};

// ---- threads --------------------------------------------------------------------------------------------------------

class Patience {
 public:
  explicit Patience(Clock::duration usual) : until_(Clock::now() + usual) {}
  // Longer than usual as long as waiting for more promises to be of use.
  template <class F>
  bool lasts(F promises) const {
    const auto now = Clock::now();
    return now < until_ || (now < most_ && promises());
  }

 private:
  Clock::time_point until_, most_ = Clock::now() + kMostPatience;
};

// Every thread of a process, seized, brought to a stop in which nothing of ours is on its way to it, and let go.
class Threads {
 public:
  // landings: the addresses of our handlers of SIGTRAP, or their pages'; 0: there is none.
  Threads(Waiter& waiter, pid_t pid, std::vector<std::uint64_t> landings)
      : waiter_(waiter), pid_(pid), landings_(std::move(landings)) {}

  // False: another tracer has it, or it may not be traced; nothing has been stopped.
  bool seize() {
    if (ptrace::seize(pid_) != Outcome::ok) return seize_others();
    running_.insert(pid_);
    return true;
  }

  // False: some are in an uninterruptible wait, or get no processor at all.
  bool stop() {
    const Patience patience(kStopPatience);
    const auto may_yet_stop = [this] {
      const auto is_on_its_way = [](pid_t tid) {
        const char state = process::state(tid);
        return state == 'R' || state == 't';
      };
      return running_.empty() ? !refused_ : std::ranges::any_of(running_, is_on_its_way);
    };
    while (patience.lasts(may_yet_stop)) {
      const bool found = seize_others();
      for (const pid_t tid : running_) ptrace::interrupt(tid);
      if (!found && running_.empty() && !refused_ && !forget_replaced_leader()) return true;
      if (running_.empty()) std::this_thread::sleep_for(kTryAgain);  // whoever has the others needs the processor
      gather();
      std::erase_if(running_, [](pid_t tid) { return !traced_by_us(tid); });
    }
    return false;
  }

  const std::map<pid_t, Kind>& stopped() const { return stopped_; }
  pid_t pid() const { return pid_; }
  // It has ended, or has been borrowed.
  void now_stands_in(pid_t tid, std::optional<Kind> stop) {
    stopped_.erase(tid);
    if (stop) stopped_.emplace(tid, *stop);
  }

  // The daemon had told a thread to make a call, which it has not come to: made later, it would be behind our back.
  void skip_calls(const std::set<std::uint64_t>& to_come) const {
    for (const auto& [tid, stop] : stopped_) {
      ptrace::Registers regs;
      if (ptrace::get_registers(tid, regs) != Outcome::ok || !to_come.contains(native_place(regs).value)) continue;
      regs.set_pc(regs.pc() + native::kAfterCall);
      ptrace::set_registers(tid, regs);
    }
  }

  // What is noted of a thread whose mask is as it was noted; the signal once.
  void give_back(HeldSignals& held) {
    const auto stopped = stopped_.find(held.tid);
    std::uint64_t mask = 0;
    if (stopped == stopped_.end() || ptrace::get_sigmask(held.tid, mask) != Outcome::ok) return;
    if (mask != (held.ours & ~kNeverBlocked)) return;
    if (ptrace::set_sigmask(held.tid, held.mask) != Outcome::ok || held.taken == 0) return;
    const HeldSignals signal = held;
    held.taken = 0;
    send_back(signal, stopped->second);
  }
  void let_go() {
    for (const auto& [tid, stop] : stopped_) ptrace::detach(tid, 0);
    stopped_.clear();
  }

 private:
  void send_back(const HeldSignals& held, Kind stop) {
    // A signal can only be injected at a stop that reports one. A standard one that is pending stands for both.
    if (held.taken < kFirstRealTime && signal_pending(held.tid, held.taken)) return;
    siginfo_t ours = held.info;
    ours.si_code = SI_QUEUE;
    ours.si_pid = getpid();
    if (syscall(SYS_rt_tgsigqueueinfo, pid_, held.tid, held.taken, &ours) != 0) return;
    if (stop == Kind::interrupt) inject(held);
  }

  // True: there were some that we didn't have. A daemon that is dying lets its tracees go one after the other: those
  // that it still has are refused, and may have a trap on their way.
  bool seize_others() {
    const Waiter::Collecting collecting(waiter_);
    bool found = false;
    refused_ = false;
    const auto ids = process::thread_ids(pid_);
    for (const pid_t tid : ids ? *ids : std::vector<pid_t>()) {
      if (running_.contains(tid) || stopped_.contains(tid)) continue;
      collecting.note_progress();
      // The kernel has attached us to those that one of ours has made (PTRACE_O_TRACECLONE).
      if (collecting.during([tid] { return ptrace::seize(tid); }) == Outcome::ok || traced_by_us(tid))
        found = running_.insert(tid).second;
      else
        refused_ |= !process::is_exiting(tid);
    }
    return found;
  }

  void gather() {
    waiter_.set_alarm(Clock::now() + kLookAgain);
    while (!running_.empty()) {
      const auto stop = waiter_.wait();
      if (stop)
        handle(*stop);
      else if (waiter_.take_wake())
        return;
    }
  }

  void handle(const Stop& stop) {
    const Kind kind = stop.status.kind();
    if (!stop.status.stopped()) return forget(stop.tid);
    if (!running_.contains(stop.tid) && !is_ours(stop.tid)) return void(ptrace::detach(stop.tid, 0));
    running_.insert(stop.tid);
    if (kind == Kind::interrupt || kind == Kind::group_stop) {
      ptrace::note_event_stop(stop.tid);
      // What it has run into is to be delivered while there is somebody to take it.
      if (synchronous_signal_pending(stop.tid) || is_landing(stop.tid)) return void(ptrace::resume(stop.tid, 0));
      running_.erase(stop.tid);
      stopped_.insert_or_assign(stop.tid, kind);
      if (kind == Kind::interrupt) put_back_interrupted_call(stop.tid);
      settle_call_note(stop.tid);
      return;
    }
    ptrace::interrupt(stop.tid);
    const int signal = kind == Kind::signal ? stop.status.signal() : 0;
    ptrace::Registers regs;
    if (signal != 0 && ptrace::get_registers(stop.tid, regs) == Outcome::ok) note_handler(stop.tid, regs, signal);
    ptrace::resume(stop.tid, signal);
  }

  // Lets the thread go on to the signal that has just been queued for it. Those of the same number that were queued
  // before take their turns behind: each is given what the one before it was.
  void inject(const HeldSignals& held) {
    siginfo_t next = held.info;
    stopped_.erase(held.tid);
    ptrace::resume(held.tid, 0);
    const Patience patience(kInjectPatience);
    while (patience.lasts([&] { return process::state(held.tid) == 'R'; })) {
      waiter_.set_alarm(Clock::now() + kInjectPatience);
      const auto stop = waiter_.wait();
      if (!stop) {
        waiter_.take_wake();  // maybe of an alarm that was set before
        continue;
      }
      if (stop->tid != held.tid) {  // a new task
        handle(*stop);
        continue;
      }
      if (!stop->status.stopped()) return;
      if (stop->status.kind() == Kind::group_stop) return void(stopped_.emplace(held.tid, Kind::group_stop));
      const int signal = stop->status.kind() == Kind::signal ? stop->status.signal() : 0;
      siginfo_t info{};
      if (signal != held.taken || ptrace::get_siginfo(held.tid, info) != Outcome::ok) {
        ptrace::resume(held.tid, signal);
        continue;
      }
      ptrace::set_siginfo(held.tid, next);
      if (info.si_code == SI_QUEUE && info.si_pid == getpid()) return void(ptrace::detach(held.tid, signal));
      next = info;
      ptrace::resume(held.tid, signal);
    }
    running_.insert(held.tid);
  }

  static bool traced_by_us(pid_t tid) {
    const auto tracer = process::tracer_pid(tid);
    return tracer && *tracer == gettid();
  }

  // A new task of one that we have; a thread of it, or another process.
  bool is_ours(pid_t tid) const { return process::is_thread_of(tid, pid_); }

  // In our handler, whose end gives it the mask that it had at the beginning.
  bool is_landing(pid_t tid) const {
    ptrace::Registers regs;
    return ptrace::get_registers(tid, regs) == Outcome::ok &&
           std::ranges::any_of(landings_, [&](std::uint64_t landing) {
             return landing != 0 && regs.pc() / kPageSize == landing / kPageSize;
           });
  }

  // A thread that executes another program goes on under the leader's number. Its own and the leader are gone then
  // without a word (fs/exec.c, de_thread), and it may be one that has not been seized. True: the number is not that of
  // the one that has stopped.
  bool forget_replaced_leader() {
    if (!stopped_.contains(pid_)) return false;
    const bool ours = traced_by_us(pid_);
    if (ours && process::state(pid_) == 't') return false;
    stopped_.erase(pid_);
    if (ours) running_.insert(pid_);
    return true;
  }

  void forget(pid_t tid) {
    running_.erase(tid);
    stopped_.erase(tid);
  }

  static void put_back_interrupted_call(pid_t tid) {
    ptrace::Registers regs;
    if (ptrace::get_registers(tid, regs) != Outcome::ok || !was_only_interrupted(tid, regs)) return;
    if (make_again(tid, regs)) ptrace::set_registers(tid, regs);
  }

  Waiter& waiter_;
  pid_t pid_;
  std::vector<std::uint64_t> landings_;
  std::set<pid_t> running_;
  bool refused_ = false;  // some thread belongs to another tracer
  std::map<pid_t, Kind> stopped_;
};

// ---- one target -----------------------------------------------------------------------------------------------------

// What is to be SIGTRAP's action in the place of one of ours; nullopt: what is there stays. A breakpoint that could not
// be taken out, or that another daemon has left, keeps the landing that knows it.
std::optional<Action> action_behind(const FoundJournal& journal, AddressSpace& space, const Action& now) {
  const JournalHeader& header = journal.header;
  if (now.handler != header.landing && !Landing::is_left(space.memory(), now)) return std::nullopt;
  std::set<std::uint64_t> dealt_with;
  for (const JournalRecord& record : journal.records) dealt_with.insert(record.address);
  const auto leads = [&](const Action& action) { return leads_on(header.pid, space.memory(), action, dealt_with); };
  if (now.handler == header.landing && leads(header.action)) return header.action;
  if (leads(now)) return std::nullopt;
  return Landing::is_left(space.memory(), header.action) ? Action{} : header.action;
}

// Every thread stands still, and none has a trap on its way.
void put_action_back(Waiter& waiter, Threads& threads, const FoundJournal& journal) {
  const JournalHeader& header = journal.header;
  const auto first_in = [&](Kind kind) {
    return std::ranges::find_if(threads.stopped(), [kind](const auto& thread) {
      ptrace::Registers regs;
      return thread.second == kind && ptrace::get_registers(thread.first, regs) == Outcome::ok &&
             native::executes_native_code(regs);
    });
  };
  auto found = first_in(Kind::interrupt);
  // One of a stopped process runs for a moment, and stands with the others again when it is let go.
  if (found == threads.stopped().end()) found = first_in(Kind::group_stop);
  if (header.landing == 0 || found == threads.stopped().end()) return;
  const pid_t tid = found->first;
  AddressSpace space(TargetMemory::open(header.pid));
  RemoteSyscalls remote(waiter, tid, space.call_pad(tid), 0, {}, kMostPatience);
  ActionCalls calls(remote, space);
  if (const auto now = calls.get(SIGTRAP))
    if (const auto wanted = action_behind(journal, space, *now)) calls.replace(SIGTRAP, *now, *wanted);
  if (space.scratch()) remote.call(SYS_munmap, {space.scratch().value, kPageSize, 0, 0, 0, 0});
  const bool alive = remote.finish();
  threads.now_stands_in(tid, !alive         ? std::nullopt
                             : remote.ran() ? std::optional(remote.final_stop())
                                            : std::optional(Kind::interrupt));
}

std::set<std::uint64_t> places_of(const Threads& threads) {
  std::set<std::uint64_t> places;
  ptrace::Registers regs;
  for (const auto& [tid, stop] : threads.stopped())
    if (ptrace::get_registers(tid, regs) == Outcome::ok) places.insert(regs.pc());
  return places;
}

// The pads that a signal frame of some thread refers to: it is to go on there behind its handler.
std::set<RemoteAddr> pads_in_stacks(TargetMemory& memory, const Threads& threads, const std::set<std::uint64_t>& pads) {
  std::set<RemoteAddr> found;
  const auto maps = symbols::read_maps(threads.pid());
  if (pads.empty() || !maps) return {};
  std::set<RemoteAddr> asked;
  for (const std::uint64_t pad : pads) asked.insert(RemoteAddr{pad});
  ptrace::Registers regs;
  for (const auto& [tid, stop] : threads.stopped())
    if (ptrace::get_registers(tid, regs) == Outcome::ok)
      found.merge(pads_in_stack(memory, *maps, asked, threads.pid(), tid, regs));
  return found;
}

// No thread stands in one, nor comes back to one; `on_way_back`: those that threads went through when the daemon died.
void erase_call_pads(TargetMemory& memory, const Threads& threads, const std::set<std::uint64_t>& on_way_back) {
  if (!pads_in_stacks(memory, threads, on_way_back).empty()) return;
  const std::set<std::uint64_t> places = places_of(threads);
  const auto stands_in = [&](std::uint64_t pad) {
    return std::ranges::any_of(places, [&](std::uint64_t pc) { return in_call_pad(RemoteAddr{pad}, RemoteAddr{pc}); });
  };
  if (std::ranges::none_of(on_way_back, stands_in)) tracer::erase_call_pads(memory, threads.pid());
}

Verdict verdict_on(const FoundJournal& journal) { return judge(look_for(journal), journal.header.start_time); }

bool is_same(const FoundJournal& journal) {
  const Fate fate = verdict_on(journal).fate;
  return fate == Fate::lives || fate == Fate::may_live;
}

std::string why_in_doubt(const FoundJournal& journal, const std::string& doubt) {
  return fmt::format(
      "whether process {} is the one that {} was written for can't be told from here: {}. Nothing was changed: run "
      "probed --recover where that daemon ran (in its container), or remove the file if its target has ended",
      journal.header.pid, journal.path, doubt);
}

std::string why_not_ours(pid_t pid) {
  const auto tracer = process::tracer_pid(pid);
  if (!tracer || *tracer == 0) return fmt::format("process {} may not be traced: {}", pid, std::strerror(errno));
  return fmt::format("process {} is traced by {} ({}): end that tracer, then run probed --recover", pid, *tracer,
                     process::comm(*tracer));
}

std::string why_not_all(const FoundJournal& journal) {
  return fmt::format(
      "process {}: its text is restored, but some of its threads can't be stopped now (uninterruptible wait, or no "
      "processor): what it does at SIGTRAP, and which signals its threads block, is not put back yet. {} stays: run "
      "probed --recover again when they have woken",
      journal.header.pid, journal.path);
}

void give_back_signals(Threads& threads, FoundJournal& journal) {
  for (HeldSignals& held : journal.header.held)
    if (held.tid != 0) threads.give_back(held);
}

// Threads that were in a handler of the program's when they were let go, or between two changes of their mask, have set
// the one of before again: ours.
void watch_masks(Waiter& waiter, std::vector<FoundJournal>& recovered) {
  const auto is_stuck = [](const HeldSignals& held) {
    return held.tid != 0 && blocked_by(held.tid) == (held.ours & ~kNeverBlocked);
  };
  std::erase_if(recovered, [](const FoundJournal& journal) {
    return std::ranges::none_of(journal.header.held, [](const HeldSignals& held) { return held.tid != 0; });
  });
  const auto until = Clock::now() + kMaskPatience;
  for (; !recovered.empty() && Clock::now() < until; std::this_thread::sleep_for(kTryAgain)) {
    for (FoundJournal& journal : recovered) {
      if (std::ranges::none_of(journal.header.held, is_stuck) || !is_same(journal)) continue;
      Threads threads(waiter, journal.header.pid, {});
      if (!threads.seize()) continue;
      if (threads.stop()) give_back_signals(threads, journal);
      threads.let_go();
    }
  }
}

// What the journal tells of.
Recovered take_out(Waiter& waiter, FoundJournal& journal, std::vector<std::uint64_t> landings) {
  Recovered result{journal.header.pid, false, 0, {}, false};
  Threads threads(waiter, result.pid, std::move(landings));
  if (!threads.seize()) {
    result.gone = verdict_on(journal).fate == Fate::gone;
    if (!result.gone) result.problem = why_not_ours(result.pid);
    return result;
  }
  TargetMemory memory = TargetMemory::open(result.pid);
  Text text(memory, journal.records);
  text.take_out_breakpoints();
  text.lower_semaphores(journal);
  if (threads.stop()) {
    // What another process that shares the memory runs through is not to change under it.
    if (processes_sharing_memory(result.pid).empty())
      text.take_out_jumps();
    else
      text.take_out_running_jumps();
    threads.skip_calls(calls_to_come(memory, result.pid));
    text.put_back_islands(places_of(threads));
    const auto on_way_back = calls_to_come(memory, result.pid);
    free_call_pads(memory, result.pid, places_of(threads));
    put_action_back(waiter, threads, journal);
    erase_call_pads(memory, threads, on_way_back);
    give_back_signals(threads, journal);
  } else {
    text.take_out_running_jumps();
    const auto is_held = [](const HeldSignals& held) { return held.tid != 0; };
    if (journal.header.landing != 0 || std::ranges::any_of(journal.header.held, is_held))
      result.problem = why_not_all(journal);
  }
  threads.let_go();
  result.places = text.places();
  return result;
}

Recovered recover_one(Waiter& waiter, FoundJournal& journal) {
  Recovered result{journal.header.pid, false, 0, {}, false};
  const Verdict verdict = verdict_on(journal);
  if (verdict.fate == Fate::gone) return result.gone = true, result;
  const auto in_doubt = [&] {
    result.problem = why_in_doubt(journal, verdict.doubt);
    result.in_doubt = true;
    return result;
  };
  if (verdict.fate == Fate::unknown) return in_doubt();
  if (verdict.fate == Fate::may_live) {
    TargetMemory memory = TargetMemory::open(result.pid);
    if (!Text(memory, journal.records).holds_ours()) return in_doubt();
  }
  return take_out(waiter, journal, {journal.header.landing});
}

// What a process holds that no journal tells of.
std::optional<Recovered> recover_by_landings(pid_t pid) {
  const auto id = process::target_id(pid);
  const auto tracer = process::tracer_pid(pid);
  if (!id || !tracer || *tracer != 0) return std::nullopt;
  TargetMemory memory = TargetMemory::open(pid);
  const Layout layout = Layout::of(memory);
  const LeftLandings left = LeftLandings::of(memory, layout);
  if (left.empty()) return std::nullopt;
  LeftText text = left_text(pid, memory, layout, left);
  if (text.empty()) return std::nullopt;
  if (text.unproved != 0)
    spdlog::warn(
        "process {}: a probed that was killed has left {} breakpoints of which no file tells what belongs there: they "
        "stay, and lead where they should, as long as the process leaves SIGTRAP's action alone",
        pid, text.unproved);
  FoundJournal found;
  found.header.pid = pid;
  found.header.start_time = id->start_time;
  found.header.landing = left.pages().front().value;
  found.header.boot = boot_of_this_machine();
  found.records = std::move(text.records);
  std::vector<std::uint64_t> pages;
  for (const RemoteAddr page : left.pages()) pages.push_back(page.value);
  Waiter waiter;
  waiter.bind_to_this_thread();
  return take_out(waiter, found, std::move(pages));
}

void tell(const Recovered& one) {
  if (one.gone) return spdlog::info("process {} has gone: nothing to put back", one.pid);
  if (!one.problem.empty()) return spdlog::error("{}", one.problem);
  spdlog::info("process {}: put back {} places of its text; the memory that was mapped into it stays", one.pid,
               one.places);
}

std::vector<Recovered> recover_found(const std::string& directory, std::chrono::milliseconds patience) {
  Waiter waiter;
  waiter.bind_to_this_thread();
  std::vector<Recovered> all;
  const auto until = Clock::now() + patience;
  std::vector<std::string> refused;
  std::vector<FoundJournal> journals = find_journals(directory, refused);
  for (std::string& why : refused) {
    all.push_back({0, false, 0, std::move(why), true});
    tell(all.back());
  }
  for (FoundJournal& journal : journals) {
    Recovered one = recover_one(waiter, journal);
    while (!one.problem.empty() && !one.in_doubt && Clock::now() < until) {
      std::this_thread::sleep_for(kTryAgain);
      one = recover_one(waiter, journal);
    }
    if (one.problem.empty()) remove_own_file(journal.path);
    tell(one);
    all.push_back(std::move(one));
  }
  watch_masks(waiter, journals);
  return all;
}

}  // namespace

std::optional<Recovered> recover_process(pid_t pid) {
  std::optional<Recovered> one;
  std::thread([&] { one = recover_by_landings(pid); }).join();
  if (one) tell(*one);
  return one;
}

std::vector<Recovered> recover_all(const std::string& directory, std::chrono::milliseconds patience) {
  std::vector<Recovered> all;
  std::thread([&] { all = recover_found(directory, patience); }).join();
  return all;
}

}  // namespace probed::tracer
