// One site's detour: the frame, a block for each probe, the tail. What blocks store is in detour_capture.cpp, the
// routines they call in detour_runtime.cpp. Pure.
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
#include "daemon/base/check.hpp"

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

class SiteWriter {
  using Role = CapturedProbe::Role;

 public:
  SiteWriter(std::span<std::uint8_t> room, const DetourRequest& request, const DetourRuntime& runtime, Detour& out)
      : request_(request), runtime_(runtime), out_(out), a_(room, request.address), frame_(frame_of(request.probes)) {}

  DetourResult write() {
    out_.points.push_back({0, {.meaning = CopyPoint::Meaning::before, .original_pc = request_.site}});
    blocks_.reserve(request_.probes.size());
    enter();
    if (signs_return_address()) return {DetourRefusal::unsupported};
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

  // retaa: the return address that x30 holds there isn't what it was at the entry.
  bool signs_return_address() const {
    const bool exits = std::ranges::find(request_.probes, Role::exit, &CapturedProbe::role) != request_.probes.end();
    return exits && form_of(load_word(request_.region)).form == Form::ret_authenticated;
  }

  DetourRefusal refusal() const {
    for (const Block& b : blocks_)
      if (b.capture.refusal() != DetourRefusal::none) return b.capture.refusal();
    return a_.full() ? DetourRefusal::code_size : DetourRefusal::none;
  }

  // ---- frame ----

  static constexpr std::uint32_t kReadFlags = 0xd53b4200, kWriteFlags = 0xd51b4200;
  static constexpr std::uint32_t kReadTagChecks = 0xd53b42e0, kWriteTagChecks = 0xd51b42e0, kNoTagChecks = 0xd503419f;
  static std::uint32_t n(Reg r) { return static_cast<std::uint32_t>(r); }

  void enter() {
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
        static_assert(ch::kDisabled == 0);
        a_.mov_imm(kScratch, runtime_.places.probe_flags + probe.index);
        a_.load(kScratch, kScratch + 0, 1);
        a_.cbz(kScratch, b.next);
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

  // By the program's flags.
  void stay_unless(std::uint8_t condition, Label next) {
    a_.load(kValue, Reg::sp + (DetourFrame::kLinkAndFlags + 8));
    if (runtime_.features.memory_tags) a_.bit_and(kValue, kValue, kConditionFlags);
    a_.word(kWriteFlags | n(kValue));
    a_.b(inverse(static_cast<Cond>(condition)), next);
  }

  // ---- calls ----

  static std::uint32_t tag_word(const CapturedProbe& probe) { return probe.tag | (probe.loops ? ch::kCallLoops : 0); }

  void enter_call(const Block& b, std::uint32_t tag, std::size_t words) {
    a_.add(x13, Reg::sp, static_cast<std::uint64_t>(frame_.size), kScratch);
    a_.mov_imm(x9, std::uint64_t{words} << kEnterWords | std::uint64_t{b.probe.index} << 32 | tag);
    a_.bl(runtime_.enter);
  }

  void leave_call(const Block& b, std::size_t size) {
    a_.add(x13, Reg::sp, static_cast<std::uint64_t>(frame_.size), kScratch);
    a_.mov_imm(x9, std::uint64_t{tag_word(b.probe)} << 32 | ch::commit_low(b.probe.index, size));
    a_.bl(runtime_.leave);
  }

  // What a call takes, and the word in front of the next. A string's copy may write some bytes behind it.
  static std::size_t call_words(const CaptureLayout& layout) {
    return layout.max_size / 8u + 1 + (layout.has_strings ? 1 : 0);
  }

  // A call's memory has been used before. What the string takes that is still unused is given back.
  void push_call(const CapturePlan& plan, Block& b) {
    const CaptureLayout& layout = plan.layout;
    enter_call(b, tag_word(b.probe), call_words(layout));
    a_.cbz(kRecord, b.next);
    const std::size_t slots = layout.items.empty() ? layout.fixed_size : layout.items.front().offset;
    for (std::size_t at = ch::kCallFixed; at < slots; at += 8)
      a_.store(kRecord + static_cast<std::int64_t>(at), Reg::xzr);
    for (const CaptureItem& item : layout.items)
      for (unsigned i = 0; item.is_string && i < item.count; ++i)
        a_.store(kRecord + (item.offset + 8 * std::int64_t{i}), Reg::xzr);
    b.capture.items();
    if (!layout.has_strings) return;
    a_.add_small(kValue, kEnd, 15);
    a_.bit_and(kValue, kValue, ~7ull);
    a_.store(kLane + ch::kLaneCallNext, kValue);
  }

  // ---- records ----

  void begin_record(const CapturePlan& plan, Block& b) {
    if (b.probe.role == Role::plain) {
      a_.mov_imm(x9, ch::commit_low(b.probe.index, plan.layout.max_size));
      a_.bl(runtime_.begin);
      return a_.cbz(kRecord, b.next);
    }
    leave_call(b, plan.layout.max_size);
    a_.cbz(kRecord, b.next);
    a_.mov_imm(kValue, request_.site | (b.probe.tail_call ? ch::kRecordTailCall : 0));
    a_.store(kRecord + ch::kRecordExit, kValue);
  }

  void record(const CapturePlan& plan, Block& b) {
    begin_record(plan, b);
    b.capture.items();
    if (plan.layout.has_strings) {
      a_.mov_imm(x9, plan.layout.max_size);
      a_.bl(runtime_.commit_strings);
    }
    static_assert(ch::kRecordCommit == 0);
    a_.word(0xc89ffc00 | n(kRecord) << 5 | n(kCommit));  // stlr
  }

  void cold(Block& b) {
    b.capture.cold();
    if (!b.has_filter) return;
    a_.bind(b.reject);
    if (b.probe.role == Role::exit) return leave_call(b, 0), a_.b(b.next);
    if (b.probe.role == Role::entry) {  // its exit is to find it, and say nothing
      enter_call(b, tag_word(b.probe) | ch::kCallSilent, ch::kCallFixed / 8 + 1);
      a_.cbz(kRecord, b.next);
    }
    a_.mov_imm(x9, b.probe.index);
    a_.bl(runtime_.reject);
    a_.b(b.next);
  }

  // ---- tail ----

  DetourResult tail() {
    out_.tail_begin = a_.size();
    std::uint64_t original = request_.site;
    std::span<const std::uint8_t> bytes = request_.region;
    for (std::size_t i = 0; i < request_.insns.size(); ++i) {
      const Insn& insn = request_.insns[i];
      PROBED_CHECK(insn.length == kInsnSize && bytes.size() >= kInsnSize, "a region consists of whole instructions");
      const bool is_last = i + 1 == request_.insns.size();
      if (const DetourResult result = relocated(insn, bytes, original, is_last); !result) return result;
      original += kInsnSize;
      bytes = bytes.subspan(kInsnSize);
    }
    PROBED_CHECK(bytes.empty(), "the region's instructions are all of its bytes");
    out_.tail_end = a_.size();
    return {};
  }

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

  const DetourRequest& request_;
  const DetourRuntime& runtime_;
  Detour& out_;
  Assembler a_;
  const DetourFrame frame_;
  std::vector<Block> blocks_;
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
