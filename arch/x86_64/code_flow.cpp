// One pass over a file's code that collects instruction boundaries, branch targets, addresses of code and of tables,
// and padding; then the tables, then the functions with indirect jumps once more.
//
// Where a jump table ends isn't looked for: a table is a run of distances that lead into the text, up to the next thing
// whose address is taken. A few targets too many cost nothing but a few probes that can't be optimised.
#include <algorithm>
#include <optional>
#include <vector>

#include "arch/x86_64/leap.hpp"
#include "arch/x86_64/region.hpp"
#include "arch/x86_64/scan.hpp"
#include "arch/x86_64/stack_use.hpp"

namespace probed::arch::x86_64 {
namespace {

constexpr std::uint64_t kEntrySize = 4;  // of a table of distances
constexpr std::size_t kMostEntries = 1u << 16;
constexpr std::uint8_t kLockPrefix = 0xf0;

class Analysis {
 public:
  explicit Analysis(const CodeSource& source) : source_(source) {}

  CodeFlow run() {
    for (const CodeSegment& text : source_.text) out_.add_text(text);
    for (const CodeSegment& text : source_.text) walk_text(text);
    for (const std::uint64_t entry : source_.entries) taken(entry);
    if (source_.absolute) mark_words();
    mark_tables();
    settle_padding();
    judge_functions();
    judge_stacks();
    spread_doubt();
    out_.set_called(std::move(called_));
    return std::move(out_).finish();
  }

 private:
  void target(std::uint64_t address) { out_.mark(address, CodeFlowBuilder::kTarget); }
  // By something else than a direct branch.
  void taken(std::uint64_t address) {
    out_.mark(address, CodeFlowBuilder::kTarget);
    out_.mark(address, CodeFlowBuilder::kTaken);
  }

  // ---- walking ----

  void walk_text(const CodeSegment& text) {
    std::uint64_t at = text.address;
    const std::uint64_t end = text.address + text.bytes.size();
    for (const CodeRange& function : source_.functions) {
      if (function.begin < at || function.end > end || function.end <= function.begin) continue;
      walk_gap(text, {at, function.begin});
      walk_function(text, function);
      at = function.end;
    }
    walk_gap(text, {at, end});
  }

  static std::span<const std::uint8_t> part(const CodeSegment& text, const CodeRange& range) {
    return text.bytes.subspan(range.begin - text.address, range.end - range.begin);
  }

  void walk_function(const CodeSegment& text, const CodeRange& range) {
    const auto bytes = part(text, range);
    FunctionFacts facts{range, true, true};
    bool reached = true, leaps = false, sets_stack = false;
    target(range.begin);
    std::uint64_t at = 0;
    while (at < bytes.size()) {
      const Scan s = scan(bytes.subspan(at), range.begin + at);
      if (s.length == 0) break;
      out_.mark(range.begin + at, CodeFlowBuilder::kStart);
      note(s, &range);
      leaps = leaps || s.kind == ScanKind::leap || s.kind == ScanKind::call_away;
      sets_stack = sets_stack || s.sets_stack;
      reached = pads(s, range.begin + at, reached);
      at += s.length;
    }
    facts.decoded = facts.understood = at == bytes.size();
    after_end_ = !reached && facts.decoded;
    const std::size_t index = out_.add_function(facts);
    if (leaps) leaping_.push_back(index);
    if (sets_stack) stacks_set_.push_back(index);
    if (!facts.decoded) walk_gap(text, {range.begin + at, range.end});
  }

  // Code outside of every known function, and bytes that may be code: only where it leads to counts.
  void walk_gap(const CodeSegment& text, const CodeRange& range) {
    const auto bytes = part(text, range);
    bool padding = after_end_;
    after_end_ = false;
    for (std::uint64_t at = 0; at < bytes.size();) {
      const Scan s = scan(bytes.subspan(at), range.begin + at);
      padding = padding && s.length != 0 && s.kind == ScanKind::nothing;
      if (padding) pads(s, range.begin + at, false);
      if (s.length != 0) note(s, nullptr);
      at += std::max<std::uint64_t>(s.length, 1);
    }
  }

  // Nothing that isn't reached is padding, as long as no target is in it. Returns whether what follows is reached.
  bool pads(const Scan& s, std::uint64_t at, bool reached) {
    if (reached || s.kind != ScanKind::nothing) return falls_through(s.kind);
    if (padding_.empty() || padding_.back().end != at) padding_.push_back({at, at});
    padding_.back().end += s.length;
    return false;
  }

  void note(const Scan& s, const CodeRange* function) {
    switch (s.kind) {
      case ScanKind::jump:
      case ScanKind::branch:
      case ScanKind::call:
        target(s.target);
        if (s.kind == ScanKind::call) called_.push_back(s.target);
        if (function != nullptr) branches_.push_back(s.target);
        if (function == nullptr || !function->contains(s.target)) foreign_.push_back(s.target);
        if (function != nullptr && s.kind != ScanKind::call && !function->contains(s.target))
          across_.push_back({out_.flow().functions().size(), s.target});
        break;
      default: break;
    }
    // Whatever else refers to bytes of the text reads data there, which must stay as they are.
    if (s.has_address) taken(s.address);
    if (s.takes_address) tables_.push_back(s.address), called_.push_back(s.address);
    if (s.has_constant && source_.absolute) {
      taken(s.constant);
      called_.push_back(s.constant);
      tables_.push_back(s.constant);
    }
  }

  // ---- addresses in data ----

  void mark_words() {
    for (const CodeSegment& data : source_.data)
      for (std::uint64_t at = -data.address % 8; at + 8 <= data.bytes.size(); at += 8) taken(load(data, at, 8));
  }

  static std::uint64_t load(const CodeSegment& data, std::uint64_t at, unsigned size) {
    std::uint64_t value = 0;
    for (unsigned i = 0; i < size; ++i) value |= std::uint64_t{data.bytes[at + i]} << (8 * i);
    return value;
  }

  const CodeSegment* segment_at(std::uint64_t address) const {
    for (const auto& segments : {source_.data, source_.text})
      for (const CodeSegment& s : segments)
        if (address >= s.address && address - s.address < s.bytes.size()) return &s;
    return nullptr;
  }

  bool in_text(std::uint64_t address) const {
    return std::ranges::any_of(source_.text, [address](const CodeSegment& s) {
      return address >= s.address && address - s.address < s.bytes.size();
    });
  }

  void mark_tables() {
    std::ranges::sort(tables_);
    const auto repeated = std::ranges::unique(tables_);
    tables_.erase(repeated.begin(), repeated.end());
    for (std::size_t i = 0; i < tables_.size(); ++i)
      mark_table(tables_[i], i + 1 < tables_.size() ? tables_[i + 1] : ~std::uint64_t{0});
  }

  void mark_table(std::uint64_t base, std::uint64_t next) {
    const CodeSegment* const data = segment_at(base);
    if (data == nullptr) return;
    std::uint64_t at = base - data->address;
    for (std::size_t n = 0; n < kMostEntries && at + kEntrySize <= data->bytes.size(); ++n, at += kEntrySize) {
      if (data->address + at >= next) break;
      const auto distance = static_cast<std::int32_t>(load(*data, at, kEntrySize));
      const std::uint64_t to = base + static_cast<std::uint64_t>(std::int64_t{distance});
      if (!in_text(to)) break;
      taken(to);
    }
  }

  // ---- what follows from all targets ----

  void settle_padding() {
    for (const CodeRange& run : padding_)
      for (std::uint64_t at = run.begin; at < run.end && !out_.is_marked(at, CodeFlowBuilder::kTarget); ++at)
        out_.mark(at, CodeFlowBuilder::kPadding);
  }

  void judge_functions() {
    std::ranges::sort(foreign_);
    // A branch into the middle of an instruction: there are data in the function, and its boundaries are not what the
    // walk took them for. Or it skips a lock prefix.
    for (const std::uint64_t to : branches_)
      if (!is_plausible(to))
        if (const auto index = index_at(to)) out_.function(*index).understood = false;
    for (const std::size_t index : leaping_) {
      FunctionFacts& facts = out_.function(index);
      if (!facts.understood) continue;
      const auto bytes = out_.flow().bytes(facts.range.begin, facts.range.end - facts.range.begin);
      const auto entry_at = [this](std::uint64_t address) { return entry(address); };
      facts.understood = FunctionWalk(bytes, facts.range.begin, entry_at).understands_leaps();
    }
  }

  void judge_stacks() {
    for (const std::size_t index : stacks_set_) {
      FunctionFacts& facts = out_.function(index);
      facts.keeps_stack = keeps_stack(out_.flow().bytes(facts.range.begin, facts.range.end - facts.range.begin));
    }
  }

  // What isn't known of where a function's jumps lead isn't known of its other parts either, into which compilers split
  // functions (.cold): they jump to each other.
  void spread_doubt() {
    std::vector<std::size_t> doubtful, without_stack;
    for (const auto& [from, to] : across_) {
      const auto other = index_at(to);
      if (!other) continue;
      if (!out_.function(from).understood) doubtful.push_back(*other);
      const bool is_part = to != out_.function(*other).range.begin;
      if (!out_.function(*other).understood && is_part) doubtful.push_back(from);
      if (!is_part) continue;
      if (!out_.function(from).keeps_stack) without_stack.push_back(*other);
      if (!out_.function(*other).keeps_stack) without_stack.push_back(from);
    }
    for (const std::size_t index : without_stack) out_.function(index).keeps_stack = false;
    for (const std::size_t index : doubtful) out_.function(index).understood = false;
  }

  FunctionWalk::Entry entry(std::uint64_t address) const {
    if (std::ranges::binary_search(foreign_, address)) return FunctionWalk::Entry::foreign;
    return out_.is_marked(address, CodeFlowBuilder::kTaken) ? FunctionWalk::Entry::leap : FunctionWalk::Entry::none;
  }

  bool is_plausible(std::uint64_t to) const {
    if (out_.is_marked(to, CodeFlowBuilder::kStart)) return true;
    const auto before = out_.flow().bytes(to - 1, 1);
    return out_.is_marked(to - 1, CodeFlowBuilder::kStart) && !before.empty() && before[0] == kLockPrefix;
  }

  std::optional<std::size_t> index_at(std::uint64_t address) const {
    const FunctionFacts* const facts = out_.flow().function_at(address);
    if (facts == nullptr) return std::nullopt;
    return static_cast<std::size_t>(facts - out_.flow().functions().data());
  }

  const CodeSource& source_;
  CodeFlowBuilder out_;
  std::vector<std::uint64_t> branches_, foreign_, tables_, called_;
  struct Across {
    std::size_t from;  // index of a function
    std::uint64_t to;  // outside of it
  };
  std::vector<Across> across_;
  std::vector<CodeRange> padding_;
  std::vector<std::size_t> leaping_, stacks_set_;
  bool after_end_ = false;  // the function just walked through ends in something that doesn't go on
};

}  // namespace

CodeFlow analyse_code(const CodeSource& source) { return Analysis(source).run(); }

}  // namespace probed::arch::x86_64
