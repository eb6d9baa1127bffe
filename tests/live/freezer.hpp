// Processes that stand still wherever they are, which no signal and no tracer does to them.
#pragma once

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "proto/base/fd.hpp"
#include "tests/live/harness.hpp"

namespace probed::live {

// A control group whose processes can be frozen (cgroup v1's freezer or v2): what the kernel does for them waits.
class Freezer {
 public:
  Freezer() {
    const std::string name = "/probed-test-" + std::to_string(::getpid());
    for (const char* root : {"/sys/fs/cgroup/freezer", "/sys/fs/cgroup", "/sys/fs/cgroup/unified"}) {
      const bool first = std::string_view(root).ends_with("freezer");
      if (!std::filesystem::exists(root + std::string(first ? "/cgroup.procs" : "/cgroup.controllers"))) continue;
      if (::mkdir((root + name).c_str(), 0755) != 0) continue;
      path_ = root + name;
      switch_ = path_ + (first ? "/freezer.state" : "/cgroup.freeze");
      off_ = first ? "THAWED" : "0";
      on_ = first ? "FROZEN" : "1";
      thaw_when_gone();
      return;
    }
  }
  ~Freezer() {
    if (path_.empty()) return;
    set(false);
    CHECK(eventually([&] { return ::rmdir(path_.c_str()) == 0; }));
    here_.reset();
    ::waitpid(child_, nullptr, 0);
  }
  Freezer(const Freezer&) = delete;
  Freezer& operator=(const Freezer&) = delete;
  bool usable() const { return !path_.empty(); }
  bool take(pid_t pid) const { return put(path_ + "/cgroup.procs", std::to_string(pid)); }
  bool set(bool frozen) const { return put(switch_, frozen ? on_ : off_); }

 private:
  // A test that is killed would leave its target frozen, which not even SIGKILL ends.
  void thaw_when_gone() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return;
    here_.reset(ends[1]);
    child_ = ::fork();
    if (child_ == 0) {
      ::setsid();
      ::close(ends[1]);
      char byte = 0;
      while (::read(ends[0], &byte, 1) < 0) continue;
      if (std::filesystem::exists(path_)) set(false);
      for (int i = 0; i < 100 && ::rmdir(path_.c_str()) != 0 && errno != ENOENT; ++i) ::usleep(100'000);
      ::_exit(0);
    }
    ::close(ends[0]);
  }

  static bool put(const std::string& file, const std::string& text) {
    std::ofstream out(file);
    out << text << std::flush;
    return out.good();
  }
  std::string path_, switch_, on_, off_;
  UniqueFd here_;  // closed as the test ends, however it does
  pid_t child_ = -1;
};

}  // namespace probed::live
