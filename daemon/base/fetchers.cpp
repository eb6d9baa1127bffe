// See fetchers.hpp. One thread, and programs of their own: nothing here allocates much or takes a lock.
#include "daemon/base/fetchers.hpp"

#include <fcntl.h>
#include <poll.h>
#include <pwd.h>
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
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
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
constexpr int kLooksAtDebts = 4;
constexpr std::chrono::milliseconds kBetweenLooks{50};
constexpr unsigned kTriesUntilTold = 3;

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

// The minor number of a line's device; nullopt: it is no file system without a disk. proc_pid_maps(5).
std::optional<unsigned> minor_in(std::string_view line) {
  for (int field = 0; field < 3; ++field) line.remove_prefix(std::min(line.find(' ') + 1, line.size()));
  unsigned major = 0, minor = 0;
  const auto colon = std::from_chars(line.data(), line.data() + line.size(), major, 16);
  if (colon.ec != std::errc{} || colon.ptr == line.data() + line.size() || *colon.ptr != ':' || major != 0) return {};
  const auto end = std::from_chars(colon.ptr + 1, line.data() + line.size(), minor, 16);
  return end.ec == std::errc{} ? std::optional(minor) : std::nullopt;
}

// The numbers of the devices that a process has mapped files of: a connection is called by its file system's. Reading
// them may wait for the very lock: a child does it.
std::set<unsigned> devices_mapped(pid_t task) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return {};
  UniqueFd from(ends[0]), to(ends[1]);
  const pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    std::string text;
    if (read_file("/proc/" + std::to_string(task) + "/maps", text, 64 << 20) != 0) ::_exit(1);
    std::set<unsigned> minors;
    for (std::string_view rest = text; !rest.empty();) {
      const std::string_view line = rest.substr(0, rest.find('\n'));
      rest.remove_prefix(std::min(line.size() + 1, rest.size()));
      const auto minor = minor_in(line);
      if (!minor || !minors.insert(*minor).second) continue;
      const unsigned told = *minor;
      if (::write(to.get(), &told, sizeof told) != sizeof told) ::_exit(1);
    }
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
  if (child > 0) ::waitpid(child, nullptr, WNOHANG);
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
};
// Those of users that owe answers.
std::vector<Connection> that_owe() {
  std::vector<Connection> all;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(kConnections, error)) {
    struct stat status {};
    std::string waiting;
    if (::stat(entry.path().c_str(), &status) != 0 || status.st_uid == 0) continue;  // others depend on root's
    if (read_file(entry.path() / "waiting", waiting, 32) != 0 || std::atoi(waiting.c_str()) <= 0) continue;
    all.push_back({static_cast<unsigned>(std::atoi(entry.path().filename().c_str())), status.st_uid});
  }
  return all;
}

// Whenever they are looked at within a while: one that answers has nothing left to do now and then.
std::vector<Connection> that_owe_all_the_time() {
  std::vector<Connection> all = that_owe();
  for (int look = 0; look < kLooksAtDebts; ++look) {
    std::this_thread::sleep_for(kBetweenLooks);
    const auto now = that_owe();
    std::erase_if(all, [&](const Connection& each) {
      return std::ranges::find(now, each.number, &Connection::number) == now.end();
    });
  }
  return all;
}

bool end_connection(unsigned number) {
  const std::string path = std::string(kConnections) + "/" + std::to_string(number) + "/abort";
  const UniqueFd abort(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  return abort && ::write(abort.get(), "1", 1) == 1;
}

// One of the process's ids, or of the subordinate ids of its user, which he may have mounted it with. subuid(5), by
// number or by name.
class Users {
 public:
  explicit Users(pid_t task) {
    const auto credentials = process::credentials(task);
    if (!credentials) return;
    ids_ = {credentials->ruid, credentials->euid, credentials->suid, credentials->fsuid};
    std::ifstream file("/etc/subuid");
    for (std::string line; std::getline(file, line);) {
      const std::size_t first = line.find(':'), second = line.find(':', first + 1);
      if (second == line.npos) continue;
      const passwd* const user = ::getpwuid(credentials->ruid);
      const std::string name = line.substr(0, first);
      if (name != std::to_string(credentials->ruid) && (!user || name != user->pw_name)) continue;
      ranges_.emplace_back(std::strtoul(line.c_str() + first + 1, nullptr, 10),
                           std::strtoul(line.c_str() + second + 1, nullptr, 10));
    }
  }
  bool own(uid_t id) const {
    return ids_.contains(id) ||
           std::ranges::any_of(ranges_, [id](const auto& r) { return id >= r.first && id - r.first < r.second; });
  }

 private:
  std::set<uid_t> ids_;
  std::vector<std::pair<unsigned long, unsigned long>> ranges_;
};

// Whose end is likeliest to help, and harms least: of those that owe answers all the time the process's user's own ones
// that it has mapped files of; when that didn't help (`tries`), all his own; then others' that it has mapped.
void end_connections_of(pid_t process, pid_t task, unsigned tries, VisitBoard& board) {
  need_connections();
  const auto owing = that_owe_all_the_time();
  const auto mapped = devices_mapped(task);
  const Users users(process);
  const auto tell = [&](std::int64_t ended, uid_t owner) {
    board.done_for = process;
    board.ended = ended;
    board.ended_of = owner;
    board.done.fetch_add(1);
  };
  const auto end_those = [&](bool own, bool only_mapped) {
    bool any = false;
    for (const Connection& each : owing) {
      if (users.own(each.owner) != own || (only_mapped && !mapped.contains(each.number))) continue;
      if (!end_connection(each.number)) continue;
      tell(each.number, each.owner);
      any = true;
    }
    return any;
  };
  if (end_those(true, true) || (tries > 0 && end_those(true, false)) || (tries > 1 && end_those(false, true))) return;
  if (tries == kTriesUntilTold) tell(-1, 0);
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
    Clock::time_point since, tried;
    unsigned tries = 0;
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
      // For a lock ('D'), or for the file system itself; who works, or waits for a processor, does neither.
      const auto waits = [&slot] {
        const char state = process::state(slot.visitor.load());
        return state == 'D' || state == 'S';
      };
      if ((turn & 1) == 0 || turn != seen.turn || !waits()) {
        seen = {turn, looked_, {}, 0};
        continue;
      }
      if (looked_ - seen.since < kMostPatience || looked_ - seen.tried < kMostPatience) continue;
      seen.tried = looked_;
      free_from(slot.task.load(std::memory_order_relaxed), seen.tries++);
    }
  }

  // In a process of its own, and as others run: nobody waits for a fetcher meanwhile. Only for root's daemon: another
  // one stops nobody but its user.
  void free_from(pid_t task, unsigned tries) {
    if (::geteuid() != 0) return;
    const pid_t child = ::fork();
    if (child == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::close(socket_);
      const sched_param none{};
      ::sched_setscheduler(0, SCHED_OTHER, &none);
      const auto process = process::thread_group(task);
      end_connections_of(process ? *process : task, task, tries, *board_);
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
