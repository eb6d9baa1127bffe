#include "daemon/tracer/recovery/recover.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <set>
#include <thread>

#include "daemon/base/own_files.hpp"
#include "daemon/base/process.hpp"
#include "daemon/tracer/kernel/interrupted_calls.hpp"
#include "daemon/tracer/kernel/sharing.hpp"
#include "daemon/tracer/kernel/wait.hpp"
#include "daemon/tracer/recovery/journal_owner.hpp"
#include "daemon/tracer/recovery/left_landings.hpp"
#include "daemon/tracer/recovery/recorded_text.hpp"
#include "daemon/tracer/recovery/stopped_threads.hpp"
#include "daemon/tracer/signals/action_calls.hpp"
#include "daemon/tracer/stops.hpp"
#include "daemon/tracer/text/journal.hpp"
#include "daemon/tracer/text/layout.hpp"

namespace probed::tracer {
namespace {

namespace native = arch::native;
using namespace std::chrono_literals;
using ptrace::Outcome;
using Clock = Waiter::Clock;
using Kind = WaitStatus::Kind;

constexpr auto kMostPatience = 5s;     // for threads that only wait for a processor, on a machine that is full
constexpr auto kTryAgain = 2ms;        // a process that can't be had yet
constexpr auto kStayPatience = 200ms;  // for what the program's handlers come back to

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
void put_action_back(Waiter& waiter, StoppedThreads& threads, const FoundJournal& journal) {
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

// The pads that a signal frame of some thread refers to: it is to go on there behind its handler.
std::set<RemoteAddr> pads_in_stacks(TargetMemory& memory, const StoppedThreads& threads,
                                    const std::set<std::uint64_t>& pads) {
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

// Those that a thread stands in, or comes back to, stay busy: in one that is used again it would find the way of
// another.
void free_call_pads(TargetMemory& memory, const StoppedThreads& threads) {
  std::set<std::uint64_t> occupied = threads.places();
  for (const RemoteAddr pad : pads_in_stacks(memory, threads, calls_to_come(memory, threads.pid())))
    occupied.insert(pad.value);
  tracer::free_call_pads(memory, threads.pid(), occupied);
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

void give_back_signals(StoppedThreads& threads, FoundJournal& journal) {
  for (HeldSignals& held : journal.header.held)
    if (held.tid != 0) threads.give_back(held);
}

bool has_busy_pads(pid_t pid) {
  TargetMemory memory = TargetMemory::open(pid);
  return !calls_to_come(memory, pid).empty();
}

// Threads that were in a handler of the program's when they were let go, or between two changes of their mask, have set
// the one of before again: ours. And behind a handler that came on the way back through a pad they need that no more.
void watch_what_stayed(Waiter& waiter, std::vector<FoundJournal>& recovered) {
  const auto is_stuck = [](const HeldSignals& held) {
    return held.tid != 0 && blocked_by(held.tid) == (held.ours & ~kNeverBlocked);
  };
  const auto is_whole = [](const FoundJournal& journal) {
    return std::ranges::none_of(journal.header.held, [](const HeldSignals& held) { return held.tid != 0; }) &&
           !has_busy_pads(journal.header.pid);
  };
  std::erase_if(recovered, is_whole);
  const auto began = Clock::now();
  auto look_at_pads = kTryAgain;  // each time stops the process: less and less often
  for (auto past = 0ms; !recovered.empty() && past < kStayPatience; std::this_thread::sleep_for(kTryAgain)) {
    past = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - began);
    const bool pads_too = past >= look_at_pads;
    if (pads_too) look_at_pads = 2 * past;
    for (FoundJournal& journal : recovered) {
      const pid_t pid = journal.header.pid;
      const bool stays = std::ranges::any_of(journal.header.held, is_stuck) || (pads_too && has_busy_pads(pid));
      if (!stays || !is_same(journal)) continue;
      StoppedThreads threads(waiter, pid, {});
      if (!threads.seize()) continue;
      if (threads.stop()) {
        TargetMemory memory = TargetMemory::open(pid);
        free_call_pads(memory, threads);
        erase_call_pads(memory, pid);
        give_back_signals(threads, journal);
      }
      threads.let_go();
    }
  }
}

// What the journal tells of.
Recovered take_out(Waiter& waiter, FoundJournal& journal, std::vector<std::uint64_t> landings) {
  Recovered result{journal.header.pid, false, 0, {}, false};
  StoppedThreads threads(waiter, result.pid, std::move(landings));
  if (!threads.seize()) {
    result.gone = verdict_on(journal).fate == Fate::gone;
    if (!result.gone) result.problem = why_not_ours(result.pid);
    return result;
  }
  TargetMemory memory = TargetMemory::open(result.pid);
  RecordedText text(memory, journal.records);
  text.take_out_breakpoints();
  text.lower_semaphores(journal);
  if (threads.stop()) {
    // What another process that shares the memory runs through is not to change under it.
    if (processes_sharing_memory(result.pid).empty())
      text.take_out_jumps();
    else
      text.take_out_running_jumps();
    threads.skip_calls(calls_to_come(memory, result.pid));
    text.put_back_islands(threads.places());
    free_call_pads(memory, threads);
    put_action_back(waiter, threads, journal);
    erase_call_pads(memory, result.pid);
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

void tell_unproved(pid_t pid, const LeftText& text) {
  if (text.unproved != 0)
    spdlog::warn(
        "process {}: a probed that was killed has left {} breakpoints of which no file tells what belongs there: they "
        "stay, and lead where they should, as long as the process leaves SIGTRAP's action alone",
        pid, text.unproved);
}

// What there was no room for in the journal: as for a process that has none.
void complete(FoundJournal& journal) {
  if (std::exchange(journal.header.incomplete, 0) == 0) return;
  TargetMemory memory = TargetMemory::open(journal.header.pid);
  const Layout layout = Layout::of(memory);
  const LeftLandings left = LeftLandings::of(memory, layout);
  LeftText text = left_text(journal.header.pid, memory, layout, left);
  tell_unproved(journal.header.pid, text);
  std::ranges::move(text.records, std::back_inserter(journal.records));
  for (const RemoteAddr page : left.pages()) journal.landings.push_back(page.value);
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
    if (!RecordedText(memory, journal.records).holds_ours()) return in_doubt();
  }
  complete(journal);
  std::vector<std::uint64_t> landings = journal.landings;
  landings.push_back(journal.header.landing);
  return take_out(waiter, journal, std::move(landings));
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
  tell_unproved(pid, text);
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
  watch_what_stayed(waiter, journals);
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
