// See reach.hpp.
#include "arch/reach.hpp"

#include <algorithm>

namespace probed::arch {
namespace {

class Reach {
 public:
  explicit Reach(const ReachRequest& request)
      : request_(request), marks_(request.function.end - request.function.begin) {
    for (const CodeRange& range : request.data) mark(range, kData);
    for (const std::uint64_t label : request.labels) mark({label, label + 1}, kLabel);
  }

  std::vector<std::uint64_t> run() {
    follow(request_.function.begin);
    for (const std::uint64_t seed : request_.seeds) follow(seed);
    for (const std::uint64_t entry : request_.entries)
      if (!behind_data(entry)) follow(entry);
    std::vector<std::uint64_t> begins;
    for (std::size_t i = 0; i < marks_.size(); ++i)
      if ((marks_[i] & kBegin) != 0) begins.push_back(request_.function.begin + i);
    return begins;
  }

 private:
  enum Mark : std::uint8_t { kData = 1, kLabel = 2, kBegin = 4, kInstruction = 8 };

  std::uint8_t& at(std::uint64_t address) { return marks_[address - request_.function.begin]; }

  void mark(const CodeRange& range, Mark mark) {
    const std::uint64_t end = std::min(range.end, request_.function.end);
    for (std::uint64_t i = std::max(range.begin, request_.function.begin); i < end; ++i)
      at(i) = static_cast<std::uint8_t>(at(i) | mark);
  }

  void follow(std::uint64_t from) {
    open_.push_back(from);
    while (!open_.empty()) {
      std::uint64_t address = open_.back();
      open_.pop_back();
      while (request_.function.contains(address) && (at(address) & kBegin) == 0) {
        const ReachStep step = request_.step_at(address);
        const CodeRange insn{address, address + step.length};
        if (step.length == 0 || insn.end > request_.function.end || has_data(insn)) break;
        mark(insn, kInstruction);
        mark({address, address + 1}, kBegin);
        if (step.target) open_.push_back(*step.target);
        if (!step.goes_on) break;
        address = insn.end;
      }
    }
  }

  bool has_data(const CodeRange& insn) {
    for (std::uint64_t i = insn.begin; i < insn.end; ++i)
      if ((at(i) & kData) != 0) return true;
    return false;
  }

  bool behind_data(std::uint64_t entry) {
    for (std::uint64_t i = entry; i > request_.function.begin;) {
      const std::uint8_t marks = at(--i);
      if ((marks & kInstruction) != 0) return false;
      if ((marks & (kData | kLabel)) != 0) return true;
    }
    return false;
  }

  const ReachRequest& request_;
  std::vector<std::uint8_t> marks_;
  std::vector<std::uint64_t> open_;
};

}  // namespace

std::vector<std::uint64_t> reached_instructions(const ReachRequest& request) { return Reach(request).run(); }

void tidy(std::vector<std::uint64_t>& addresses) {
  std::ranges::sort(addresses);
  const auto repeated = std::ranges::unique(addresses);
  addresses.erase(repeated.begin(), repeated.end());
}

std::span<const std::uint64_t> those_in(const std::vector<std::uint64_t>& sorted, const CodeRange& range) {
  const auto begin = std::ranges::lower_bound(sorted, range.begin), end = std::ranges::lower_bound(sorted, range.end);
  return {begin, end};
}

void merge(std::vector<CodeRange>& ranges) {
  std::ranges::sort(ranges, {}, &CodeRange::begin);
  std::size_t kept = 0;
  for (const CodeRange& range : ranges) {
    if (range.begin >= range.end) continue;
    if (kept > 0 && range.begin <= ranges[kept - 1].end)
      ranges[kept - 1].end = std::max(ranges[kept - 1].end, range.end);
    else
      ranges[kept++] = range;
  }
  ranges.resize(kept);
}

std::span<const CodeRange> overlapping(const std::vector<CodeRange>& merged, const CodeRange& range) {
  const auto begin = std::ranges::upper_bound(merged, range.begin, {}, &CodeRange::end);
  const auto end = std::ranges::lower_bound(merged, range.end, {}, &CodeRange::begin);
  return begin < end ? std::span<const CodeRange>(begin, end) : std::span<const CodeRange>();
}

}  // namespace probed::arch
