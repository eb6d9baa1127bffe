#include "daemon/base/fault_in.hpp"

#include <fcntl.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "daemon/base/alone.hpp"
#include "daemon/base/descriptor_message.hpp"
#include "daemon/base/fetchers.hpp"
#include "daemon/base/file.hpp"
#include "daemon/base/process.hpp"
#include "daemon/base/time_limit.hpp"
#include "daemon/base/visits.hpp"
#include "proto/base/fd.hpp"

namespace probed {
namespace {

using Clock = std::chrono::steady_clock;
using fetchers::kMostPages;
using fetchers::kPage;
using fetchers::Made;
using fetchers::Reply;
using fetchers::Request;
using fetchers::Wish;
using std::chrono::milliseconds;

constexpr std::size_t kMostIdle = 4;         // fetchers that wait for the next request
constexpr milliseconds kBirth{1000};         // how long it may take to make one
constexpr milliseconds kForProcessor{2000};  // that one may wait for a processor, beyond kPatience
constexpr milliseconds kParentsBirth{2000};  // from its start on; it may have yet to be given a processor
constexpr milliseconds kAgain{1000};         // between two tries to start their parent
constexpr milliseconds kExecution{500};

// Documentation/admin-guide/mm/pagemap.rst
constexpr std::uint64_t kPresent = 1ull << 63, kSwapped = 1ull << 62, kWriteProtected = 1ull << 57;

// A page that was never there may be marked as write-protected (userfaultfd(2)), and has the bit of a swapped one then.
bool is_there(std::uint64_t entry) {
  return (entry & kPresent) != 0 || (entry & (kSwapped | kWriteProtected)) == kSwapped;
}

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

// Of a mapping, as the kernel tells of it. A file system of a user's chooses its inodes' numbers, not its device's.
bool is_no_file(std::uint64_t inode, std::uint32_t dev_major, std::uint32_t dev_minor) {
  return inode == 0 && dev_major == 0 && dev_minor == 0;
}

// False: not in time.
bool becomes_readable(int fd, Clock::time_point until) {
  for (;;) {
    const auto left = std::chrono::ceil<milliseconds>(until - Clock::now());
    pollfd asked{fd, POLLIN, 0};
    const int n = ::poll(&asked, 1, static_cast<int>(std::max<milliseconds::rep>(left.count(), 0)));
    if (n > 0) return true;
    if (n == 0 || errno != EINTR) return false;
  }
}

struct Fetcher {
  UniqueFd connection;
  pid_t pid = 0;
};

// A fetcher that waits for a processor isn't one that waits for a file system.
bool answers(const Fetcher& fetcher) {
  const int fd = fetcher.connection.get();
  const auto begun = Clock::now();
  bool there = becomes_readable(fd, begun + PresentPages::kPatience);
  while (!there && process::state(fetcher.pid) == 'R' && Clock::now() - begun < kForProcessor)
    there = becomes_readable(fd, Clock::now() + PresentPages::kPatience / 4);
  return there || becomes_readable(fd, Clock::now());  // it has, just before its state was looked at
}

// Those that there are, as this process knows them.
class Fetchers {
 public:
  enum class Lack : std::uint8_t { none, too_many, not_now };
  struct Taken {
    Fetcher fetcher;
    Lack lack = Lack::none;
  };

  void want() { wanted_ = true; }
  bool wanted() const { return wanted_; }

  // Somebody's memory is visited from now on.
  // False: nobody can watch.
  bool expect_visits() {
    const auto lock = lock_unless_alone(mutex_);
    if (!parent_ || has_ended()) start_parent();
    VisitBoard* const board = visit_board();
    if (board && board->strangers.fetch_add(1) == 0 && parent_) tell({Wish::Kind::watch, 0, 0, 0});
    return board != nullptr;
  }

  // An idle one, or a new one, for the memory of that user's process.
  Taken take(uid_t user) {
    const auto lock = lock_unless_alone(mutex_);
    if (!idle_.empty()) {
      Taken taken{std::move(idle_.back()), Lack::none};
      idle_.pop_back();
      return taken;
    }
    const Wish wish{Wish::Kind::make, ++number_, user, 0};
    if (!tell(wish)) return {{}, Lack::not_now};
    return await(wish.number);
  }

  void give_back(Fetcher fetcher) {
    const auto lock = lock_unless_alone(mutex_);
    if (idle_.size() < kMostIdle) idle_.push_back(std::move(fetcher));
  }

  // It waits for a file system of that user's.
  void end(const Fetcher& fetcher, uid_t user) {
    const auto lock = lock_unless_alone(mutex_);
    if (parent_) tell({Wish::Kind::end, 0, user, fetcher.pid});
  }

 private:
  bool has_ended() const {
    pollfd end{parent_.get(), 0, 0};
    return ::poll(&end, 1, 0) == 1 && (end.revents & (POLLHUP | POLLERR)) != 0;
  }

  bool tell(Wish wish) {
    if (parent_ && send_packet(parent_.get(), bytes_of(wish), -1)) return true;
    if (parent_ && !has_ended()) return false;  // it has more to do than it can
    return start_parent() && send_packet(parent_.get(), bytes_of(wish), -1);
  }

  // Answers to earlier wishes, which came too late for them, are not lost.
  Taken await(std::uint32_t number) {
    const auto until = std::max(Clock::now() + kBirth, started_ + kParentsBirth);
    while (becomes_readable(parent_.get(), until)) {
      Made made;
      Taken taken;
      const std::ptrdiff_t n = receive_packet(parent_.get(), bytes_of(made), taken.fetcher.connection);
      if (n == -EINTR || n == -EAGAIN) continue;
      if (n != sizeof made) break;  // it has ended; the next wish starts another one
      taken.fetcher.pid = made.fetcher;
      if (made.number != number) {
        if (made.outcome == Made::Outcome::made && idle_.size() < kMostIdle) idle_.push_back(std::move(taken.fetcher));
        continue;
      }
      if (made.outcome == Made::Outcome::made) return taken;
      return {{}, made.outcome == Made::Outcome::too_many ? Lack::too_many : Lack::not_now};
    }
    return {{}, Lack::not_now};
  }

  // A program of its own, and nobody's child: it isn't waited for. It has none of our descriptors.
  bool start_parent() {
    if (alone() || Clock::now() - started_ < kAgain) return false;
    started_ = Clock::now();
    parent_.reset();
    idle_.clear();
    if (!board_) board_ = make_visit_board();
    if (board_ && !visit_board()) set_visit_board(map_visit_board(board_.get()));
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return fails();
    UniqueFd ours(ends[0]), theirs(ends[1]), null(::open("/dev/null", O_RDWR | O_CLOEXEC));
    if (::pipe2(ends, O_CLOEXEC) != 0) return fails();
    UniqueFd executed(ends[0]), executing(ends[1]);
    const std::string number = std::to_string(theirs.get());
    const char* arguments[] = {"probed", "--fetchers", number.c_str(), nullptr};
    const pid_t child = null ? ::fork() : -1;
    if (child == 0) {
      ::setsid();
      if (::fork() != 0) ::_exit(0);
      // Not the log, either: who reads that to its end would wait for it.
      for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::dup2(null.get(), fd);
      ::fcntl(theirs.get(), F_SETFD, 0);
      ::execv("/proc/self/exe", const_cast<char* const*>(arguments));
      ::_exit(127);
    }
    if (child < 0) return fails();
    while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
    }
    // Until it is a program of its own it has copies of our descriptors, the socket that we listen on among them.
    executing.reset();
    const bool executes = becomes_readable(executed.get(), Clock::now() + kExecution);
    if (!executes) spdlog::warn("the process that fetches memory of targets takes long to start");
    parent_ = std::move(ours);
    Wish begin{Wish::Kind::begin, 0, 0, 0};
    return send_packet(parent_.get(), bytes_of(begin), board_.get());
  }
  static bool fails() {
    spdlog::warn("what a target hasn't touched of its files can't be read now: no process can be made for that");
    return false;
  }

  std::mutex mutex_;
  std::atomic<bool> wanted_{false};
  UniqueFd parent_, board_;
  std::vector<Fetcher> idle_;
  std::uint32_t number_ = 0;
  Clock::time_point started_{};
};

Fetchers& all_fetchers() {
  static Fetchers all;
  return all;
}

uid_t user_of(pid_t pid) {
  const auto credentials = process::credentials(pid);
  return credentials ? credentials->ruid : 0;
}

}  // namespace

// By the tracer as well, whose wait it may have been: nobody else may ask for memory for a long time.
void tell_of_what_was_done() {
  static std::atomic<std::uint32_t> told{0};
  const VisitBoard* const board = visit_board();
  if (!board) return;
  const std::uint32_t now = board->done.load(std::memory_order_relaxed);
  if (now == told.load(std::memory_order_relaxed) || told.exchange(now) == now) return;
  const std::int64_t ended = board->ended;
  if (ended < 0)
    return spdlog::warn(
        "process {} has its memory locked, so that whoever looks at it waits in the kernel: nothing was found that "
        "could be ended for that",
        board->done_for.load());
  spdlog::warn(
      "process {} kept its tracer waiting for a file system that user {} serves (FUSE) and that didn't answer: that "
      "file system's connection was ended (/sys/fs/fuse/connections/{})",
      board->done_for.load(), board->ended_of.load(), ended);
}

struct PresentPages::Process {
  Process();
  ~Process();
  std::size_t fetch(std::uint64_t at, std::size_t pages);
  std::optional<std::size_t> try_to_fetch(std::uint64_t at, std::size_t pages);
  std::size_t count(std::uint64_t at, std::size_t size, For what);
  std::uint64_t of_no_file(std::uint64_t at, For what);
  std::uint64_t of_no_file_by_text(std::uint64_t at);
  ssize_t look(std::uint64_t page, std::span<std::uint64_t> entries) const;

  bool counted;  // among those whose memory may be visited
  pid_t pid = 0;
  std::atomic<pid_t> task{0};
  UniqueFd pagemap;
  std::once_flag maps_opened;
  UniqueFd maps;
  bool answers_queries = false;                 // of the kernel's, about one mapping
  std::atomic<Clock::time_point> not_before{};  // nothing is fetched, as somebody didn't answer
  std::atomic<int> unanswered{0};               // in a row
};

PresentPages::Process::Process() : counted(all_fetchers().expect_visits()) {}
PresentPages::Process::~Process() {
  if (counted) visit_board()->strangers.fetch_sub(1);
}

void PresentPages::want_fetchers() { all_fetchers().want(); }

PresentPages::PresentPages() = default;
PresentPages::~PresentPages() = default;
PresentPages::PresentPages(PresentPages&&) noexcept = default;
PresentPages& PresentPages::operator=(PresentPages&&) noexcept = default;

PresentPages::PresentPages(pid_t pid, pid_t task) {
  if (!all_fetchers().wanted()) return;
  const Visit visit(task);
  UniqueFd pagemap(::open(("/proc/" + std::to_string(task) + "/pagemap").c_str(), O_RDONLY | O_CLOEXEC));
  if (!pagemap) return;
  process_ = std::make_unique<Process>();
  process_->pid = pid;
  process_->task = task;
  process_->pagemap = std::move(pagemap);
}

std::size_t PresentPages::count(std::uint64_t at, std::size_t size, For what) const {
  if (!process_ || size == 0) return size;
  tell_of_what_was_done();
  return process_->count(at, size, what);
}

// Up to where nothing is mapped, or memory of no file, which the kernel gives whoever asks: most bad pointers lead
// there. `at` where that isn't so, or isn't known: a kernel that answers no queries is asked only for a write, as
// reading all mappings may take milliseconds.
std::uint64_t PresentPages::Process::of_no_file(std::uint64_t at, For what) {
  if (at < kLeastAddress) return kLeastAddress;
  const Visit visit(task);
  std::call_once(maps_opened, [this] {
    maps.reset(::open(("/proc/" + std::to_string(task.load()) + "/maps").c_str(), O_RDONLY | O_CLOEXEC));
    MappingQuery any{.address = kLeastAddress};
    answers_queries = ::ioctl(maps.get(), kQueryMapping, &any) == 0 || errno == ENOENT;
  });
  if (!answers_queries) return what == For::writing ? of_no_file_by_text(at) : at;
  MappingQuery query{.address = at};
  if (::ioctl(maps.get(), kQueryMapping, &query) == 0)
    return is_no_file(query.inode, query.dev_major, query.dev_minor) ? query.end : at;
  return errno == ENOENT ? at + kPage : at;
}

// The same from the text, which is one of whole lines in the order of addresses (fs/proc/task_mmu.c).
std::uint64_t PresentPages::Process::of_no_file_by_text(std::uint64_t at) {
  std::string text;
  if (read_whole(maps.get(), text) != 0) return at;
  for (std::size_t begin = 0, end = 0; begin < text.size(); begin = end + 1) {
    end = std::min(text.find('\n', begin), text.size());
    std::uint64_t first = 0, behind = 0, inode = 0;
    unsigned major = 0, minor = 0;
    if (std::sscanf(text.substr(begin, end - begin).c_str(), "%" SCNx64 "-%" SCNx64 " %*s %*s %x:%x %" SCNu64, &first,
                    &behind, &major, &minor, &inode) != 5)
      return at;
    if (behind > at) return first > at ? first : is_no_file(inode, major, minor) ? behind : at;
  }
  return at + kPage;
}

bool PresentPages::unanswered() const { return process_ && process_->unanswered > 0; }

// How many of the pages have been touched, from the first on.
std::size_t PresentPages::Process::fetch(std::uint64_t at, std::size_t pages) {
  for (;;) {
    if (const auto fetched = try_to_fetch(at, pages)) return *fetched;
    if (!TimeLimit::is_set() || TimeLimit::passed() || unanswered >= kTries) return 0;
    std::this_thread::sleep_until(not_before.load());
  }
}

// nullopt: nobody answered.
std::optional<std::size_t> PresentPages::Process::try_to_fetch(std::uint64_t at, std::size_t pages) {
  const auto give_up = [&](std::string_view why) {
    spdlog::warn("process {}: its memory at {:#x} isn't there, and {}", pid, at, why);
    not_before = Clock::now() + kPause;
    ++unanswered;
    return std::nullopt;
  };
  for (const bool again : {true, false}) {
    if (Clock::now() < not_before.load()) return std::nullopt;
    const uid_t user = user_of(pid);
    auto [fetcher, lack] = all_fetchers().take(user);
    if (lack == Fetchers::Lack::too_many)
      return give_up("too many wait already for file systems that don't answer, to fetch it");
    if (lack != Fetchers::Lack::none) return give_up("nobody can fetch it now");
    Request request{task, static_cast<std::uint32_t>(std::min(pages, kMostPages)), at};
    Reply reply;
    UniqueFd none;
    // One that waited for its next request may have been killed.
    if (!send_packet(fetcher.connection.get(), bytes_of(request), -1)) continue;
    if (!answers(fetcher)) {
      all_fetchers().end(fetcher, user);
      return give_up("the file system that it is mapped from doesn't answer");
    }
    if (receive_packet(fetcher.connection.get(), bytes_of(reply), none) != sizeof reply) continue;
    all_fetchers().give_back(std::move(fetcher));
    unanswered = 0;
    if (reply.pages > 0) return reply.pages;
    // Only its tracer may read it (Yama, ptrace_scope 1): that is the user's own daemon, who can stop nobody else.
    if (reply.error == EPERM && ::geteuid() != 0) return pages;
    if (reply.error != ESRCH || !again) return 0;
    task = process::task_with_memory(pid);
  }
  return give_up("nobody can fetch it now");
}

std::size_t PresentPages::Process::count(std::uint64_t at, std::size_t size, For what) {
  const std::uint64_t first = at / kPage, end = (at + size - 1) / kPage + 1;
  const auto until = [&](std::uint64_t page) {
    return page <= first ? 0 : std::min<std::size_t>(size, page * kPage - at);
  };
  std::array<std::uint64_t, kMostPages> entries;
  std::uint64_t fetched_until = first;  // those before have been touched; what isn't there all the same can't be had
  for (std::uint64_t page = first; page < end;) {
    const std::size_t wanted = std::min<std::size_t>(end - page, entries.size());
    const ssize_t n = look(page, std::span(entries).first(wanted));
    if (n < 0) return until(page);
    if (n == 0) return size;  // no such memory: its end, or the kernel's half
    const auto known = std::span(entries).first(static_cast<std::size_t>(n) / 8);
    const auto missing = std::ranges::find_if_not(known, is_there);
    page += static_cast<std::uint64_t>(missing - known.begin());
    if (missing == known.end()) continue;
    if (const std::uint64_t until_there = of_no_file(page * kPage, what); until_there > page * kPage) {
      page = std::max(page + 1, until_there / kPage);
      continue;
    }
    if (page < fetched_until) return until(page);
    const auto rest = static_cast<std::size_t>(known.end() - missing);
    const std::size_t fetched = fetch(page * kPage, rest);
    if (fetched == 0) return until(page);
    if (::geteuid() != 0) page += std::min(fetched, rest);
    fetched_until = page + std::min(fetched, rest);
  }
  return size;
}

// pread(2)'s answer.
ssize_t PresentPages::Process::look(std::uint64_t page, std::span<std::uint64_t> entries) const {
  const Visit visit(task);
  for (;;) {
    const ssize_t n = ::pread(pagemap.get(), entries.data(), entries.size_bytes(), static_cast<off_t>(page * 8));
    if (n >= 0 || errno != EINTR) return n;
  }
}

}  // namespace probed
