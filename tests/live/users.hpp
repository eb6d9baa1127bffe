// A root daemon that everybody may connect to, and connections of another user's.
//
// Thread: the test's own.
#pragma once

#include <pwd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>

#include "tests/live/harness.hpp"

namespace probed::live {

// A connection that the daemon sees as this user's: credentials are a thread's own, and taken at connect(). The
// library's setresuid() would change every thread's; the system call does not.
inline std::unique_ptr<RpcClient> connect_as(const Daemon& daemon, const passwd& user) {
  ::chmod(std::filesystem::path(daemon.socket()).parent_path().c_str(), 0711);
  std::unique_ptr<RpcClient> client;
  std::string problem;
  std::thread([&] {
    try {
      if (::syscall(SYS_setresgid, user.pw_gid, user.pw_gid, user.pw_gid) != 0 ||
          ::syscall(SYS_setresuid, user.pw_uid, user.pw_uid, user.pw_uid) != 0)
        throw std::runtime_error("the user cannot be changed");
      client = std::make_unique<RpcClient>(daemon.socket());
    } catch (const std::exception& error) {
      problem = error.what();
    }
  }).join();
  if (!client) throw std::runtime_error(problem);
  return client;
}

struct Nobody {
  Daemon daemon{{"--socket-mode", "0666"}};
  const passwd* user = ::getpwnam("nobody");
  std::unique_ptr<RpcClient> client;
  bool usable() {
    if (::geteuid() != 0 || user == nullptr) return false;
    client = connect_as(daemon, *user);
    return true;
  }
  std::unique_ptr<RpcClient> another() const { return connect_as(daemon, *user); }
};

}  // namespace probed::live
