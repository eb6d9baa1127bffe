// A process whose threads do nothing by themselves: what a simulated kernel (kernel.hpp) pretends to run.
//
// Its memory, its maps and its entries in /proc are real, and it makes system calls on demand, so the tracer's code can
// map memory in it and write to its text. What its threads "execute" is simulated: in truth all of them are blocked.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <set>
#include <span>
#include <vector>

#include "proto/base/fd.hpp"

namespace probed::tracer::simulated {

class Puppet {
 public:
  // threads: how many it has, the first one included. A copy of this process: the same code at the same addresses.
  explicit Puppet(unsigned threads);
  ~Puppet();
  Puppet(const Puppet&) = delete;
  Puppet& operator=(const Puppet&) = delete;

  pid_t pid() const { return threads_.front(); }
  std::span<const pid_t> threads() const { return threads_; }
  // Made by a thread of that process, it or its copy; the result, or a negative errno.
  std::int64_t call(pid_t process, std::uint64_t number, const std::array<std::uint64_t, 6>& arguments);
  // Another process that does nothing, a copy of it; ends with it. Once.
  pid_t fork();
  // /proc is to say that its first thread runs, from now on.
  void spin();
  // /proc is to say that the calling thread traces it, or not: it does, and never stops it.
  void trace(pid_t tid);
  void let_go(pid_t tid);
  bool read(pid_t process, std::uint64_t address, void* to, std::size_t size) const;
  bool write(pid_t process, std::uint64_t address, const void* from, std::size_t size) const;

 private:
  struct Process {
    pid_t pid = 0;
    UniqueFd commands, answers, memory;
    void open_memory();
  };
  const Process& process(pid_t pid) const { return pid == first_.pid ? first_ : copy_; }

  Process first_, copy_;
  std::vector<pid_t> threads_;
  std::set<pid_t> traced_;
};

}  // namespace probed::tracer::simulated
