// One site's detour: its instructions; arch/detour_code.hpp has what is done in which order. Pure.
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

#include "arch/detour_code.hpp"
#include "arch/x86_64/assembler.hpp"
#include "arch/x86_64/detour_capture.hpp"
#include "arch/x86_64/detour_stack.hpp"
#include "arch/x86_64/regs.hpp"
#include "arch/x86_64/relocate.hpp"
#include "proto/base/check.hpp"

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

struct SiteMachine {
  using Assembler = x86_64::Assembler;
  using Frame = DetourFrame;
  using CaptureWriter = x86_64::CaptureWriter;
  static constexpr std::uint8_t kEnterWords = x86_64::kEnterWords;
};

class SiteWriter : public DetourCode<SiteWriter, SiteMachine> {
 public:
  SiteWriter(std::span<std::uint8_t> room, const DetourRequest& request, const DetourRuntime& runtime, Detour& out,
             bool short_jumps)
      : DetourCode(Assembler(room, request.address, short_jumps), {}, request, runtime, out),
        needs_(needs_of(request.probes)) {}

 private:
  friend class DetourCode<SiteWriter, SiteMachine>;

  // ---- frame ----

  // Slots are noted by their distance from the program's rsp and turned round when the frame is complete.
  DetourRefusal enter() {
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
    return DetourRefusal::none;
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

  void go_if_disabled(std::uint32_t index, Label to) {
    a_.alu_mem_imm(Alu::cmp, place(runtime_.places.probe_flags + index), ch::kDisabled, 1);
    a_.jcc(Cond::equal, to);
  }

  // The program's flags, as leave() brings them back.
  void stay_unless(std::uint8_t condition, Label next) {
    a_.load(rax, rsp + saved_flags_);
    a_.bytes({0x04, 0x7f, 0x9e});
    a_.jcc(inverse(static_cast<Cond>(condition)), next);
  }

  // The program's rsp, at an entry and at an exit, is the address of the call's return address.
  void call_enter(std::uint64_t number) { call_on_stack(number, runtime_.enter); }
  void call_leave(std::uint64_t number) { call_on_stack(number, runtime_.leave); }
  void call_begin(std::uint64_t number) { call(number, runtime_.begin); }
  void call_reject(std::uint64_t number) { call(number, runtime_.reject); }
  void call_on_stack(std::uint64_t number, std::uint64_t routine) {
    a_.lea(rax, rsp + frame_.size);
    call(number, routine);
  }
  void call(std::uint64_t number, std::uint64_t routine) {
    a_.mov_imm(rdx, number);
    a_.call(routine);
  }

  void go_if_nothing(Label to) { a_.jcc(Cond::below, to); }
  void go(Label to) { a_.jmp(to); }
  void keep_lane() { a_.store(rsp + frame_.lane, rdx); }
  void clear(std::int32_t offset) { a_.store_imm(rcx + offset, 0); }
  void set_exit(std::uint64_t number) {
    a_.mov_imm(rdx, number);
    a_.store(rcx + ch::kRecordExit, rdx);
  }
  void end_strings() {
    a_.lea(rdx, rdi + 15);
    a_.alu(Alu::bit_and, rdx, -8);
    a_.load(rsi, rsp + frame_.lane);
    a_.store(rsi + ch::kLaneCallNext, rdx);
  }
  void commit(std::uint16_t max_size, bool has_strings) {
    if (has_strings) {
      a_.mov_imm(rdx, max_size);
      a_.load(rsi, rsp + frame_.lane);
      a_.call(runtime_.commit_strings);
    }
    a_.store(rcx + ch::kRecordCommit, rax);
  }

  // ---- tail ----

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

  const Needs needs_;
  std::int16_t saved_flags_ = 0;
  std::int32_t depth_ = 0;
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
