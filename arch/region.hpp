// Which bytes of a program may be replaced by the jump to a detour: the vocabulary, and what is known about the code of
// one ELF file. The analysis and the decisions are <cpu>/region.hpp. Pure; a CodeFlow is made once, then only read, by
// any thread. Addresses are those of the file's headers (add the load bias for the target's).
//
// Where a jump is one instruction of the size that all have, aarch64, there is one form:
//
//   near    site: b -> detour                             the region is one instruction; or two, where the first is a
//                                                         landing pad that has to stay and the jump follows it
//
// x86-64 has two, tried in this order:
//
//   near    site: e9 rel32 -> detour                      the region is whole instructions of 5 bytes or more
//   island  site: eb rel8 -> island: e9 rel32 -> detour   the region is 2 bytes or more; the island lies in bytes that
//                                                         never execute (padding)
//
// Where neither of these fits, and asked for by itself, as it takes memory at a place that the code dictates:
//
//   punned  site: e9 rel32 -> memory of ours: e9 rel32 -> detour   the region is one instruction of less than 5 bytes;
//           what the jump has no room for are the bytes that follow, as they are, taken for the rest of its distance
//
// All that is written for a jump lies in one page: a process may give pages back one by one (MADV_DONTNEED), and what
// is in the file appears again there.
//
// The detour always holds the region's instructions, relocated, and goes on behind them. A branch, a return address, an
// exception handler or a table that leads to a byte which has been overwritten, other than the region's first one,
// would arrive in the middle of the jump: that none exists is what has to be shown. Bytes of instructions behind the
// jump (a region may be longer than its jump) stay as they were and are never executed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "arch/common.hpp"

namespace probed::arch {

struct CodeRange {
  std::uint64_t begin = 0, end = 0;
  bool contains(std::uint64_t address) const { return address >= begin && address < end; }
  bool overlaps(const CodeRange& other) const { return begin < other.end && other.begin < end; }
};

struct CodeSegment {
  std::uint64_t address = 0;
  std::span<const std::uint8_t> bytes;
};

// One ELF file, as analyse_code() needs it.
struct CodeSource {
  std::span<const CodeSegment> text;     // what is executable; ascending
  std::span<const CodeSegment> data;     // what is not: jump tables are read from it; ascending
  std::span<const CodeRange> functions;  // from symbols and unwind tables; ascending, not overlapping
  // Places that are entered in ways which the code doesn't show: symbols, exception landing pads, what relocations
  // point to. Any order; those outside of the text are ignored.
  std::span<const std::uint64_t> entries;
  // The file is linked to fixed addresses: any constant in code or data may be the address of code.
  bool absolute = false;
  // Indirect branches have to arrive at landing pads: what is mapped from the file is guarded (aarch64: BTI).
  bool guarded = false;
  // Parts of the data that are made by linkers for loaders and unwinders: no tables of the program's own.
  std::span<const CodeRange> linkage{};
};

// A function's analysis.
struct FunctionFacts {
  CodeRange range;
  bool decoded = false;     // from its begin to its end; else what follows something undecodable isn't known
  bool understood = false;  // decoded, and every indirect jump's targets are among the known ones
  bool keeps_stack = true;  // what is below the stack pointer is free everywhere, but for the ABI's red zone
};

// What is known about the code of one file. About 1.5 times the size of its text.
class CodeFlow {
 public:
  // nullptr: in no function.
  const FunctionFacts* function_at(std::uint64_t address) const;
  std::span<const FunctionFacts> functions() const { return functions_; }
  // Whether an instruction begins there, counted from its function's begin on.
  bool is_instruction(std::uint64_t address) const;
  // Whether a branch, a table or an entry leads there, or may lead there because not all is understood.
  bool may_be_entered(std::uint64_t address) const;
  // Whether a function begins there that a direct call leads to, or whose address the code takes.
  bool is_called(std::uint64_t address) const;
  // Whether these bytes are padding that is never executed.
  bool is_padding(const CodeRange& range) const;
  // Whether indirect branches have to arrive at landing pads.
  bool is_guarded() const { return guarded_; }
  // As in the file: what has to be in the target before anything is written. Short when the text ends.
  std::span<const std::uint8_t> bytes(std::uint64_t address, std::size_t size) const;

 private:
  friend class CodeFlowBuilder;
  struct Text {
    std::uint64_t address = 0;
    std::vector<std::uint8_t> bytes;
    std::vector<std::uint8_t> marks;  // four bits for each byte of text: CodeFlowBuilder::Mark
    std::uint64_t end() const { return address + bytes.size(); }
  };
  const Text* text_at(std::uint64_t address) const;
  unsigned marks_at(std::uint64_t address) const;

  std::vector<Text> texts_;
  std::vector<FunctionFacts> functions_;
  std::vector<std::uint64_t> called_;  // ascending
  bool guarded_ = false;
};

// What <cpu>/region.hpp makes a CodeFlow with.
class CodeFlowBuilder {
 public:
  enum Mark : std::uint8_t {
    kStart = 1,
    kTarget = 2,
    kPadding = 4,
    kTaken = 8,  // with kTarget: not, or not only, by a direct branch
  };

  void add_text(const CodeSegment& segment);
  // In ascending order. Returns its index.
  std::size_t add_function(const FunctionFacts& facts);
  FunctionFacts& function(std::size_t index) { return flow_.functions_[index]; }
  // Does nothing outside of the text.
  void mark(std::uint64_t address, Mark mark);
  void unmark(std::uint64_t address, Mark mark);
  bool is_marked(std::uint64_t address, Mark mark) const { return (flow_.marks_at(address) & mark) != 0; }

  // In any order, more than once, functions' begins or not.
  void set_called(std::vector<std::uint64_t> addresses);

  void set_guarded(bool guarded) { flow_.guarded_ = guarded; }

  const CodeFlow& flow() const { return flow_; }
  CodeFlow finish() && { return std::move(flow_); }

 private:
  CodeFlow flow_;
};

// Why a site can't get a jump. One table says each's name and sentence: region_refusals().
enum class RegionRefusal : std::uint8_t {
  none,
  no_function,     // its function isn't known
  no_instruction,  // no instruction begins there, or what is there isn't known to be code
  indirect_jumps,  // not all that leads into the function is known, and the jump would cover an instruction's begin
  branch_target,   // something leads into the bytes behind the first
  function_end,    // the function ends before, and no padding follows
  neighbour,       // another probe has some of the bytes
  call,            // a call would not be the last instruction
  system_call,     // may sleep for ever in the detour
  repeats,         // a repeated string instruction may be interrupted in its middle
  stack_pointer,   // behind its function's first instruction the stack pointer may point to anything
  trap_flag,       // reads or writes the trap flag: must not be stepped
  transaction,     // an abort would forget the hit
  instruction,     // can't be moved: RegionResult::instruction says why
  no_island,       // there is no room for an island
  page_end,        // what would be written lies in two pages
  landing_pad,     // indirect branches arrive at it, which they must not at a jump
  unsupported,     // not on this architecture yet
};
struct RegionRefusalRow {
  RegionRefusal refusal;
  std::string_view name;      // stable, for programs
  std::string_view sentence;  // no full stop
};
std::span<const RegionRefusalRow> region_refusals();
const RegionRefusalRow& describe(RegionRefusal refusal);

inline constexpr std::size_t kMaxRegionInsns = 10;

// Instructions that run relocated in a detour, and what the request for it is made of.
struct Displaced {
  std::uint64_t address = 0;
  std::uint8_t length = 0;  // bytes, whole instructions
  std::uint8_t count = 0;
  std::array<Insn, kMaxRegionInsns> insns{};  // with targets as in the file

  std::uint64_t end() const { return address + length; }
  std::span<const Insn> all() const { return {insns.data(), count}; }
};

enum class JumpForm : std::uint8_t { near, island, punned };
inline constexpr std::size_t kNearJumpSize = 5, kShortJumpSize = 2;

struct RegionPlan {
  JumpForm form = JumpForm::near;
  std::uint8_t near_size = kNearJumpSize;  // bytes of the site that form `near` writes
  std::uint8_t pad_size = 0;               // the first of them: a landing pad, which comes back in front of the jump
  Displaced region;                        // its first byte is the site
  std::uint64_t island = 0;                // where the near jump is when form is `island`

  std::uint64_t site() const { return region.address; }
  // The bytes that are written, in the order in which they are to be written: the island's jump (empty: none), the
  // site's. Undone in the opposite order.
  std::array<CodeRange, 2> written() const;
  // Of `punned` the jump's last bytes, which are read and not written: they must stay as they are.
  CodeRange borrowed() const;
  // Places where no thread may stand or come back to while anything is written: instructions in the middle of the
  // region. An island adds none before it is written; afterwards its own address.
  std::vector<std::uint64_t> interior() const;
  // Whether it and a probe on another address hinder each other.
  bool hinders(std::uint64_t site) const;
};

struct RegionResult {
  RegionRefusal refusal = RegionRefusal::none;
  Refusal instruction = Refusal::none;
  RegionPlan plan;  // when refusal is none
  explicit operator bool() const { return refusal == RegionRefusal::none; }
};

// Where a punned jump can lead: `count` addresses from `lowest` on.
struct PunRange {
  std::uint64_t lowest = 0, count = 0;
};

// Everything that a plan looks at or writes is at most so far from its site.
inline constexpr std::uint64_t kRegionReach = 160;

// What a site may get. `taken`: bytes that are no longer free within kRegionReach of the site: the first byte of every
// other probed instruction, and written() of every other plan; ascending by begin.
struct RegionRequest {
  std::uint64_t site = 0;
  std::span<const CodeRange> taken{};
  bool may_use_island = true;
};

}  // namespace probed::arch
