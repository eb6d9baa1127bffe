#include "daemon/tracer/targets.hpp"

#include <algorithm>
#include <unordered_set>

#include "daemon/base/process.hpp"
#include "daemon/symbols/maps.hpp"
#include "daemon/tracer/kernel/sharing.hpp"
#include "daemon/tracer/recovery/left_landings.hpp"
#include "daemon/tracer/rooms.hpp"
#include "daemon/tracer/text/text_pages.hpp"

namespace probed::tracer {

Process* Targets::find_process(pid_t pid) {
  const auto it = processes.find(pid);
  return it == processes.end() ? nullptr : it->second.get();
}

Tracee& Targets::add_tracee(pid_t tid, Process& process) {
  Tracee& tracee = tracees[tid];
  tracee.tid = tid;
  tracee.process = &process;
  tracee.left = Running{};
  process.threads.insert(tid);
  return tracee;
}

std::vector<Process*> Targets::family_of(pid_t root) {
  std::vector<Process*> family;
  for (auto& [pid, process] : processes)
    if (process->root == root) family.push_back(process.get());
  return family;
}

std::size_t Targets::tracees_sharing(const AddressSpace& space) const {
  return static_cast<std::size_t>(std::count_if(tracees.begin(), tracees.end(), [&](const auto& entry) {
    return entry.second.process && entry.second.process->space.get() == &space;
  }));
}

// What belongs to whom must be right when no descriptor is left for /proc, too: a thread that is taken for a copy of
// its process would have the text that it runs put back under its creator.
Process* Targets::process_of(pid_t tid) {
  if (const auto group = process::thread_group(tid)) return find_process(*group);
  const auto own =
      std::ranges::find_if(processes, [tid](const auto& entry) { return process::is_thread_of(tid, entry.first); });
  return own == processes.end() ? nullptr : own->second.get();
}

bool Targets::alone_in_memory(const Tracee& tracee) const {
  const auto threads = process::thread_ids(tracee.process->id.pid);
  return threads && threads->size() == 1 && processes_sharing_memory(tracee.process->id.pid).empty();
}

Process* Targets::anybody_in(const AddressSpace& space) {
  for (auto& [pid, process] : processes)
    if (process->space.get() == &space && !process->detaching() && !process->threads.empty()) return process.get();
  return nullptr;
}

std::vector<Process*> Targets::one_for_each_space() {
  std::vector<Process*> chosen;
  std::unordered_set<AddressSpace*> seen;
  for (auto& [pid, process] : processes)
    if (process->space && !process->detaching() && seen.insert(process->space.get()).second)
      chosen.push_back(process.get());
  return chosen;
}

}  // namespace probed::tracer
