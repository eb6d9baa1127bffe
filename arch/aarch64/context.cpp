// Walks from an instruction to its neighbours along the ways that control can take.
#include "arch/aarch64/context.hpp"

#include <algorithm>
#include <array>
#include <bitset>
#include <optional>

#include "arch/aarch64/decode.hpp"
#include "arch/aarch64/forms.hpp"
#include "arch/aarch64/operands.hpp"
#include "arch/aarch64/word.hpp"
#include "proto/base/check.hpp"

namespace probed::arch::aarch64 {
namespace {

constexpr std::size_t kMostWords = 2 * kContextReach / kInsnSize + 1;

// The instructions around the one that is asked for, by index.
class Neighbourhood {
 public:
  Neighbourhood(std::span<const std::uint8_t> code, std::size_t at) {
    const std::size_t begin = at > kContextReach ? (at - kContextReach) / kInsnSize * kInsnSize : 0;
    code_ = code.subspan(begin);
    count_ = std::min(code_.size() / kInsnSize, kMostWords);
    site_ = (at - begin) / kInsnSize;
  }

  // Between an exclusive load and a store that belongs to it. What follows a load on the way that gives up (a value
  // that isn't the expected one) is none: no store follows there.
  bool is_in_exclusive_sequence() const {
    bool comes_from_load = false;
    for (std::size_t i = 0; i < count_ && !comes_from_load; ++i)
      comes_from_load = form(i) == Form::exclusive_load && leads_from(i, Form::exclusive_store, site_);
    return comes_from_load && leads_from(site_, Form::exclusive_load, std::nullopt);
  }

  bool is_prepared() const { return site_ > 0 && form(site_ - 1) == Form::prefix; }

  bool is_read() const {
    for (std::size_t i = 0; i < count_; ++i)
      if (reads_site(i)) return true;
    return false;
  }

 private:
  std::uint32_t word(std::size_t i) const { return load_word(code_.subspan(i * kInsnSize)); }
  Form form(std::size_t i) const { return form_of(word(i)).form; }

  bool reads_site(std::size_t i) const {
    const Form kind = form(i);
    if (kind < Form::load_literal || kind > Form::load_vector_literal) return false;
    constexpr std::uint64_t kSizes[] = {4, 8, 4}, kVectorSizes[] = {4, 8, 16};
    const unsigned opc = field(word(i), 30, 2);
    const std::uint64_t size = kind == Form::load_vector_literal ? kVectorSizes[opc] : kSizes[opc];
    const std::uint64_t at = literal_address(word(i), i * kInsnSize), site = site_ * kInsnSize;
    return site - at < size;
  }

  // Whether control comes from instruction `from` to `to`, or to any exclusive store where that isn't given, without
  // passing an instruction of the form `end`, a call or a way out.
  bool leads_from(std::size_t from, Form end, std::optional<std::size_t> to) const {
    std::bitset<kMostWords> seen;
    std::array<std::uint16_t, kMostWords> left;
    std::size_t count = 0;
    const auto go = [&](std::uint64_t i) {
      if (i >= count_ || seen[i]) return;
      seen.set(i);
      left[count++] = static_cast<std::uint16_t>(i);
    };
    for_each_next(from, go);
    while (count > 0) {
      const std::size_t i = left[--count];
      const Form kind = form(i);
      if (to ? i == *to : kind == Form::exclusive_store) return true;
      if (kind != end && kind != Form::exclusive_clear) for_each_next(i, go);
    }
    return false;
  }

  // Nothing is a sequence's that calls or enters the kernel: an exception return clears the monitor.
  template <class Go>
  void for_each_next(std::size_t i, const Go& go) const {
    const Insn insn = decode(code_.subspan(i * kInsnSize), i * kInsnSize);
    if (insn.flow == Flow::next || insn.flow == Flow::cond_jump) go(i + 1);
    const bool jumps = insn.flow == Flow::jump || insn.flow == Flow::cond_jump;
    if (jumps && insn.target) go(*insn.target / kInsnSize);
  }

  std::span<const std::uint8_t> code_;
  std::size_t count_ = 0, site_ = 0;
};

}  // namespace

Refusal refusal_in_context(std::span<const std::uint8_t> code, std::size_t at) {
  PROBED_CHECK(at % kInsnSize == 0 && at + kInsnSize <= code.size(), "an instruction lies in its surroundings");
  const Neighbourhood around(code, at);
  if (around.is_prepared()) return Refusal::sequence;
  if (around.is_in_exclusive_sequence()) return Refusal::exclusive;
  return around.is_read() ? Refusal::undecodable : Refusal::none;
}

}  // namespace probed::arch::aarch64
