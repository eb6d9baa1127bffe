// See fetchers.hpp. One thread, and programs of their own: nothing here allocates much or takes a lock.
#include "daemon/base/fetchers.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "daemon/base/descriptor_message.hpp"
#include "daemon/base/file.hpp"
#include "daemon/base/process.hpp"
#include "daemon/base/realtime.hpp"
#include "daemon/base/visits.hpp"

namespace probed::fetchers {
namespace {

constexpr const char* kConnections = "/sys/fs/fuse/connections";  // Documentation/filesystems/fuse.rst
constexpr int kMapsPatience = 500;                                // ms

template <class T>
std::span<std::byte> bytes_of(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

// A new process's signals are its own.
void unblock_signals() {
  sigset_t all;
  sigfillset(&all);
  ::sigprocmask(SIG_UNBLOCK, &all, nullptr);
}

// ---- a fetcher ------------------------------------------------------------------------------------------------------

// The first byte of each page, by way of the process's memory: with it the page is there.
Reply touch(const Request& request) {
  std::array<char, kMostPages> bytes{};
  std::array<iovec, kMostPages> remote{};
  const std::size_t pages = std::min<std::size_t>(request.pages, kMostPages);
  for (std::size_t i = 0; i < pages; ++i) remote[i] = {reinterpret_cast<void*>(request.at + i * kPage), 1};
  const iovec local{bytes.data(), pages};
  Reply reply;
  while (reply.pages < pages) {
    const ssize_t n = ::process_vm_readv(request.task, &local, 1, remote.data() + reply.pages, pages - reply.pages, 0);
    if (n <= 0) {
      reply.error = n < 0 ? errno : EFAULT;
      break;
    }
    reply.pages += static_cast<std::uint32_t>(n);
  }
  return reply;
}

[[noreturn]] void serve(int socket) {
  ::prctl(PR_SET_NAME, "probed-fetcher");
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGQUIT}) ::signal(signal, SIG_DFL);
  for (Request request;;) {
    if (::recv(socket, &request, sizeof request, 0) != sizeof request) ::_exit(0);
    const Reply reply = touch(request);
    if (::send(socket, &reply, sizeof reply, MSG_NOSIGNAL) != sizeof reply) ::_exit(0);
  }
}

// ---- ending connections ---------------------------------------------------------------------------------------------

// The numbers of the devices that a process has mapped files of: a connection is called by its file system's. Reading
// them may wait for the very lock: a child does it.
std::set<unsigned> devices_mapped(pid_t task) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return {};
  UniqueFd from(ends[0]), to(ends[1]);
  const pid_t child = ::fork();
  if (child == 0) {
    std::string text;
    if (read_file("/proc/" + std::to_string(task) + "/maps", text, 16 << 20) != 0) ::_exit(1);
    std::set<unsigned> minors;
    for (std::size_t at = 0; at < text.size(); at = text.find('\n', at) + 1) {
      unsigned major = 0, minor = 0;
      if (std::sscanf(text.c_str() + at, "%*s %*s %*s %x:%x", &major, &minor) == 2 && major == 0) minors.insert(minor);
      if (text.find('\n', at) == text.npos) break;
    }
    for (const unsigned minor : minors)
      if (::write(to.get(), &minor, sizeof minor) != sizeof minor) ::_exit(1);
    ::_exit(0);
  }
  to.reset();
  std::set<unsigned> minors;
  pollfd wanted{from.get(), POLLIN, 0};
  unsigned minor = 0;
  while (child > 0 && ::poll(&wanted, 1, kMapsPatience) == 1 &&
         ::read(from.get(), &minor, sizeof minor) == sizeof minor)
    minors.insert(minor);
  if (child > 0) ::kill(child, SIGKILL);
  return minors;
}

// Where nobody has mounted it, for us alone.
void need_connections() {
  std::error_code error;
  if (!std::filesystem::is_empty(kConnections, error) && !error) return;
  if (::unshare(CLONE_NEWNS) == 0 && ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0)
    ::mount("fusectl", kConnections, "fusectl", 0, nullptr);
}

struct Connection {
  unsigned number = 0;
  uid_t owner = 0;
  bool waits = false;  // for answers of its server
};
std::vector<Connection> connections() {
  std::vector<Connection> all;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(kConnections, error)) {
    struct stat status {};
    std::string waiting;
    if (::stat(entry.path().c_str(), &status) != 0) continue;
    read_file(entry.path() / "waiting", waiting, 32);
    all.push_back({static_cast<unsigned>(std::atoi(entry.path().filename().c_str())), status.st_uid,
                   std::atoi(waiting.c_str()) > 0});
  }
  return all;
}

bool end_connection(unsigned number) {
  const std::string path = std::string(kConnections) + "/" + std::to_string(number) + "/abort";
  const UniqueFd abort(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  return abort && ::write(abort.get(), "1", 1) == 1;
}

// Those of users that `task` has mapped files of and that owe answers; where that can't be told, those of its own user.
// Not root's: others depend on them.
void end_connections_of(pid_t task, VisitBoard& board) {
  need_connections();
  const auto mapped = devices_mapped(task);
  const auto credentials = process::credentials(task);
  for (const Connection& each : connections()) {
    if (!each.waits || each.owner == 0) continue;
    const bool own = credentials && (credentials->ruid == each.owner || credentials->euid == each.owner);
    if (mapped.empty() ? !own : !mapped.contains(each.number)) continue;
    if (!end_connection(each.number)) continue;
    board.ended_for.store(task);
    board.ended.fetch_add(1);
  }
}

// ---- the parent -----------------------------------------------------------------------------------------------------

class Parent {
 public:
  explicit Parent(int socket) : socket_(socket) {}

  // Until the daemon, and the tracer that outlives it, have gone.
  void run() {
    for (;;) {
      pollfd wanted{socket_, POLLIN, 0};
      const bool watches = board_ && board_->strangers.load() > 0;
      const int n = ::poll(&wanted, 1, watches ? static_cast<int>(kLook.count()) : -1);
      reap();
      if (n > 0 && !take_wish()) break;
      if (watches && Clock::now() - looked_ >= kLook) look_at_visits();
    }
    for (const auto& [pid, of] : children_) ::kill(pid, SIGKILL);
  }

 private:
  using Clock = std::chrono::steady_clock;
  struct Child {
    bool fetches = false, waits = false;
    uid_t user = 0;
  };
  struct Seen {
    std::uint32_t turn = 0;
    Clock::time_point since, ended;
  };

  void reap() {
    for (pid_t pid = 0; (pid = ::waitpid(-1, nullptr, WNOHANG)) > 0;) children_.erase(pid);
  }

  bool take_wish() {
    Wish wish;
    UniqueFd fd;
    const std::ptrdiff_t n = receive_packet(socket_, bytes_of(wish), fd);
    if (n == -EINTR || n == -EAGAIN) return true;
    if (n != sizeof wish) return false;
    switch (wish.kind) {
      case Wish::Kind::begin: board_ = map_visit_board(fd.get()); break;
      case Wish::Kind::make: make(wish); break;
      case Wish::Kind::end: end(wish); break;
      case Wish::Kind::watch: break;  // poll() has a limit now
    }
    return true;
  }

  Made::Outcome may_make(uid_t user) const {
    const auto fetching = std::ranges::count_if(children_, [](const auto& c) { return c.second.fetches; });
    const auto waiting =
        std::ranges::count_if(children_, [&](const auto& c) { return c.second.waits && c.second.user == user; });
    if (fetching >= (user == 0 ? kMostFetchers : kMostFetchers - kOfRoot)) return Made::Outcome::too_many;
    return user != 0 && waiting >= kMostWaiting ? Made::Outcome::too_many : Made::Outcome::made;
  }

  void make(const Wish& wish) {
    Made made{wish.number, may_make(wish.user), 0};
    int ends[2] = {-1, -1};
    if (made.outcome == Made::Outcome::made && ::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
      made.outcome = Made::Outcome::failed;
    UniqueFd theirs(ends[0]), ours(ends[1]);
    if (made.outcome == Made::Outcome::made) {
      made.fetcher = ::fork();
      if (made.fetcher == 0) {
        ::close(socket_);
        theirs.reset();
        serve(ours.get());
      }
      if (made.fetcher > 0)
        children_[made.fetcher] = {true, false, wish.user};
      else
        made.outcome = Made::Outcome::failed;
    }
    send_packet(socket_, bytes_of(made), made.outcome == Made::Outcome::made ? theirs.get() : -1);
  }

  // Most wait so that this ends them; one that waits for a server's answer counts until that is there.
  void end(const Wish& wish) {
    const auto child = children_.find(wish.fetcher);
    if (child == children_.end() || !child->second.fetches) return;
    child->second.waits = true;
    child->second.user = wish.user;
    ::kill(child->first, SIGKILL);
  }

  void look_at_visits() {
    looked_ = Clock::now();
    for (std::size_t i = 0; i < VisitBoard::kSlots; ++i) {
      const VisitBoard::Slot& slot = board_->slots[i];
      const std::uint32_t turn = slot.turn.load(std::memory_order_acquire);
      Seen& seen = seen_[i];
      const bool waits = (turn & 1) != 0 && turn == seen.turn && process::state(slot.visitor.load()) == 'D';
      if (!waits) {  // for the lock, nor for a file system: it works, or waits for a processor
        seen = {turn, looked_, {}};
        continue;
      }
      if (looked_ - seen.since < kMostPatience || looked_ - seen.ended < kMostPatience) continue;
      seen.ended = looked_;
      free_from(slot.task.load(std::memory_order_relaxed));
    }
  }

  // In a process of its own: nobody waits for a fetcher meanwhile.
  void free_from(pid_t task) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      end_connections_of(task, *board_);
      ::_exit(0);
    }
    if (child > 0) children_[child] = {};
  }

  int socket_;
  VisitBoard* board_ = nullptr;
  std::map<pid_t, Child> children_;
  std::array<Seen, VisitBoard::kSlots> seen_{};
  Clock::time_point looked_{};
};

}  // namespace

int run(int socket) {
  ::prctl(PR_SET_NAME, "probed-fetchers");
  // Somebody stands still until there is an answer; fetchers inherit it.
  if (!take_realtime_priority()) ::setpriority(PRIO_PROCESS, 0, -20);
  unblock_signals();
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGPIPE}) ::signal(signal, SIG_IGN);
  if (::chdir("/") != 0) return 1;
  Parent(socket).run();
  return 0;
}

}  // namespace probed::fetchers
