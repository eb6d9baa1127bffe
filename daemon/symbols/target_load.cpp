// Takes the snapshot of a process: which modules are where. See target_impl.hpp.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <tuple>

#include "arch/arch.hpp"
#include "daemon/base/file.hpp"
#include "daemon/base/process.hpp"
#include "daemon/base/visits.hpp"
#include "daemon/symbols/function_exits.hpp"
#include "daemon/symbols/open_maps.hpp"
#include "daemon/symbols/target_files.hpp"
#include "daemon/symbols/target_impl.hpp"

namespace probed::symbols {
namespace {

constexpr std::uint64_t kMaxVdso = 1u << 20;
constexpr std::uint64_t kMaxRestartable = 1 << 20;  // bytes of a section
constexpr std::uint64_t kMaxHeaderBytes = 64u << 10;
constexpr std::size_t kMaxInstances = 65536;

using FileKey = std::tuple<std::uint32_t, std::uint32_t, std::uint64_t, std::string>;
FileKey key_of(const Mapping& m) { return {m.dev_major, m.dev_minor, m.inode, m.path}; }

Error unsupported(pid_t pid, std::string_view why, std::string_view hint) {
  return {
      Reason::unsupported_target, "process " + std::to_string(pid) + " is " + std::string(why), std::string(hint), {}};
}

// Refuses what has no user-space program of this machine's kind.
Result<void> check_kind(pid_t pid) {
  Result<process::Stat> stat = process::read_stat(pid);
  if (!stat) return std::move(stat).error();
  if (stat->kernel_thread()) return unsupported(pid, "a kernel thread: it has no program (no /proc/PID/exe)", "");
  if (stat->zombie() && process::has_ended(pid))
    return unsupported(pid, "a zombie: it has exited and has no program any more (no /proc/PID/exe)", "");
  Result<bool> narrow = process::is_32bit(pid);
  if (!narrow) return std::move(narrow).error();
  if (*narrow)
    return unsupported(pid, "a 32-bit process; probed traces 64-bit programs of this machine's architecture only", "");
  return {};
}

std::vector<std::string> program_names(pid_t pid) {
  std::vector<std::string> names{process::comm(pid)};
  const std::string arguments = process::arguments(pid, 4u << 20);
  names.emplace_back(base_name(std::string_view(arguments.c_str())));
  std::erase(names, std::string());
  return names;
}

bool in_a_segment(const Instance& in, RemoteAddr address) {
  return std::ranges::any_of(in.module->segments(), [at = in.elf(address)](const Segment& s) {
    return at >= s.address && at.value - s.address.value < s.memory_size;
  });
}

}  // namespace

Result<void> TargetSymbols::Impl::load(pid_t pid, ModuleCache& cache) {
  if (Result<void> kind = check_kind(pid); !kind) return kind;
  pid = process::task_with_memory(pid);
  pid_ = pid;
  auto files = TargetFiles::of(pid);
  if (!files) return std::move(files).error();
  files_.emplace(std::move(files).value());
  debug_roots_ = cache.options().debug_roots;
  fetch_ = cache.options().fetch;
  program_names_ = program_names(pid);
  // Without it, only implementations of IFUNCs and the vdso stay unknown.
  memory_.reset(::open(("/proc/" + std::to_string(pid) + "/mem").c_str(), O_RDONLY | O_CLOEXEC));
  present_ = PresentPages(pid, pid);
  Result<Maps> maps = open_maps(pid);
  if (!maps) return std::move(maps).error();
  mappings_ = std::move(maps->mappings);
  maps_ = std::move(maps->file);
  // Between two looks that agree it wasn't another user's program for a moment: what this one names is opened with its
  // own user's permissions.
  if (const auto now = file_credentials(pid); !now || *now != files_->credentials())
    return unsupported(pid, "just starting another program, or changing its user", "ask again");
  if (mappings_.empty()) return unsupported(pid, "exiting: it has no memory any more", "");
  std::sort(mappings_.begin(), mappings_.end(), [](const Mapping& a, const Mapping& b) { return a.start < b.start; });
  add_files(cache);
  std::sort(instances_.begin(), instances_.end(),
            [](const Instance& a, const Instance& b) { return a.mapping.start < b.mapping.start; });
  mark_main();
  assign_mappings();
  read_restartable_sequences();
  return {};
}

// Reads nothing of the program's memory, which may be a file that its user serves (FUSE) and never be there.
bool TargetSymbols::Impl::is_current() const {
  char byte = 0;
  const Visit visit(pid_);
  return ::pread(maps_.get(), &byte, 1, 0) == 1;
}

void TargetSymbols::Impl::read_restartable_sequences() {
  for (const Instance& in : instances_) {
    std::vector<std::byte> section(std::min(in.module->restartable_size(), kMaxRestartable));
    if (section.empty() || !read_memory(in.remote(in.module->restartable_start()), section)) continue;
    std::ranges::move(parse_restartable_sequences(section), std::back_inserter(restartable_));
  }
}

bool TargetSymbols::Impl::restartable(RemoteAddr address) const {
  return std::ranges::any_of(restartable_, [address](const RestartableSequence& s) { return s.covers(address); });
}

void TargetSymbols::Impl::add_files(ModuleCache& cache) {
  std::set<FileKey> seen;
  for (const Mapping& m : mappings_) {
    if (!m.executable || instances_.size() >= kMaxInstances) continue;
    if (m.path == "[vdso]") add_vdso(m);
    if (m.inode != 0 && seen.insert(key_of(m)).second) add_file(m, cache);
  }
}

void TargetSymbols::Impl::add_file(const Mapping& mapping, ModuleCache& cache) {
  Result<UniqueFd> fd = files_->open_mapped(mapping, [&](int file) { return same_build_in_memory(mapping, file); });
  if (!fd) return void(failures_.push_back({mapping.path, std::move(fd).error()}));
  struct stat st {};
  ::fstat(fd->get(), &st);
  Instance in;
  in.mapping = mapping;
  in.device = st.st_dev;
  in.inode = st.st_ino;
  in.identity = files_->identity(fd->get(), mapping.path);
  std::shared_ptr<Module> module = in.identity.empty() ? nullptr : cache.find(in.identity);
  if (!module) {
    Result<elf::Image> image = elf::Image::from_fd(std::move(*fd), mapping.path);
    if (!image) return void(failures_.push_back({mapping.path, std::move(image).error()}));
    module = Module::from_headers(*image, mapping.path);
    if (!in.identity.empty()) module = cache.insert(in.identity, std::move(module));
  }
  add_instances(module, in);
}

// One instance for every distance between the file's addresses and the target's that its executable mappings have:
// mprotect splits mappings, but only a second copy lies at another distance.
void TargetSymbols::Impl::add_instances(const std::shared_ptr<const Module>& module, const Instance& like) {
  const std::size_t first = instances_.size();
  const FileKey key = key_of(like.mapping);
  for (const Mapping& m : mappings_) {
    if (!m.executable || key_of(m) != key) continue;
    auto address = module->address_of(m.file_offset, true);
    if (!address) address = module->address_of(m.file_offset, false);  // data made executable
    if (!address) continue;
    const std::uint64_t bias = m.start.value - address->value;
    const bool known = std::any_of(instances_.begin() + static_cast<std::ptrdiff_t>(first), instances_.end(),
                                   [&](const Instance& i) { return i.bias == bias; });
    if (known || instances_.size() >= kMaxInstances) continue;
    Instance in = like;
    in.module = module;
    in.bias = bias;
    in.mapping = m;
    instances_.push_back(std::move(in));
  }
}

// The kernel's own shared library exists in memory only. It isn't shared through the cache: there is no file whose
// identity could stand for it, and it is small.
void TargetSymbols::Impl::add_vdso(const Mapping& mapping) {
  std::vector<std::byte> bytes(std::min(mapping.size(), kMaxVdso));
  if (!read_memory(mapping.start, bytes)) return;
  Result<elf::Image> image = elf::Image::from_bytes(std::move(bytes), mapping.path);
  if (!image) return void(failures_.push_back({mapping.path, std::move(image).error()}));
  auto module = Module::from_headers(*image, mapping.path);
  const auto address = module->address_of(0, false);
  if (!address) return;
  Module::Source source;
  source.open = [&] { return std::optional(std::move(*image)); };
  source.open_path = [](const std::string&) { return Opened(); };
  module->load(source);
  Instance in;
  in.module = std::move(module);
  in.bias = mapping.start.value - address->value;
  in.mapping = mapping;
  in.vdso = true;
  instances_.push_back(std::move(in));
}

void TargetSymbols::Impl::mark_main() {
  struct stat st {};
  if (::stat(("/proc/" + std::to_string(pid_) + "/exe").c_str(), &st) != 0) return;
  const auto it = std::find_if(instances_.begin(), instances_.end(), [&](const Instance& i) {
    return !i.vdso && i.device == st.st_dev && i.inode == st.st_ino;
  });
  if (it != instances_.end()) it->main = true;
}

void TargetSymbols::Impl::assign_mappings() {
  instance_of_mapping_.assign(mappings_.size(), -1);
  std::set<FileKey> modules;
  std::unordered_map<std::uint64_t, std::vector<int>> by_inode;  // to look at few instances for each mapping
  for (std::size_t i = 0; i < instances_.size(); ++i)
    by_inode[instances_[i].mapping.inode].push_back(static_cast<int>(i));
  for (std::size_t m = 0; m < mappings_.size(); ++m) {
    const auto candidates = by_inode.find(mappings_[m].inode);
    if (candidates == by_inode.end()) continue;
    for (const int i : candidates->second) {
      const Instance& in = instances_[static_cast<std::size_t>(i)];
      const bool same_file = key_of(in.mapping) == key_of(mappings_[m]);
      if (same_file && in.module->loads(mappings_[m].file_offset, in.elf(mappings_[m].start)))
        instance_of_mapping_[m] = i;
    }
  }
}

// Whether the build-id of what the target has in memory is the file's. A file without one can't be trusted.
bool TargetSymbols::Impl::same_build_in_memory(const Mapping& mapping, int fd) const {
  const FileKey key = key_of(mapping);
  const auto first = std::find_if(mappings_.begin(), mappings_.end(),
                                  [&](const Mapping& m) { return key_of(m) == key && m.file_offset == 0; });
  if (first == mappings_.end()) return false;
  std::vector<std::byte> bytes(std::min(first->size(), kMaxHeaderBytes));
  if (!read_memory(first->start, bytes)) return false;
  const Result<elf::Image> in_memory = elf::Image::from_bytes(std::move(bytes), mapping.path);
  const Result<elf::Image> on_disk = elf::Image::from_fd(UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 0)), mapping.path);
  if (!in_memory || !on_disk) return false;
  const auto id = in_memory->build_id();
  return !id.empty() && id == on_disk->build_id();
}

Module::Source TargetSymbols::Impl::source_of(const Instance& in) const {
  Module::Source source;
  source.debug_roots = debug_roots_;
  source.fetch = fetch_;
  source.open = [this, &in]() -> std::optional<elf::Image> {
    Result<UniqueFd> fd =
        files_->open_mapped(in.mapping, [&](int file) { return same_build_in_memory(in.mapping, file); });
    // The process may have ended, its pid be another's, or the file have changed under us.
    if (!fd || files_->identity(fd->get(), in.mapping.path) != in.identity) return std::nullopt;
    Result<elf::Image> image = elf::Image::from_fd(std::move(*fd), in.mapping.path);
    return image ? std::optional(std::move(image).value()) : std::nullopt;
  };
  source.open_path = [this](const std::string& path) {
    Opened file = files_->open(path);
    // A container seldom has debug files; ours will do, for find_debug_file compares build-ids and checksums.
    if (!file && file.objection().empty())
      if (Opened here = files_->open_here(path, debug_roots_)) return here;
    return file;
  };
  return source;
}

bool TargetSymbols::Impl::ready(const Instance& in) const { return in.module->load(source_of(in)); }

TargetSymbols::Code TargetSymbols::Impl::code_around(RemoteAddr address) const {
  const Instance* in = instance_at(address);
  if (!in) return {nullptr, 0, "it is in no file's code"};
  if (in->vdso) return {nullptr, 0, "it is in the vdso"};
  if (!ready(*in)) return {nullptr, 0, "its file can't be read"};
  Code code{in->module->code_flow(source_of(*in)), in->bias, nullptr};
  if (!code.flow) return {nullptr, 0, "its file can't be read"};
  code.in_frame = in->module->is_go() || is_covered(in->module->frames(), {address.value - in->bias});
  // Goroutines' stacks are small and have other data right below; only behind that check there's room for sure.
  if (in->module->is_go() && !arch::native::is_stack_check(code.flow->bytes(address.value - in->bias, 8)))
    code.why_not = "Go code keeps no stack to spare there: only functions that begin with a check of the stack do";
  return code;
}

TargetSymbols::Exits TargetSymbols::Impl::exits_of(RemoteAddr entry) const {
  const Code code = code_around(entry);
  if (!code.flow) return {{}, nullptr, 0, false, code.why_not};
  const Instance& in = *instance_at(entry);
  return {function_exits(*in.module, *code.flow, in.elf(entry)), code.flow, in.bias, in.module->is_go(), nullptr};
}

bool TargetSymbols::Impl::read_memory(RemoteAddr from, std::span<std::byte> out) const {
  while (!out.empty()) {
    const std::size_t size = present_.count(from.value, out.size());
    const Visit visit(pid_);
    const ssize_t n = ::pread(memory_.get(), out.data(), size, static_cast<off_t>(from.value));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    out = out.subspan(static_cast<std::size_t>(n));
    from = from + static_cast<std::uint64_t>(n);
  }
  return true;
}

const Mapping* TargetSymbols::Impl::mapping_at(RemoteAddr address) const {
  const auto after = std::upper_bound(mappings_.begin(), mappings_.end(), address,
                                      [](RemoteAddr a, const Mapping& m) { return a < m.start; });
  return after != mappings_.begin() && std::prev(after)->contains(address) ? &*std::prev(after) : nullptr;
}

const Instance* TargetSymbols::Impl::instance_at(RemoteAddr address) const {
  const Mapping* mapping = mapping_at(address);
  if (!mapping) return nullptr;
  const int index = instance_of_mapping_[static_cast<std::size_t>(mapping - mappings_.data())];
  if (index >= 0) return &instances_[static_cast<std::size_t>(index)];
  if (mapping->inode != 0) return nullptr;
  // .bss, and text that a program has moved to huge pages, are anonymous. So is what anybody has mapped between two
  // segments, where files that are aligned for large pages leave gaps.
  const auto it = std::ranges::find_if(instances_, [&](const Instance& i) { return in_a_segment(i, address); });
  return it != instances_.end() ? &*it : nullptr;
}

}  // namespace probed::symbols
