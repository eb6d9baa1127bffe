// Follows a jump's register backwards along every path to where its value comes from.
#include "arch/x86_64/leap.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "arch/x86_64/zydis.hpp"

namespace probed::arch::x86_64 {
namespace {

constexpr std::uint32_t kNowhere = ~0u;
constexpr std::size_t kMostNeeds = 4096;  // (instruction, register) pairs looked at for one jump
constexpr std::size_t kTableWindow = 16;  // instructions between a table's load and the addition

bool is_memory(const ZydisDecodedOperand& operand) { return operand.type == ZYDIS_OPERAND_TYPE_MEMORY; }
bool is_register(const ZydisDecodedOperand& operand) { return operand.type == ZYDIS_OPERAND_TYPE_REGISTER; }

// System V psABI, 3.2.1: what a callee may change, and thus may only hold what it returned.
bool is_changed_by_calls(ZydisRegister reg) {
  constexpr ZydisRegister kKept[] = {ZYDIS_REGISTER_RBX, ZYDIS_REGISTER_RBP, ZYDIS_REGISTER_R12,
                                     ZYDIS_REGISTER_R13, ZYDIS_REGISTER_R14, ZYDIS_REGISTER_R15};
  return std::ranges::find(kKept, reg) == std::end(kKept);
}

// What an instruction that writes the register says about its value.
enum class Origin : std::uint8_t {
  known,     // an address that was taken somewhere
  kept,      // what has been stored at a place on the stack
  copied,    // from another register
  chosen,    // its old value, mangled maybe, or another operand's
  added,     // the sum of two registers
  computed,  // anything
};

// On the stack, at a place that doesn't depend on anything.
bool is_stack_place(const ZydisDecodedOperand& operand) {
  if (!is_memory(operand) || operand.mem.index != ZYDIS_REGISTER_NONE) return false;
  return operand.mem.base == ZYDIS_REGISTER_RSP || operand.mem.base == ZYDIS_REGISTER_RBP;
}

Origin origin_of(const Decoded& decoded) {
  const ZydisDecodedOperand& to = decoded.operands[0];
  const ZydisDecodedOperand& from = decoded.operands[1];
  if (decoded.insn.mnemonic == ZYDIS_MNEMONIC_POP) return Origin::known;
  if (!is_register(to) || to.size != 64) return Origin::computed;
  switch (decoded.insn.mnemonic) {
    case ZYDIS_MNEMONIC_MOV:
      return is_register(from) ? Origin::copied : is_stack_place(from) ? Origin::kept : Origin::known;
    case ZYDIS_MNEMONIC_LEA: return from.mem.base == ZYDIS_REGISTER_RIP ? Origin::known : Origin::computed;
    case ZYDIS_MNEMONIC_ADD: return is_register(from) ? Origin::added : Origin::computed;
    // The C library keeps pointers to functions mangled: by a secret in its thread block, and rotated by 17 bits
    // (glibc, sysdeps/unix/sysv/linux/x86_64/pointer_guard.h).
    case ZYDIS_MNEMONIC_XOR:
      return is_memory(from) && from.mem.segment == ZYDIS_REGISTER_FS ? Origin::chosen : Origin::computed;
    case ZYDIS_MNEMONIC_ROR:
      return from.type == ZYDIS_OPERAND_TYPE_IMMEDIATE && from.imm.value.u == 17 ? Origin::chosen : Origin::computed;
    default: break;
  }
  return decoded.insn.meta.category == ZYDIS_CATEGORY_CMOV ? Origin::chosen : Origin::computed;
}

// Loads one of the distances of the table that a register points to.
bool loads_distance(const Decoded& decoded, ZydisRegister table) {
  const ZydisDecodedOperandMem& mem = decoded.operands[1].mem;
  return decoded.insn.mnemonic == ZYDIS_MNEMONIC_MOVSXD && is_memory(decoded.operands[1]) && mem.base == table &&
         mem.index != ZYDIS_REGISTER_NONE && mem.scale == 4 && mem.disp.value == 0;
}

}  // namespace

struct FunctionWalk::Need {
  std::uint32_t step;  // before it executes
  ZydisRegister reg;
  auto operator<=>(const Need&) const = default;
};

FunctionWalk::FunctionWalk(std::span<const std::uint8_t> bytes, std::uint64_t address,
                           std::function<Entry(std::uint64_t)> entry_at)
    : bytes_(bytes), address_(address), entry_at_(std::move(entry_at)) {
  std::vector<std::pair<std::uint64_t, std::uint32_t>> branches;
  for (std::uint32_t at = 0; at < bytes.size();) {
    const Scan s = scan(bytes.subspan(at), address + at);
    if (s.length == 0) break;
    const auto index = static_cast<std::uint32_t>(steps_.size());
    steps_.push_back({at, s.kind});
    if (s.kind == ScanKind::leap) leaps_.push_back(index);
    if (s.kind == ScanKind::call_away) calls_.push_back(index);
    if (s.kind == ScanKind::jump || s.kind == ScanKind::branch) branches.emplace_back(s.target - address, index);
    at += s.length;
  }
  for (const auto& [target, from] : branches)
    if (const std::uint32_t to = index_of(target); to != kNowhere) edges_.push_back({to, from});
  std::ranges::sort(edges_, {}, &Edge::to);
}

bool FunctionWalk::understands_leaps() const {
  return std::ranges::all_of(leaps_, [this](auto leap) { return understands(leap, Paths::all); }) &&
         std::ranges::all_of(calls_, [this](auto call) { return understands(call, Paths::straight); });
}

bool FunctionWalk::jumps_by_table(std::uint64_t offset) const {
  const std::uint32_t leap = index_of(offset);
  Decoded jump;
  if (leap == kNowhere || !decode_with_zydis(bytes_.subspan(offset), jump) || !is_register(jump.operands[0]))
    return false;
  for (std::uint32_t at = leap; at > 0 && leap - at < kTableWindow && falls_through(steps_[at - 1].kind); --at) {
    Decoded decoded;
    if (!decode_with_zydis(bytes_.subspan(steps_[at - 1].offset), decoded)) return false;
    if (decoded.writes(jump.operands[0].reg.value)) return origin_of(decoded) == Origin::added && adds_distance(at - 1);
  }
  return false;
}

std::uint32_t FunctionWalk::index_of(std::uint64_t offset) const {
  const auto step = std::ranges::lower_bound(steps_, offset, {}, [](const Step& s) { return std::uint64_t{s.offset}; });
  return step != steps_.end() && step->offset == offset ? static_cast<std::uint32_t>(step - steps_.begin()) : kNowhere;
}

// None at all: it is never reached (padding).
std::optional<std::vector<std::uint32_t>> FunctionWalk::predecessors(std::uint32_t step, Paths paths) const {
  if (paths == Paths::straight)
    return falls_through(steps_[step - 1].kind) ? std::vector{step - 1} : std::vector<std::uint32_t>{};
  const Entry entry = entry_at_(address_ + steps_[step].offset);
  if (entry == Entry::foreign) return std::nullopt;
  std::vector<std::uint32_t> out;
  if (entry == Entry::leap) out = leaps_;
  if (step > 0 && falls_through(steps_[step - 1].kind)) out.push_back(step - 1);
  for (const Edge& edge : std::ranges::equal_range(edges_, step, {}, &Edge::to)) out.push_back(edge.from);
  return out;
}

// Adds a distance to the address of the very table that it comes from. There are tables of distances from elsewhere
// (differences of labels, in glibc's vfprintf): those aren't understood.
bool FunctionWalk::adds_distance(std::uint32_t step) const {
  Decoded add;
  if (!decode_with_zydis(bytes_.subspan(steps_[step].offset), add)) return false;
  const ZydisRegister to = add.operands[0].reg.value, from = add.operands[1].reg.value;
  return comes_from_table(step, to, from) || comes_from_table(step, from, to);
}

bool FunctionWalk::comes_from_table(std::uint32_t step, unsigned distance, unsigned table) const {
  const auto distance_reg = static_cast<ZydisRegister>(distance), table_reg = static_cast<ZydisRegister>(table);
  for (std::uint32_t at = step; at > 0 && step - at < kTableWindow; --at) {
    if (!falls_through(steps_[at - 1].kind)) return false;
    Decoded decoded;
    if (!decode_with_zydis(bytes_.subspan(steps_[at - 1].offset), decoded)) return false;
    if (decoded.writes(table_reg)) return false;
    if (decoded.writes(distance_reg)) return loads_distance(decoded, table_reg);
  }
  return false;
}

auto FunctionWalk::stores() const -> const std::vector<Store>& {
  if (stores_) return *stores_;
  stores_.emplace();
  for (std::uint32_t step = 0; step < steps_.size(); ++step) {
    Decoded decoded;
    if (steps_[step].kind != ScanKind::plain || !decode_with_zydis(bytes_.subspan(steps_[step].offset), decoded))
      continue;
    const ZydisDecodedOperand& to = decoded.operands[0];
    const bool writes = (to.actions & ZYDIS_OPERAND_ACTION_MASK_WRITE) != 0;
    if (!is_stack_place(to) || !writes || to.visibility != ZYDIS_OPERAND_VISIBILITY_EXPLICIT) continue;
    const bool whole = decoded.insn.mnemonic == ZYDIS_MNEMONIC_MOV && to.size == 64 && is_register(decoded.operands[1]);
    stores_->push_back(
        {{to.mem.base, to.mem.disp.value}, step, whole ? decoded.operands[1].reg.value : ZYDIS_REGISTER_NONE});
  }
  return *stores_;
}

bool FunctionWalk::understands(std::uint32_t transfer, Paths paths) const {
  Decoded jump;
  if (!decode_with_zydis(bytes_.subspan(steps_[transfer].offset), jump)) return false;
  std::set<Need> seen;
  std::vector<Need> open;
  const auto need = [&](const Need& n) {
    if (seen.insert(n).second) open.push_back(n);
  };
  // What a call finds on the stack is as good as what it finds elsewhere: see Paths.
  const auto need_kept = [&](const ZydisDecodedOperand& from) {
    if (paths == Paths::straight) return true;
    for (const Store& store : stores()) {
      if (store.place != Place{from.mem.base, from.mem.disp.value}) continue;
      if (store.from == ZYDIS_REGISTER_NONE) return false;
      need({store.step, static_cast<ZydisRegister>(store.from)});
    }
    return true;
  };
  if (is_memory(jump.operands[0])) {
    if (!is_stack_place(jump.operands[0])) return true;
    if (!need_kept(jump.operands[0])) return false;
  } else {
    need({transfer, jump.operands[0].reg.value});
  }
  while (!open.empty()) {
    if (seen.size() > kMostNeeds) return false;
    const Need now = open.back();
    open.pop_back();
    if (now.step == 0) continue;  // an argument
    const auto before = predecessors(now.step, paths);
    if (!before) return false;
    for (const std::uint32_t p : *before) {
      const ScanKind kind = steps_[p].kind;
      if ((kind == ScanKind::call || kind == ScanKind::call_away) && is_changed_by_calls(now.reg)) continue;
      Decoded decoded;
      if (!decode_with_zydis(bytes_.subspan(steps_[p].offset), decoded)) return false;
      if (!decoded.writes(now.reg)) {
        need({p, now.reg});
        continue;
      }
      switch (origin_of(decoded)) {
        case Origin::known: break;
        case Origin::kept:
          if (!need_kept(decoded.operands[1])) return false;
          break;
        case Origin::copied: need({p, decoded.operands[1].reg.value}); break;
        case Origin::chosen:
          need({p, now.reg});
          if (is_register(decoded.operands[1])) need({p, decoded.operands[1].reg.value});
          break;
        case Origin::added:
          if (!adds_distance(p)) return false;
          break;
        case Origin::computed: return false;
      }
    }
  }
  return true;
}

}  // namespace probed::arch::x86_64
