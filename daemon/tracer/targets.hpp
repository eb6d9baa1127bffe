// Who is traced: processes and threads, and what all rooms of the tracer ask about them.
//
// Owning thread: the tracer thread.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "daemon/tracer/kernel/wait.hpp"
#include "daemon/tracer/program.hpp"
#include "daemon/tracer/tracee.hpp"

namespace probed::tracer {

struct Targets {
  std::unordered_map<pid_t, Tracee> tracees;
  std::map<pid_t, std::unique_ptr<Process>> processes;
  std::unordered_map<std::uint32_t, ProgramPtr> programs;  // of all their probes, by number(id)
  // What the last processes we let go had in their text: a copy of it may still turn up.
  std::deque<std::shared_ptr<AddressSpace>> recent_spaces;
  bool no_more = false;               // all have been let go for good: no process is attached to any more
  std::vector<Stop> ended_meanwhile;  // threads that died while making a call for us; handled after the current stop

  // null: it isn't traced.
  Process* find_process(pid_t pid);
  // The traced process whose thread this is, traced or not. null: there is none.
  Process* process_of(pid_t tid);
  // Enters a running thread; a known one becomes this process's.
  Tracee& add_tracee(pid_t tid, Process& process);

  // The processes that descend from this one, itself included.
  std::vector<Process*> family_of(pid_t root);
  // How many traced threads have this memory.
  std::size_t tracees_sharing(const AddressSpace& space) const;
  // Whether no other thread, traced or not, can write to the thread's memory. False also when that can't be told.
  bool alone_in_memory(const Tracee& tracee) const;
  // Some process with this memory that has threads and isn't being detached. null: there is none any more.
  Process* anybody_in(const AddressSpace& space);
  // For each address space one process, of those that aren't being detached.
  std::vector<Process*> one_for_each_space();
};

}  // namespace probed::tracer
