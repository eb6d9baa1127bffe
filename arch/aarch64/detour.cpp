// One site's detour: its instructions; arch/detour_code.hpp has what is done in which order. Pure.
//
//   stp x9, x10, [sp, #-96]!       touches all of the stack that follows uses: a fault there is one of the site's
//   stp x11, x12, [sp, #16] ...; mrs x9, nzcv; stp x30, x9, [sp, #64]
//   cmp x0, ...; b.ne reject       the filter, if there is one
//   mov x9, size and index; bl begin; cbz x10, next
//   str x0, [x10, #32] ...
//   stlr x11, [x10]                commits
// next:
//   ldp x30, x9, [sp, #64]; msr nzcv, x9 ...; ldp x9, x10, [sp], #96
//   the region's instruction, relocated; b behind the region
//
// A return probe's blocks come last, entries in front of exits; exits in the opposite order, as the call that was
// entered last is the one on top:
//   add x13, sp, #96; mov x9, tag, index and size; bl enter; cbz x10, next
//   str x0, [x10, #32] ...         into the call
//   add x13, sp, #96; mov x9, tag, size and index; bl leave; cbz x10, next
//   str x0, [x10, ...] ...; stlr x11, [x10]      behind what was kept of the call
#include "arch/aarch64/detour.hpp"

#include <algorithm>
#include <optional>

#include "arch/aarch64/assembler.hpp"
#include "arch/aarch64/copy_writer.hpp"
#include "arch/aarch64/detour_capture.hpp"
#include "arch/aarch64/detour_frame.hpp"
#include "arch/aarch64/forms.hpp"
#include "arch/aarch64/relocate.hpp"
#include "arch/aarch64/word.hpp"
#include "arch/detour_code.hpp"
#include "proto/base/check.hpp"

namespace probed::arch::aarch64 {
namespace {

namespace ch = channel;
using Label = Assembler::Label;
using enum Reg;

DetourFrame frame_of(std::span<const CapturedProbe> probes) {
  bool strings = false;
  std::size_t compared = 0;
  for (const CapturedProbe& probe : probes) {
    strings = strings || probe.plan->layout.has_strings;
    if (!probe.plan->filter.empty()) compared = std::max(compared, compared_items(*probe.plan).count);
  }
  return DetourFrame::make(strings, compared);
}

struct SiteMachine {
  using Assembler = aarch64::Assembler;
  using Frame = DetourFrame;
  using CaptureWriter = aarch64::CaptureWriter;
  static constexpr unsigned kEnterWords = aarch64::kEnterWords;
};

class SiteWriter : public DetourCode<SiteWriter, SiteMachine> {
 public:
  SiteWriter(std::span<std::uint8_t> room, const DetourRequest& request, const DetourRuntime& runtime, Detour& out)
      : DetourCode(Assembler(room, request.address), frame_of(request.probes), request, runtime, out) {}

 private:
  friend class DetourCode<SiteWriter, SiteMachine>;

  // retaa: the return address that x30 holds there isn't what it was at the entry.
  bool signs_return_address() const {
    const bool exits = std::ranges::find(request_.probes, Role::exit, &CapturedProbe::role) != request_.probes.end();
    return exits && form_of(load_word(request_.region)).form == Form::ret_authenticated;
  }

  // ---- frame ----

  static constexpr std::uint32_t kReadFlags = 0xd53b4200, kWriteFlags = 0xd51b4200;
  static constexpr std::uint32_t kReadTagChecks = 0xd53b42e0, kWriteTagChecks = 0xd51b42e0, kNoTagChecks = 0xd503419f;
  static std::uint32_t n(Reg r) { return static_cast<std::uint32_t>(r); }

  DetourRefusal enter() {
    if (signs_return_address()) return DetourRefusal::unsupported;
    a_.push_pair(x9, x10, frame_.size);
    a_.store_pair(Reg::sp + 16, x11, x12);
    a_.store_pair(Reg::sp + 32, x13, x14);
    a_.store_pair(Reg::sp + 48, x15, x16);
    a_.word(kReadFlags | n(x9));
    if (runtime_.features.memory_tags) {
      a_.word(kReadTagChecks | n(x10));
      a_.bit_or(x9, x9, x10);
      a_.word(kNoTagChecks);
    }
    a_.store_pair(Reg::sp + DetourFrame::kLinkAndFlags, x30, x9);
    if (frame_.has_strings) a_.store_pair(Reg::sp + DetourFrame::kForStrings, x8, x17);
    out_.saves.size = frame_.size;
    if (frame_.has_strings) out_.saves.x8_and_x17 = DetourFrame::kForStrings;
    return DetourRefusal::none;
  }

  void leave() {
    a_.load_pair(x30, x9, Reg::sp + DetourFrame::kLinkAndFlags);
    if (frame_.has_strings) a_.load_pair(x8, x17, Reg::sp + DetourFrame::kForStrings);
    if (runtime_.features.memory_tags) {
      a_.bit_and(x10, x9, kTagCheckOverride);
      a_.word(kWriteTagChecks | n(x10));
      a_.bit_and(x9, x9, kConditionFlags);
    }
    a_.word(kWriteFlags | n(x9));
    a_.load_pair(x15, x16, Reg::sp + 48);
    a_.load_pair(x13, x14, Reg::sp + 32);
    a_.load_pair(x11, x12, Reg::sp + 16);
    a_.pop_pair(x9, x10, frame_.size);
  }

  // ---- blocks ----

  void go_if_disabled(std::uint32_t index, Label to) {
    static_assert(ch::kDisabled == 0);
    a_.mov_imm(kScratch, runtime_.places.probe_flags + index);
    a_.load(kScratch, kScratch + 0, 1);
    a_.cbz(kScratch, to);
  }

  // By the program's flags.
  void stay_unless(std::uint8_t condition, Label next) {
    a_.load(kValue, Reg::sp + (DetourFrame::kLinkAndFlags + 8));
    if (runtime_.features.memory_tags) a_.bit_and(kValue, kValue, kConditionFlags);
    a_.word(kWriteFlags | n(kValue));
    a_.b(inverse(static_cast<Cond>(condition)), next);
  }

  void call_enter(std::uint64_t number) { call_on_stack(number, runtime_.enter); }
  void call_leave(std::uint64_t number) { call_on_stack(number, runtime_.leave); }
  void call_begin(std::uint64_t number) { call(number, runtime_.begin); }
  void call_reject(std::uint64_t number) { call(number, runtime_.reject); }
  void call_on_stack(std::uint64_t number, std::uint64_t routine) {
    a_.add(x13, Reg::sp, static_cast<std::uint64_t>(frame_.size), kScratch);
    call(number, routine);
  }
  void call(std::uint64_t number, std::uint64_t routine) {
    a_.mov_imm(x9, number);
    a_.bl(routine);
  }

  void go_if_nothing(Label to) { a_.cbz(kRecord, to); }
  void go(Label to) { a_.b(to); }
  void keep_lane() {}  // kLane stays as it is
  void clear(std::int32_t offset) { a_.store(kRecord + offset, Reg::xzr); }
  void set_exit(std::uint64_t number) {
    a_.mov_imm(kValue, number);
    a_.store(kRecord + ch::kRecordExit, kValue);
  }
  void end_strings() {
    a_.add_small(kValue, kEnd, 15);
    a_.bit_and(kValue, kValue, ~7ull);
    a_.store(kLane + ch::kLaneCallNext, kValue);
  }
  void commit(std::uint16_t max_size, bool has_strings) {
    if (has_strings) {
      a_.mov_imm(x9, max_size);
      a_.bl(runtime_.commit_strings);
    }
    static_assert(ch::kRecordCommit == 0);
    a_.word(0xc89ffc00 | n(kRecord) << 5 | n(kCommit));  // stlr
  }

  // ---- tail ----

  DetourResult relocated(const Insn& insn, std::span<const std::uint8_t> bytes, std::uint64_t original, bool is_last) {
    RelocateResult moved = relocate(bytes, insn, original, a_.here());
    if (moved.refusal != Refusal::none) return {DetourRefusal::relocation, moved.refusal};
    Copy& copy = moved.copy;
    if (!is_last && !falls_through(copy, original + kInsnSize)) return {DetourRefusal::inner_transfer};
    for (const CopyPoint& point : copy.all_points()) out_.points.push_back({a_.size() + point.offset, point});
    a_.bytes(std::span(copy.code).first(copy.size));
    return {};
  }

  // Makes a copy go on behind its own end instead of at the original next instruction. False: not of one that does
  // anything but that at its end.
  static bool falls_through(Copy& copy, std::uint64_t next) {
    const CopyPoint& exit = copy.points[copy.point_count - 1];
    if (exit.meaning != CopyPoint::Meaning::after || exit.original_pc != next) return false;
    if (exit.offset + kDetourJumpSize != copy.size) return false;
    copy.size = exit.offset;
    --copy.point_count;
    return true;
  }
};

}  // namespace

DetourResult build_detour(const DetourRequest& request, const DetourRuntime& runtime, Detour& out) {
  PROBED_CHECK(request.address % kDetourAlignment == 0, "detours are aligned");
  std::array<std::uint8_t, kMaxDetourSize> room;
  out.clear();
  SiteWriter writer(room, request, runtime, out);
  const DetourResult result = writer.write();
  if (!result) return out.clear(), result;
  out.code.assign(room.begin(), room.begin() + writer.assembler().size());
  return {};
}

DetourCall detour_call(const Registers& regs, std::uint64_t) {
  return {(regs.x[10] & 1) != 0, static_cast<std::uint32_t>(regs.x[9]) & (ch::kCallTags - 1), regs.x[kLinkRegister]};
}

Registers program_registers(const Registers& regs, const DetourSaves& saves, std::uint64_t site,
                            const std::function<std::uint64_t(std::uint64_t)>& read) {
  constexpr std::uint64_t kSaved = kConditionFlags | kTagCheckOverride;
  const DetourFrame frame{.size = saves.size, .has_strings = saves.x8_and_x17 >= 0};
  const auto saved = [&](std::int32_t slot) { return read(regs.sp() + static_cast<std::uint64_t>(slot)); };
  Registers program = regs;
  for (unsigned i = 0; i < program.x.size(); ++i)
    if (const auto slot = frame.slot(i)) program.x[i] = saved(*slot);
  program.pstate = (regs.pstate & ~kSaved) | (saved(DetourFrame::kLinkAndFlags + 8) & kSaved);
  program.stack_pointer = regs.sp() + static_cast<std::uint64_t>(saves.size);
  program.program_counter = site;
  return program;
}

bool is_stack_check(std::span<const std::uint8_t> bytes) {
  constexpr std::uint32_t kLoadGuard = 0xf9400b80;           // ldr x0, [x28, #16]
  constexpr unsigned kTemporary = 16, kTemporaryBefore = 1;  // since Go 1.17; up to then
  if (bytes.size() < kInsnSize) return false;
  const std::uint32_t word = load_word(bytes);
  return word == (kLoadGuard | kTemporary) || word == (kLoadGuard | kTemporaryBefore);
}

std::array<std::uint8_t, kDetourJumpSize> detour_jump(std::uint64_t site, std::uint64_t detour) {
  const std::uint32_t word = branch_between(site, detour);
  PROBED_CHECK(word != 0, "a detour is within reach of its site");
  return word_bytes(word);
}

}  // namespace probed::arch::aarch64
