// See mounts.hpp.
#include "daemon/base/mounts.hpp"

#include <fcntl.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstring>
#include <optional>
#include <vector>

#include "daemon/base/file.hpp"

namespace probed {
namespace {

constexpr std::size_t kMostMountinfo = 64 << 20;
constexpr unsigned kMostLinks = 40;       // on one way, as the kernel has it (MAXSYMLINKS)
constexpr std::size_t kMostNames = 4096;  // on one way, links' included

// File systems without a device of their own that hold files as people know them. All others of that kind are the
// kernel's own: their files are made up when they are read, and some reads wait.
// autofs has no files, and leads to what is mounted on it.
constexpr std::array kOrdinary = std::to_array<std::string_view>(
    {"9p",    "afs",   "aufs",   "autofs",    "bcachefs", "beegfs", "btrfs", "ceph",   "cifs",     "ecryptfs",
     "erofs", "gfs2",  "gpfs",   "hugetlbfs", "jffs2",    "lustre", "nfs",   "nfs4",   "ocfs2",    "overlay",
     "panfs", "ramfs", "rootfs", "shiftfs",   "smb3",     "tmpfs",  "ubifs", "vboxsf", "virtiofs", "zfs"});

// Of mounts that no list has: the kernel's own (memfd_create(2), System V shared memory, what is below an overlay), and
// those that were unmounted while in use.
constexpr std::array kNeverRead = std::to_array<std::uint64_t>(
    {BINFMTFS_MAGIC, BPF_FS_MAGIC, CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC, DEBUGFS_MAGIC, DEVPTS_SUPER_MAGIC,
     EFIVARFS_MAGIC, FUSE_SUPER_MAGIC, NSFS_MAGIC, PIPEFS_MAGIC, PROC_SUPER_MAGIC, PSTOREFS_MAGIC, RDTGROUP_SUPER_MAGIC,
     SECURITYFS_MAGIC, SELINUX_MAGIC, SOCKFS_MAGIC, SYSFS_MAGIC, TRACEFS_MAGIC,
     0x62656570 /* configfs, fs/configfs/mount.c */});

std::string refused_kind(std::string_view kind) {
  return "it is on a file system of kind " + std::string(kind) + ", whose files aren't read";
}

std::string_view take_word(std::string_view& text) {
  const std::size_t end = std::min(text.find(' '), text.size());
  const std::string_view word = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return word;
}

template <class T>
std::optional<T> to_number(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end != text.data() ? std::optional(value) : std::nullopt;
}

// Who serves a FUSE file system (Documentation/filesystems/fuse.rst, user_id=).
std::optional<uid_t> server_of(std::string_view options) {
  constexpr std::string_view kKey = "user_id=";
  const std::size_t at = options.find(kKey);
  return at == options.npos ? std::nullopt : to_number<uid_t>(options.substr(at + kKey.size()));
}

bool is_fuse(std::string_view kind) { return kind == "fuse" || kind == "fuseblk" || kind.starts_with("fuse."); }

struct Looked {
  bool ok = false;
  mode_t mode = 0;
  std::uint64_t mount = 0;
};
Looked look_at(int fd) {
  struct statx st {};
  constexpr int kFlags = AT_EMPTY_PATH | AT_STATX_DONT_SYNC | AT_NO_AUTOMOUNT;
  if (::statx(fd, "", kFlags, STATX_TYPE | STATX_MODE | STATX_MNT_ID, &st) != 0) return {};
  return {true, st.stx_mode, (st.stx_mask & STATX_MNT_ID) != 0 ? st.stx_mnt_id : 0};
}

}  // namespace

std::string Opened::objection() const {
  if (fd || error == ENOENT || error == ENOTDIR) return {};
  return error != 0 ? std::strerror(error) : why;
}

std::string mount_objection(std::string_view line, uid_t own_user) {
  std::string_view head = line;
  take_word(head), take_word(head);  // the mount's id, its parent's
  const bool has_device = to_number<unsigned>(take_word(head)).value_or(0) != 0;
  const std::size_t dash = line.find(" - ");
  std::string_view tail = dash == line.npos ? std::string_view() : line.substr(dash + 3);
  const std::string_view kind = take_word(tail);
  take_word(tail);  // the source
  if (is_fuse(kind)) {
    const auto server = server_of(tail);
    if (server && (*server == 0 || *server == own_user)) return {};
    return "it is on a FUSE file system that a user serves, who could keep its reader waiting";
  }
  const bool ordinary = has_device || std::ranges::find(kOrdinary, kind) != kOrdinary.end();
  return ordinary ? std::string() : refused_kind(kind);
}

void Mounts::read() {
  known_.clear();
  std::string text;
  if (read_file("/proc/" + std::to_string(view_) + "/mountinfo", text, kMostMountinfo) != 0) return;
  const uid_t own_user = ::geteuid();
  for (std::string_view rest = text; !rest.empty();) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    if (const auto id = to_number<std::uint64_t>(line)) known_.insert_or_assign(*id, mount_objection(line, own_user));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
}

const std::string& Mounts::objection(int fd) {
  const Looked looked = look_at(fd);
  auto known = known_.find(looked.mount);
  if (looked.mount != 0 && known == known_.end()) {
    read();
    known = known_.find(looked.mount);
  }
  if (looked.mount != 0 && known != known_.end()) return known->second;
  struct statfs fs {};
  kernels_own_.clear();
  if (::fstatfs(fd, &fs) != 0)
    kernels_own_ = std::string("its file system can't be looked at: ") + std::strerror(errno);
  else if (std::ranges::find(kNeverRead, static_cast<std::uint64_t>(fs.f_type)) != kNeverRead.end())
    kernels_own_ = refused_kind("the kernel's own, or FUSE");
  return kernels_own_;
}

bool is_regular_file(int fd) {
  const Looked looked = look_at(fd);
  return looked.ok && S_ISREG(looked.mode);
}

Opened reopen(const UniqueFd& path, Mounts& mounts) {
  if (!path) return Opened::failed(errno);
  if (const std::string& why = mounts.objection(path.get()); !why.empty()) return Opened::refused(why);
  if (!is_regular_file(path.get())) return Opened::refused("it is no regular file");
  constexpr int kFlags = O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
  UniqueFd fd(::open(("/proc/thread-self/fd/" + std::to_string(path.get())).c_str(), kFlags));
  return fd ? Opened(std::move(fd)) : Opened::failed(errno);
}

Opened open_link(const std::string& link, Mounts& mounts) {
  return reopen(UniqueFd(::open(link.c_str(), O_PATH | O_CLOEXEC)), mounts);
}

namespace {

// One way from a root to a file.
class Walk {
 public:
  Walk(int root, std::string_view path, Mounts& mounts) : mounts_(mounts), root_(root) { put_in_front(path); }

  UniqueFd go(Opened& refused) {
    while (!ahead_.empty()) {
      std::string name = std::move(ahead_.back());
      ahead_.pop_back();
      if (name == ".") continue;
      if (name == "..") {
        if (!way_.empty()) way_.pop_back();
        continue;
      }
      if (!enter(name, refused)) return {};
    }
    if (way_.empty()) return refused.error = EISDIR, UniqueFd();
    return std::move(way_.back());
  }

 private:
  int here() const { return way_.empty() ? root_ : way_.back().get(); }

  bool put_in_front(std::string_view path) {
    std::vector<std::string> names;
    while (!path.empty()) {
      const std::size_t end = std::min(path.find('/'), path.size());
      if (end > 0) names.emplace_back(path.substr(0, end));
      path.remove_prefix(std::min(end + 1, path.size()));
    }
    names_ += names.size();
    if (names_ > kMostNames) return false;
    ahead_.insert(ahead_.end(), std::make_move_iterator(names.rbegin()), std::make_move_iterator(names.rend()));
    return true;
  }

  bool enter(const std::string& name, Opened& refused) {
    // Where it stands is looked at first: below a file system that may not be read, nothing is looked up.
    if (refused.why = mounts_.objection(here()); !refused.why.empty()) return false;
    open_how how{};
    how.flags = O_PATH | O_NOFOLLOW | O_CLOEXEC;
    how.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS;
    UniqueFd next(static_cast<int>(::syscall(SYS_openat2, here(), name.c_str(), &how, sizeof how)));
    const Looked looked = next ? look_at(next.get()) : Looked{};
    if (!looked.ok) return refused.error = errno, false;
    if (!S_ISLNK(looked.mode)) return way_.push_back(std::move(next)), true;
    return follow(next.get(), refused);
  }

  bool follow(int link, Opened& refused) {
    if (++links_ > kMostLinks) return refused.error = ELOOP, false;
    std::string to(PATH_MAX, '\0');
    const ssize_t n = ::readlinkat(link, "", to.data(), to.size());
    if (n <= 0) return refused.error = n < 0 ? errno : ENOENT, false;
    to.resize(static_cast<std::size_t>(n));
    if (to.starts_with('/')) way_.clear();
    return put_in_front(to) || (refused.error = ENAMETOOLONG, false);
  }

  Mounts& mounts_;
  int root_;
  std::vector<UniqueFd> way_;       // directories below the root, the last one is where it stands
  std::vector<std::string> ahead_;  // what is still to be entered, the next one last
  std::size_t names_ = 0;
  unsigned links_ = 0;
};

}  // namespace

UniqueFd find_below(int root, std::string_view path, Mounts& mounts, Opened& refused) {
  return Walk(root, path, mounts).go(refused);
}

}  // namespace probed
