#include "daemon/tracer/text/journal.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "daemon/base/own_files.hpp"
#include "daemon/tracer/recovery/journal_owner.hpp"

namespace probed::tracer {
namespace {

constexpr std::size_t kFirstRecords = 64;
constexpr const char* kEnding = ".journal";
constexpr std::size_t kMostBytes = 1 << 30;  // of a file that is read back

// PID-STARTTIME-NUMBER.journal, as Journal::create names them.
bool is_ours(const std::string& path) {
  const std::string name = std::filesystem::path(path).stem();
  return std::ranges::count(name, '-') == 2 && name.find_first_not_of("0123456789-") == name.npos;
}

// Begun, and not finished: what it is known by is written last, and before anything is written into a target.
bool was_begun(std::string_view text) {
  return text.substr(0, JournalHeader::kMagic.size()).find_first_not_of('\0') == text.npos;
}

// Not empty: why it can't be read.
std::string read_journal(std::string_view text, FoundJournal& found) {
  constexpr std::size_t kVersion = JournalHeader::kMagic.size() - 1;
  JournalHeader& header = found.header;
  const bool ours = text.size() > kVersion && std::equal(text.begin(), text.begin() + kVersion, header.kMagic.begin());
  if (!ours) return "it is no journal of ours";
  if (text[kVersion] != header.kMagic[kVersion])
    return "it was written by another version of probed: let that recover it";
  if (text.size() < sizeof header) return "it is cut short";
  std::memcpy(&header, text.data(), sizeof header);
  const std::size_t there = (text.size() - sizeof header) / sizeof(JournalRecord);
  if (header.record_size != sizeof(JournalRecord) || header.record_count > there) return "it is damaged";
  found.records.resize(header.record_count);
  if (!found.records.empty())
    std::memcpy(found.records.data(), text.data() + sizeof header, found.records.size() * sizeof(JournalRecord));
  return {};
}

// Another process is to find what follows only together with what precedes: processors keep stores in order, the
// compiler is told to.
void in_order() { std::atomic_signal_fence(std::memory_order_seq_cst); }

}  // namespace

std::unique_ptr<Journal> Journal::create(const std::string& directory, TargetId target) {
  static std::uint64_t number = 0;
  static bool said = false;
  if (directory.empty()) return nullptr;
  const std::string path = fmt::format("{}/{}-{}-{}{}", directory, target.pid, target.start_time, ++number, kEnding);
  Own own = open_own_file(path, O_RDWR | O_CREAT);
  std::unique_ptr<Journal> journal(new Journal(path, std::move(own.fd)));
  if (journal->fd_ && (::ftruncate(journal->fd_.get(), 0) != 0 || !journal->grow(kFirstRecords))) {
    own.error = errno;
    journal->fd_.reset();
    journal->remove();
  }
  if (!journal->fd_) {
    if (!std::exchange(said, true))
      spdlog::warn("no journal can be kept in {}: {}; should this daemon be killed, its probes stay behind", directory,
                   own.why());
    return nullptr;
  }
  JournalHeader& header = journal->header();
  header.boot = boot_of_this_machine();
  journal->at(0) = record_of(own_namespaces());
  header.record_count = 1;
  header.record_size = sizeof(JournalRecord);
  header.pid = target.pid;
  header.start_time = target.start_time;
  in_order();
  header.magic = JournalHeader::kMagic;
  return journal;
}

Journal::~Journal() {
  if (map_) ::munmap(map_, mapped_);
}

void Journal::remove() { remove_own_file(path_); }

// posix_fallocate: a store into a hole of a full file system would be the end of this process (SIGBUS).
bool Journal::grow(std::size_t records) {
  const std::size_t size = sizeof(JournalHeader) + records * sizeof(JournalRecord);
  if (const int error = ::posix_fallocate(fd_.get(), 0, static_cast<off_t>(size))) return errno = error, false;
  void* const map = map_ ? ::mremap(map_, mapped_, size, MREMAP_MAYMOVE)
                         : ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
  if (map == MAP_FAILED) return false;
  map_ = map;
  mapped_ = size;
  capacity_ = records;
  return true;
}

JournalRecord& Journal::at(std::size_t index) {
  return reinterpret_cast<JournalRecord*>(static_cast<char*>(map_) + sizeof(JournalHeader))[index];
}

JournalRecord* Journal::record(Kind kind, RemoteAddr address) {
  const auto known = index_.find(key(kind, address));
  if (known != index_.end()) return &at(known->second);
  const std::size_t index = header().record_count;
  if (index == capacity_ && !grow(capacity_ * 2)) {
    if (std::exchange(header().incomplete, 1) == 0)
      spdlog::warn(
          "{} can't grow: {}; should this daemon be killed, what isn't in there is looked for in the memory of process "
          "{}: make room there",
          path_, std::strerror(errno), header().pid);
    return nullptr;
  }
  index_.emplace(key(kind, address), index);
  at(index) = JournalRecord{};
  in_order();
  header().record_count = index + 1;
  return &at(index);
}

void Journal::note_breakpoint(const SitePlan& plan) {
  JournalRecord* record = this->record(Kind::breakpoint, plan.address);
  if (!record) return;
  JournalRecord now;
  now.kind = Kind::breakpoint;
  now.in_text = true;
  now.size = plan.insn.length;
  now.context = plan.context;
  static_assert(sizeof plan.bytes <= sizeof now.before);
  std::ranges::copy(plan.bytes, now.before.begin());
  now.address = plan.address.value;
  now.backing = plan.backing;
  *record = now;
  in_order();
}

void Journal::note_taken_out(RemoteAddr breakpoint) {
  const auto known = index_.find(key(Kind::breakpoint, breakpoint));
  in_order();
  if (known != index_.end()) at(known->second).in_text = false;
}

void Journal::note_patch(const Patch& patch, const symbols::Backing& backing) {
  JournalRecord* record = this->record(Kind::patch, patch.at);
  if (!record) return;
  JournalRecord now;
  now.kind = Kind::patch;
  now.in_text = true;
  now.size = patch.size;
  std::ranges::copy(patch.before, now.before.begin());
  std::ranges::copy(patch.after, now.after.begin());
  now.address = patch.at.value;
  now.backing = backing;
  *record = now;
  in_order();
}

void Journal::note_landing(const Action& ours, const Action& before) {
  header().action = before;
  in_order();
  header().landing = ours.handler;
  in_order();
}

HeldSignals* Journal::held_from(pid_t tid) {
  auto& held = header().held;
  const auto found = std::ranges::find(held, tid, &HeldSignals::tid);
  return found == held.end() ? nullptr : &*found;
}

void Journal::note_mask(pid_t tid, std::uint64_t mask, std::uint64_t ours) {
  HeldSignals* held = held_from(tid);
  const bool known = held != nullptr;
  if (!known) held = held_from(0);
  if (!held) return;
  held->mask = mask;
  held->ours = ours;
  if (!known) held->taken = 0;
  in_order();
  held->tid = tid;
  in_order();
}

void Journal::note_taken(pid_t tid, int signal, const siginfo_t& info) {
  HeldSignals* held = held_from(tid);
  if (!held || held->taken != 0) return;
  held->info = info;
  in_order();
  held->taken = -signal;
  in_order();
}

void Journal::note_gone_on(pid_t tid) {
  in_order();
  if (HeldSignals* held = held_from(tid); held && held->taken < 0) held->taken = -held->taken;
}

void Journal::forget_mask(pid_t tid) {
  in_order();
  if (HeldSignals* held = held_from(tid)) held->tid = 0;
}

void Journal::begin_semaphore(RemoteAddr at, const symbols::Backing& backing, std::uint16_t ours, std::uint16_t value) {
  JournalRecord* record = this->record(Kind::semaphore, at);
  if (!record) return;
  record->address = at.value;
  record->backing = backing;
  record->after_count = ours;
  record->after_value = value;
  in_order();
  record->changing = 1;
  in_order();
  record->kind = Kind::semaphore;
  in_order();
}

void Journal::end_semaphore(RemoteAddr at) {
  const auto known = index_.find(key(Kind::semaphore, at));
  if (known == index_.end()) return;
  JournalRecord& record = this->at(known->second);
  in_order();
  record.count = record.after_count;
  in_order();
  record.changing = 0;
}

std::vector<FoundJournal> find_journals(const std::string& directory, std::vector<std::string>& refused) {
  std::vector<FoundJournal> found;
  if (const Own own = open_own_directory(directory); !own) {
    refused.push_back(fmt::format("nothing is recovered by {}: {}", directory, own.why()));
    return found;
  }
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    FoundJournal journal;
    journal.path = entry.path();
    if (!journal.path.ends_with(kEnding)) continue;
    std::string text;
    const Own own = read_own_file(journal.path, kMostBytes, text);
    if (own && was_begun(text) && is_ours(journal.path)) {
      remove_own_file(journal.path);
      continue;
    }
    const std::string why = own ? read_journal(text, journal) : own.why();
    if (why.empty())
      found.push_back(std::move(journal));
    else
      refused.push_back(fmt::format("{} is not believed, and stays where it is: {}", journal.path, why));
  }
  return found;
}

std::vector<FoundJournal> find_journals(const std::string& directory) {
  std::vector<std::string> refused;
  return find_journals(directory, refused);
}

void rewrite_record(const FoundJournal& journal, std::size_t index, const JournalRecord& record) {
  Own own = open_own_file(journal.path, O_WRONLY);
  const auto at = static_cast<off_t>(sizeof(JournalHeader) + index * sizeof(JournalRecord));
  if (own && ::pwrite(own.fd.get(), &record, sizeof record, at) == ssize_t{sizeof record}) return;
  if (own) own.error = errno;
  spdlog::warn("{} can't be written to: {}", journal.path, own.why());
}

}  // namespace probed::tracer
