// Plans for detours, and unpacking what they recorded.
#include "daemon/events/detour_plan.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "daemon/lang/filter_program.hpp"
#include "daemon/values/packed.hpp"

namespace probed::events {
namespace {

using Code = FetchOp::Code;
using Kind = DetourPlan::Source::Kind;

constexpr std::pair<Code, arch::CaptureOp::Code> kCodes[] = {
    {Code::load_register, arch::CaptureOp::Code::load_register},
    {Code::load_stack_pointer, arch::CaptureOp::Code::load_stack_pointer},
    {Code::load_immediate, arch::CaptureOp::Code::load_immediate},
    {Code::load_return_value, arch::CaptureOp::Code::load_return_value},
    {Code::load_entry_word, arch::CaptureOp::Code::load_kept},
    {Code::load_vector, arch::CaptureOp::Code::load_vector},
    {Code::load_thread_pointer, arch::CaptureOp::Code::load_thread_pointer},
    {Code::add, arch::CaptureOp::Code::add},
    {Code::dereference, arch::CaptureOp::Code::dereference},
    {Code::cut, arch::CaptureOp::Code::cut},
    {Code::require, arch::CaptureOp::Code::require},
    {Code::keep_begin, arch::CaptureOp::Code::keep_begin},
    {Code::require_room, arch::CaptureOp::Code::require_room},
    {Code::store_value, arch::CaptureOp::Code::store_value},
    {Code::store_memory, arch::CaptureOp::Code::store_memory},
    {Code::store_memory_array, arch::CaptureOp::Code::store_memory_array},
    {Code::store_string, arch::CaptureOp::Code::store_string},
    {Code::store_string_array, arch::CaptureOp::Code::store_string_array},
};

// What code in the target has no step for.
constexpr std::pair<Code, std::string_view> kOnlyInDaemon[] = {
    {Code::add_register, "an argument is found by an index register"},
    {Code::keep_length, "an argument is a text that a length ends, not a zero"},
};

constexpr std::pair<lang::FilterOp, arch::CapturePredicate::Op> kComparisons[] = {
    {lang::FilterOp::eq, arch::CapturePredicate::Op::eq},        {lang::FilterOp::ne, arch::CapturePredicate::Op::ne},
    {lang::FilterOp::lt, arch::CapturePredicate::Op::lt},        {lang::FilterOp::le, arch::CapturePredicate::Op::le},
    {lang::FilterOp::gt, arch::CapturePredicate::Op::gt},        {lang::FilterOp::ge, arch::CapturePredicate::Op::ge},
    {lang::FilterOp::band, arch::CapturePredicate::Op::any_bit},
};

template <class Table, class Key>
auto look_up(const Table& table, Key key) -> const decltype(table[0].second)* {
  const auto* row = std::ranges::find_if(table, [&](const auto& r) { return r.first == key; });
  return row == std::end(table) ? nullptr : &row->second;
}

void add_op(const FetchOp& op, std::uint16_t& items, DetourPlan& plan, const FetchProgram& program) {
  if (op.code == Code::store_comm) return void(plan.sources.emplace_back().kind = Kind::comm);
  if (op.code == Code::store_text) {
    DetourPlan::Source& source = plan.sources.emplace_back();
    source.kind = Kind::text;
    source.index = static_cast<std::uint16_t>(plan.texts.size());
    return plan.texts.push_back(program.texts()[op.operand]);
  }
  arch::CaptureOp converted{*look_up(kCodes, op.code), op.size, op.is_signed, op.left, op.right, op.count, op.operand};
  // A detour copies up to the zero; what was behind the array's end is cut off when the record is unpacked.
  const std::uint16_t limit = op.code == Code::store_string ? std::exchange(converted.count, std::uint16_t{0}) : 0;
  plan.capture.ops.push_back(converted);
  if (!converted.is_store()) return;
  DetourPlan::Source& source = plan.sources.emplace_back();
  source.index = items++;
  source.limit = limit;
}

// The ops of one argument. What is never there needs none.
void add_argument(std::span<const FetchOp> ops, std::uint16_t& items, DetourPlan& plan, const FetchProgram& program) {
  if (ops.front().code == Code::load_duration) return void(plan.sources.emplace_back().kind = Kind::duration);
  if (std::ranges::find(ops, Code::unavailable, &FetchOp::code) != ops.end())
    return void(plan.sources.emplace_back().kind = Kind::absent);
  for (const FetchOp& op : ops) add_op(op, items, plan, program);
  plan.sources.back().needs_return_value = std::ranges::find(ops, Code::load_return_value, &FetchOp::code) != ops.end();
}

// All arguments of a program; nothing is laid out yet.
Result<DetourPlan> convert(const FetchProgram& program) {
  for (const auto& [code, why] : kOnlyInDaemon)
    if (std::ranges::find(program.ops(), code, &FetchOp::code) != program.ops().end())
      return Error{Reason::unsupported, "cannot be optimised: " + std::string(why), "", {}};
  DetourPlan plan;
  std::uint16_t items = 0;
  for (std::span<const FetchOp> rest = program.ops(); !rest.empty();) {
    const auto store = std::ranges::find_if(rest, [](const FetchOp& op) { return op.code >= Code::store_value; });
    const auto count = static_cast<std::size_t>(store - rest.begin()) + 1;
    add_argument(rest.first(count), items, plan, program);
    rest = rest.subspan(count);
  }
  const auto is_comm = [](const DetourPlan::Source& source) { return source.kind == Kind::comm; };
  plan.needs_comm = std::ranges::any_of(plan.sources, is_comm);
  return plan;
}

// kept: bytes of a call in its return's record; 0: it is no return's.
Result<void> lay_out(DetourPlan& plan, std::size_t kept) {
  auto laid_out = arch::lay_out(plan.capture.ops, kept);
  if (laid_out.refusal != arch::DetourRefusal::none)
    return Error{Reason::unsupported,
                 "cannot be optimised: " + std::string(arch::describe(laid_out.refusal)),
                 "use fewer or shorter arrays and strings",
                 {}};
  plan.capture.layout = std::move(laid_out.layout);
  plan.only_numbers = std::ranges::all_of(plan.sources, [&](const DetourPlan::Source& source) {
    if (source.kind != Kind::item || source.needs_return_value) return false;
    const arch::CaptureItem& item = plan.capture.layout.items[source.index];
    return !item.is_array && !item.is_string;
  });
  return {};
}

bool has_comparisons(const lang::Filter& filter) {
  return filter.program() != nullptr && !filter.program()->predicates.empty();
}

// ---- filters ----

// Follows comparisons whose outcome is known, from the last to the first, so that each is looked at once.
class FilterConverter {
 public:
  FilterConverter(const lang::FilterProgram& program, const DetourPlan& plan, std::int32_t pid)
      : program_(program), plan_(plan), pid_(pid), leads_to_(program.predicates.size()) {}

  // Empty: out is complete; else why the daemon must evaluate the filter.
  std::string convert(std::vector<arch::CapturePredicate>& out) {
    for (const lang::Predicate& p : program_.predicates)
      if (std::string reason = refusal(p); !reason.empty()) return reason;
    for (std::size_t i = program_.predicates.size(); i-- > 0;) leads_to_[i] = resolve(i);
    const std::uint32_t start = target(0);
    if (start == lang::kFilterReject) return "it is false for every hit";
    if (start == lang::kFilterAccept) return {};
    number_from(start);
    for (std::size_t i = start; i < program_.predicates.size(); ++i)
      if (leads_to_[i] == i) out.push_back(predicate(program_.predicates[i]));
    return {};
  }

 private:
  std::string refusal(const lang::Predicate& p) const {
    switch (p.field) {
      case lang::FilterField::pid:
      case lang::FilterField::constant: return {};
      case lang::FilterField::tid: return "it compares tid";
      case lang::FilterField::cpu: return "it compares cpu";
      case lang::FilterField::comm: return "it compares comm";
      case lang::FilterField::duration: return "it compares the duration";
      case lang::FilterField::argument: break;
    }
    if (p.is_string || look_up(kComparisons, p.op) == nullptr) return "it compares a string";
    const DetourPlan::Source& source = plan_.sources[p.argument];
    if (source.kind != Kind::item) return "it compares what isn't captured";
    return {};
  }

  // Where evaluation really goes when it comes to predicate i.
  std::uint32_t resolve(std::size_t i) const {
    const lang::Predicate& p = program_.predicates[i];
    if (p.field == lang::FilterField::constant) return target(p.value != 0 ? p.on_true : p.on_false);
    if (p.field != lang::FilterField::pid) return static_cast<std::uint32_t>(i);
    return target(lang::number_matches(p, static_cast<std::uint64_t>(pid_)) ? p.on_true : p.on_false);
  }
  std::uint32_t target(std::uint32_t index) const { return index >= lang::kFilterReject ? index : leads_to_[index]; }

  void number_from(std::uint32_t start) {
    numbers_.assign(program_.predicates.size(), 0);
    std::uint32_t next = 0;
    for (std::size_t i = start; i < program_.predicates.size(); ++i)
      if (leads_to_[i] == i) numbers_[i] = next++;
  }
  std::uint32_t exit(std::uint32_t index) const {
    const std::uint32_t to = target(index);
    if (to == lang::kFilterAccept) return arch::kCaptureAccept;
    if (to == lang::kFilterReject) return arch::kCaptureReject;
    return numbers_[to];
  }

  arch::CapturePredicate predicate(const lang::Predicate& p) const {
    return {*look_up(kComparisons, p.op),
            p.is_signed,
            plan_.sources[p.argument].index,
            p.value,
            exit(p.on_true),
            exit(p.on_false)};
  }

  const lang::FilterProgram& program_;
  const DetourPlan& plan_;
  const std::int64_t pid_;
  std::vector<std::uint32_t> leads_to_, numbers_;
};

// ---- unpacking ----

// One argument's packed form, as in fetch_run.cpp. A write that doesn't fit fails the argument.
class Output {
 public:
  explicit Output(std::span<std::byte> room) : room_(room) {}

  bool absent() { return put_value(std::uint8_t{0}); }
  bool number(std::uint64_t value) { return present() && put_value(value); }
  bool text(std::string_view value) {
    return present() && put_value(static_cast<std::uint16_t>(value.size())) && put(value.data(), value.size());
  }
  bool array(std::uint16_t count) { return present() && put_value(count); }
  std::size_t used() const { return used_; }

 private:
  bool present() { return put_value(std::uint8_t{1}); }
  template <class T>
  bool put_value(T value) {
    return put(&value, sizeof value);
  }
  bool put(const void* from, std::size_t size) {
    if (room_.size() - used_ < size) return false;
    std::memcpy(room_.data() + used_, from, size);
    used_ += size;
    return true;
  }

  std::span<std::byte> room_;
  std::size_t used_ = 0;
};

// Reads a record that anybody may have written: every offset is checked.
class RecordReader {
 public:
  RecordReader(const arch::CaptureLayout& layout, std::span<const std::uint64_t> words)
      : bytes_(std::as_bytes(words)), strings_(layout.fixed_size) {
    if (bytes_.size() < layout.fixed_size) bytes_ = {};
  }

  bool empty() const { return bytes_.empty(); }
  bool is_absent(unsigned bit) const {
    const std::size_t at = arch::channel::kRecordAbsent + bit / 8;
    return (std::to_integer<unsigned>(bytes_[at]) >> bit % 8 & 1) != 0;
  }
  std::uint64_t slot(std::size_t offset) const {
    std::uint64_t value = 0;
    std::memcpy(&value, bytes_.data() + offset, sizeof value);
    return value;
  }
  // The next string, whose length stands in this slot. nullopt: it can't be.
  std::optional<std::string_view> next_string(std::size_t offset) {
    const std::uint64_t length = slot(offset);
    if (length > kMaxString || length > bytes_.size() - strings_) return std::nullopt;
    const std::string_view text(reinterpret_cast<const char*>(bytes_.data()) + strings_, length);
    strings_ += length;
    return text;
  }

 private:
  std::span<const std::byte> bytes_;
  std::size_t strings_;
};

bool put_string(RecordReader& record, std::size_t slot, bool is_absent, Output& out, std::size_t limit = kMaxString) {
  const auto text = record.next_string(slot);
  return is_absent || !text ? out.absent() : out.text(text->substr(0, limit));
}

// Strings are walked over in any case, as the next one begins where the last ended.
bool put_array(const arch::CaptureItem& item, RecordReader& record, Output& out) {
  const bool is_absent = record.is_absent(item.absent_bit);
  bool fits = is_absent ? out.absent() : out.array(item.count);
  for (unsigned i = 0; i < item.count; ++i) {
    Output nowhere({});
    Output& to = fits && !is_absent ? out : nowhere;
    const std::size_t slot = item.offset + i * 8u;
    const bool element_absent = record.is_absent(item.absent_bit + 1u + i);
    const bool put = item.is_string   ? put_string(record, slot, element_absent, to)
                     : element_absent ? to.absent()
                                      : to.number(record.slot(slot));
    fits = is_absent ? fits : fits && put;
  }
  return fits;
}

bool put_item(const arch::CaptureItem& item, std::uint16_t limit, RecordReader& record, Output& out) {
  if (item.is_array) return put_array(item, record, out);
  const bool is_absent = item.can_be_absent && record.is_absent(item.absent_bit);
  if (item.is_string) return put_string(record, item.offset, is_absent, out, limit == 0 ? kMaxString : limit);
  return is_absent ? out.absent() : out.number(record.slot(item.offset));
}

// For the plainest and most frequent plans. The record is long enough; so must be `out`: kPackedNumber for each.
constexpr std::size_t kPackedNumber = 1 + sizeof(std::uint64_t);
std::size_t unpack_numbers(const DetourPlan& plan, const RecordReader& record, std::byte* out) {
  const std::byte* const begin = out;
  for (const DetourPlan::Source& source : plan.sources) {
    const arch::CaptureItem& item = plan.capture.layout.items[source.index];
    const std::uint64_t value = record.slot(item.offset);
    const bool absent = item.can_be_absent && record.is_absent(item.absent_bit);
    out[0] = std::byte{absent ? std::uint8_t{0} : std::uint8_t{1}};
    std::memcpy(out + 1, &value, sizeof value);
    out += absent ? 1 : kPackedNumber;
  }
  return static_cast<std::size_t>(out - begin);
}

}  // namespace

Result<DetourPlan> plan_detour(const FetchProgram& program, const lang::Filter& filter, std::int32_t pid) {
  auto plan = convert(program);
  if (!plan) return plan;
  if (auto done = lay_out(*plan, 0); !done) return std::move(done).error();
  if (has_comparisons(filter))
    plan->filter_in_daemon = FilterConverter(*filter.program(), *plan, pid).convert(plan->capture.filter);
  return plan;
}

// ---- returns ----

namespace {

// The words of the call that the exit's arguments refer to: where the record has them. False: the entry captures
// something else in their place.
bool find_kept_words(const ReturnFetch& fetch, const DetourPlan& entry, DetourPlan& exit) {
  constexpr std::size_t kShift = arch::channel::kCallShift;
  for (arch::CaptureOp& op : exit.capture.ops) {
    if (op.code != arch::CaptureOp::Code::load_kept) continue;
    const DetourPlan::Source& source = entry.sources[fetch.entry_args().size() + op.operand];
    if (source.kind != Kind::item) return false;
    const arch::CaptureItem& item = entry.capture.layout.items[source.index];
    if (item.is_array || item.is_string) return false;
    op.operand = item.offset + kShift;
    op.count = static_cast<std::uint16_t>(8 * (arch::channel::kRecordAbsent + kShift) + item.absent_bit);
    op.size = item.can_be_absent ? 8 : 0;
  }
  return true;
}

// The filter as one on the exit's own arguments. Empty: done; else why the daemon must evaluate it.
std::string convert_exit_filter(const ReturnFetch& fetch, const lang::Filter& filter, std::int32_t pid,
                                DetourPlan& exit) {
  lang::FilterProgram program = *filter.program();
  for (lang::Predicate& p : program.predicates) {
    if (p.field != lang::FilterField::argument) continue;
    if (fetch.is_at_entry(p.argument)) return "it compares arguments of the entry with those of the return";
    std::uint32_t before = 0;
    for (std::uint32_t i = 0; i < p.argument; ++i) before += fetch.is_at_entry(i) ? 0 : 1;
    p.argument = static_cast<decltype(p.argument)>(before);
    const DetourPlan::Source& source = exit.sources[before];
    if (source.kind != Kind::item) return "it compares what isn't captured";
    std::size_t op = exit.capture.layout.items[source.index].first_op;
    for (; !exit.capture.ops[op].is_store(); ++op)
      if (exit.capture.ops[op].code == arch::CaptureOp::Code::load_kept) return "it compares what the entry has kept";
  }
  return FilterConverter(program, exit, pid).convert(exit.capture.filter);
}

}  // namespace

Result<ReturnPlan> plan_return_detours(const ReturnFetch& fetch, const lang::Filter& entry_filter,
                                       const lang::Filter& exit_filter, std::int32_t pid) {
  auto entry = plan_detour(fetch.entry(), entry_filter, pid);
  if (!entry) return std::move(entry).error();
  if (!entry->filter_in_daemon.empty())
    return Error{Reason::unsupported, "the filter can't be evaluated by a detour: " + entry->filter_in_daemon, "", {}};
  auto exit = convert(fetch.exit());
  if (!exit) return std::move(exit).error();
  const std::size_t kept = entry->capture.layout.max_size - static_cast<std::size_t>(arch::channel::kCallTime);
  if (!find_kept_words(fetch, *entry, *exit))
    return Error{Reason::unsupported, "an argument refers to what the entry doesn't capture", "", {}};
  if (auto done = lay_out(*exit, kept); !done) return std::move(done).error();
  if (has_comparisons(exit_filter)) exit->filter_in_daemon = convert_exit_filter(fetch, exit_filter, pid, *exit);
  return ReturnPlan{std::move(entry).value(), std::move(exit).value()};
}

// ---- reading ----

std::size_t unpack(const DetourPlan& plan, std::span<const std::uint64_t> words, const values::CommonFields& known,
                   std::span<std::byte> out) {
  RecordReader record(plan.capture.layout, words);
  out = out.first(std::min(out.size(), kMaxArgumentBytes));
  if (plan.only_numbers && !record.empty() && out.size() >= kPackedNumber * plan.sources.size())
    return unpack_numbers(plan, record, out.data());
  std::size_t used = 0, left = plan.sources.size();
  for (const DetourPlan::Source& source : plan.sources) {
    const auto room = out.subspan(used, out.size() - used - --left);
    Output argument(room);
    bool fits = false;
    if (source.kind == Kind::comm)
      fits = argument.text(known.comm.substr(0, kMaxString));
    else if (source.kind == Kind::duration)
      fits = argument.number(known.duration);
    else if (source.kind == Kind::text)
      fits = argument.text(plan.texts[source.index]);
    else if (source.kind == Kind::absent || (known.tail_call && source.needs_return_value))
      fits = argument.absent();
    else if (!record.empty())
      fits = put_item(plan.capture.layout.items[source.index], source.limit, record, argument);
    if (!fits) room[0] = std::byte{0};
    used += fits ? argument.used() : 1;
  }
  return used;
}

ReturnRecord describe_return(std::span<const std::uint64_t> words) {
  namespace ch = arch::channel;
  if (words.size() * sizeof words[0] < ch::kRecordKept) return {};
  const std::uint64_t exit = words[ch::kRecordExit / 8];
  return {exit & ~ch::kRecordTailCall, words[ch::kRecordEntryTime / 8], words[ch::kRecordReturnAddress / 8],
          (exit & ch::kRecordTailCall) != 0};
}

std::size_t unpack_return(const ReturnFetch& fetch, const ReturnPlan& plan, std::span<const std::uint64_t> words,
                          const values::CommonFields& known, UnpackScratch& scratch, std::span<std::byte> out) {
  constexpr std::size_t kShift = arch::channel::kCallShift / sizeof words[0];
  const std::size_t count = plan.entry.capture.layout.max_size / sizeof words[0];
  const auto call = words.size() < kShift + count ? std::span<const std::uint64_t>() : words.subspan(kShift, count);
  const std::size_t kept = unpack(plan.entry, call, known, scratch.kept);
  const std::size_t at_exit = unpack(plan.exit, words, known, scratch.at_exit);
  return fetch.merge(std::span(scratch.kept).first(kept), std::span(scratch.at_exit).first(at_exit), out);
}

}  // namespace probed::events
