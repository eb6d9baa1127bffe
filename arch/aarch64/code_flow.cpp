// One pass over a file's code that collects instructions, branch targets and addresses of code and of tables; then the
// tables, each found by the jump that uses it, then the functions with indirect jumps once more.
//
// Every instruction has four bytes, so that their boundaries are never in doubt; what may be is whether four bytes are
// an instruction. Data among code are known by the loads that read them, by what symbols say, by being none, or as
// nothing leads to them.
#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "arch/aarch64/decode.hpp"
#include "arch/aarch64/forms.hpp"
#include "arch/aarch64/leap.hpp"
#include "arch/aarch64/operands.hpp"
#include "arch/aarch64/region.hpp"
#include "arch/aarch64/stack_use.hpp"
#include "arch/aarch64/word.hpp"
#include "arch/aarch64/written.hpp"
#include "arch/reach.hpp"

namespace probed::arch::aarch64 {
namespace {

constexpr std::size_t kMostEntries = 1u << 16;

bool adds_number(std::uint32_t word) { return (word & 0xff800000) == 0x91000000; }
std::uint64_t immediate(std::uint32_t word) { return std::uint64_t{field(word, 10, 12)} << (field(word, 22, 1) * 12); }

// The pages that adrp has left in registers, in the order of addresses: a block may begin with what another one,
// further up, has loaded. Some sums that are never made do no harm.
class Pages {
 public:
  void set(unsigned reg, std::uint64_t page) { pages_[reg] = page; }
  std::optional<std::uint64_t> of(unsigned reg) const { return pages_[reg]; }
  void forget() { pages_ = {}; }

 private:
  std::array<std::optional<std::uint64_t>, 32> pages_{};
};

class Analysis {
 public:
  explicit Analysis(const CodeSource& source) : source_(source) {}

  CodeFlow run() {
    for (const CodeSegment& text : source_.text) out_.add_text(text);
    for (const CodeSegment& text : source_.text) walk_text(text);
    for (const std::uint64_t entry : source_.entries) taken(entry);
    if (source_.absolute) mark_words();
    // A file may say anything of its sections.
    for (const CodeRange& range : source_.linkage)
      for (const CodeSegment& text : source_.text)
        literals_.push_back(
            {std::max(range.begin, text.address), std::min(range.end, text.address + text.bytes.size())});
    merge(literals_);
    for (const CodeRange& literal : literals_) unmark(literal);
    std::ranges::sort(labels_);
    mark_tables();
    judge_boundaries();
    judge_labels();
    judge_leaps();
    judge_reach();
    spread_doubt();
    out_.set_called(std::move(called_));
    out_.set_guarded(source_.guarded || has_pads_);
    return std::move(out_).finish();
  }

 private:
  void target(std::uint64_t address) { out_.mark(address, CodeFlowBuilder::kTarget); }
  // By something else than a direct branch.
  void taken(std::uint64_t address) {
    out_.mark(address, CodeFlowBuilder::kTarget);
    out_.mark(address, CodeFlowBuilder::kTaken);
  }
  void unmark(const CodeRange& data) {
    for (std::uint64_t at = data.begin / kInsnSize * kInsnSize; at < data.end; at += kInsnSize)
      out_.unmark(at, CodeFlowBuilder::kStart);
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
    const bool aligned = range.begin % kInsnSize == 0 && bytes.size() % kInsnSize == 0;
    FunctionFacts facts{range, aligned, aligned, true};
    const std::size_t index = out_.flow().functions().size();
    bool leaps = false, sets_stack = false, reached = true;
    target(range.begin);
    pages_.forget();
    has_pads_ = has_pads_ || (aligned && !bytes.empty() && form_of(load_word(bytes)).form == Form::landing_pad);
    for (std::uint64_t at = 0; aligned && at < bytes.size(); at += kInsnSize) {
      const std::uint32_t word = load_word(bytes.subspan(at));
      const Insn insn = decode(bytes.subspan(at), range.begin + at);
      out_.mark(range.begin + at, CodeFlowBuilder::kStart);
      note(word, insn, range.begin + at, &range);
      if (insn.refusal == Refusal::undecodable) unknown_.push_back({index, range.begin + at});
      if (!reached && form_of(word).form != Form::nop) unled_.push_back(range.begin + at);
      if (reached || form_of(word).form != Form::nop) reached = goes_on(word, insn);
      leaps = leaps || insn.flow == Flow::indirect_jump;
      sets_stack = sets_stack || sets_stack_pointer(word);
    }
    if (sets_stack) facts.keeps_stack = keeps_stack(bytes);
    out_.add_function(facts);
    if (leaps) leaping_.push_back(index);
  }

  // Code outside of every known function, and bytes that may be code: only where it leads to counts.
  void walk_gap(const CodeSegment& text, const CodeRange& range) {
    pages_.forget();
    const std::uint64_t begin = (range.begin + kInsnSize - 1) / kInsnSize * kInsnSize;
    for (std::uint64_t at = begin; at + kInsnSize <= range.end; at += kInsnSize) {
      const auto bytes = part(text, {at, at + kInsnSize});
      note(load_word(bytes), decode(bytes, at), at, nullptr);
    }
  }

  void note(std::uint32_t word, const Insn& insn, std::uint64_t at, const CodeRange* function) {
    if (insn.target) return note_branch(insn, function);
    const unsigned result = field(word, 0, 5);
    switch (form_of(word).form) {
      case Form::adr: note_label(adr_address(word, at)); return;
      case Form::adrp: pages_.set(result, adrp_address(word, at)); return;
      case Form::load_literal:
      case Form::load_signed_literal:
      case Form::load_vector_literal: note_literal(word, literal_address(word, at)); return;
      case Form::plain: break;
      default: return;
    }
    if (!adds_number(word)) return;
    if (const auto page = pages_.of(field(word, 5, 5))) note_label(*page + immediate(word));
  }

  void note_branch(const Insn& insn, const CodeRange* function) {
    const std::uint64_t to = *insn.target;
    target(to);
    if (insn.flow == Flow::call) called_.push_back(to);
    if (function != nullptr) branches_.push_back({out_.flow().functions().size(), to});
    if (function == nullptr || !function->contains(to)) foreign_.push_back(to);
    if (function != nullptr && insn.flow != Flow::call && !function->contains(to))
      across_.push_back({out_.flow().functions().size(), to});
  }

  void note_label(std::uint64_t address) {
    taken(address);
    labels_.push_back(address);
    called_.push_back(address);
  }

  void note_literal(std::uint32_t word, std::uint64_t at) {
    constexpr std::uint64_t kSizes[] = {4, 8, 4, 0}, kVectorSizes[] = {4, 8, 16, 0};
    const bool is_vector = form_of(word).form == Form::load_vector_literal;
    const std::uint64_t size = (is_vector ? kVectorSizes : kSizes)[field(word, 30, 2)];
    literals_.push_back({at, at + size});
    if (!source_.absolute || size != 8) return;
    const CodeSegment* const segment = segment_at(at);
    if (segment == nullptr || at - segment->address + 8 > segment->bytes.size()) return;
    const std::uint64_t value = load(*segment, at - segment->address, 8);
    if (in_text(value)) note_label(value);
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

  static const CodeSegment* segment_in(std::span<const CodeSegment> segments, std::uint64_t address) {
    for (const CodeSegment& s : segments)
      if (address >= s.address && address - s.address < s.bytes.size()) return &s;
    return nullptr;
  }
  const CodeSegment* segment_at(std::uint64_t address) const {
    const CodeSegment* const data = segment_in(source_.data, address);
    return data != nullptr ? data : segment_in(source_.text, address);
  }
  bool in_text(std::uint64_t address) const { return segment_in(source_.text, address) != nullptr; }

  FunctionWalk walk_of(const CodeRange& range) const {
    const auto entry_at = [this](std::uint64_t address) { return entry(address); };
    return {out_.flow().bytes(range.begin, range.end - range.begin), range.begin, entry_at};
  }

  void mark_tables() {
    for (const std::size_t index : leaping_) {
      const CodeRange range = out_.function(index).range;
      const FunctionWalk walk = walk_of(range);
      for (std::uint64_t at = range.begin; at < range.end; at += kInsnSize)
        if (decode(out_.flow().bytes(at, kInsnSize), at).flow == Flow::indirect_jump)
          if (const auto table = walk.table_of(at - range.begin)) mark_table(*table, range);
    }
    std::ranges::sort(bases_);
  }

  // Where nothing says how long it is: up to the next thing whose address is taken, or what leads elsewhere.
  void mark_table(const JumpTable& table, const CodeRange& function) {
    bases_.push_back(table.base);
    const CodeSegment* const data = segment_at(table.address);
    if (data == nullptr) return;
    const auto next = std::ranges::upper_bound(labels_, table.address);
    const std::uint64_t end = next == labels_.end() ? ~std::uint64_t{0} : *next;
    const std::size_t most = std::min<std::uint64_t>(table.count.value_or(kMostEntries), kMostEntries);
    std::uint64_t at = table.address - data->address;
    for (std::size_t n = 0; n < most && at + table.entry_size <= data->bytes.size(); ++n, at += table.entry_size) {
      if (!table.count && data->address + at >= end) break;
      const unsigned unused = 64 - 8 * table.entry_size;
      const std::uint64_t raw = load(*data, at, table.entry_size) << unused;
      const std::uint64_t entry =
          table.is_signed ? static_cast<std::uint64_t>(static_cast<std::int64_t>(raw) >> unused) : raw >> unused;
      const std::uint64_t to = table.base + (entry << table.shift);
      if (!function.contains(to) && (!table.count || !in_text(to))) break;
      taken(to);
      led_to_.push_back(to);
    }
    if (in_text(table.address)) unmark({table.address, data->address + at});
    if (in_text(table.address)) literals_.push_back({table.address, data->address + at});
  }

  // ---- what follows from all of it ----

  // What is no instruction and not known to be data, and branches to data: then more is data than what is known.
  void judge_boundaries() {
    for (const auto& [index, address] : unknown_)
      if (out_.is_marked(address, CodeFlowBuilder::kStart))
        out_.function(index).decoded = out_.function(index).understood = false;
    for (const auto& [index, to] : branches_)
      if (const auto there = index_at(to); there && !out_.is_marked(to, CodeFlowBuilder::kStart))
        out_.function(*there).understood = false;
  }

  // To the address of a label in a function's middle, differences of labels may be added, which nothing in the file
  // tells from other numbers, and the sum may be kept anywhere: of such functions no jump by memory can be followed.
  // Not so where it is a table's, whose jump is known.
  void judge_labels() {
    for (const std::uint64_t label : labels_) {
      const auto index = index_at(label);
      if (!index || !std::ranges::binary_search(leaping_, *index) || std::ranges::binary_search(bases_, label))
        continue;
      FunctionFacts& facts = out_.function(*index);
      if (label != facts.range.begin && out_.is_marked(label, CodeFlowBuilder::kStart)) facts.understood = false;
    }
  }

  void judge_leaps() {
    std::ranges::sort(foreign_);
    for (const std::size_t index : leaping_) {
      FunctionFacts& facts = out_.function(index);
      facts.understood = facts.understood && walk_of(facts.range).understands_leaps();
    }
  }

  static bool goes_on(std::uint32_t word, const Insn& insn) {
    const bool leaves = insn.flow == Flow::jump || insn.flow == Flow::indirect_jump || insn.flow == Flow::ret;
    return !leaves && form_of(word).form != Form::udf;
  }

  // Most functions have nothing behind a jump that nothing leads to: those that have are walked through again, along
  // the ways of control.
  void judge_reach() {
    tidy(led_to_), tidy(unled_), tidy(labels_);
    merge(literals_);
    std::vector<std::uint64_t> doubtful;  // indices of functions
    for (const std::uint64_t at : unled_)
      if (const auto index = index_at(at); index && !out_.is_marked(at, CodeFlowBuilder::kTarget))
        doubtful.push_back(*index);
    for (const std::uint64_t label : labels_)
      if (const auto index = index_at(label); index && out_.function(*index).range.begin != label)
        doubtful.push_back(*index);
    tidy(doubtful);
    for (const std::size_t index : doubtful) settle_function(index);
  }

  void settle_function(std::size_t index) {
    const FunctionFacts& facts = out_.function(index);
    const CodeRange range = facts.range;
    if (range.begin % kInsnSize != 0 || range.end % kInsnSize != 0) return;
    std::vector<std::uint64_t> seeds, labels, more;
    std::ranges::set_union(those_in(foreign_, range), those_in(led_to_, range), std::back_inserter(seeds));
    std::ranges::set_difference(those_in(labels_, range), seeds, std::back_inserter(labels));
    // Jumps that aren't understood may lead to whatever nothing else leads to.
    if (!facts.understood && std::ranges::binary_search(leaping_, index)) {
      std::ranges::copy(those_in(unled_, range), std::back_inserter(more));
      std::ranges::copy(std::exchange(labels, {}), std::back_inserter(more));
    }
    for (std::uint64_t at = range.begin; at < range.end; at += kInsnSize)
      if (out_.is_marked(at, CodeFlowBuilder::kTaken) && !std::ranges::binary_search(labels, at)) more.push_back(at);
    tidy(more);
    const auto bytes = out_.flow().bytes(range.begin, range.end - range.begin);
    const auto step_at = [&](std::uint64_t at) { return step(bytes, range, at); };
    const auto begins = reached_instructions({range, seeds, more, labels, overlapping(literals_, range), step_at});
    for (std::uint64_t at = range.begin; at < range.end; at += kInsnSize) {
      const bool idle = form_of(load_word(bytes.subspan(at - range.begin))).form == Form::nop;
      if (!idle && !std::ranges::binary_search(begins, at)) out_.unmark(at, CodeFlowBuilder::kStart);
    }
  }

  static ReachStep step(std::span<const std::uint8_t> bytes, const CodeRange& function, std::uint64_t at) {
    if (at % kInsnSize != 0) return {};
    const auto rest = bytes.subspan(at - function.begin);
    const Insn insn = decode(rest, at);
    if (insn.refusal == Refusal::undecodable) return {};
    return {kInsnSize, goes_on(load_word(rest), insn), insn.target};
  }

  // What isn't known of where a function's jumps lead isn't known of its other parts either, into which compilers split
  // functions (.cold): they jump to each other.
  void spread_doubt() {
    std::vector<std::size_t> doubtful, without_stack;
    for (const auto& [from, to] : across_) {
      const auto other = index_at(to);
      if (!other) continue;
      const bool is_part = to != out_.function(*other).range.begin;
      if (!out_.function(from).understood) doubtful.push_back(*other);
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

  std::optional<std::size_t> index_at(std::uint64_t address) const {
    const FunctionFacts* const facts = out_.flow().function_at(address);
    if (facts == nullptr) return std::nullopt;
    return static_cast<std::size_t>(facts - out_.flow().functions().data());
  }

  const CodeSource& source_;
  CodeFlowBuilder out_;
  Pages pages_;
  bool has_pads_ = false;  // functions begin with a bti
  struct Place {
    std::size_t function;  // index
    std::uint64_t address;
  };
  std::vector<Place> branches_, unknown_, across_;  // from functions; in them; out of them
  std::vector<std::uint64_t> foreign_, called_;
  std::vector<std::uint64_t> labels_;  // addresses that code takes: of tables, for all one knows, or of code
  std::vector<std::uint64_t> bases_;   // labels that tables count from; ascending
  std::vector<CodeRange> literals_;    // and tables: data in the text
  std::vector<std::uint64_t> unled_;   // behind what doesn't go on, in functions, and no nop
  std::vector<std::uint64_t> led_to_;  // by tables
  std::vector<std::size_t> leaping_;   // functions with indirect jumps; indices, ascending
};

}  // namespace

CodeFlow analyse_code(const CodeSource& source) { return Analysis(source).run(); }

}  // namespace probed::arch::aarch64
