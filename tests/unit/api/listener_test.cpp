// The socket file: taking over, refusing, leaving; systemd's socket.
#include "daemon/api/listener.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <atomic>
#include <fstream>
#include <optional>
#include <thread>

#include "tests/unit/api/harness.hpp"

using namespace probed;
using namespace probed::test;
using api::Listener;

namespace {

Result<Listener> listen_at(const std::string& path) { return Listener::at({path, 0600, std::nullopt}); }

struct stat file_at(const std::string& path) {
  struct stat file {};
  lstat(path.c_str(), &file);
  return file;
}

// A socket file that nobody answers on, as a killed daemon leaves it.
void leave_stale(const std::string& path) {
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  REQUIRE(bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
}

}  // namespace

TEST_CASE("the socket has the mode and group asked for, whatever the umask") {
  TempDir dir;
  const mode_t old = umask(0);
  for (const mode_t mode : {0600, 0660, 0666}) {
    auto listener = Listener::at({dir / "sock", mode, std::optional<gid_t>(getegid() == 0 ? 4 : getegid())});
    REQUIRE(listener.ok());
    CHECK((file_at(dir / "sock").st_mode & 07777) == mode);
    CHECK(file_at(dir / "sock").st_gid == (getegid() == 0 ? 4 : getegid()));
    CHECK((fcntl(listener->fd(), F_GETFD) & FD_CLOEXEC) != 0);
    umask(0777);
  }
  umask(old);
}

TEST_CASE("a stale socket is taken over, and ours goes when we do") {
  TempDir dir;
  const std::string path = dir / "sock";
  leave_stale(path);
  {
    auto listener = listen_at(path);
    REQUIRE(listener.ok());
    CHECK(connect_to(path));
  }
  CHECK_FALSE(std::filesystem::exists(path));
}

TEST_CASE("a daemon that answers is never displaced") {
  TempDir dir;
  const std::string path = dir / "sock";
  auto first = listen_at(path);
  REQUIRE(first.ok());
  const auto inode = file_at(path).st_ino;
  auto second = listen_at(path);
  REQUIRE_FALSE(second.ok());
  CHECK(second.error().message.find("another daemon answers") != std::string::npos);
  CHECK(file_at(path).st_ino == inode);
  CHECK(connect_to(path));
}

// Killed, it takes connections until the kernel has come to its socket; stopped, it takes its socket away, and then
// lets go of those who have come meanwhile.
TEST_CASE("a daemon that is dying or stopping is waited for, and its place taken") {
  for (const bool stopped : {false, true}) {
    CAPTURE(stopped);
    TempDir dir;
    const std::string path = dir / "sock";
    std::optional<Listener> dying;
    {
      auto first = listen_at(path);
      REQUIRE(first.ok());
      dying.emplace(std::move(*first));
    }
    const int fd = dying->release_fd();
    std::thread end([&] {
      pollfd asked{fd, POLLIN, 0};
      poll(&asked, 1, 10'000);
      if (stopped) dying->remove();
      close(fd);
    });
    auto second = listen_at(path);
    end.join();
    REQUIRE(second.ok());
    CHECK(connect_to(path));
  }
}

TEST_CASE("a daemon whose queue is full counts as answering") {
  TempDir dir;
  const std::string path = dir / "sock";
  UniqueFd busy(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  REQUIRE(bind(busy.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  REQUIRE(listen(busy.get(), 0) == 0);
  std::vector<UniqueFd> waiting;
  int error = 0;
  while (error == 0) {
    waiting.emplace_back(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    error = connect(waiting.back().get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) ? errno : 0;
  }
  REQUIRE(error == EAGAIN);
  const auto second = listen_at(path);
  REQUIRE_FALSE(second.ok());
  CHECK(second.error().message.find("another daemon answers") != std::string::npos);
  CHECK(std::filesystem::exists(path));
}

TEST_CASE("what is not a socket is left alone") {
  TempDir dir;
  std::ofstream(dir / "file") << "precious";
  std::filesystem::create_directory(dir / "directory");
  leave_stale(dir / "stale");
  std::filesystem::create_symlink(dir / "stale", dir / "link");
  for (const char* name : {"file", "directory", "link"}) {
    CAPTURE(name);
    auto listener = listen_at(dir / name);
    REQUIRE_FALSE(listener.ok());
    CHECK(listener.error().message.find("not a socket") != std::string::npos);
    CHECK_FALSE(listener.error().hint.empty());
  }
  CHECK(std::filesystem::file_size(dir / "file") == 8);
  CHECK(std::filesystem::exists(dir / "stale"));
}

TEST_CASE("paths that can't be are refused with the reason") {
  TempDir dir;
  CHECK(listen_at("").error().reason == Reason::limit_exceeded);
  CHECK(listen_at(dir / std::string(120, 'x')).error().message.find("107") != std::string::npos);
  const auto missing = listen_at(dir / "no/sock");
  REQUIRE_FALSE(missing.ok());
  CHECK(missing.error().hint.find("directory") != std::string::npos);
}

TEST_CASE("at the end only our own socket is removed") {
  TempDir dir;
  const std::string path = dir / "sock";
  {
    auto listener = listen_at(path);
    REQUIRE(listener.ok());
    std::filesystem::rename(path, dir / "moved");
    leave_stale(path);  // somebody else's by now
  }
  CHECK(std::filesystem::exists(path));
  {
    auto listener = listen_at(dir / "gone");
    REQUIRE(listener.ok());
    std::filesystem::remove(dir / "gone");
  }
}

TEST_CASE("of many that start at once over a stale socket exactly one gets it") {
  TempDir dir;
  const std::string path = dir / "sock";
  leave_stale(path);
  std::atomic<int> winners = 0, done = 0;
  std::vector<std::thread> threads;
  constexpr int kMany = 8;
  for (int i = 0; i < kMany; ++i)
    threads.emplace_back([&] {
      auto listener = listen_at(path);
      winners += listener.ok();
      ++done;
      eventually([&] { return done == kMany; });  // the winner stays until all have tried
    });
  for (auto& thread : threads) thread.join();
  CHECK(winners == 1);
}

TEST_CASE("systemd's socket is taken when there is one") {
  CHECK_FALSE(Listener::from_systemd()->has_value());
  TempDir dir;
  // 0: a listening socket; 1: two of them; 2: one that doesn't listen.
  for (const int kind : {0, 1, 2}) {
    CAPTURE(kind);
    std::filesystem::remove(dir / "sock");
    UniqueFd fd(socket(AF_UNIX, SOCK_STREAM, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, (dir / "sock").c_str(), sizeof address.sun_path - 1);
    REQUIRE(bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    if (kind != 2) REQUIRE(listen(fd.get(), 5) == 0);
    const pid_t child = fork();
    if (child == 0) {
      dup2(fd.get(), 3);
      dup2(fd.get(), 4);
      setenv("LISTEN_PID", std::to_string(getpid()).c_str(), 1);
      setenv("LISTEN_FDS", kind == 1 ? "2" : "1", 1);
      auto listener = Listener::from_systemd();
      if (!listener.ok()) _exit(listener.error().reason == Reason::unsupported ? 10 : 11);
      if (!*listener) _exit(12);
      const bool fits = (*listener)->fd() == 3 && (fcntl(3, F_GETFL) & O_NONBLOCK) && !getenv("LISTEN_FDS");
      listener->reset();
      _exit(fits ? 0 : 13);
    }
    int status = 0;
    waitpid(child, &status, 0);
    CHECK(WEXITSTATUS(status) == (kind == 0 ? 0 : 10));
    CHECK(std::filesystem::exists(dir / "sock"));  // systemd's, not ours to remove
  }
}

TEST_CASE("groups are found by name and number") {
  CHECK(*api::find_group("root") == 0);
  CHECK(*api::find_group("4711") == 4711);
  CHECK_FALSE(api::find_group("no-such-group-here").ok());
  CHECK_FALSE(api::find_group("").ok());
}
