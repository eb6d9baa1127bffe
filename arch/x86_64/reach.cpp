// See reach.hpp.
#include "arch/x86_64/reach.hpp"

#include <algorithm>

#include "arch/x86_64/scan.hpp"

namespace probed::arch::x86_64 {
namespace {

class Reach {
 public:
  explicit Reach(const ReachRequest& request) : request_(request), marks_(request.bytes.size()) {
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
        const Scan s = scan(request_.bytes.subspan(address - request_.function.begin), address);
        const CodeRange insn{address, address + s.length};
        if (s.length == 0 || has_data(insn)) break;
        mark(insn, kInstruction);
        mark({address, address + 1}, kBegin);
        const bool branches = s.kind == ScanKind::jump || s.kind == ScanKind::branch || s.kind == ScanKind::call;
        if (branches) open_.push_back(s.target);
        if (!falls_through(s.kind) || (s.kind == ScanKind::call && is_popped(s.target))) break;
        address = insn.end;
      }
    }
  }

  bool has_data(const CodeRange& insn) {
    for (std::uint64_t i = insn.begin; i < insn.end; ++i)
      if ((at(i) & kData) != 0) return true;
    return false;
  }

  // `call 1f; .asciz "text"; 1: pop %rsi`: what stands behind the call is not what it returns to.
  bool is_popped(std::uint64_t target) const {
    if (!request_.function.contains(target) || target == request_.function.begin) return false;
    const auto code = request_.bytes.subspan(target - request_.function.begin);
    const std::size_t rex = code[0] == 0x41 ? 1 : 0;
    return code.size() > rex && (code[rex] & 0xf8) == 0x58;
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

}  // namespace probed::arch::x86_64
