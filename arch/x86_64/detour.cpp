// One site's detour: the frame, a block for each probe, the tail. What blocks store is in detour_capture.cpp, the
// routines they call in detour_runtime.cpp. Pure.
//
//   mov [rsp-N], eax      touches all of the stack that follows uses: a fault there is one of the site's
//   lea rsp, [rsp-128]    leaves the red zone alone
//   push rax; lahf; seto al; push rax; push rcx; push rdx
//   cmp rdi, ...; jne reject                     the filter, if there is one
//   mov edx, size and index; call begin; jc next carry: nothing is to be recorded, all else is done
//   mov [rcx+32], rdi ...
//   mov [rcx], rax        commits
// next:
//   pop rdx; pop rcx; pop rax; add al, 127; sahf; pop rax; lea rsp, [rsp+128]
//   the region's instructions, relocated; jmp behind the region
//
// A return probe's blocks come last, entries in front of exits; exits in the opposite order, as the call that was
// entered last is the one on top:
//   lea rax, [rsp+N]; mov rdx, tag, index and size; call enter; jc next
//   mov [rcx+32], rdi ...                        into the call
//   lea rax, [rsp+N]; mov rdx, tag, size and index; call leave; jc next
//   mov [rcx+..], rax ...; mov [rcx], rax        behind what was kept of the call
#include "arch/x86_64/detour.hpp"

#include <algorithm>
#include <optional>

#include "arch/x86_64/assembler.hpp"
#include "arch/x86_64/detour_capture.hpp"
#include "arch/x86_64/detour_stack.hpp"
#include "arch/x86_64/regs.hpp"
#include "arch/x86_64/relocate.hpp"
#include "daemon/base/check.hpp"

namespace probed::arch::x86_64 {
namespace {

namespace ch = channel;
using Label = Assembler::Label;
using enum Reg;

constexpr std::int32_t kRedZone = 128;  // System V psABI 3.2.2
constexpr std::uint8_t kNearJump = 0xe9;

// What the probes of a site need of the frame together.
struct Needs {
  bool all_flags = false;
  bool pointers = false;  // rsi and rdi, for arrays, strings and elements that may not be there
  bool strings = false;
  std::size_t compared = 0;
};

Needs needs_of(std::span<const CapturedProbe> probes) {
  Needs needs;
  for (const CapturedProbe& probe : probes) {
    for (const CaptureOp& op : probe.plan->ops) {
      needs.all_flags =
          needs.all_flags || (op.code == CaptureOp::Code::load_register && op.operand == offsetof(Registers, eflags));
      const bool needs_rsi = op.is_array() || op.is_string() || op.code == CaptureOp::Code::keep_begin;
      needs.pointers = needs.pointers || needs_rsi;
      needs.strings = needs.strings || op.is_string();
    }
    if (!probe.plan->filter.empty()) needs.compared = std::max(needs.compared, compared_items(*probe.plan).count);
  }
  return needs;
}

class SiteWriter {
  using Role = CapturedProbe::Role;

 public:
  SiteWriter(std::span<std::uint8_t> room, const DetourRequest& request, const DetourRuntime& runtime, Detour& out,
             bool short_jumps)
      : request_(request),
        runtime_(runtime),
        out_(out),
        a_(room, request.address, short_jumps),
        needs_(needs_of(request.probes)) {}

  DetourResult write() {
    out_.points.push_back({0, {.meaning = CopyPoint::Meaning::before, .original_pc = request_.site}});
    blocks_.reserve(request_.probes.size());
    enter();
    for (const CapturedProbe& probe : request_.probes)
      if (probe.role == Role::plain) block(probe);
    for (const CapturedProbe& probe : request_.probes)
      if (probe.role == Role::entry) block(probe);
    for (auto probe = request_.probes.rbegin(); probe != request_.probes.rend(); ++probe)
      if (probe->role == Role::exit) block(*probe);
    leave();
    if (const DetourResult result = tail(); !result) return result;
    for (Block& b : blocks_) cold(b);
    std::ranges::sort(out_.fixups, {}, &DetourFixup::fault);
    return {refusal()};
  }

  const Assembler& assembler() const { return a_; }

 private:
  struct Block {
    const CapturedProbe& probe;
    Label next, reject;
    bool has_filter;
    CaptureWriter capture;
  };

  DetourRefusal refusal() const {
    for (const Block& b : blocks_)
      if (b.capture.refusal() != DetourRefusal::none) return b.capture.refusal();
    return a_.full() ? DetourRefusal::code_size : DetourRefusal::none;
  }

  // ---- frame ----

  // Slots are noted by their distance from the program's rsp and turned round when the frame is complete.
  void enter() {
    const std::int32_t locals = local_size();
    const std::int32_t saved = 4 + (needs_.all_flags ? 1 : 0) + (needs_.pointers ? 2 : 0);
    frame_.saved.fill(DetourFrame::kNotSaved);
    frame_.size = kRedZone + 8 * saved + locals;
    const auto deepest = static_cast<std::int32_t>(needs_.strings ? kRuntimeStackForStrings : kRuntimeStack);
    a_.store(rsp + -(frame_.size + deepest), rax, 4);
    a_.lea(rsp, rsp + -kRedZone);
    depth_ = kRedZone;
    save(rax);
    a_.bytes({0x9f, 0x0f, 0x90, 0xc0});  // lahf; seto al
    a_.push(rax);
    saved_flags_ = slot_here();
    if (needs_.all_flags) save_all_flags();
    save(rcx);
    save(rdx);
    if (needs_.pointers) save(rsi), save(rdi);
    if (locals > 0) a_.lea(rsp, rsp + -locals);
    place_locals();
    out_.saves = {frame_.size,      frame_.slot(rax), saved_flags_,    frame_.slot(rcx),
                  frame_.slot(rdx), frame_.slot(rsi), frame_.slot(rdi)};
  }

  std::int32_t local_size() const {
    const std::size_t words = (needs_.strings ? 1 : 0) + (needs_.compared > 0 ? 1 + needs_.compared : 0);
    return static_cast<std::int32_t>(8 * words);
  }

  void place_locals() {
    std::int32_t at = 0;
    if (needs_.strings) frame_.lane = static_cast<std::int16_t>(at), at += 8;
    if (needs_.compared > 0) frame_.compared = static_cast<std::int16_t>(at);
  }

  std::int16_t slot_here() {
    depth_ += 8;
    return static_cast<std::int16_t>(frame_.size - depth_);
  }
  void save(Reg r) {
    a_.push(r);
    frame_.saved[static_cast<std::size_t>(r)] = slot_here();
  }
  void save_all_flags() {
    a_.bytes({0x9c});  // pushfq
    frame_.flags = slot_here();
  }

  void leave() {
    if (const std::int32_t locals = local_size(); locals > 0) a_.lea(rsp, rsp + locals);
    if (needs_.pointers) a_.pop(rdi), a_.pop(rsi);
    a_.pop(rdx);
    a_.pop(rcx);
    if (needs_.all_flags) a_.lea(rsp, rsp + 8);
    a_.pop(rax);
    a_.bytes({0x04, 0x7f, 0x9e});  // add al, 127 (overflows for 1); sahf (leaves overflow alone)
    a_.pop(rax);
    a_.lea(rsp, rsp + kRedZone);
  }

  // ---- blocks ----

  // An operand in the channel; takes rcx when that is out of reach.
  Mem place(std::uint64_t address) {
    if (a_.reaches(address)) return Mem::at(address);
    a_.mov_imm(rcx, address);
    return rcx + 0;
  }

  // Whether the probe is enabled at all is asked in the routines: for a filter, too, its outcome is known sooner. Only
  // what the program's memory holds isn't looked at for nothing: a bad pointer costs a stop.
  void block(const CapturedProbe& probe) {
    PROBED_CHECK(probe.index < ch::kMaxProbes, "a probe's index fits the commit word");
    const CapturePlan& plan = *probe.plan;
    blocks_.push_back({probe, a_.label(), a_.label(), !plan.filter.empty(),
                       CaptureWriter(a_, frame_, plan, request_.site, runtime_, out_.fixups, place_of(probe))});
    Block& b = blocks_.back();
    if (b.capture.refusal() != DetourRefusal::none) return;
    if (probe.condition) stay_unless(*probe.condition, b.next);
    if (b.has_filter) {
      if (compared_items(plan).count > 0) {
        a_.alu_mem_imm(Alu::cmp, place(runtime_.places.probe_flags + probe.index), ch::kDisabled, 1);
        a_.jcc(Cond::equal, b.next);
      }
      b.capture.filter(b.reject);
    }
    if (probe.role == Role::entry)
      push_call(plan, b);
    else
      record(plan, b);
    a_.bind(b.next);
  }

  static CapturePlace place_of(const CapturedProbe& probe) {
    if (probe.role != Role::exit) return CapturePlace::plain;
    return probe.tail_call ? CapturePlace::tail_call : CapturePlace::exit;
  }

  // The program's flags, as leave() brings them back.
  void stay_unless(std::uint8_t condition, Label next) {
    a_.load(rax, rsp + saved_flags_);
    a_.bytes({0x04, 0x7f, 0x9e});
    a_.jcc(inverse(static_cast<Cond>(condition)), next);
  }

  static std::uint32_t tag_word(const CapturedProbe& probe) { return probe.tag | (probe.loops ? ch::kCallLoops : 0); }

  // The program's rsp, at an entry and at an exit, is the address of the call's return address.
  void enter_call(const Block& b, std::uint32_t tag, std::size_t words) {
    a_.lea(rax, rsp + frame_.size);
    a_.mov_imm(rdx, std::uint64_t{words} << kEnterWords | std::uint64_t{b.probe.index} << 32 | tag);
    a_.call(runtime_.enter);
  }

  void leave_call(const Block& b, std::size_t size) {
    a_.lea(rax, rsp + frame_.size);
    a_.mov_imm(rdx, std::uint64_t{tag_word(b.probe)} << 32 | ch::commit_low(b.probe.index, size));
    a_.call(runtime_.leave);
  }

  // What a call takes, and the word in front of the next. A string's copy may write some bytes behind it.
  static std::size_t call_words(const CaptureLayout& layout) {
    return layout.max_size / 8u + 1 + (layout.has_strings ? 1 : 0);
  }

  // A call's memory has been used before. What the string takes that is still unused is given back.
  void push_call(const CapturePlan& plan, Block& b) {
    enter_call(b, tag_word(b.probe), call_words(plan.layout));
    a_.jcc(Cond::below, b.next);
    const CaptureLayout& layout = plan.layout;
    const std::size_t slots = layout.items.empty() ? layout.fixed_size : layout.items.front().offset;
    for (std::size_t at = ch::kCallFixed; at < slots; at += 8) a_.store_imm(rcx + static_cast<std::int32_t>(at), 0);
    for (const CaptureItem& item : layout.items)
      for (unsigned i = 0; item.is_string && i < item.count; ++i)
        a_.store_imm(rcx + static_cast<std::int32_t>(item.offset + 8 * i), 0);
    if (layout.has_strings) a_.store(rsp + frame_.lane, rdx);
    b.capture.items();
    if (!layout.has_strings) return;
    a_.lea(rdx, rdi + 15);
    a_.alu(Alu::bit_and, rdx, -8);
    a_.load(rsi, rsp + frame_.lane);
    a_.store(rsi + ch::kLaneCallNext, rdx);
  }

  void begin_record(const CapturePlan& plan, Block& b) {
    const CapturedProbe& probe = b.probe;
    if (probe.role == Role::plain) {
      a_.mov_imm(rdx, ch::commit_low(probe.index, plan.layout.max_size));
      a_.call(runtime_.begin);
    } else {
      leave_call(b, plan.layout.max_size);
    }
    a_.jcc(Cond::below, b.next);
    if (plan.layout.has_strings) a_.store(rsp + frame_.lane, rdx);
    if (probe.role == Role::plain) return;
    a_.mov_imm(rdx, request_.site | (probe.tail_call ? ch::kRecordTailCall : 0));
    a_.store(rcx + ch::kRecordExit, rdx);
  }

  void record(const CapturePlan& plan, Block& b) {
    begin_record(plan, b);
    b.capture.items();
    if (plan.layout.has_strings) {
      a_.mov_imm(rdx, plan.layout.max_size);
      a_.load(rsi, rsp + frame_.lane);
      a_.call(runtime_.commit_strings);
    }
    a_.store(rcx + ch::kRecordCommit, rax);
  }

  void cold(Block& b) {
    b.capture.cold();
    if (!b.has_filter) return;
    a_.bind(b.reject);
    if (b.probe.role == Role::exit) return leave_call(b, 0), a_.jmp(b.next);
    if (b.probe.role == Role::entry) {  // its exit is to find it, and say nothing
      enter_call(b, tag_word(b.probe) | ch::kCallSilent, ch::kCallFixed / 8 + 1);
      a_.jcc(Cond::below, b.next);
    }
    a_.mov_imm(rdx, b.probe.index);
    a_.call(runtime_.reject);
    a_.jmp(b.next);
  }

  // ---- tail ----

  DetourResult tail() {
    out_.tail_begin = a_.size();
    std::uint64_t original = request_.site;
    std::span<const std::uint8_t> bytes = request_.region;
    for (std::size_t i = 0; i < request_.insns.size(); ++i) {
      const Insn& insn = request_.insns[i];
      PROBED_CHECK(insn.length > 0 && insn.length <= bytes.size(), "a region consists of whole instructions");
      const bool is_last = i + 1 == request_.insns.size();
      if (const DetourResult result = relocated(insn, bytes, original, is_last); !result) return result;
      original += insn.length;
      bytes = bytes.subspan(insn.length);
    }
    PROBED_CHECK(bytes.empty(), "the region's instructions are all of its bytes");
    out_.tail_end = a_.size();
    return {};
  }

  static bool leaves_return_address(Flow flow) {
    return flow == Flow::call || flow == Flow::indirect_call || flow == Flow::syscall || flow == Flow::transaction;
  }

  DetourResult relocated(const Insn& insn, std::span<const std::uint8_t> bytes, std::uint64_t original, bool is_last) {
    if (!is_last && leaves_return_address(insn.flow)) return {DetourRefusal::inner_transfer};
    RelocateResult moved = relocate(bytes, insn, original, a_.here());
    if (moved.refusal != Refusal::none) return {DetourRefusal::relocation, moved.refusal};
    Copy& copy = moved.copy;
    if (!is_last) fall_through(copy, original + insn.length);
    add_points(copy);
    a_.bytes(std::span(copy.code).first(copy.size));
    return {};
  }

  // Makes a copy go on behind its own end instead of at the original next instruction.
  static void fall_through(Copy& copy, std::uint64_t next) {
    for (std::uint8_t i = 0; i < copy.point_count; ++i) {
      const CopyPoint& exit = copy.points[i];
      if (exit.meaning != CopyPoint::Meaning::after || exit.original_pc != next) continue;
      if (i + 1 == copy.point_count) {  // nothing but the jump and its word of data is behind
        copy.size = exit.offset;
        copy.point_count = i;
        return;
      }
      const auto distance = static_cast<std::uint8_t>(copy.size - (exit.offset + kDetourJumpSize));
      const std::uint8_t jump[] = {kNearJump, distance, 0, 0, 0};
      std::ranges::copy(jump, copy.code.begin() + exit.offset);
      return;
    }
  }

  void add_points(const Copy& copy) {
    for (const CopyPoint& point : copy.all_points()) {
      const std::uint32_t offset = a_.size() + point.offset;
      if (out_.points.back().offset == offset) out_.points.pop_back();
      out_.points.push_back({offset, point});
    }
  }

  const DetourRequest& request_;
  const DetourRuntime& runtime_;
  Detour& out_;
  Assembler a_;
  const Needs needs_;
  DetourFrame frame_;
  std::int16_t saved_flags_ = 0;
  std::int32_t depth_ = 0;
  std::vector<Block> blocks_;
};

}  // namespace

DetourResult build_detour(const DetourRequest& request, const DetourRuntime& runtime, Detour& out) {
  PROBED_CHECK(request.address % kDetourAlignment == 0, "detours are aligned");
  std::array<std::uint8_t, kMaxDetourSize> room;
  for (const bool short_jumps : {true, false}) {
    out.clear();
    SiteWriter writer(room, request, runtime, out, short_jumps);
    const DetourResult result = writer.write();
    if (!result) return out.clear(), result;
    if (writer.assembler().stretched()) continue;
    out.code.assign(room.begin(), room.begin() + writer.assembler().size());
    return {};
  }
  PROBED_CHECK(false, "long jumps reach everywhere in a detour");
}

Registers program_registers(const Registers& regs, const DetourSaves& saves, std::uint64_t site,
                            const std::function<std::uint64_t(std::uint64_t)>& read) {
  constexpr std::uint64_t kInAh = 0xd5, kOverflow = 0x800;  // SF ZF AF PF CF (lahf); OF
  Registers program = regs;
  const auto saved = [&](std::int16_t slot) { return read(regs.rsp + static_cast<std::uint64_t>(slot)); };
  const std::uint64_t flags = saved(saves.flags);
  program.rax = saved(saves.rax);
  program.rcx = saved(saves.rcx);
  program.rdx = saved(saves.rdx);
  if (saves.rsi >= 0) program.rsi = saved(saves.rsi);
  if (saves.rdi >= 0) program.rdi = saved(saves.rdi);
  program.eflags = (regs.eflags & ~(kInAh | kOverflow)) | (flags >> 8 & kInAh) | ((flags & 1) != 0 ? kOverflow : 0);
  program.rsp = regs.rsp + static_cast<std::uint64_t>(saves.size);
  program.rip = site;
  return program;
}

bool is_stack_check(std::span<const std::uint8_t> bytes) {
  const auto begins = [&](std::initializer_list<std::uint8_t> with) {
    return bytes.size() >= with.size() && std::ranges::equal(bytes.first(with.size()), with);
  };
  return begins({0x49, 0x3b, 0x66, 0x10}) ||  // cmp rsp, [r14+16]
         begins({0x4c, 0x8d, 0x64, 0x24}) ||  // lea r12, [rsp-disp8]
         begins({0x4c, 0x8d, 0xa4, 0x24});    // lea r12, [rsp-disp32]
}

std::array<std::uint8_t, kDetourJumpSize> detour_jump(std::uint64_t site, std::uint64_t detour) {
  const std::uint64_t distance = detour - (site + kDetourJumpSize);
  std::array<std::uint8_t, kDetourJumpSize> jump{kNearJump};
  for (unsigned i = 0; i < 4; ++i) jump[1 + i] = static_cast<std::uint8_t>(distance >> (8 * i));
  return jump;
}

}  // namespace probed::arch::x86_64
