// The routines that detours call: look whether the probe records, find the thread's lane, reserve a record, count, copy
// strings. Each exists once for an area of injected code, so that a probe's own code stays small. They use the
// registers of detour_frame.hpp and no stack. Pure.
//
// Every change of a head or a counter is a single instruction of FEAT_LSE, in a lane of one thread, which a signal on
// the same thread can't split then, as in the shared one. Exclusive loads and stores would do where that is missing,
// but for threads that are stepped out of a detour: no store-exclusive ever succeeds behind a step.
//
// What has to come in order (Arm ARM, B2.3; the daemon's side is Channel's, daemon/events/channel.hpp):
//
//   limit before record   the daemon has cleared the ring when it raises the limit, by a store-release. The record's
//                         stores depend on the comparison with it (a control dependency orders loads before stores), so
//                         none of them comes before the clearing
//   head, record before   the commit word is written by a store-release: whoever sees it by a load-acquire sees the
//   commit                record and the head behind it
//   entry before lane     an entry of the thread table that a thread finds by its own thread pointer was written while
//                         that thread stood still in the kernel, on whose way out of there everything before is seen
//   given back before     what strings don't need of a record is given back with release semantics: in the shared lane
//   taken                 zeros behind the last string come before whatever the next owner writes there, at an address
//                         that depends on the head which it has read
//
// A thread's call stack (channel::kLaneCallTop) is its own: no signal is delivered in a detour, so a call is pushed or
// popped as a whole. The tracer touches it while the thread stands still. Where a function's return address is, is sp
// at its entry, though nothing is there: calls of functions that keep it in a register may be at the same place.
//
// Counters and the clock need no order. The counter is read without a barrier, as the time stamp counter is elsewhere.
#include <algorithm>
#include <utility>

#include "arch/aarch64/assembler.hpp"
#include "arch/aarch64/detour.hpp"
#include "arch/aarch64/detour_frame.hpp"
#include "proto/base/check.hpp"

namespace probed::arch::aarch64 {
namespace {

namespace ch = channel;
using Label = Assembler::Label;
using enum Reg;

constexpr std::size_t kRuntimeRoom = 4096;
constexpr std::uint64_t kPageMask = 0xfff, kLastWordOfPage = 0xff8;  // of the smallest pages that there are
constexpr std::uint64_t kIndexMask = ch::kMaxProbes - 1;

class RuntimeWriter {
 public:
  RuntimeWriter(std::span<std::uint8_t> room, std::uint64_t address, const ChannelPlaces& places)
      : a_(room, address), places_(places) {}

  void write(RuntimeCode& out) {
    table_ = constant(places_.thread_table);
    shared_lane_ = constant(places_.shared_lane);
    shared_counters_ = constant(places_.shared_counters);
    flags_ = constant(places_.probe_flags);
    dropped_ = constant(places_.probe_dropped);
    out.runtime.places = places_;
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
  // Among the code; its address.
  std::uint64_t constant(std::uint64_t value) {
    a_.align(8);
    const std::uint64_t address = a_.here();
    a_.qword(value);
    return address;
  }

  std::uint64_t routine(void (RuntimeWriter::*body)()) {
    a_.align(32);
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

  // ---- lanes ----

  // Leaves the thread pointer in x14 and the lane in kLane; or goes to `shared`. x15 and x16 are lost. Code follows at
  // the end by rest_of_bucket().
  struct Search {
    Label found, rest, shared;
  };
  Search find_lane() {
    Search search{a_.label(), a_.label(), a_.label()};
    a_.word(0xd53bd04e);  // mrs x14, tpidr_el0
    a_.mov_imm(x15, ch::kHashMultiplier);
    a_.mul_narrow(x15, x14, x15);
    a_.extract(x15, x15, 32 - places_.bucket_bits, places_.bucket_bits, false);
    a_.load_from(x16, table_);
    static_assert(ch::kBucketSize == 1 << 6);
    a_.add(kLane, x16, x15, 6);
    a_.load_pair(x15, x16, kLane + 0);
    a_.cmp(x15, x14);
    a_.b(Cond::ne, search.rest);
    a_.bind(search.found);
    a_.cbz(x16, search.shared);
    a_.mov(kLane, x16);
    return search;
  }

  // The bucket's other entries; then what leads to the shared lane. An empty entry that a thread without thread pointer
  // finds has no lane.
  void rest_of_bucket(const Search& search) {
    a_.bind(search.rest);
    for (unsigned i = 1; i < ch::kBucketEntries; ++i) {
      a_.load_pair(x15, x16, kLane + std::int64_t{i} * ch::kEntrySize);
      a_.cmp(x15, x14);
      a_.b(Cond::eq, search.found);
    }
    a_.bind(search.shared);
    a_.load_from(kLane, shared_lane_);
  }

  // kLane, x15: size -> kCommit: position. x10 and x16 are lost. A signal handler may reserve between any two
  // instructions; then the exchange fails.
  void reserve(Label full) {
    static_assert(ch::kLaneHead == 0 && ch::kLaneLimit == 8);
    const Label again = a_.label();
    a_.bind(again);
    a_.load_pair(kCommit, x10, kLane + ch::kLaneHead);
    a_.add(x16, kCommit, x15);
    a_.cmp(x16, x10);
    a_.b(Cond::hi, full);
    a_.mov(x10, kCommit);
    a_.word(0xc8a07c00 | n(x10) << 16 | n(kLane) << 5 | n(x16));  // cas
    a_.cmp(x10, kCommit);
    a_.b(Cond::ne, again);
  }

  static std::uint32_t n(Reg r) { return static_cast<std::uint32_t>(r); }
  // One more at an address. x16 is lost.
  void count_atomically(Reg at) {
    a_.mov_imm(x16, 1);
    a_.word(0xf820001f | n(x16) << 16 | n(at) << 5);  // stadd
  }

  // kLane, kCommit: position -> kRecord. x16 is lost.
  void find_record() {
    a_.bit_and(kRecord, kCommit, places_.ring_mask);
    a_.load(x16, kLane + ch::kLaneRing);
    a_.add(kRecord, kRecord, x16);
  }

  // Stores the cpu's number. A struct rseq that the program unmapped gives none. x15 is lost.
  void store_cpu() {
    rseq_known_ = a_.label();
    a_.load(x15, kLane + ch::kLaneRseq);
    may_fault(rseq_faults_);
    a_.load(x15, x15 + ch::kRseqCpuId, 4);
    a_.bind(rseq_known_);
    a_.store(kRecord + ch::kRecordCpu, x15, 2);
  }
  void unreadable_rseq() {
    resume_here(rseq_faults_);
    a_.mov_imm(x15, ~0ull);
    a_.b(rseq_known_);
  }

  void nothing_to_fill_in() {
    a_.mov_imm(kRecord, 0);
    a_.ret();
  }

  // ---- records ----

  // x9: commit_low() of the probe and the bytes to reserve -> kRecord, kCommit: its commit word, kLane; or kRecord: 0,
  // as the probe is disabled, or only counts, or there is no room. The hit has been accounted for then.
  void begin() {
    const Label full = a_.label(), done = a_.label(), not_recording = a_.label();
    compare_mode();
    a_.b(Cond::ls, not_recording);
    read_clock(x13);
    const Search search = find_lane();
    size_of_record();
    reserve(full);
    find_record();
    a_.bind(done);
    a_.store(kRecord + ch::kRecordTime, x13);
    store_cpu();
    a_.add(kCommit, x9, kCommit, 29);
    a_.ret();
    a_.bind(full);
    no_room();
    unreadable_rseq();
    rest_of_bucket(search);
    size_of_record();
    reserve(full);
    sign_record();
    a_.b(done);
    a_.bind(not_recording);
    count(ch::kCounted);
  }

  void read_clock(Reg to) { a_.word(0xd53be040 | n(to)); }  // mrs to, cntvct_el0

  // x15: the bytes in x9.
  void size_of_record() {
    static_assert(ch::commit_low(ch::kMaxProbes - 1, 8) >> 18 == (8 | 7));
    a_.extract(x15, x9, 18, 32 - 18, false);
    a_.bit_and(x15, x15, ~7ull);
  }

  // The probe's mode against kCountOnly; x9: its index, and anything above. x10 and x11 are lost.
  void compare_mode() {
    a_.bit_and(x10, x9, kIndexMask);
    a_.load_from(x11, flags_);
    a_.load_byte(x10, x11, x10);
    a_.cmp(x10, ch::kCountOnly, 4, x11);
  }

  void no_room() {
    a_.bit_and(x9, x9, kIndexMask);
    a_.load_from(x15, dropped_);
    a_.add(x15, x15, x9, 3);
    count_atomically(x15);
    nothing_to_fill_in();
  }

  // Size and owner are written at once, so that what a dying thread leaves can be told and stepped over. x15: size,
  // x14: thread pointer.
  void sign_record() {
    find_record();
    a_.mov_imm(x16, 0xffff);
    a_.add(x15, x16, x15, 13);
    a_.store(kRecord + ch::kRecordCpu, x15, 4);
    a_.store(kRecord + ch::kRecordThreadPointer, x14);
  }

  // x9: index of a probe whose filter has turned the hit away.
  void reject() {
    compare_mode();
    count(ch::kFiltered);
  }

  // Behind compare_mode(): unless the probe is disabled, one more in the thread's own counter.
  void count(int which) {
    static_assert(ch::kCounterSize == 1 << 4);
    const Label off = a_.label();
    a_.b(Cond::lo, off);
    const Search search = find_lane();
    count_in_lane(which);
    a_.bind(off);
    nothing_to_fill_in();
    rest_of_bucket(search);
    a_.bit_and(x9, x9, kIndexMask);
    a_.load_from(x15, shared_counters_);
    a_.add(x15, x15, x9, 4);
    if (which != 0) a_.add_small(x15, x15, static_cast<unsigned>(which));
    count_atomically(x15);
    a_.load(x16, kLane + ch::kLaneCounted);
    a_.cbnz(x16, off);
    a_.mov_imm(x16, 1);
    a_.store(kLane + ch::kLaneCounted, x16);
    a_.b(off);
  }

  // x9: a probe's index, and anything above.
  void count_in_lane(int which) {
    static_assert(ch::kCounterSize == 1 << 4);
    a_.bit_and(x9, x9, kIndexMask);
    a_.load(x15, kLane + ch::kLaneCounters);
    a_.add(x15, x15, x9, 4);
    if (which != 0) a_.add_small(x15, x15, static_cast<unsigned>(which));
    count_atomically(x15);
  }

  // ---- strings ----

  // kValue: where the string is, kEnd: where it goes -> kValue: bytes copied, kEnd behind them; kScratch not 0: it runs
  // into memory that can't be read. Everything up to kEnd + 8 may be written, with zeros behind the copied bytes. x8,
  // x16 and x17 are lost.
  //
  // Words are read that don't cross a page, so that nothing is touched which the bytes alone would not have touched.
  void copy_string() {
    const Label words = a_.label(), bytes = a_.label(), last = a_.label(), done = a_.label(), out = a_.label();
    std::vector<std::uint32_t> faults;
    a_.add_small(x8, kEnd, kMaxCapturedString);
    a_.bind(words);
    a_.sub(x15, x8, kEnd);
    a_.cmp(x15, 8, 8, x16);
    a_.b(Cond::lo, bytes);
    a_.bit_and(x15, kValue, kPageMask);
    a_.cmp(x15, kLastWordOfPage, 8, x16);
    a_.b(Cond::hi, bytes);
    may_fault(faults);
    a_.load(x15, kValue + 0);
    // (x - 01..01) & ~x & 80..80: the lowest bit set is in the first zero byte.
    a_.mov_imm(x17, 0x0101010101010101);
    a_.sub(x16, x15, x17);
    a_.bit_clear(x16, x16, x15);
    a_.bit_and_flags(x16, x16, 0x8080808080808080);
    a_.b(Cond::ne, last);
    a_.store_and_move(kEnd, 8, x15, 8);
    a_.add_small(kValue, kValue, 8);
    a_.b(words);

    a_.bind(last);
    a_.reverse_bits(x16, x16);
    a_.count_zeros(x16, x16);
    a_.bit_and(x16, x16, 0x38);
    a_.mov_imm(x17, ~0ull);
    a_.shift_left(x17, x17, x16);
    a_.bit_clear(x15, x15, x17);
    a_.store(kEnd + 0, x15);
    a_.shift_right(x16, x16, 3);
    a_.add(kEnd, kEnd, x16);
    a_.b(done);

    a_.bind(bytes);
    a_.cmp(kEnd, x8);
    a_.b(Cond::hs, done);
    may_fault(faults);
    a_.load(x15, kValue + 0, 1);
    a_.cbz(x15, done);
    a_.store_and_move(kEnd, 1, x15, 1);
    a_.add_small(kValue, kValue, 1);
    a_.b(words);

    a_.bind(done);
    a_.mov_imm(kScratch, 0);
    a_.bind(out);
    a_.sub(kValue, kEnd, x8);
    a_.add_small(kValue, kValue, kMaxCapturedString);
    a_.ret();
    resume_here(faults);
    a_.mov_imm(kScratch, 1);
    a_.b(out);
  }

  // kRecord, kEnd, kCommit: its commit word as begin() made it, kLane, x9: bytes reserved -> kCommit. Gives the bytes
  // that weren't needed back unless something has been reserved behind them. x8, x13, x15 and x16 are lost.
  void commit_strings() {
    const Label keep = a_.label();
    a_.sub(x15, kEnd, kRecord);
    a_.add_small(x15, x15, 7);
    a_.bit_and(x15, x15, ~7ull);
    a_.load(x8, kLane + ch::kLaneHead);
    a_.sub(x16, x8, x9);
    a_.shift_left(x13, x16, 29);
    a_.bit_xor(x13, x13, kCommit);
    a_.shift_right(x13, x13, 32);  // what is below isn't the position's
    a_.cbnz(x13, keep);
    a_.add(x16, x16, x15);
    a_.mov(x13, x8);
    a_.word(0xc8a0fc00 | n(x13) << 16 | n(kLane) << 5 | n(x16));  // casl
    a_.cmp(x13, x8);
    a_.b(Cond::ne, keep);
    a_.sub(x9, x9, x15);
    a_.sub(kCommit, kCommit, x9, 18);
    a_.shift_right(x15, x15, 3);
    a_.store(kRecord + ch::kRecordSize, x15, 2);
    a_.bind(keep);
    a_.ret();
  }

  // ---- calls ----

  // What stands behind the breakpoint is nowhere a thread is sent before its call has been dealt with.
  void call_trap(DetourRuntime& runtime) {
    a_.align(8);
    trap_ = runtime.call_trap = a_.here();
    a_.word(0xd4200000);  // brk
    runtime.call_done = a_.here();
    nothing_to_fill_in();
  }

  // The program's return address.
  void return_address(Reg to) { a_.load(to, Reg::sp + DetourFrame::kLinkAndFlags); }

  // `call`: the one below `other` in the stack of the lane. x16 is lost.
  void below(Reg call, Reg other, Label damaged) {
    a_.load(call, other + ch::kCallBelow);
    a_.cmp(call, other);
    a_.b(Cond::hs, damaged);
    a_.load(x16, kLane + ch::kLaneCallLowest);
    a_.cmp(call, x16);
    a_.b(Cond::lo, damaged);
  }

  // A call begins. x13: sp at its entry, x9: kCallTag's word in the low half, above it the probe's index and, from bit
  // kEnterWords on, the words from this call to the next one -> kRecord: the call, kLane; what the layout has behind
  // kCallFixed is not zero. kRecord 0: there is nothing to be filled in.
  //
  // Calls below, on the program's stack, that are still there have not returned. What becomes of them is for the tracer
  // to say, as is everything on another stack than the thread's own.
  void enter() {
    const Label off = a_.label(), slow = a_.label(), timed = a_.label(), taken = a_.label(), push = a_.label(),
                search_same = a_.label(), same = a_.label();
    static_assert(ch::kMaxProbes == 1u << 21);
    a_.extract(x10, x9, 32, 21, false);
    a_.load_from(x11, flags_);
    a_.load_byte(x10, x11, x10);
    static_assert(ch::kDisabled == 0);
    a_.cbz(x10, off);
    static_assert(ch::kCallSilent == 1u << 31);
    a_.tbnz(x9, 31, timed);
    read_clock(x11);
    a_.bind(timed);
    const Search search = find_lane();
    a_.load(x15, kLane + ch::kLaneStackLow);
    a_.load(x16, kLane + ch::kLaneStackSize);
    a_.sub(x15, x13, x15);
    a_.cmp(x15, x16);
    a_.b(Cond::hs, slow);
    a_.load(x15, kLane + ch::kLaneCallTop);
    a_.load(x16, x15 + ch::kCallSlot);
    a_.cmp(x13, x16);
    a_.b(Cond::hs, taken);
    a_.bind(push);
    a_.load(kRecord, kLane + ch::kLaneCallNext);
    a_.shift_right(x15, x9, kEnterWords);
    a_.add(x15, kRecord, x15, 3);
    a_.load(x16, kLane + ch::kLaneCallLimit);
    a_.cmp(x15, x16);
    a_.b(Cond::hi, slow);
    a_.store(kLane + ch::kLaneCallNext, x15);
    a_.load(x15, kLane + ch::kLaneCallTop);
    a_.store(kRecord + ch::kCallBelow, x15);
    a_.store(kRecord + ch::kCallSlot, x13);
    a_.store(kRecord + ch::kCallTime, x11);
    return_address(x16);
    a_.store(kRecord + ch::kCallReturn, x16);
    static_assert(ch::kCallAbsent == ch::kCallTag + 4);
    a_.extract(x16, x9, 0, 32, false);
    a_.store(kRecord + ch::kCallTag, x16);
    a_.store(kLane + ch::kLaneCallTop, kRecord);
    a_.ret();

    // Flags: of the comparison with the last call's place. At the same one may be other probes' calls.
    a_.bind(taken);
    a_.b(Cond::hi, slow);
    a_.bind(search_same);
    a_.load(x16, x15 + ch::kCallTag, 4);
    a_.bit_xor(x16, x16, x9);
    a_.bit_and_flags(x16, x16, static_cast<std::uint32_t>(~ch::kCallSilent));
    a_.b(Cond::eq, same);
    a_.mov(x14, x15);
    below(x15, x14, slow);
    a_.load(x16, x15 + ch::kCallSlot);
    a_.cmp(x13, x16);
    a_.b(Cond::eq, search_same);
    a_.b(push);
    a_.bind(same);
    static_assert(ch::kCallLoops == 1u << 30);
    a_.tbz(x9, 30, slow);
    a_.load(x16, x15 + ch::kCallReturn);
    return_address(x14);
    a_.cmp(x16, x14);
    a_.b(Cond::ne, slow);
    a_.bind(off);
    nothing_to_fill_in();
    rest_of_bucket(search);
    a_.bind(slow);
    a_.mov_imm(x10, 0);
    a_.b(trap_);
  }

  // A call ends. x13: sp, as at its entry, x9: the probe's commit_low() in the low half, of size 0 when the return is
  // turned away by a filter; its kCallTag's word in the high one -> as begin(), with what was kept of the call in the
  // record.
  void leave() {
    const Label off = a_.label(), slow = a_.label(), timed = a_.label(), counts = a_.label(), count = a_.label(),
                turned_away = a_.label(), full = a_.label(), copy = a_.label();
    compare_mode();
    a_.b(Cond::lo, off);
    a_.b(Cond::eq, counts);
    read_clock(x11);
    a_.bind(timed);
    const Search search = find_lane();
    a_.load(x15, kLane + ch::kLaneCallTop);
    a_.load(x16, x15 + ch::kCallSlot);
    a_.cmp(x13, x16);
    a_.b(Cond::ne, slow);
    a_.load(x16, x15 + ch::kCallReturn);
    return_address(x14);
    a_.cmp(x14, x16);
    a_.b(Cond::ne, slow);
    a_.shift_right(x14, x9, 32);
    a_.load(x16, x15 + ch::kCallTag, 4);
    a_.bit_xor(x14, x14, x16);
    a_.bit_and_flags(xzr, x14, static_cast<std::uint32_t>(~ch::kCallSilent));
    a_.b(Cond::ne, slow);
    below(x10, x15, slow);
    a_.load(x16, kLane + ch::kLaneCallNext);
    a_.sub(x16, x16, x15);
    a_.mov_imm(x13, ch::kMaxCall);
    a_.cmp(x16, x13);
    a_.b(Cond::hi, slow);
    a_.store(kLane + ch::kLaneCallTop, x10);
    a_.store(kLane + ch::kLaneCallNext, x15);
    a_.cbnz(x14, off);  // silent
    a_.mov(x14, x16);
    size_of_record();
    a_.cbz(x15, turned_away);
    a_.cbz(x11, count);
    a_.mov(x13, x11);
    reserve(full);
    find_record();
    a_.store(kRecord + ch::kRecordTime, x13);
    store_cpu();
    a_.extract(x9, x9, 0, 32, false);
    a_.add(kCommit, x9, kCommit, 29);
    static_assert(ch::kCallBelow == -8);
    a_.load(x15, kLane + ch::kLaneCallNext);  // this call
    a_.add(x14, x15, x14);
    a_.add(x14, x14, static_cast<std::uint64_t>(ch::kCallBelow), x16);
    a_.add_small(x15, x15, ch::kCallTime);
    a_.add_small(x16, kRecord, ch::kCallTime + ch::kCallShift);
    a_.bind(copy);
    a_.load_and_move(x13, x15, 8);
    a_.store_and_move(x16, 8, x13, 8);
    a_.cmp(x15, x14);
    a_.b(Cond::lo, copy);
    a_.ret();

    a_.bind(counts);
    a_.mov_imm(x11, 0);
    a_.b(timed);
    a_.bind(count);
    count_in_lane(ch::kCounted);
    nothing_to_fill_in();
    a_.bind(turned_away);
    count_in_lane(ch::kFiltered);
    a_.bind(off);
    nothing_to_fill_in();
    a_.bind(full);
    no_room();
    unreadable_rseq();
    rest_of_bucket(search);
    a_.bind(slow);
    a_.shift_right(x9, x9, 32);
    a_.mov_imm(x10, 1);
    a_.b(trap_);
  }

  Assembler a_;
  const ChannelPlaces& places_;
  std::uint64_t table_ = 0, shared_lane_ = 0, shared_counters_ = 0, flags_ = 0, dropped_ = 0, trap_ = 0;
  std::vector<DetourFixup> fixups_;
  std::vector<std::uint32_t> rseq_faults_;
  Label rseq_known_;
};

}  // namespace

RuntimeCode build_runtime(std::uint64_t address, const ChannelPlaces& places, const DetourFeatures& features) {
  RuntimeCode out;
  if (!features.atomics) {
    out.refusal = DetourRefusal::processor;
    return out;
  }
  out.code.resize(kRuntimeRoom);
  out.runtime.features = features;
  RuntimeWriter writer(out.code, address, places);
  writer.write(out);
  PROBED_CHECK(!writer.assembler().full(), "the routines fit their room");
  out.code.resize(writer.assembler().size());
  return out;
}

}  // namespace probed::arch::aarch64
