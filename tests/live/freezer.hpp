// Processes that stand still wherever they are, which no signal and no tracer does to them.
#pragma once

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

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
      return;
    }
  }
  ~Freezer() {
    if (path_.empty()) return;
    set(false);
    CHECK(eventually([&] { return ::rmdir(path_.c_str()) == 0; }));
  }
  Freezer(const Freezer&) = delete;
  Freezer& operator=(const Freezer&) = delete;
  bool usable() const { return !path_.empty(); }
  bool take(pid_t pid) const { return put(path_ + "/cgroup.procs", std::to_string(pid)); }
  bool set(bool frozen) const { return put(switch_, frozen ? on_ : off_); }

 private:
  static bool put(const std::string& file, const std::string& text) {
    std::ofstream out(file);
    out << text << std::flush;
    return out.good();
  }
  std::string path_, switch_, on_, off_;
};

}  // namespace probed::live
