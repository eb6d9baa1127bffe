#include "daemon/base/fault_in.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "daemon/base/alone.hpp"
#include "daemon/base/fd.hpp"
#include "daemon/base/process.hpp"
#include "daemon/base/realtime.hpp"

namespace probed {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::size_t kPage = 4096;     // bytes; both architectures'
constexpr std::size_t kMostPages = 64;  // of one request
constexpr std::size_t kMostIdle = 4;    // fetchers that wait for the next request
constexpr int kMostFetchers = 32;       // alive, most of them for a file system that doesn't answer
constexpr milliseconds kBirth{200};     // how long it may take to make one

// Documentation/admin-guide/mm/pagemap.rst
constexpr std::uint64_t kPresent = 1ull << 63, kSwapped = 1ull << 62;

// PROCMAP_QUERY and its argument (Linux 6.11, include/uapi/linux/fs.h), which Debian 12's headers don't have.
struct MappingQuery {
  std::uint64_t size = sizeof(MappingQuery), flags = 0, address = 0;
  std::uint64_t start = 0, end = 0, vma_flags = 0, page_size = 0, offset = 0, inode = 0;
  std::uint32_t dev_major = 0, dev_minor = 0, name_size = 0, build_id_size = 0;
  std::uint64_t name = 0, build_id = 0;
};
constexpr unsigned long kQueryMapping = _IOWR('f', 17, MappingQuery);

// Nobody but who may access devices maps anything below it (/proc/sys/vm/mmap_min_addr, as distributions have it).
constexpr std::uint64_t kLeastAddress = 64 << 10;

struct Request {
  pid_t task = 0;
  std::uint32_t pages = 0;
  std::uint64_t at = 0;
};
struct Reply {
  std::uint32_t pages = 0;  // could be read
  std::int32_t error = 0;   // of the next one
};

// ---- in processes of their own; one thread each, and nothing of the daemon's is of any use there
// ----------------------

[[noreturn]] void serve(int socket) {
  ::prctl(PR_SET_NAME, "probed-fetcher");
  std::array<char, kMostPages> bytes{};
  std::array<iovec, kMostPages> remote{};
  for (Request request;;) {
    if (::recv(socket, &request, sizeof request, 0) != sizeof request) ::_exit(0);
    const std::size_t pages = std::min<std::size_t>(request.pages, kMostPages);
    for (std::size_t i = 0; i < pages; ++i) remote[i] = {reinterpret_cast<void*>(request.at + i * kPage), 1};
    const iovec local{bytes.data(), pages};
    Reply reply;
    while (reply.pages < pages) {
      const ssize_t n =
          ::process_vm_readv(request.task, &local, 1, remote.data() + reply.pages, pages - reply.pages, 0);
      if (n <= 0) {
        reply.error = n < 0 ? errno : EFAULT;
        break;
      }
      reply.pages += static_cast<std::uint32_t>(n);
    }
    if (::send(socket, &reply, sizeof reply, MSG_NOSIGNAL) != sizeof reply) ::_exit(0);
  }
}

void send_descriptor(int socket, int fd) {
  char byte = fd >= 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  }
  ::sendmsg(socket, &message, MSG_NOSIGNAL);
}

// Makes a fetcher for each byte that comes, until there is nobody left to want one.
[[noreturn]] void make_fetchers(int socket) {
  ::prctl(PR_SET_NAME, "probed-fetchers");
  ::setsid();
  // Somebody stands still until there is an answer; fetchers inherit it.
  if (!take_realtime_priority()) ::setpriority(PRIO_PROCESS, 0, -20);
  if (::chdir("/") != 0) ::_exit(1);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGQUIT}) ::signal(signal, SIG_IGN);
  int alive = 0;
  for (char byte = 0; ::recv(socket, &byte, 1, 0) == 1;) {
    while (alive > 0 && ::waitpid(-1, nullptr, WNOHANG) > 0) --alive;
    int ends[2] = {-1, -1};
    if (alive >= kMostFetchers || ::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
      send_descriptor(socket, -1);
      continue;
    }
    const pid_t child = ::fork();
    if (child == 0) {
      ::close(socket);
      ::close(ends[0]);
      serve(ends[1]);
    }
    if (child > 0) ++alive;
    send_descriptor(socket, child > 0 ? ends[0] : -1);
    ::close(ends[0]);
    ::close(ends[1]);
  }
  ::_exit(0);
}

// ---- in the daemon
// ---------------------------------------------------------------------------------------------------

struct Fetchers {
  std::mutex mutex;
  UniqueFd maker;              // none: nobody fetches
  std::vector<UniqueFd> idle;  // a connection to one each
};
Fetchers& fetchers() {
  static Fetchers all;
  return all;
}

// False: not in time.
bool becomes_readable(int fd, milliseconds patience) {
  const auto deadline = Clock::now() + patience;
  for (;;) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
    pollfd wanted{fd, POLLIN, 0};
    const int n = ::poll(&wanted, 1, static_cast<int>(std::max<milliseconds::rep>(left.count(), 0)));
    if (n > 0) return true;
    if (n == 0 || errno != EINTR) return false;
  }
}

UniqueFd receive_descriptor(int socket) {
  char byte = 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  if (::recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT) != 1) return {};
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  if (!header || header->cmsg_type != SCM_RIGHTS) return {};
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
  return UniqueFd(fd);
}

bool somebody_fetches() {
  const auto lock = lock_unless_alone(fetchers().mutex);
  return static_cast<bool>(fetchers().maker);
}

// An idle one, or a new one; none: there can't be one now.
UniqueFd take_fetcher(bool& any) {
  Fetchers& all = fetchers();
  const auto lock = lock_unless_alone(all.mutex);
  any = static_cast<bool>(all.maker);
  if (!any) return {};
  if (!all.idle.empty()) {
    UniqueFd taken = std::move(all.idle.back());
    all.idle.pop_back();
    return taken;
  }
  const char byte = 1;
  if (::send(all.maker.get(), &byte, 1, MSG_NOSIGNAL | MSG_DONTWAIT) == 1 && becomes_readable(all.maker.get(), kBirth))
    return receive_descriptor(all.maker.get());
  // What it would say later would be taken for the answer to another wish.
  spdlog::warn("memory of targets is read without help from now on: a file system that doesn't answer can stop it");
  all.maker.reset();
  any = false;
  return {};
}

void give_back(UniqueFd fetcher) {
  Fetchers& all = fetchers();
  const auto lock = lock_unless_alone(all.mutex);
  if (all.idle.size() < kMostIdle) all.idle.push_back(std::move(fetcher));
}

}  // namespace

struct PresentPages::Process {
  std::size_t fetch(std::uint64_t at, std::size_t pages);
  std::size_t count(std::uint64_t at, std::size_t size);
  std::uint64_t of_no_file(std::uint64_t at);

  pid_t pid = 0;
  std::atomic<pid_t> task{0};
  UniqueFd pagemap;
  std::once_flag maps_opened;
  UniqueFd maps;                                // none: the kernel answers no queries
  std::atomic<Clock::time_point> not_before{};  // nothing is fetched, as somebody didn't answer
};

void PresentPages::start_fetchers() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return;
  UniqueFd ours(ends[0]), theirs(ends[1]);
  // Nobody's child: it isn't waited for.
  const pid_t child = ::fork();
  if (child == 0) {
    if (::fork() != 0) ::_exit(0);
    ::dup2(theirs.get(), STDIN_FILENO);
    ::close_range(STDIN_FILENO + 1, ~0u, 0);  // the log, too: who reads that to its end would wait for them
    make_fetchers(STDIN_FILENO);
  }
  if (child < 0) return;
  ::waitpid(child, nullptr, 0);
  fetchers().maker = std::move(ours);
}

PresentPages::PresentPages() = default;
PresentPages::~PresentPages() = default;
PresentPages::PresentPages(PresentPages&&) noexcept = default;
PresentPages& PresentPages::operator=(PresentPages&&) noexcept = default;

PresentPages::PresentPages(pid_t pid, pid_t task) {
  if (!somebody_fetches()) return;
  UniqueFd pagemap(::open(("/proc/" + std::to_string(task) + "/pagemap").c_str(), O_RDONLY | O_CLOEXEC));
  if (!pagemap) return;
  process_ = std::make_unique<Process>();
  process_->pid = pid;
  process_->task = task;
  process_->pagemap = std::move(pagemap);
}

std::size_t PresentPages::count(std::uint64_t at, std::size_t size) const {
  return process_ && size > 0 ? process_->count(at, size) : size;
}

// Up to where nothing is mapped, or memory of no file, which the kernel gives whoever asks: most bad pointers lead
// there. `at` where that isn't so, or isn't known.
std::uint64_t PresentPages::Process::of_no_file(std::uint64_t at) {
  if (at < kLeastAddress) return kLeastAddress;
  std::call_once(maps_opened, [this] {
    maps.reset(::open(("/proc/" + std::to_string(task.load()) + "/maps").c_str(), O_RDONLY | O_CLOEXEC));
    MappingQuery any{.address = kLeastAddress};
    if (::ioctl(maps.get(), kQueryMapping, &any) != 0 && errno != ENOENT) maps.reset();
  });
  if (!maps) return at;
  MappingQuery query{.address = at};
  if (::ioctl(maps.get(), kQueryMapping, &query) == 0) return query.inode == 0 ? query.end : at;
  return errno == ENOENT ? at + kPage : at;
}

// How many of the pages have been fetched, from the first on.
std::size_t PresentPages::Process::fetch(std::uint64_t at, std::size_t pages) {
  for (const bool again : {true, false}) {
    if (Clock::now() < not_before.load()) return 0;
    bool any = false;
    UniqueFd fetcher = take_fetcher(any);
    if (!any) return pages;
    const Request request{task, static_cast<std::uint32_t>(std::min(pages, kMostPages)), at};
    Reply reply;
    const bool asked = fetcher && ::send(fetcher.get(), &request, sizeof request, MSG_NOSIGNAL) == sizeof request;
    const bool answered = asked && becomes_readable(fetcher.get(), kPatience);
    if (answered && ::recv(fetcher.get(), &reply, sizeof reply, MSG_DONTWAIT) != sizeof reply) continue;  // killed
    if (!answered) {
      spdlog::warn(
          "process {}: its memory at {:#x} isn't there, and the file system that it is mapped from doesn't answer", pid,
          at);
      not_before = Clock::now() + kPause;
      return 0;
    }
    give_back(std::move(fetcher));
    if (reply.pages > 0) return reply.pages;
    // Only its tracer may read it (Yama, ptrace_scope 1): that is the user's own daemon, who can stop nobody else.
    if (reply.error == EPERM) return pages;
    if (reply.error != ESRCH || !again) return 0;
    task = process::task_with_memory(pid);
  }
  return 0;
}

std::size_t PresentPages::Process::count(std::uint64_t at, std::size_t size) {
  const std::uint64_t first = at / kPage, end = (at + size - 1) / kPage + 1;
  const auto until = [&](std::uint64_t page) {
    return page <= first ? 0 : std::min<std::size_t>(size, page * kPage - at);
  };
  std::array<std::uint64_t, kMostPages> entries;
  for (std::uint64_t page = first; page < end;) {
    const std::size_t wanted = std::min<std::size_t>(end - page, entries.size());
    const ssize_t n = ::pread(pagemap.get(), entries.data(), wanted * 8, static_cast<off_t>(page * 8));
    if (n <= 0) return size;  // no such memory: its end, or the kernel's half
    const auto known = std::span(entries).first(static_cast<std::size_t>(n) / 8);
    const auto missing = std::ranges::find_if(known, [](std::uint64_t e) { return (e & (kPresent | kSwapped)) == 0; });
    page += static_cast<std::uint64_t>(missing - known.begin());
    if (missing == known.end()) continue;
    if (const std::uint64_t until_there = of_no_file(page * kPage); until_there > page * kPage) {
      page = std::max(page + 1, until_there / kPage);
      continue;
    }
    const auto rest = static_cast<std::size_t>(known.end() - missing);
    const std::size_t fetched = fetch(page * kPage, rest);
    page += std::min(fetched, rest);
    if (fetched == 0) return until(page);
  }
  return size;
}

}  // namespace probed
