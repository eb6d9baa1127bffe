#include "daemon/tracer/recovery/left_landings.hpp"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <iterator>
#include <unordered_map>

#include "daemon/symbols/target_files.hpp"
#include "daemon/tracer/places/xol.hpp"
#include "daemon/tracer/text/address_space.hpp"

namespace probed::tracer {
namespace {

namespace native = arch::native;
using RecordKind = JournalRecord::Kind;
using symbols::Mapping;
using Bytes = std::array<std::uint8_t, arch::kMaxInsnLength>;

constexpr std::size_t kStart = 16;             // bytes that tell most pages from a landing's
constexpr std::uint64_t kMostPages = 1 << 13;  // of a program's own generated code that are looked at
constexpr std::uint64_t kMostEntries = 1 << 21;
constexpr std::uint64_t kCallTrapReach = 16;  // from a trap in generated code to where the landing leads

bool may_hold_landing(const Mapping& m) {
  return m.executable && !m.writable && !m.shared && m.inode == 0 && m.path.empty();
}

bool read(TargetMemory& memory, RemoteAddr from, std::span<std::uint8_t> to) {
  return memory.read_some(from, std::as_writable_bytes(to)) == to.size();
}

bool holds_landing(TargetMemory& memory, RemoteAddr page) {
  static const std::vector<std::uint8_t> start = native::build_landing(0).code;  // which is the same everywhere
  std::array<std::uint8_t, kStart> first{};
  if (start.size() < kStart || !read(memory, page, first) || !std::equal(first.begin(), first.end(), start.begin()))
    return false;
  const std::vector<std::uint8_t> code = native::build_landing(page.value).code;
  std::vector<std::uint8_t> now(code.size());
  return read(memory, page, now) && now == code;
}

}  // namespace

bool LeftLandings::add(TargetMemory& memory, RemoteAddr page) {
  arch::LandingData data;
  const auto bytes = std::as_writable_bytes(std::span(&data, 1));
  if (!holds_landing(memory, page) || memory.read_some(page + arch::kLandingData, bytes) != bytes.size()) return false;
  pages_.push_back(page);
  if (data.table == 0 || data.mask >= kMostEntries || !std::has_single_bit(data.mask + 1)) return true;
  std::vector<arch::LandingEntry> table(data.mask + 1 + arch::kLandingOverrun);
  const auto whole = std::as_writable_bytes(std::span(table));
  table.resize(memory.read_some(RemoteAddr{data.table}, whole) / sizeof(arch::LandingEntry));
  for (const arch::LandingEntry& entry : table)
    if (entry.trapped != 0 && entry.landing != 0) entries_.insert_or_assign(entry.trapped, entry.landing);
  return true;
}

LeftLandings LeftLandings::of(TargetMemory& memory, const Layout& layout, RemoteAddr but) {
  LeftLandings left;
  std::uint64_t pages = 0;
  std::vector<Mapping> smallest_first;
  std::ranges::copy_if(layout.mappings(), std::back_inserter(smallest_first), may_hold_landing);
  std::ranges::stable_sort(smallest_first, {}, &Mapping::size);
  for (const Mapping& m : smallest_first) {
    for (RemoteAddr page = m.start; page < m.end && pages < kMostPages; page = page + kPageSize, ++pages)
      if (page != but) left.add(memory, page);
  }
  return left;
}

LeftLandings LeftLandings::of(TargetMemory& memory, const Action& action) {
  LeftLandings left;
  if (Landing::is_left(memory, action)) left.add(memory, RemoteAddr{action.handler / kPageSize * kPageSize});
  return left;
}

// ---- the text -------------------------------------------------------------------------------------------------------

namespace {

class Reader {
 public:
  Reader(pid_t pid, TargetMemory& memory, const Layout& layout) : pid_(pid), memory_(memory), layout_(layout) {}

  LeftText read_all(const LeftLandings& left) {
    left_ = &left.entries();
    for (const auto& [trapped, landing] : left.entries()) look_at(RemoteAddr{trapped}, RemoteAddr{landing});
    return std::move(text_);
  }

 private:
  void look_at(RemoteAddr at, RemoteAddr landing) {
    const Mapping* const mapping = layout_.at(at);
    Bytes now{}, file{};
    // Had been taken out: what stands there now is the program's.
    if (!mapping || !mapping->executable || landing == at) return;
    const std::size_t size = memory_.read_some(at, std::as_writable_bytes(std::span(now)));
    if (size < native::kBreakpointSize) return;
    const bool trap = native::is_breakpoint(std::span(now).first(size));
    if (mapping->inode == 0 && trap) return of_no_file(at, landing);
    if (mapping->inode == 0) return;
    const std::size_t known = read_file(*mapping, at, file);
    if (known < native::kBreakpointSize) return void(text_.unproved += trap);
    if (trap && !native::is_breakpoint(std::span(file).first(known))) return breakpoint(*mapping, at, now, file, known);
    if (!trap) jump(*mapping, at, now, file, known, true);
  }

  // What interrupts generated code for a call is a nop for who comes there later; of other code nobody knows.
  void of_no_file(RemoteAddr at, RemoteAddr landing) {
    if (landing <= at || landing.value - at.value > kCallTrapReach) return void(++text_.unproved);
    JournalRecord record = record_at(RecordKind::breakpoint, {}, at, native::kBreakpointSize);
    std::ranges::copy(native::kNop, record.before.begin());
    record.context = native::kBreakpointSize;
    text_.records.push_back(record);
  }

  void breakpoint(const Mapping& mapping, RemoteAddr at, const Bytes& now, const Bytes& file, std::size_t known) {
    if (begun_jump(mapping, at, now, file, known)) return;
    const auto length = native::decode(std::span(file).first(known), at.value).length;
    const auto differs = [&](std::size_t i) {
      return now[i] != file[i] && (i < length || !probed_between(at + 1, at + i));
    };
    const std::size_t end = std::min(known, std::max<std::size_t>(length, native::kDetourJumpSize));
    bool same = length != 0;
    for (std::size_t i = native::kBreakpointSize; i < end; ++i) same &= !differs(i);
    if (!same) return void(++text_.unproved);
    JournalRecord record = record_at(RecordKind::breakpoint, mapping.backing(at), at, length);
    record.context = static_cast<std::uint8_t>(known);
    record.before = file;
    text_.records.push_back(record);
  }

  bool probed_between(RemoteAddr first, RemoteAddr last) const {
    const auto next = left_->lower_bound(first.value);
    return next != left_->end() && next->first <= last.value;
  }

  // The daemon was killed when the breakpoint was about to become a jump, or the other way round: behind it is what
  // belongs to the jump.
  bool begun_jump(const Mapping& mapping, RemoteAddr at, const Bytes& now, const Bytes& file, std::size_t known) {
    constexpr std::size_t kTrap = native::kBreakpointSize;
    if constexpr (native::kDetourJumpSize == kTrap) return false;
    const auto longer = native::detour_jump(at.value, at.value);
    const auto shorter = native::short_jump(at.value, at.value);
    const auto is_begun = [&](std::span<const std::uint8_t> jump_there) {
      Bytes whole = now;
      std::copy_n(jump_there.begin(), kTrap, whole.begin());
      const std::size_t size = jump_there.size();
      if (std::equal(now.begin() + kTrap, now.begin() + size, file.begin() + kTrap)) return false;
      return jump(mapping, at, whole, file, known, true);
    };
    return is_begun(longer) || is_begun(shorter);
  }

  // Leads into generated code, maybe by way of another one in padding. `head`: where an instruction was probed.
  bool jump(const Mapping& mapping, RemoteAddr at, const Bytes& now, const Bytes& file, std::size_t known, bool head) {
    const arch::Insn insn = native::decode(now, at.value);
    if (insn.flow != arch::Flow::jump || !insn.target || insn.length > known || insn.length > Patch::kMaxSize)
      return false;
    if (std::equal(now.begin(), now.begin() + insn.length, file.begin())) return false;
    const RemoteAddr to{*insn.target};
    const Mapping* const there = layout_.at(to);
    if (!there || !there->executable || there->writable) return false;
    if (there->inode != 0 && (!head || !island(*there, to))) return false;
    JournalRecord record = record_at(RecordKind::patch, mapping.backing(at), at, insn.length);
    std::copy_n(file.begin(), Patch::kMaxSize, record.before.begin());
    std::copy_n(now.begin(), Patch::kMaxSize, record.after.begin());
    text_.records.push_back(record);
    if (head) probed(mapping, at, file, known);
    return true;
  }

  bool island(const Mapping& mapping, RemoteAddr at) {
    Bytes now{}, file{};
    if (memory_.read_some(at, std::as_writable_bytes(std::span(now))) < Patch::kMaxSize) return false;
    const std::size_t known = read_file(mapping, at, file);
    return known >= Patch::kMaxSize && jump(mapping, at, now, file, known, false);
  }

  // A breakpoint was there before the jump: so it is known for no island.
  void probed(const Mapping& mapping, RemoteAddr at, const Bytes& file, std::size_t known) {
    JournalRecord record = record_at(RecordKind::breakpoint, mapping.backing(at), at,
                                     native::decode(std::span(file).first(known), at.value).length);
    record.context = static_cast<std::uint8_t>(known);
    record.before = file;
    text_.records.push_back(record);
  }

  static JournalRecord record_at(RecordKind kind, const symbols::Backing& backing, RemoteAddr at, std::uint8_t size) {
    JournalRecord record;
    record.kind = kind;
    record.in_text = true;
    record.size = size;
    record.address = at.value;
    record.backing = backing;
    return record;
  }

  // How many bytes of the mapped file there are.
  std::size_t read_file(const Mapping& mapping, RemoteAddr at, Bytes& bytes) {
    const auto [known, fresh] = files_.try_emplace(mapping.start.value);
    if (fresh)
      if (auto file = symbols::open_mapped(pid_, mapping, [](int) { return false; }))
        known->second = std::move(file).value();
    if (!known->second) return 0;
    const auto offset = static_cast<off_t>(mapping.file_offset + (at.value - mapping.start.value));
    const std::size_t most = std::min<std::uint64_t>(bytes.size(), mapping.end.value - at.value);
    const ssize_t n = ::pread(known->second.get(), bytes.data(), most, offset);
    return n > 0 ? static_cast<std::size_t>(n) : 0;
  }

  pid_t pid_;
  TargetMemory& memory_;
  const Layout& layout_;
  const std::map<std::uint64_t, std::uint64_t>* left_ = nullptr;
  LeftText text_;
  std::unordered_map<std::uint64_t, UniqueFd> files_;
};

}  // namespace

LeftText left_text(pid_t pid, TargetMemory& memory, const Layout& layout, const LeftLandings& left) {
  return Reader(pid, memory, layout).read_all(left);
}

bool leads_on(pid_t pid, TargetMemory& memory, const Action& action, const std::set<std::uint64_t>& but) {
  const LeftLandings left = LeftLandings::of(memory, action);
  if (left.empty()) return false;
  const LeftText text = left_text(pid, memory, Layout::of(memory), left);
  const auto is_other = [&](const JournalRecord& record) { return !but.contains(record.address); };
  return text.unproved != 0 || std::ranges::any_of(text.records, is_other);
}

// ---- of traced address spaces ---------------------------------------------------------------------------------------

namespace {

struct Known {
  std::weak_ptr<AddressSpace> space;
  LeftLandings left;
  RemoteAddr page;  // whose table leads on from most of what is left
};
thread_local std::unordered_map<const AddressSpace*, Known> spaces;

const Known* known_of(const AddressSpace& space) {
  const auto known = spaces.find(&space);
  if (known == spaces.end()) return nullptr;
  if (!known->second.space.expired()) return &known->second;
  spaces.erase(known);  // another one's, which was at the same address
  return nullptr;
}

// As Landing::action() has it.
Action action_of(RemoteAddr page) {
  constexpr std::uint64_t kSaRestorer = 0x04000000;
  const arch::LandingCode code = native::build_landing(page.value);
  return {page.value + code.handler, SA_SIGINFO | SA_ONSTACK | SA_NODEFER | kSaRestorer, page.value + code.restorer, 0};
}

bool is_page_of(const LeftLandings& left, const Action& action) {
  const RemoteAddr page{action.handler / kPageSize * kPageSize};
  return std::ranges::find(left.pages(), page) != left.pages().end();
}

}  // namespace

bool find_left(pid_t pid, const std::shared_ptr<AddressSpace>& space) {
  TargetMemory& memory = space->memory();
  const Layout layout = Layout::of(memory);
  LeftLandings left = LeftLandings::of(memory, layout);
  if (left.empty() || left_text(pid, memory, layout, left).empty()) return false;
  const auto lives = [&](RemoteAddr page) {
    const LeftText text = left_text(pid, memory, layout, LeftLandings::of(memory, action_of(page)));
    return text.records.size() + text.unproved;
  };
  const RemoteAddr page = *std::ranges::max_element(left.pages(), {}, lives);
  std::erase_if(spaces, [](const auto& entry) { return entry.second.space.expired(); });
  spaces.insert_or_assign(space.get(), Known{space, std::move(left), page});
  return true;
}

void inherit_left(const AddressSpace& from, const std::shared_ptr<AddressSpace>& to) {
  const Known* const known = known_of(from);
  if (known) spaces.insert_or_assign(to.get(), Known{to, known->left, known->page});
}

bool has_left(const AddressSpace& space) { return known_of(space) != nullptr; }

std::size_t left_entries(const AddressSpace& space) {
  const Known* const known = known_of(space);
  return known ? known->left.entries().size() : 0;
}

std::optional<RemoteAddr> left_landing(AddressSpace& space, RemoteAddr trapped) {
  const Known* const known = known_of(space);
  if (!known) return std::nullopt;
  const auto entry = known->left.entries().find(trapped.value);
  if (entry == known->left.entries().end()) return std::nullopt;
  if (entry->second != trapped.value) return RemoteAddr{entry->second};
  // Taken out since. One that stands there nevertheless is the program's own.
  std::array<std::uint8_t, native::kBreakpointSize> now{};
  if (!read(space.memory(), trapped, now) || native::is_breakpoint(now)) return std::nullopt;
  return trapped;
}

std::optional<Action> left_action(AddressSpace& space, const Action& now) {
  const Known* const known = known_of(space);
  if (!known) return std::nullopt;
  if (is_page_of(known->left, now)) return now;
  return disposition_of(now) == Disposition::standard ? std::optional(action_of(known->page)) : std::nullopt;
}

void stage_left(AddressSpace& space) {
  const Known* const known = known_of(space);
  if (!known) return;
  for (const auto& [trapped, landing] : known->left.entries())
    if (!space.landing().covers({trapped}) && !space.find({trapped})) space.landing().stage({trapped}, {landing});
  space.landing().flush(space.memory());
}

}  // namespace probed::tracer
