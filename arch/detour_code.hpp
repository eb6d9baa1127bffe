// One site's detour: the frame, a block for each probe, the relocated instructions. The part that doesn't depend on the
// architecture: which blocks there are, in which order, and what each does. Internal to arch/; used by the detour.cpp
// of each folder. What blocks store is in capture_code.hpp, the routines they call in <cpu>/detour_runtime.cpp. Pure.
//
// A return probe's blocks come last, entries in front of exits; exits in the opposite order, as the call that was
// entered last is the one on top.
//
// DetourCode<Self, Machine>: Machine has the types Assembler, Frame and CaptureWriter, and the registers of
// capture_code.hpp. Self has, besides what is declared here as its part:
//   DetourRefusal enter()                   makes the frame; a refusal ends it
//   void leave()                            undoes it
//   void go_if_disabled(index, Label)       by its byte in ChannelPlaces::probe_flags
//   void stay_unless(condition, Label)      by the program's flags: goes there unless the condition holds
//   void call_enter(number), call_leave(number), call_begin(number), call_reject(number)
//                                           the routine of that name, with what detour_runtime.cpp says of its number
//   void go_if_nothing(Label)               behind one: nothing is to be recorded
//   void keep_lane()                        behind one, with strings: what commit() and end_strings() need
//   void clear(offset)                      a word of the record
//   void set_exit(number)                   kRecordExit of the record
//   void end_strings()                      of a call: gives back what the strings have left unused
//   void commit(max_size, has_strings)      of a record
//   void go(Label)
//   DetourResult relocated(insn, bytes, original, is_last)  writes the copy of one instruction
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "arch/capture_code.hpp"
#include "arch/detour.hpp"
#include "proto/base/check.hpp"

namespace probed::arch {

template <class Self, class Machine>
class DetourCode {
 public:
  using Assembler = typename Machine::Assembler;
  using Label = typename Assembler::Label;
  using Frame = typename Machine::Frame;

  DetourResult write();
  const Assembler& assembler() const { return a_; }

 protected:
  using Role = CapturedProbe::Role;

  DetourCode(Assembler a, Frame frame, const DetourRequest& request, const DetourRuntime& runtime, Detour& out)
      : request_(request), runtime_(runtime), out_(out), a_(std::move(a)), frame_(std::move(frame)) {}

  const DetourRequest& request_;
  const DetourRuntime& runtime_;
  Detour& out_;
  Assembler a_;
  Frame frame_;

 private:
  struct Block {
    const CapturedProbe& probe;
    Label next, reject;
    bool has_filter;
    typename Machine::CaptureWriter capture;
  };

  Self& self() { return static_cast<Self&>(*this); }

  DetourRefusal refusal() const;
  void block(const CapturedProbe& probe);
  void enter_call(const Block& b, std::uint32_t tag, std::size_t words);
  void leave_call(const Block& b, std::size_t size);
  void push_call(const CapturePlan& plan, Block& b);
  void begin_record(const CapturePlan& plan, Block& b);
  void record(const CapturePlan& plan, Block& b);
  void cold(Block& b);
  DetourResult tail();

  static std::uint32_t tag_word(const CapturedProbe& probe) {
    return probe.tag | (probe.loops ? channel::kCallLoops : 0);
  }
  static CapturePlace place_of(const CapturedProbe& probe) {
    if (probe.role != Role::exit) return CapturePlace::plain;
    return probe.tail_call ? CapturePlace::tail_call : CapturePlace::exit;
  }
  // What a call takes, and the word in front of the next. A string's copy may write some bytes behind it.
  static std::size_t call_words(const CaptureLayout& layout) {
    return layout.max_size / 8u + 1 + (layout.has_strings ? 1 : 0);
  }

  std::vector<Block> blocks_;
};

template <class Self, class Machine>
DetourResult DetourCode<Self, Machine>::write() {
  out_.points.push_back({0, {.meaning = CopyPoint::Meaning::before, .original_pc = request_.site}});
  blocks_.reserve(request_.probes.size());
  if (const DetourRefusal why = self().enter(); why != DetourRefusal::none) return {why};
  for (const CapturedProbe& probe : request_.probes)
    if (probe.role == Role::plain) block(probe);
  for (const CapturedProbe& probe : request_.probes)
    if (probe.role == Role::entry) block(probe);
  for (auto probe = request_.probes.rbegin(); probe != request_.probes.rend(); ++probe)
    if (probe->role == Role::exit) block(*probe);
  self().leave();
  if (const DetourResult result = tail(); !result) return result;
  for (Block& b : blocks_) cold(b);
  std::ranges::sort(out_.fixups, {}, &DetourFixup::fault);
  return {refusal()};
}

template <class Self, class Machine>
DetourRefusal DetourCode<Self, Machine>::refusal() const {
  for (const Block& b : blocks_)
    if (b.capture.refusal() != DetourRefusal::none) return b.capture.refusal();
  return a_.full() ? DetourRefusal::code_size : DetourRefusal::none;
}

// ---- blocks ----

// Whether the probe is enabled at all is asked in the routines: for a filter, too, its outcome is known sooner. Only
// what the program's memory holds isn't looked at for nothing: a bad pointer costs a stop.
template <class Self, class Machine>
void DetourCode<Self, Machine>::block(const CapturedProbe& probe) {
  PROBED_CHECK(probe.index < channel::kMaxProbes, "a probe's index fits the commit word");
  const CapturePlan& plan = *probe.plan;
  blocks_.push_back({probe,
                     a_.label(),
                     a_.label(),
                     !plan.filter.empty(),
                     {a_, frame_, plan, request_.site, runtime_, out_.fixups, place_of(probe)}});
  Block& b = blocks_.back();
  if (b.capture.refusal() != DetourRefusal::none) return;
  if (probe.condition) self().stay_unless(*probe.condition, b.next);
  if (b.has_filter) {
    if (compared_items(plan).count > 0) self().go_if_disabled(probe.index, b.next);
    b.capture.filter(b.reject);
  }
  if (probe.role == Role::entry)
    push_call(plan, b);
  else
    record(plan, b);
  a_.bind(b.next);
}

template <class Self, class Machine>
void DetourCode<Self, Machine>::enter_call(const Block& b, std::uint32_t tag, std::size_t words) {
  self().call_enter(std::uint64_t{words} << Machine::kEnterWords | std::uint64_t{b.probe.index} << 32 | tag);
}

template <class Self, class Machine>
void DetourCode<Self, Machine>::leave_call(const Block& b, std::size_t size) {
  self().call_leave(std::uint64_t{tag_word(b.probe)} << 32 | channel::commit_low(b.probe.index, size));
}

// A call's memory has been used before. What the strings take that is still unused is given back.
template <class Self, class Machine>
void DetourCode<Self, Machine>::push_call(const CapturePlan& plan, Block& b) {
  const CaptureLayout& layout = plan.layout;
  enter_call(b, tag_word(b.probe), call_words(layout));
  self().go_if_nothing(b.next);
  const std::size_t slots = layout.items.empty() ? layout.fixed_size : layout.items.front().offset;
  for (std::size_t at = channel::kCallFixed; at < slots; at += 8) self().clear(static_cast<std::int32_t>(at));
  for (const CaptureItem& item : layout.items)
    for (unsigned i = 0; item.is_string && i < item.count; ++i)
      self().clear(item.offset + 8 * static_cast<std::int32_t>(i));
  if (layout.has_strings) self().keep_lane();
  b.capture.items();
  if (layout.has_strings) self().end_strings();
}

template <class Self, class Machine>
void DetourCode<Self, Machine>::begin_record(const CapturePlan& plan, Block& b) {
  const bool plain = b.probe.role == Role::plain;
  if (plain)
    self().call_begin(channel::commit_low(b.probe.index, plan.layout.max_size));
  else
    leave_call(b, plan.layout.max_size);
  self().go_if_nothing(b.next);
  if (plan.layout.has_strings) self().keep_lane();
  if (!plain) self().set_exit(request_.site | (b.probe.tail_call ? channel::kRecordTailCall : 0));
}

template <class Self, class Machine>
void DetourCode<Self, Machine>::record(const CapturePlan& plan, Block& b) {
  begin_record(plan, b);
  b.capture.items();
  self().commit(plan.layout.max_size, plan.layout.has_strings);
}

template <class Self, class Machine>
void DetourCode<Self, Machine>::cold(Block& b) {
  b.capture.cold();
  if (!b.has_filter) return;
  a_.bind(b.reject);
  if (b.probe.role == Role::exit) return leave_call(b, 0), self().go(b.next);
  if (b.probe.role == Role::entry) {  // its exit is to find it, and say nothing
    enter_call(b, tag_word(b.probe) | channel::kCallSilent, channel::kCallFixed / 8 + 1);
    self().go_if_nothing(b.next);
  }
  self().call_reject(b.probe.index);
  self().go(b.next);
}

// ---- tail ----

template <class Self, class Machine>
DetourResult DetourCode<Self, Machine>::tail() {
  out_.tail_begin = a_.size();
  std::uint64_t original = request_.site;
  std::span<const std::uint8_t> bytes = request_.region;
  for (std::size_t i = 0; i < request_.insns.size(); ++i) {
    const Insn& insn = request_.insns[i];
    PROBED_CHECK(insn.length > 0 && insn.length <= bytes.size(), "a region consists of whole instructions");
    const bool is_last = i + 1 == request_.insns.size();
    if (const DetourResult result = self().relocated(insn, bytes, original, is_last); !result) return result;
    original += insn.length;
    bytes = bytes.subspan(insn.length);
  }
  PROBED_CHECK(bytes.empty(), "the region's instructions are all of its bytes");
  out_.tail_end = a_.size();
  return {};
}

}  // namespace probed::arch
