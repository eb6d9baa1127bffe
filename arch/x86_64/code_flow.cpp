// One pass over a file's code that collects instruction boundaries, branch targets, addresses of code and of tables,
// and padding; then the tables, then the functions with indirect jumps once more.
//
// Bytes of a function that nothing leads to, and those that some code reads, are data for all one knows: they are no
// instructions, and no padding.
//
// Where a jump table ends isn't looked for: a table is a run of distances that lead into the text, up to the next thing
// whose address is taken. A few targets too many cost nothing but a few probes that can't be optimised.
#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "arch/reach.hpp"
#include "arch/x86_64/leap.hpp"
#include "arch/x86_64/region.hpp"
#include "arch/x86_64/scan.hpp"
#include "arch/x86_64/stack_use.hpp"
#include "arch/x86_64/zydis.hpp"

namespace probed::arch::x86_64 {
namespace {

constexpr std::uint64_t kEntrySize = 4;  // of a table of distances
constexpr std::size_t kMostEntries = 1u << 16;
constexpr std::size_t kMostWordsRead = 1u << 24;  // of all tables of addresses in the text
constexpr std::uint8_t kLockPrefix = 0xf0;

class Analysis {
 public:
  explicit Analysis(const CodeSource& source) : source_(source) {}

  CodeFlow run() {
    for (const CodeSegment& text : source_.text) out_.add_text(text);
    for (const CodeSegment& text : source_.text) walk_text(text);
    for (const std::uint64_t entry : source_.entries) taken(entry);
    if (source_.absolute) mark_words();
    walk_gaps();
    mark_all_tables();
    mark_pairs();
    settle_padding();
    judge_labels();
    judge_functions();
    judge_reach();
    judge_taken();
    judge_stacks();
    spread_doubt();
    out_.set_called(std::move(called_));
    return std::move(out_).finish();
  }

 private:
  void target(std::uint64_t address) {
    out_.mark(address, CodeFlowBuilder::kTarget);
    if (in_gaps_) entered_.push_back(address);
  }
  // By something else than a direct branch.
  void taken(std::uint64_t address) {
    target(address);
    out_.mark(address, CodeFlowBuilder::kTaken);
  }

  // ---- walking ----

  struct Gap {
    CodeRange range;
    std::span<const std::uint8_t> bytes;
    std::size_t first_seen;  // in seen_
  };

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
    walked_ = out_.flow().functions().size();
    bool reached = true, leaps = false, jumps = false, sets_stack = false, leaps_by_return = false;
    std::span<const std::uint8_t> before;
    target(range.begin);
    // A pointer to a function may be called behind its landing pad, and who computes it leaves no trace of that.
    constexpr std::array<std::uint8_t, 4> kEndbr64{0xf3, 0x0f, 0x1e, 0xfa};
    if (bytes.size() > kEndbr64.size() && std::ranges::equal(bytes.first(kEndbr64.size()), kEndbr64))
      target(range.begin + kEndbr64.size());
    std::uint64_t at = 0;
    while (at < bytes.size()) {
      const Scan s = scan(bytes.subspan(at), range.begin + at);
      if (s.length == 0) break;
      out_.mark(range.begin + at, CodeFlowBuilder::kStart);
      note(s, range.begin + at, &range);
      leaps = leaps || s.kind == ScanKind::leap || s.kind == ScanKind::call_away;
      jumps = jumps || s.kind == ScanKind::leap;
      sets_stack = sets_stack || s.sets_stack;
      if (s.kind == ScanKind::end && sets_return_address(before)) leaps_by_return = true;
      reached = pads(s, range.begin + at, reached);
      before = bytes.subspan(at, s.length);
      at += s.length;
    }
    facts.decoded = facts.understood = at == bytes.size();
    if (!facts.decoded) unled_.push_back(range.begin + at);
    after_end_ = !reached && facts.decoded;
    const std::size_t index = out_.add_function(facts);
    if (leaps) leaping_.push_back(index);
    if (jumps) jumping_.push_back(index);
    if (sets_stack) stacks_set_.push_back(index);
    if (leaps_by_return) returning_.push_back(index);
    if (!facts.decoded) walk_gap(text, {range.begin + at, range.end});
  }

  // Whether this instruction, in front of a return, puts another address where the return takes its own from: a push,
  // or what writes to (%rsp).
  static bool sets_return_address(std::span<const std::uint8_t> bytes) {
    if (bytes.empty()) return false;
    const std::size_t rex = (bytes[0] & 0xf0) == 0x40 ? 1 : 0;
    if (bytes.size() <= rex) return false;
    const std::uint8_t opcode = bytes[rex];
    if ((opcode & 0xf8) == 0x50 || opcode == 0x68 || opcode == 0x6a) return true;
    if (bytes.size() < rex + 2) return false;
    const std::uint8_t modrm = bytes[rex + 1];
    if (opcode == 0xff && (modrm & 0x38) == 0x30) return true;  // push m64
    const bool at_top = bytes.size() >= rex + 3 && (modrm & 0xc7) == 0x04 && bytes[rex + 2] == 0x24;
    return at_top && opcode != 0x8b && opcode != 0x8d;
  }

  // Code outside of every known function, and bytes that may be code: only where it leads to counts.
  void walk_gap(const CodeSegment& text, const CodeRange& range) {
    const auto bytes = part(text, range);
    for (std::uint64_t at = 0; after_end_ && at < bytes.size();) {
      const Scan s = scan(bytes.subspan(at), range.begin + at);
      if (s.length == 0 || s.kind != ScanKind::nothing) break;
      pads(s, range.begin + at, false);
      at += s.length;
    }
    after_end_ = false;
    if (bytes.empty()) return;
    gaps_.push_back({range, bytes, seen_.size()});
    seen_.resize(seen_.size() + bytes.size());
  }

  // Gaps hold data, too, which swallow the begins of instructions: so the walk begins anew at every place that
  // something leads to, and whatever looks like a branch is taken for one, wherever it is.
  void walk_gaps() {
    in_gaps_ = true;
    for (const Gap& gap : gaps_) {
      for (std::uint64_t at = gap.range.begin; at < gap.range.end; ++at)
        if (out_.is_marked(at, CodeFlowBuilder::kTarget)) entered_.push_back(at);
      sweep(gap, gap.range.begin);
      guess_branches(gap);
    }
    walk_entered();
  }

  void walk_entered() {
    while (!entered_.empty()) {
      const std::uint64_t address = entered_.back();
      entered_.pop_back();
      const auto after = std::ranges::upper_bound(gaps_, address, {}, [](const Gap& gap) { return gap.range.begin; });
      if (after != gaps_.begin() && std::prev(after)->range.contains(address)) sweep(*std::prev(after), address);
    }
  }

  void sweep(const Gap& gap, std::uint64_t from) {
    for (std::uint64_t at = from - gap.range.begin; at < gap.bytes.size() && !seen_[gap.first_seen + at];) {
      seen_[gap.first_seen + at] = true;
      const Scan s = scan(gap.bytes.subspan(at), gap.range.begin + at);
      if (s.length != 0) note(s, gap.range.begin + at, nullptr);
      at += std::max<std::uint64_t>(s.length, 1);
    }
  }

  void guess_branches(const Gap& gap) {
    for (std::uint64_t at = 0; at < gap.bytes.size(); ++at) {
      const unsigned byte = gap.bytes[at];
      const unsigned next = at + 1 < gap.bytes.size() ? gap.bytes[at + 1] : 0;
      const bool two_bytes = byte == 0x0f && (next & 0xf0) == 0x80;
      if (byte != 0xe9 && byte != 0xeb && (byte & 0xf0) != 0x70 && !two_bytes) continue;
      const Scan s = scan(gap.bytes.subspan(at), gap.range.begin + at);
      if (s.length == 0 || (s.kind != ScanKind::jump && s.kind != ScanKind::branch)) continue;
      if (!out_.is_marked(s.target, CodeFlowBuilder::kStart)) continue;
      target(s.target);
      foreign_.push_back(s.target);
    }
  }

  // Nothing that isn't reached is padding, as long as no target is in it. Returns whether what follows is reached.
  bool pads(const Scan& s, std::uint64_t at, bool reached) {
    if (!reached && s.kind != ScanKind::nothing) unled_.push_back(at);
    if (reached || s.kind != ScanKind::nothing) return falls_through(s.kind);
    if (padding_.empty() || padding_.back().end != at) padding_.push_back({at, at});
    padding_.back().end += s.length;
    return false;
  }

  void note(const Scan& s, std::uint64_t at, const CodeRange* function) {
    switch (s.kind) {
      case ScanKind::jump:
      case ScanKind::branch:
      case ScanKind::call:
        target(s.target);
        if (s.kind == ScanKind::call) called_.push_back(s.target);
        // What stands behind the call may be a string whose address is popped there.
        if (s.kind == ScanKind::call && function != nullptr && function->contains(s.target) &&
            s.target != function->begin)
          odd_calls_.push_back(s.target);
        if (function != nullptr) branches_.push_back(s.target);
        if (function == nullptr || !function->contains(s.target)) foreign_.push_back(s.target);
        if (function != nullptr && s.kind != ScanKind::call && !function->contains(s.target))
          across_.push_back({walked_, s.target});
        break;
      default: break;
    }
    // Whatever else refers to bytes of the text reads data there, which must stay as they are.
    if (s.has_address) taken(s.address);
    if (s.has_address && !s.takes_address && in_text(s.address)) note_read(at);
    if (s.has_constant && source_.absolute && in_text(s.constant)) note_read(at);
    if (s.takes_address) tables_.push_back(s.address), called_.push_back(s.address);
    if (s.takes_address && function != nullptr) takes(s.address);
    if (s.has_constant && source_.absolute) {
      taken(s.constant);
      called_.push_back(s.constant);
      tables_.push_back(s.constant);
      if (function != nullptr) takes(s.constant);
    }
  }

  // What the instruction reads, writes, calls or jumps through, where its own bytes say where that is. Of a table that
  // it looks up something in, the first element.
  void note_read(std::uint64_t at) {
    Decoded d;
    if (!decode_with_zydis(out_.flow().bytes(at, kMaxInsnLength), d)) return;
    if (d.insn.mnemonic == ZYDIS_MNEMONIC_NOP) return;
    for (unsigned i = 0; i < d.insn.operand_count_visible; ++i) {
      const ZydisDecodedOperand& operand = d.operands[i];
      if (operand.type != ZYDIS_OPERAND_TYPE_MEMORY || operand.mem.type == ZYDIS_MEMOP_TYPE_AGEN) continue;
      const bool relative = operand.mem.base == ZYDIS_REGISTER_RIP || operand.mem.base == ZYDIS_REGISTER_EIP;
      if (!relative && operand.mem.base != ZYDIS_REGISTER_NONE) continue;
      const std::uint64_t from =
          static_cast<std::uint64_t>(operand.mem.disp.value) + (relative ? at + d.insn.length : 0);
      if (!in_text(from)) continue;
      read_.push_back({from, from + std::max<std::uint64_t>(1, operand.size / 8)});
      const bool leads = d.insn.meta.branch_type != ZYDIS_BRANCH_TYPE_NONE;
      if (leads) read_addresses(from, operand.mem.index == ZYDIS_REGISTER_NONE ? 1 : kMostEntries);
    }
  }

  // Where calls and jumps lead by way of addresses in the text. Those that the loader makes are relocations, too.
  void read_addresses(std::uint64_t from, std::size_t most) {
    constexpr std::uint64_t kAddressSize = 8;
    for (std::size_t n = 0; n < most && words_read_ < kMostWordsRead; ++n, ++words_read_, from += kAddressSize) {
      const auto bytes = out_.flow().bytes(from, kAddressSize);
      const std::uint64_t to = bytes.size() < kAddressSize ? 0 : load({from, bytes}, 0, kAddressSize);
      if (!in_text(to)) return;
      if (most > 1) read_.push_back({from, from + kAddressSize});
      taken(to);
      led_to_.push_back(to);
    }
  }

  // The function being walked through does.
  void takes(std::uint64_t address) {
    if (in_text(address) || in_text(address - 1)) takes_.push_back({walked_, address});
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

  // Gaps that they lead to may have more of them.
  void mark_all_tables() {
    for (std::size_t known = 0; known != tables_.size();) {
      mark_tables();
      known = tables_.size();
      walk_entered();
    }
  }

  void mark_tables() {
    table_ranges_.clear();
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
      led_to_.push_back(to);
    }
    table_ranges_.push_back({base, data->address + at});
  }

  // Tables of distances from themselves, two by two: an instruction that may fault, and where its handler is to go on
  // (`.long 1b-., 2b-.`, as in the kernel). Only what leads to instructions: few other numbers do so twice.
  void mark_pairs() {
    std::ranges::sort(table_ranges_, {}, &CodeRange::begin);
    for (const CodeSegment& data : source_.data) {
      const auto at_word = [&](std::uint64_t at) {
        const std::uint64_t here = data.address + at;
        const auto distance = static_cast<std::int32_t>(load(data, at, kEntrySize));
        const std::uint64_t to = here + static_cast<std::uint64_t>(std::int64_t{distance});
        return in_text(to) && out_.is_marked(to, CodeFlowBuilder::kStart) ? to : 0;
      };
      for (std::uint64_t at = -data.address % 4; at + 2 * kEntrySize <= data.bytes.size(); at += kEntrySize) {
        const std::uint64_t first = at_word(at), second = first == 0 ? 0 : at_word(at + kEntrySize);
        if (second == 0 || second == first || in_table(data.address + at)) continue;
        if (is_linkage({data.address + at, data.address + at + 2 * kEntrySize})) continue;
        target(first), target(second);
        led_to_.push_back(first), led_to_.push_back(second);
      }
    }
  }

  bool is_linkage(const CodeRange& range) const {
    return std::ranges::any_of(source_.linkage, [&range](const CodeRange& other) { return other.overlaps(range); });
  }

  bool in_table(std::uint64_t address) const {
    const auto after = std::ranges::upper_bound(table_ranges_, address, {}, &CodeRange::begin);
    return after != table_ranges_.begin() && std::prev(after)->contains(address);
  }

  // ---- what follows from all targets ----

  void settle_padding() {
    for (const CodeRange& run : padding_)
      for (std::uint64_t at = run.begin; leads_on(run) && at < run.end; ++at) {
        if (out_.is_marked(at, CodeFlowBuilder::kTarget)) break;
        out_.mark(at, CodeFlowBuilder::kPadding);
      }
  }

  // Behind a function's end it is padding up to something, not the begin of data: to code, to an aligned place, or to
  // the end. What follows it inside of a function is looked at by judge_reach().
  bool leads_on(const CodeRange& run) const {
    constexpr std::uint64_t kAlignment = 16;
    const bool in_function = out_.flow().function_at(run.end - 1) != nullptr;
    return in_function || run.end % kAlignment == 0 || !in_text(run.end) ||
           out_.is_marked(run.end, CodeFlowBuilder::kTarget);
  }

  // ---- data among instructions ----

  // Most functions have nothing of the kind: those that may are walked through again, along the ways of control.
  void judge_reach() {
    std::ranges::sort(foreign_);
    tidy(led_to_), tidy(unled_);
    std::vector<std::uint64_t> doubtful;  // indices of functions
    const auto doubt = [&](std::uint64_t address) {
      if (const auto index = index_at(address)) doubtful.push_back(*index);
    };
    for (const std::uint64_t at : unled_)
      if (!out_.is_marked(at, CodeFlowBuilder::kTarget)) doubt(at);
    for (const std::uint64_t to : odd_calls_) doubt(to);
    for (const std::uint64_t label : tables_)
      if (const FunctionFacts* f = out_.flow().function_at(label); f != nullptr && f->range.begin != label)
        doubt(label);
    // A file may say anything of its sections.
    for (const CodeRange& range : source_.linkage)
      for (const CodeSegment& text : source_.text)
        read_.push_back({std::max(range.begin, text.address), std::min(range.end, text.address + text.bytes.size())});
    merge(read_);
    const auto functions = out_.flow().functions();
    for (const CodeRange& range : read_) {
      auto function = std::ranges::upper_bound(functions, range.begin, {}, [](const auto& f) { return f.range.end; });
      for (; function != functions.end() && function->range.begin < range.end; ++function)
        doubtful.push_back(static_cast<std::uint64_t>(function - functions.begin()));
    }
    tidy(doubtful);
    for (const std::size_t index : doubtful)
      if (!is_linkage_table(out_.function(index).range)) settle_function(index);
    // What was walked over out of step leads elsewhere than it seemed to.
    for (const auto& [index, address] : std::exchange(found_, {})) {
      walked_ = index;
      const CodeRange range = out_.function(index).range;
      note(scan(out_.flow().bytes(address, range.end - address), address), address, &range);
    }
    for (const CodeRange& range : read_)
      for (std::uint64_t at = range.begin; at < range.end; ++at) out_.unmark(at, CodeFlowBuilder::kPadding);
  }

  void settle_function(std::size_t index) {
    const CodeRange range = out_.function(index).range;
    const auto bytes = out_.flow().bytes(range.begin, range.end - range.begin);
    std::vector<std::uint64_t> seeds, labels, more;
    std::ranges::set_union(those_in(foreign_, range), those_in(led_to_, range), std::back_inserter(seeds));
    std::ranges::set_difference(those_in(tables_, range), seeds, std::back_inserter(labels));
    const auto read = overlapping(read_, range);
    std::vector<CodeRange> data(read.begin(), read.end());
    // Jumps that aren't understood may lead to whatever nothing else leads to.
    const bool leads_anywhere = !out_.function(index).understood && std::ranges::binary_search(jumping_, index);
    for (const std::uint64_t label : labels)
      if (const CodeRange table = distances_at(label, range); table.begin != table.end)
        data.push_back(table);
      else if (leads_anywhere)
        more.push_back(label);
    if (leads_anywhere) std::ranges::copy(those_in(unled_, range), std::back_inserter(more));
    for (const std::uint64_t label : more) std::erase(labels, label);
    for (std::uint64_t at = range.begin; at < range.end; ++at)
      if (out_.is_marked(at, CodeFlowBuilder::kTaken) && !std::ranges::binary_search(labels, at)) more.push_back(at);
    tidy(more);
    const auto step_at = [&](std::uint64_t at) { return step(bytes, range, at); };
    const auto begins = reached_instructions({range, seeds, more, labels, data, step_at});
    std::uint64_t done = range.begin;
    for (const std::uint64_t begin : begins) {
      if (begin < done) continue;  // one that another one begins in: a prefix that is skipped
      settle_hole({done, begin});
      done = begin + scan(bytes.subspan(begin - range.begin), begin).length;
      for (std::uint64_t inside = begin + 1; inside < done; ++inside)
        if (!out_.is_marked(inside, CodeFlowBuilder::kTarget)) out_.unmark(inside, CodeFlowBuilder::kStart);
      if (!out_.is_marked(begin, CodeFlowBuilder::kStart)) found_.push_back({index, begin});
      out_.mark(begin, CodeFlowBuilder::kStart);
    }
    settle_hole({done, range.end});
  }

  static ReachStep step(std::span<const std::uint8_t> bytes, const CodeRange& function, std::uint64_t at) {
    const Scan s = scan(bytes.subspan(at - function.begin), at);
    ReachStep out{s.length, falls_through(s.kind), {}};
    if (s.kind == ScanKind::jump || s.kind == ScanKind::branch || s.kind == ScanKind::call) out.target = s.target;
    if (s.kind == ScanKind::call && is_popped(bytes, function, s.target)) out.goes_on = false;
    return out;
  }

  // `call 1f; .asciz "text"; 1: pop %rsi`: what stands behind the call is not what it returns to.
  static bool is_popped(std::span<const std::uint8_t> bytes, const CodeRange& function, std::uint64_t target) {
    if (!function.contains(target) || target == function.begin) return false;
    const auto code = bytes.subspan(target - function.begin);
    const std::size_t rex = code[0] == 0x41 ? 1 : 0;
    return code.size() > rex && (code[rex] & 0xf8) == 0x58;
  }

  // A table of distances from itself, in the function's own text: empty unless two at least lead into the function.
  CodeRange distances_at(std::uint64_t label, const CodeRange& range) const {
    std::uint64_t end = label, first = range.end;
    for (; end + kEntrySize <= std::min(range.end, first); end += kEntrySize) {
      const auto bytes = out_.flow().bytes(end, kEntrySize);
      const auto distance = static_cast<std::int32_t>(load({end, bytes}, 0, kEntrySize));
      const std::uint64_t to = label + static_cast<std::uint64_t>(std::int64_t{distance});
      if (!range.contains(to)) break;
      if (to > label) first = std::min(first, to);
    }
    return end - label >= 2 * kEntrySize ? CodeRange{label, end} : CodeRange{};
  }

  // Nothing leads there: padding, if all of it is, else data.
  void settle_hole(const CodeRange& hole) {
    bool pads = true;
    for (std::uint64_t at = hole.begin; at < hole.end && pads; ++at)
      pads = out_.is_marked(at, CodeFlowBuilder::kPadding);
    for (std::uint64_t at = hole.begin; at < hole.end && !pads; ++at) {
      out_.unmark(at, CodeFlowBuilder::kPadding);
      out_.unmark(at, CodeFlowBuilder::kStart);
    }
  }

  // A .plt, which is one function to an unwind table: `push GOT+8(%rip); jmp *GOT+16(%rip)`, padding, and entries whose
  // addresses functions are taken by.
  bool is_linkage_table(const CodeRange& range) const {
    const auto bytes = out_.flow().bytes(range.begin, 9);
    if (bytes.size() < 9 || bytes[0] != 0xff || bytes[1] != 0x35) return false;
    const auto jump = bytes.subspan(bytes[6] == 0xf2 ? 7 : 6);  // bnd
    return jump[0] == 0xff && jump[1] == 0x25;
  }

  // To the address of a label in a function's middle, differences of labels may be added, which nothing in the file
  // tells from other numbers, and the sum may be kept anywhere: of such functions no jump by memory can be followed.
  // Likewise where the address of a jump is on the stack as a return's.
  void judge_labels() {
    std::ranges::sort(leaping_);
    for (const std::uint64_t label : tables_) {
      const auto index = index_at(label);
      if (!index || !std::ranges::binary_search(leaping_, *index)) continue;
      FunctionFacts& facts = out_.function(*index);
      if (label != facts.range.begin && !is_linkage_table(facts.range)) facts.understood = false;
    }
    for (const std::size_t index : returning_) out_.function(index).understood = false;
    for (const auto& [from, to] : across_)
      if (const auto other = index_at(to); other && std::ranges::binary_search(returning_, *other))
        out_.function(from).understood = false;
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

  // What a function adds to another's address may lead a jump that isn't understood into that one's middle, counted
  // from its begin or back from its end.
  void judge_taken() {
    std::vector<std::size_t> doubtful;
    for (const auto& [from, to] : takes_) {
      const bool jumps = std::ranges::binary_search(leaping_, from) || std::ranges::binary_search(returning_, from);
      if (!jumps || out_.function(from).understood) continue;
      for (const std::uint64_t address : {to, to - 1})
        if (const auto other = index_at(address); other && !is_linkage_table(out_.function(*other).range))
          doubtful.push_back(*other);
    }
    for (const std::size_t index : doubtful) out_.function(index).understood = false;
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
  std::vector<std::uint64_t> branches_, foreign_, called_;
  std::vector<std::uint64_t> tables_;  // addresses that code takes: of tables, for all one knows, or of code
  struct Across {
    std::size_t from;  // index of a function
    std::uint64_t to;  // outside of it
  };
  std::vector<Across> across_;
  std::vector<Across> found_;  // instructions that the first walk has missed: functions, and where they begin
  // Whose addresses functions take with lea, or have as constants: often the next one's, too.
  std::vector<Across> takes_;
  std::vector<CodeRange> padding_, table_ranges_;
  std::vector<CodeRange> read_;  // text that some code reads, calls or jumps through; may overlap
  std::size_t words_read_ = 0;
  std::size_t walked_ = 0;                // the function that is being walked through: its index
  std::vector<std::uint64_t> unled_;      // behind what doesn't go on, in functions, and no padding
  std::vector<std::uint64_t> led_to_;     // by tables, and by addresses in the text
  std::vector<std::uint64_t> odd_calls_;  // where functions call themselves, but not at their begins
  // Functions with indirect jumps or calls, that set rsp, that return to where they want; indices, ascending.
  std::vector<std::size_t> leaping_, stacks_set_, returning_;
  std::vector<std::size_t> jumping_;    // those of leaping_ with jumps
  std::vector<Gap> gaps_;               // ascending
  std::vector<bool> seen_;              // for each byte of gaps: a walk was there
  std::vector<std::uint64_t> entered_;  // places, in gaps or not, that weren't walked from yet
  bool in_gaps_ = false;                // functions are all walked through
  bool after_end_ = false;              // the function just walked through ends in something that doesn't go on
};

}  // namespace

CodeFlow analyse_code(const CodeSource& source) { return Analysis(source).run(); }

}  // namespace probed::arch::x86_64
