// Follows a jump's register backwards along every path to where its value comes from.
#include "arch/aarch64/leap.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "arch/aarch64/decode.hpp"
#include "arch/aarch64/forms.hpp"
#include "arch/aarch64/operands.hpp"
#include "arch/aarch64/word.hpp"
#include "arch/aarch64/written.hpp"

namespace probed::arch::aarch64 {
namespace {

constexpr std::size_t kMostNeeds = 4096;  // (instruction, register) pairs looked at for one jump
constexpr std::uint32_t kWindow = 32;     // instructions between a table's parts
constexpr unsigned kFramePointer = 29;

unsigned rd(std::uint32_t word) { return field(word, 0, 5); }
unsigned rn(std::uint32_t word) { return field(word, 5, 5); }
unsigned rm(std::uint32_t word) { return field(word, 16, 5); }

// AAPCS64 6.1.1: what a callee may change, and thus may only hold what it returned.
bool is_changed_by_calls(unsigned reg) { return reg <= 18 || reg == kLinkRegister; }

bool falls_through(std::uint32_t word) {
  const FormRow& row = form_of(word);
  return row.form != Form::udf && row.flow != Flow::jump && row.flow != Flow::indirect_jump && row.flow != Flow::ret;
}
bool calls(std::uint32_t word) {
  const Flow flow = form_of(word).flow;
  return flow == Flow::call || flow == Flow::indirect_call;
}

bool is_move(std::uint32_t word) { return (word & 0xffe0ffe0) == 0xaa0003e0; }          // mov x, x
bool is_choice(std::uint32_t word) { return (word & 0xffe00c00) == 0x9a800000; }        // csel
bool adds_number(std::uint32_t word) { return (word & 0xff800000) == 0x91000000; }      // add x, x, #n
bool adds_shifted(std::uint32_t word) { return (word & 0xffe00000) == 0x8b000000; }     // add x, x, x, lsl #n
bool adds_extended(std::uint32_t word) { return (word & 0xffe00000) == 0x8b200000; }    // add x, x, w, sxtw #n
bool compares_number(std::uint32_t word) { return (word & 0x7f80001f) == 0x7100001f; }  // cmp w or x, #n
// autia and its kin, of a register: what comes out is what went in.
bool authenticates(std::uint32_t word) {
  return (word & 0xfffff000) == 0xdac11000 || (word & 0xfffff3e0) == 0xdac133e0 || (word & 0xfffffbe0) == 0xdac143e0;
}
// A pointer that the C library keeps mangled by a secret (glibc, sysdeps/aarch64: PTR_DEMANGLE).
bool unmangles(std::uint32_t word) { return (word & 0xffe0fc00) == 0xca000000; }  // eor x, x, x

std::uint64_t immediate(std::uint32_t word) { return std::uint64_t{field(word, 10, 12)} << (field(word, 22, 1) * 12); }

// ldrb, ldrh, ldr w and their signed forms, at a base and an index that is scaled or not.
std::optional<JumpTable> loads_distance(std::uint32_t word) {
  if ((word & 0x3f200c00) != 0x38200800 || field(word, 22, 2) == 0 || field(word, 30, 2) == 3) return std::nullopt;
  JumpTable table;
  table.entry_size = static_cast<std::uint8_t>(1u << field(word, 30, 2));
  table.is_signed = field(word, 23, 1) != 0;
  return table;
}

// The second operand of an addition: how it is extended and moved. False: not as distances are.
bool extends_distance(std::uint32_t word, JumpTable& table) {
  constexpr unsigned kSigned = 4, kBytes[] = {1, 2, 4, 8};
  if (adds_shifted(word)) {
    table.shift = static_cast<std::uint8_t>(field(word, 10, 6));
    return table.shift <= 2;
  }
  const unsigned option = field(word, 13, 3);
  if (kBytes[option % kSigned] < table.entry_size) return false;
  table.is_signed = table.is_signed || option >= kSigned;
  table.shift = static_cast<std::uint8_t>(field(word, 10, 3));
  return table.shift <= 2;
}

}  // namespace

struct FunctionWalk::Need {
  std::uint32_t step;  // before it executes
  unsigned reg;
  auto operator<=>(const Need&) const = default;
};

FunctionWalk::FunctionWalk(std::span<const std::uint8_t> bytes, std::uint64_t address,
                           std::function<Entry(std::uint64_t)> entry_at)
    : bytes_(bytes), address_(address), entry_at_(std::move(entry_at)) {
  for (std::uint32_t step = 0; step < bytes.size() / kInsnSize; ++step) {
    const Insn insn = decode(bytes.subspan(std::size_t{step} * kInsnSize), address_of(step));
    if (insn.flow == Flow::indirect_jump) leaps_.push_back(step);
    if (insn.flow == Flow::indirect_call) calls_.push_back(step);
    if (insn.target && insn.flow != Flow::call && *insn.target - address < bytes.size())
      edges_.push_back({static_cast<std::uint32_t>((*insn.target - address) / kInsnSize), step});
  }
  std::ranges::sort(edges_, {}, &Edge::to);
}

std::uint32_t FunctionWalk::word(std::uint32_t step) const {
  return load_word(bytes_.subspan(std::size_t{step} * kInsnSize));
}
std::uint64_t FunctionWalk::address_of(std::uint32_t step) const { return address_ + std::uint64_t{step} * kInsnSize; }

// ---- tables ----

std::optional<std::uint32_t> FunctionWalk::writer(std::uint32_t step, unsigned reg) const {
  for (std::uint32_t at = step; at > 0 && step - at < kWindow; --at) {
    const std::uint32_t before = word(at - 1);
    if (!falls_through(before) || (calls(before) && is_changed_by_calls(reg))) return std::nullopt;
    if (may_write(before, reg)) return at - 1;
  }
  return std::nullopt;
}

std::optional<std::uint64_t> FunctionWalk::label_in(std::uint32_t step, unsigned reg) const {
  const auto at = writer(step, reg);
  if (!at) return std::nullopt;
  const std::uint32_t insn = word(*at);
  if (form_of(insn).form == Form::adr) return adr_address(insn, address_of(*at));
  if (is_move(insn)) return label_in(*at, rm(insn));
  if (!adds_number(insn)) return std::nullopt;
  const auto page = writer(*at, rn(insn));
  if (!page || form_of(word(*page)).form != Form::adrp) return std::nullopt;
  return adrp_address(word(*page), address_of(*page)) + immediate(insn);
}

// cmp index, #last; b.hi elsewhere: in front of the load, and of the index as the load has it.
std::optional<std::uint64_t> FunctionWalk::limit_of(std::uint32_t step, unsigned index) const {
  for (std::uint32_t at = step; at > 0 && step - at < kWindow; --at) {
    const std::uint32_t before = word(at - 1);
    if (!falls_through(before)) return std::nullopt;
    if (compares_number(before) && rn(before) == index) return immediate(before) + 1;
    if (is_move(before | 1u << 31) && rd(before) == index) return limit_of(at - 1, rm(before));
    if (may_write(before, index)) return std::nullopt;
  }
  return std::nullopt;
}

std::optional<JumpTable> FunctionWalk::distance_in(std::uint32_t step, unsigned reg) const {
  const auto load = writer(step, reg);
  if (!load) return std::nullopt;
  auto table = loads_distance(word(*load));
  const auto address = table ? label_in(*load, rn(word(*load))) : std::nullopt;
  if (!address) return std::nullopt;
  table->address = *address;
  table->count = limit_of(*load, rm(word(*load)));
  return table;
}

std::optional<JumpTable> FunctionWalk::table_added_at(std::uint32_t step) const {
  const std::uint32_t add = word(step);
  if (!adds_shifted(add) && !adds_extended(add)) return std::nullopt;
  for (const auto& [distance, base] : {std::pair(rm(add), rn(add)), std::pair(rn(add), rm(add))}) {
    auto table = distance_in(step, distance);
    const auto label = table ? label_in(step, base) : std::nullopt;
    const bool is_plain = distance == rm(add) || (adds_shifted(add) && field(add, 10, 6) == 0);
    if (!label || !is_plain || !extends_distance(add, *table)) continue;
    table->base = *label;
    return table;
  }
  return std::nullopt;
}

std::optional<JumpTable> FunctionWalk::table_of(std::uint64_t offset) const {
  const auto leap = static_cast<std::uint32_t>(offset / kInsnSize);
  const auto add = writer(leap, branch_register(word(leap)));
  return add ? table_added_at(*add) : std::nullopt;
}

// ---- everything else ----

bool FunctionWalk::understands_leaps() const {
  return std::ranges::all_of(leaps_, [this](auto leap) { return understands(leap); }) &&
         std::ranges::none_of(calls_, [this](auto call) { return is_computed(call, branch_register(word(call))); });
}

// On the straight way, by an addition of registers.
bool FunctionWalk::is_computed(std::uint32_t step, unsigned reg) const {
  const auto at = writer(step, reg);
  return at && (adds_shifted(word(*at)) || adds_extended(word(*at))) && !table_added_at(*at);
}

// None at all: it is never reached.
std::optional<std::vector<std::uint32_t>> FunctionWalk::predecessors(std::uint32_t step) const {
  const Entry entry = entry_at_(address_of(step));
  if (entry == Entry::foreign) return std::nullopt;
  std::vector<std::uint32_t> out;
  if (entry == Entry::leap) out = leaps_;
  if (step > 0 && falls_through(word(step - 1))) out.push_back(step - 1);
  for (const Edge& edge : std::ranges::equal_range(edges_, step, {}, &Edge::to)) out.push_back(edge.from);
  return out;
}

bool FunctionWalk::understands(std::uint32_t leap) const {
  std::set<Need> seen;
  std::vector<Need> open;
  const auto need = [&](const Need& n) {
    if (n.reg != kZeroRegister && seen.insert(n).second) open.push_back(n);
  };
  // What the function has kept on its stack is what it has put there. False: not the whole of a register.
  const auto need_kept = [&](const WordAccess& load, unsigned reg) {
    const std::int64_t place = load.offset + (load.second == reg ? 8 : 0);
    for (std::uint32_t step = 0; step < bytes_.size() / kInsnSize; ++step) {
      const auto store = word_access(word(step));
      if (!store || store->is_load || store->base != load.base) continue;
      if (store->offset == place) need({step, store->first});
      if (store->second && store->offset + 8 == place) need({step, *store->second});
    }
  };
  // Whether the value that instruction p writes into the register is one that is known.
  const auto explain = [&](std::uint32_t p, unsigned reg) {
    const std::uint32_t insn = word(p);
    const Form form = form_of(insn).form;
    if (form == Form::adr || form == Form::adrp) return true;
    if (loads_word(insn, reg)) {
      const auto access = word_access(insn);
      if (access && (access->base == kZeroRegister || access->base == kFramePointer)) need_kept(*access, reg);
      return true;
    }
    if (is_move(insn)) return need({p, rm(insn)}), true;
    if (authenticates(insn)) return need({p, rd(insn)}), true;
    if (is_choice(insn)) return need({p, rn(insn)}), need({p, rm(insn)}), true;
    if (unmangles(insn)) return need({p, rn(insn)}), true;
    if (adds_number(insn)) return label_in(p + 1, reg).has_value();
    return table_added_at(p).has_value();
  };
  need({leap, branch_register(word(leap))});
  while (!open.empty()) {
    if (seen.size() > kMostNeeds) return false;
    const Need now = open.back();
    open.pop_back();
    if (now.step == 0) continue;  // an argument
    const auto before = predecessors(now.step);
    if (!before) return false;
    for (const std::uint32_t p : *before) {
      if (calls(word(p)) && is_changed_by_calls(now.reg)) continue;
      if (!may_write(word(p), now.reg))
        need({p, now.reg});
      else if (!explain(p, now.reg))
        return false;
    }
  }
  return true;
}

}  // namespace probed::arch::aarch64
