// The routines that detours call: look whether the probe records, find the thread's lane, reserve a record, count, copy
// strings. Each exists once for an area of injected code, so that a probe's own code stays small. Pure.
//
// A thread's call stack (channel::kLaneCallTop) is its own: no signal is delivered in a detour, so a call is pushed or
// popped as a whole.
//
// A lane that belongs to one thread needs no lock prefix: every change of head or a counter is a single instruction,
// which a signal on the same thread cannot split. The shared lane runs through the same steps with lock prefixes.
#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "arch/x86_64/assembler.hpp"
#include "arch/x86_64/detour.hpp"
#include "arch/x86_64/detour_stack.hpp"
#include "proto/base/check.hpp"

namespace probed::arch::x86_64 {
namespace {

namespace ch = channel;
using Label = Assembler::Label;
using enum Reg;

constexpr std::size_t kRuntimeRoom = 4096;
constexpr std::int32_t kPageMask = 0xfff, kLastWordOfPage = 0xff8;

class RuntimeWriter {
 public:
  RuntimeWriter(std::span<std::uint8_t> room, std::uint64_t address, const ChannelPlaces& places,
                const DetourFeatures& features)
      : a_(room, address, false), places_(places), features_(features) {}

  void write(RuntimeCode& out) {
    table_ = word(places_.thread_table);
    shared_lane_ = word(places_.shared_lane);
    shared_counters_ = word(places_.shared_counters);
    flags_ = word(places_.probe_flags);
    dropped_ = word(places_.probe_dropped);
    out.runtime.places = places_;
    out.runtime.features = features_;
    out.runtime.begin = routine(&RuntimeWriter::begin);
    out.runtime.reject = routine(&RuntimeWriter::reject);
    out.runtime.copy_string = routine(&RuntimeWriter::copy_string);
    out.runtime.commit_strings = routine(&RuntimeWriter::commit_strings);
    call_trap(out.runtime);
    out.runtime.enter = routine(&RuntimeWriter::enter);
    out.runtime.leave = routine(&RuntimeWriter::leave);
    std::ranges::sort(fixups_, {}, &DetourFixup::fault);
    out.fixups = std::move(fixups_);
  }

  const Assembler& assembler() const { return a_; }

 private:
  // A constant among the code.
  Mem word(std::uint64_t value) {
    a_.align_data(8);
    const Mem place = Mem::at(a_.here());
    a_.qword(value);
    return place;
  }

  std::uint64_t routine(void (RuntimeWriter::*body)()) {
    a_.align_data(32);
    const std::uint64_t address = a_.here();
    (this->*body)();
    return address;
  }

  // The next instruction may fault; its thread then goes on at `resume`, once that is bound.
  void may_fault(std::vector<std::uint32_t>& faults) { faults.push_back(a_.size()); }
  void resume_here(std::vector<std::uint32_t>& faults) {
    for (const std::uint32_t fault : faults) fixups_.push_back({fault, a_.size()});
    faults.clear();
  }

  // Leaves the thread pointer in `tp` and the lane in rcx; or goes to `shared`. Code follows at the end by
  // rest_of_bucket().
  //
  // The thread pointer is the word at %fs:0, which the x86-64 psABI (3.4.2, variant II) makes the base's own value.
  // rdfsbase would spare that assumption, but on Zen 5 makes the stores behind it wait ten nanoseconds. A thread whose
  // runtime keeps something else there finds no lane.
  struct Search {
    Reg tp;
    Label found, rest, shared;
    std::vector<std::uint32_t> faults;
  };
  Search find_lane(Reg tp) {
    Search search{tp, a_.label(), a_.label(), a_.label(), {}};
    const auto field = static_cast<std::uint8_t>(static_cast<unsigned>(tp) << 3 | 4);
    may_fault(search.faults);
    a_.bytes({0x64, 0x48, 0x8b, field, 0x25, 0, 0, 0, 0});  // mov tp, fs:[0]
    a_.imul(rcx, tp, ch::kHashMultiplier);
    a_.shift(Shift::right, rcx, static_cast<std::uint8_t>(32 - places_.bucket_bits), 4);
    a_.shift(Shift::left, rcx, 6, 4);
    static_assert(ch::kBucketSize == 1 << 6);
    a_.alu(Alu::add, rcx, table_);
    a_.alu(Alu::cmp, tp, rcx + 0);
    a_.jcc(Cond::not_equal, search.rest);
    a_.bind(search.found);
    a_.load(rcx, rcx + 8);
    a_.test(rcx, rcx);
    a_.jcc(Cond::equal, search.shared);
    return search;
  }

  // The bucket's other entries; then what leads to the shared lane.
  void rest_of_bucket(Search& search) {
    a_.bind(search.rest);
    for (unsigned i = 1; i < ch::kBucketEntries; ++i) {
      a_.alu(Alu::add, rcx, ch::kEntrySize);
      a_.alu(Alu::cmp, search.tp, rcx + 0);
      a_.jcc(Cond::equal, search.found);
    }
    if (!search.faults.empty()) {
      a_.jmp(search.shared);
      resume_here(search.faults);
      a_.bytes({0x31, static_cast<std::uint8_t>(0xc0 | static_cast<unsigned>(search.tp) * 9)});  // xor tp, tp
    }
    a_.bind(search.shared);
  }

  // rcx: lane, edi: size -> rax: position. rsi is lost. A signal handler may reserve between any two instructions; then
  // the exchange fails, and rax is the new head.
  void reserve(bool locked, Label full) {
    const Label again = a_.label();
    a_.load(rax, rcx + ch::kLaneHead);
    a_.bind(again);
    a_.bytes({0x48, 0x8d, 0x34, 0x38});  // lea rsi, [rax+rdi]
    a_.alu(Alu::cmp, rsi, rcx + ch::kLaneLimit);
    a_.jcc(Cond::above, full);
    a_.cmpxchg(rcx + ch::kLaneHead, rsi, locked);
    a_.jcc(Cond::not_equal, again);
  }

  // rcx: lane, rax: position -> rdi: record.
  void find_record() {
    a_.extend(rdi, rax, 4, false);
    a_.alu(Alu::bit_and, rdi, static_cast<std::int32_t>(places_.ring_mask), 4);
    a_.alu(Alu::add, rdi, rcx + ch::kLaneRing);
  }

  // Stores the cpu's number; rcx: lane. A struct rseq that the program unmapped gives none.
  void cpu(Reg scratch) {
    const auto reg = static_cast<std::uint8_t>(scratch);
    if (features_.cpu_number) {
      a_.bytes({0xf3, 0x0f, 0xc7, static_cast<std::uint8_t>(0xf8 | reg)});  // rdpid
      a_.alu(Alu::bit_and, scratch, 0xfff, 4);  // the kernel's TSC_AUX: node << 12 | cpu (vdso_encode_cpunode)
      return a_.store(rdi + ch::kRecordCpu, scratch, 2);
    }
    const Label known = a_.label();
    a_.load(scratch, rcx + ch::kLaneRseq);
    may_fault(rseq_faults_);
    a_.load(scratch, scratch + ch::kRseqCpuId, 4);
    a_.bind(known);
    a_.store(rdi + ch::kRecordCpu, scratch, 2);
    rseq_known_ = known;
  }

  // edx: commit_low() of the probe and the bytes to reserve -> carry clear: rcx: record, rax: its commit word, rdx:
  // lane; or carry set: there is nothing to be filled in, as the probe is disabled, or only counts, or there is no
  // room. The hit has been accounted for then. All three registers are lost.
  //
  // The clock is read first: on Zen rdtsc waits for what is in front of it and takes as long as all the rest, which
  // then runs beside it.
  void begin() {
    const Label full = a_.label(), done = a_.label(), not_recording = a_.label();
    compare_mode();
    a_.jcc(Cond::below_equal, not_recording);
    a_.push(rdx);
    a_.push(rsi);
    a_.push(rdi);
    a_.extend(rdi, rdx, 4, false);
    a_.shift(Shift::right, rdi, 18, 4);
    a_.alu(Alu::bit_and, rdi, -8, 4);
    static_assert(ch::commit_low(ch::kMaxProbes - 1, 8) >> 18 == (8 | 7));
    a_.bytes({0x0f, 0x31});  // rdtsc
    a_.shift(Shift::left, rdx, 32);
    a_.alu(Alu::bit_or, rdx, rax);
    Search search = find_lane(rsi);
    reserve(false, full);
    find_record();
    a_.bind(done);
    a_.store(rdi + ch::kRecordTime, rdx);
    cpu(rsi);
    a_.mov(rdx, rcx);
    a_.mov(rcx, rdi);
    a_.shift(Shift::left, rax, 29);
    a_.pop(rdi);
    a_.pop(rsi);
    a_.alu(Alu::add, rax, rsp + 0);
    a_.lea(rsp, rsp + 8);
    a_.bytes({0xf8});  // clc
    a_.ret();
    a_.bind(full);
    no_room();
    unreadable_rseq();
    rest_of_bucket(search);
    shared_begin(full, done);
    a_.bind(not_recording);
    count(ch::kCounted);
  }

  // The probe's mode against kCountOnly; edx: its index, and anything above. rcx is lost.
  void compare_mode() {
    a_.extend(rcx, rdx, 4, false);
    a_.alu(Alu::bit_and, rcx, ch::kMaxProbes - 1, 4);
    a_.alu(Alu::add, rcx, flags_);
    a_.alu_mem_imm(Alu::cmp, rcx + 0, ch::kCountOnly, 1);
  }

  // begin() ends here when the record doesn't fit.
  void no_room() {
    a_.pop(rdi);
    a_.pop(rsi);
    a_.pop(rdx);
    a_.alu(Alu::bit_and, rdx, ch::kMaxProbes - 1, 4);
    a_.shift(Shift::left, rdx, 3, 4);
    a_.alu(Alu::add, rdx, dropped_);
    a_.inc(rdx + 0, true);
    a_.bytes({0xf9});  // stc
    a_.ret();
  }

  void unreadable_rseq() {
    if (!rseq_known_) return;
    resume_here(rseq_faults_);
    a_.bytes({0xbe, 0xff, 0xff, 0xff, 0xff});  // mov esi, ~0
    a_.jmp(*rseq_known_);
  }

  // Size and owner are written at once, so that what a dying thread leaves can be told and stepped over.
  void shared_begin(Label full, Label done) {
    const Label no_room = a_.label();
    if (features_.base_registers) a_.bytes({0xf3, 0x48, 0x0f, 0xae, 0xc6});  // rdfsbase rsi
    a_.push(rsi);
    a_.load(rcx, shared_lane_);
    reserve(true, no_room);
    a_.extend(rsi, rdi, 4, false);
    a_.shift(Shift::left, rsi, 13, 4);
    a_.alu(Alu::add, rsi, 0xffff, 4);
    find_record();
    a_.store(rdi + ch::kRecordCpu, rsi, 4);
    a_.pop(rsi);
    a_.store(rdi + ch::kRecordThreadPointer, rsi);
    a_.jmp(done);
    a_.bind(no_room);
    a_.pop(rsi);
    a_.jmp(full);
  }

  // edx: index of a probe whose filter has turned the hit away. rax, rcx and rdx are lost.
  void reject() {
    compare_mode();
    count(ch::kFiltered);
  }

  // Behind compare_mode(): unless the probe is disabled, one more in the thread's own counter. Returns, carry set.
  void count(std::int32_t which) {
    static_assert(ch::kCounterSize == 1 << 4);
    const Label off = a_.label();
    a_.jcc(Cond::below, off);
    a_.alu(Alu::bit_and, rdx, ch::kMaxProbes - 1, 4);
    a_.shift(Shift::left, rdx, 4, 4);
    Search search = find_lane(rax);
    a_.alu(Alu::add, rdx, rcx + ch::kLaneCounters);
    a_.inc(rdx + which, false);
    a_.bind(off);
    a_.bytes({0xf9});  // stc
    a_.ret();
    rest_of_bucket(search);
    a_.alu(Alu::add, rdx, shared_counters_);
    a_.inc(rdx + which, true);
    a_.load(rcx, shared_lane_);
    const Label told = a_.label();
    a_.alu_mem_imm(Alu::cmp, rcx + ch::kLaneCounted, 0);
    a_.jcc(Cond::not_equal, told);
    a_.store_imm(rcx + ch::kLaneCounted, 1);
    a_.bind(told);
    a_.bytes({0xf9});  // stc
    a_.ret();
  }

  // rdx: where the string is, rdi: where it goes -> edx: bytes copied, rdi behind them; carry set: it runs into memory
  // that can't be read. Everything up to rdi + 8 may be written, with zeros behind the copied bytes.
  //
  // Words are read that don't cross a page, so that nothing is touched which the bytes alone would not have touched.
  void copy_string() {
    constexpr std::array kSaved = {rax, rcx, r8, r9, r10, r11, rdi};
    static_assert(sizeof(std::uint64_t) * (kSaved.size() + 1) <= kRuntimeStackForStrings);
    const Label words = a_.label(), bytes = a_.label(), last = a_.label(), done = a_.label(), out = a_.label();
    std::vector<std::uint32_t> faults;
    for (const Reg r : kSaved) a_.push(r);
    a_.mov_imm(r8, kMaxCapturedString);
    a_.mov_imm(r9, 0x0101010101010101);
    a_.mov_imm(r10, 0x8080808080808080);

    a_.bind(words);
    a_.alu(Alu::cmp, r8, 8, 4);
    a_.jcc(Cond::below, bytes);
    a_.extend(rax, rdx, 4, false);
    a_.alu(Alu::bit_and, rax, kPageMask, 4);
    a_.alu(Alu::cmp, rax, kLastWordOfPage, 4);
    a_.jcc(Cond::above, bytes);
    may_fault(faults);
    a_.load(rax, rdx + 0);
    // (x - 01..01) & ~x & 80..80: the lowest bit set is in the first zero byte.
    a_.mov(rcx, rax);
    a_.bytes({0x48, 0xf7, 0xd1});  // not rcx
    a_.alu(Alu::bit_and, rcx, r10);
    a_.mov(r11, rax);
    a_.alu(Alu::sub, r11, r9);
    a_.alu(Alu::bit_and, rcx, r11);
    a_.jcc(Cond::not_equal, last);
    a_.store(rdi + 0, rax);
    a_.alu(Alu::add, rdi, 8);
    a_.alu(Alu::add, rdx, 8);
    a_.alu(Alu::sub, r8, 8, 4);
    a_.jcc(Cond::not_equal, words);
    a_.jmp(done);

    a_.bind(last);
    a_.bytes({0x48, 0x0f, 0xbc, 0xc9});  // bsf rcx, rcx
    a_.alu(Alu::bit_and, rcx, 0x38, 4);
    a_.mov_imm(r11, ~0ull);
    a_.bytes({0x49, 0xd3, 0xe3});  // shl r11, cl
    a_.bytes({0x49, 0xf7, 0xd3});  // not r11
    a_.alu(Alu::bit_and, rax, r11);
    a_.store(rdi + 0, rax);
    a_.shift(Shift::right, rcx, 3, 4);
    a_.alu(Alu::add, rdi, rcx);
    a_.jmp(done);

    a_.bind(bytes);
    may_fault(faults);
    a_.load(rax, rdx + 0, 1);
    a_.test(rax, rax, 4);
    a_.jcc(Cond::equal, done);
    a_.bytes({0x88, 0x07});  // mov [rdi], al
    a_.alu(Alu::add, rdi, 1);
    a_.alu(Alu::add, rdx, 1);
    a_.alu(Alu::sub, r8, 1, 4);
    a_.jcc(Cond::not_equal, words);

    a_.bind(done);
    a_.mov(rdx, rdi);
    a_.pop(rcx);
    a_.alu(Alu::sub, rdx, rcx);  // clears carry
    a_.bind(out);
    for (std::size_t i = kSaved.size() - 1; i-- > 0;) a_.pop(kSaved[i]);
    a_.ret();

    resume_here(faults);
    a_.mov(rdx, rdi);
    a_.pop(rcx);
    a_.alu(Alu::sub, rdx, rcx);
    a_.bytes({0xf9});  // stc
    a_.jmp(out);
  }

  // rcx: record, rdi: its end, rax: its commit word as begin() made it, rsi: its lane, edx: bytes reserved -> rax: its
  // commit word. Gives the bytes that weren't needed back unless something has been reserved behind them. rdx and rdi
  // are lost.
  void commit_strings() {
    const Label keep = a_.label(), kept = a_.label(), locked = a_.label(), out = a_.label();
    a_.push(rax);
    a_.push(r8);
    a_.mov(r8, rdi);
    a_.alu(Alu::sub, r8, rcx);
    a_.alu(Alu::add, r8, 7);
    a_.alu(Alu::bit_and, r8, -8);
    a_.load(rax, rsi + ch::kLaneHead);
    a_.mov(rdi, rax);
    a_.alu(Alu::sub, rdi, rdx);
    a_.shift(Shift::left, rdi, 29);
    a_.alu(Alu::bit_xor, rdi, rsp + 8);
    a_.shift(Shift::right, rdi, 32);  // what is below isn't the position's
    a_.jcc(Cond::not_equal, keep);
    a_.mov(rdi, rax);
    a_.alu(Alu::sub, rdi, rdx);
    a_.alu(Alu::add, rdi, r8);
    a_.test_mem_byte(rsi + ch::kLaneFlags, ch::kLaneShared);
    a_.jcc(Cond::not_equal, locked);
    a_.cmpxchg(rsi + ch::kLaneHead, rdi, false);
    a_.jcc(Cond::not_equal, keep);
    a_.bind(kept);
    a_.alu(Alu::sub, rdx, r8);
    a_.shift(Shift::left, rdx, 18);
    a_.shift(Shift::right, r8, 3, 4);
    a_.store(rcx + ch::kRecordSize, r8, 2);
    a_.bind(out);
    a_.pop(r8);
    a_.pop(rax);
    a_.alu(Alu::sub, rax, rdx);
    a_.ret();
    a_.bind(keep);
    a_.mov_imm(rdx, 0);
    a_.jmp(out);
    a_.bind(locked);
    a_.cmpxchg(rsi + ch::kLaneHead, rdi, true);
    a_.jcc(Cond::equal, kept);
    a_.jmp(keep);
  }

  // ---- calls ----

  // What stands behind the breakpoint is nowhere a thread is sent: who is seen there has just run into it.
  void call_trap(DetourRuntime& runtime) {
    a_.align_data(8);
    trap_ = runtime.call_trap = a_.here();
    a_.bytes({0xcc, 0x90});
    runtime.call_done = a_.here();
    a_.bytes({0xf9});  // stc
    a_.ret();
  }

  void save_for_call() {
    for (const Reg r : {rsi, rdi, r8, r9}) a_.push(r);
    static_assert(kRuntimeStack >= (1 + 4) * sizeof(std::uint64_t));
  }
  void restore_after_call() {
    for (const Reg r : {r9, r8, rdi, rsi}) a_.pop(r);
  }
  void end_call(bool carry) {
    restore_after_call();
    a_.bytes({static_cast<std::uint8_t>(carry ? 0xf9 : 0xf8)});
    a_.ret();
  }
  // The call below another one in the stack of the lane in rcx.
  void below(Reg call, Reg other, Label damaged) {
    a_.load(call, other + ch::kCallBelow);
    a_.alu(Alu::cmp, call, other);
    a_.jcc(Cond::above_equal, damaged);
    a_.alu(Alu::cmp, call, rcx + ch::kLaneCallLowest);
    a_.jcc(Cond::below, damaged);
  }
  void clock() {
    a_.bytes({0x0f, 0x31});  // rdtsc
    a_.shift(Shift::left, rdx, 32);
  }

  // A call begins. rax: address of its return address, rdx: kCallTag's word in the low half, above it the probe's index
  // and, from bit kEnterWords on, the words from this call to the next one -> carry clear: rcx: the call, rdx: lane;
  // what the layout has behind kCallFixed is not zero. Carry set: there is nothing to be filled in. All three registers
  // are lost.
  //
  // Calls below, on the program's stack, that are still there have not returned. What becomes of them is for the tracer
  // to say, as is everything on another stack than the thread's own.
  void enter() {
    const Label off = a_.label(), slow = a_.label(), timed = a_.label(), taken = a_.label(), push = a_.label(),
                search_same = a_.label(), same = a_.label(), done = a_.label();
    std::vector<std::uint32_t> faults;
    a_.mov(rcx, rdx);
    a_.shift(Shift::right, rcx, 32);
    a_.alu(Alu::bit_and, rcx, ch::kMaxProbes - 1, 4);
    a_.alu(Alu::add, rcx, flags_);
    a_.alu_mem_imm(Alu::cmp, rcx + 0, ch::kDisabled, 1);
    a_.jcc(Cond::equal, off);
    save_for_call();
    a_.mov(rdi, rax);
    a_.mov(r8, rdx);
    a_.test(rdx, rdx, 4);
    static_assert(ch::kCallSilent == 1u << 31);
    a_.jcc(Cond::sign, timed);
    clock();
    a_.alu(Alu::bit_or, rax, rdx);
    a_.bind(timed);
    may_fault(faults);
    a_.load(r9, rdi + 0);
    Search search = find_lane(rsi);
    a_.mov(rsi, rdi);
    a_.alu(Alu::sub, rsi, rcx + ch::kLaneStackLow);
    a_.alu(Alu::cmp, rsi, rcx + ch::kLaneStackSize);
    a_.jcc(Cond::above_equal, slow);
    a_.load(rdx, rcx + ch::kLaneCallTop);
    a_.alu(Alu::cmp, rdi, rdx + ch::kCallSlot);
    a_.jcc(Cond::above_equal, taken);
    a_.bind(push);
    a_.load(rsi, rcx + ch::kLaneCallNext);
    a_.mov(rdx, r8);
    a_.shift(Shift::right, rdx, kEnterWords);
    a_.bytes({0x48, 0x8d, 0x14, 0xd6});  // lea rdx, [rsi+8*rdx]
    a_.alu(Alu::cmp, rdx, rcx + ch::kLaneCallLimit);
    a_.jcc(Cond::above, slow);
    a_.store(rcx + ch::kLaneCallNext, rdx);
    a_.load(rdx, rcx + ch::kLaneCallTop);
    a_.store(rsi + ch::kCallBelow, rdx);
    a_.store(rsi + ch::kCallSlot, rdi);
    a_.store(rsi + ch::kCallTime, rax);
    a_.store(rsi + ch::kCallReturn, r9);
    a_.extend(rax, r8, 4, false);
    a_.store(rsi + ch::kCallTag, rax);
    static_assert(ch::kCallAbsent == ch::kCallTag + 4);
    a_.store(rcx + ch::kLaneCallTop, rsi);
    a_.mov(rdx, rcx);
    a_.mov(rcx, rsi);
    end_call(false);

    // Flags: of the comparison with the last call's place. At the same one may be other probes' calls.
    a_.bind(taken);
    a_.jcc(Cond::above, slow);
    a_.bind(search_same);
    a_.load(rsi, rdx + ch::kCallTag, 4);
    a_.alu(Alu::bit_xor, rsi, r8, 4);
    a_.shift(Shift::left, rsi, 1, 4);  // but for kCallSilent
    a_.jcc(Cond::equal, same);
    a_.mov(rsi, rdx);
    below(rdx, rsi, slow);
    a_.alu(Alu::cmp, rdi, rdx + ch::kCallSlot);
    a_.jcc(Cond::equal, search_same);
    a_.jmp(push);
    a_.bind(same);
    a_.test_imm(r8, ch::kCallLoops, 4);
    a_.jcc(Cond::equal, slow);
    a_.alu(Alu::cmp, r9, rdx + ch::kCallReturn);
    a_.jcc(Cond::not_equal, slow);
    a_.bind(done);
    end_call(true);
    a_.bind(off);
    a_.bytes({0xf9});  // stc
    a_.ret();
    rest_of_bucket(search);
    a_.bind(slow);
    resume_here(faults);
    a_.mov(rdx, r8);
    a_.mov_imm(rcx, 0);
    restore_after_call();
    a_.jmp(trap_);
  }

  // A call ends. rax: address of its return address, rdx: the probe's commit_low() in the low half, of size 0 when the
  // return is turned away by a filter; its kCallTag's word in the high one -> as begin(), with what was kept of the
  // call in the record.
  void leave() {
    const Label off = a_.label(), slow = a_.label(), timed = a_.label(), counts = a_.label(), silent = a_.label(),
                count = a_.label(), turned_away = a_.label(), full = a_.label(), copy = a_.label();
    std::vector<std::uint32_t> faults;
    compare_mode();
    a_.jcc(Cond::below, off);
    save_for_call();
    a_.mov(r8, rax);
    a_.mov(r9, rdx);
    a_.jcc(Cond::equal, counts);
    clock();
    a_.alu(Alu::bit_or, rdx, rax);
    a_.bind(timed);
    may_fault(faults);
    a_.load(rdi, r8 + 0);
    Search search = find_lane(rsi);
    a_.load(rsi, rcx + ch::kLaneCallTop);
    a_.alu(Alu::cmp, r8, rsi + ch::kCallSlot);
    a_.jcc(Cond::not_equal, slow);
    a_.alu(Alu::cmp, rdi, rsi + ch::kCallReturn);
    a_.jcc(Cond::not_equal, slow);
    a_.mov(rdi, r9);
    a_.shift(Shift::right, rdi, 32);
    a_.alu(Alu::bit_xor, rdi, rsi + ch::kCallTag, 4);
    a_.test_imm(rdi, static_cast<std::int32_t>(~ch::kCallSilent), 4);
    a_.jcc(Cond::not_equal, slow);
    below(rax, rsi, slow);
    a_.load(r8, rcx + ch::kLaneCallNext);
    a_.alu(Alu::sub, r8, rsi);
    a_.alu(Alu::cmp, r8, ch::kMaxCall);
    a_.jcc(Cond::above, slow);
    a_.alu(Alu::add, r8, rsi);
    a_.store(rcx + ch::kLaneCallTop, rax);
    a_.store(rcx + ch::kLaneCallNext, rsi);
    a_.test(rdi, rdi, 4);
    a_.jcc(Cond::not_equal, silent);
    a_.extend(rdi, r9, 4, false);
    a_.shift(Shift::right, rdi, 18, 4);
    a_.alu(Alu::bit_and, rdi, -8, 4);
    a_.jcc(Cond::equal, turned_away);
    a_.test(rdx, rdx);
    a_.jcc(Cond::equal, count);
    reserve(false, full);
    find_record();
    a_.store(rdi + ch::kRecordTime, rdx);
    cpu(rsi);
    a_.shift(Shift::left, rax, 29);
    a_.extend(r9, r9, 4, false);
    a_.alu(Alu::add, rax, r9);
    a_.load(rsi, rcx + ch::kLaneCallNext);
    a_.mov(r9, rdi);
    a_.alu(Alu::sub, r9, rsi);
    a_.alu(Alu::sub, r8, 16);
    static_assert(ch::kCallBelow == -8 && ch::kCallTime == 8 && ch::kCallTime + ch::kCallShift == 0x20);
    a_.bind(copy);
    a_.load(rdx, rsi + ch::kCallTime);
    a_.bytes({0x49, 0x89, 0x54, 0x31, 0x20});  // mov [r9+rsi+0x20], rdx
    a_.alu(Alu::add, rsi, 8);
    a_.alu(Alu::cmp, rsi, r8);
    a_.jcc(Cond::below, copy);
    a_.mov(rdx, rcx);
    a_.mov(rcx, rdi);
    end_call(false);

    a_.bind(counts);
    a_.mov_imm(rdx, 0);
    a_.jmp(timed);
    for (const auto& [label, which] : {std::pair(count, ch::kCounted), std::pair(turned_away, ch::kFiltered)}) {
      a_.bind(label);
      a_.alu(Alu::bit_and, r9, ch::kMaxProbes - 1, 4);
      a_.shift(Shift::left, r9, 4, 4);
      static_assert(ch::kCounterSize == 1 << 4);
      a_.alu(Alu::add, r9, rcx + ch::kLaneCounters);
      a_.inc(r9 + static_cast<std::int32_t>(which), false);
      end_call(true);
    }
    a_.bind(full);
    a_.alu(Alu::bit_and, r9, ch::kMaxProbes - 1, 4);
    a_.shift(Shift::left, r9, 3, 4);
    a_.alu(Alu::add, r9, dropped_);
    a_.inc(r9 + 0, true);
    a_.bind(silent);
    end_call(true);
    a_.bind(off);
    a_.bytes({0xf9});  // stc
    a_.ret();
    unreadable_rseq();
    rest_of_bucket(search);
    a_.bind(slow);
    resume_here(faults);
    a_.mov(rdx, r9);
    a_.shift(Shift::right, rdx, 32);
    a_.mov_imm(rcx, 1);
    restore_after_call();
    a_.jmp(trap_);
  }

  Assembler a_;
  const ChannelPlaces& places_;
  const DetourFeatures& features_;
  std::uint64_t trap_ = 0;
  Mem table_, shared_lane_, shared_counters_, flags_, dropped_;
  std::vector<DetourFixup> fixups_;
  std::vector<std::uint32_t> rseq_faults_;
  std::optional<Label> rseq_known_;
};

}  // namespace

DetourCall detour_call(const Registers& regs, std::uint64_t return_address) {
  return {(regs.rcx & 1) != 0, static_cast<std::uint32_t>(regs.rdx) & (ch::kCallTags - 1), return_address};
}

RuntimeCode build_runtime(std::uint64_t address, const ChannelPlaces& places, const DetourFeatures& features) {
  RuntimeCode out;
  if (!features.flags_in_ah) {
    out.refusal = DetourRefusal::processor;
    return out;
  }
  out.code.resize(kRuntimeRoom);
  RuntimeWriter writer(out.code, address, places, features);
  writer.write(out);
  PROBED_CHECK(!writer.assembler().full(), "the routines fit their room");
  out.code.resize(writer.assembler().size());
  return out;
}

}  // namespace probed::arch::x86_64
