// What both architectures say about detours: generated code that a probe's jump leads to, which records the hit into
// memory shared with the daemon, without a stop. Vocabulary and layout only; the code generators are <cpu>/detour.hpp.
// Pure; any thread. Addresses are plain 64-bit values of the target.
//
//   site --jump--> [capture part: save, one block per probe, restore] [tail: relocated region] --jump--> behind region
//                  [cold part: what seldom runs, belongs to the capture part]
//
// Everything that a detour touches besides the target's own memory is in the channel (daemon/events/channel.hpp
// describes it as a whole). A channel of zeros is a valid one in which every detour records nothing: all probes are
// disabled, no thread has a lane, the shared lane is full.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "arch/common.hpp"

namespace probed::arch {

// ---- the channel, as generated code sees it ----

namespace channel {

// Thread table: buckets of four {u64 thread pointer, u64 lane's address}; the key is written last. A thread looks in
// one bucket only, the hash of its thread pointer's low 32 bits. Neither an empty entry nor a thread without thread
// pointer is a match, as both have no lane. On x86-64 a thread finds its pointer in the word at %fs:0, on aarch64 in
// tpidr_el0.
inline constexpr unsigned kBucketEntries = 4;
inline constexpr unsigned kEntrySize = 16;
inline constexpr unsigned kBucketSize = kBucketEntries * kEntrySize;
inline constexpr std::uint32_t kHashMultiplier = 0x9e3779b1;  // 2^32 / golden ratio (Knuth 6.4)
constexpr std::uint32_t bucket_of(std::uint64_t thread_pointer, unsigned bucket_bits) {
  return static_cast<std::uint32_t>(thread_pointer) * kHashMultiplier >> (32 - bucket_bits);
}

// A lane (offsets in bytes, each a u64); one cache line of it, but for the last.
inline constexpr int kLaneHead = 0;       // bytes reserved since the beginning; by the writers
inline constexpr int kLaneLimit = 8;      // head may grow up to here; by the daemon
inline constexpr int kLaneRing = 16;      // address of the ring
inline constexpr int kLaneRseq = 24;      // address of the thread's struct rseq, or of something with the same cpu_id
inline constexpr int kLaneCounters = 32;  // address of the lane's counters
inline constexpr int kLaneFlags = 40;     // kLaneShared
inline constexpr std::uint64_t kLaneShared = 1;
// In the shared lane, in a cache line of its own: somebody has counted there. Set by the writers, cleared by the
// daemon.
inline constexpr int kLaneCounted = 64;
// The thread's call stack, in that other cache line of its lane; see below.
inline constexpr int kLaneStackLow = 72;     // of the stack that the thread began on: its lowest address
inline constexpr int kLaneStackSize = 80;    // and its bytes; 0: not known, and the call stack isn't used
inline constexpr int kLaneCallTop = 88;      // address of the call that was entered last
inline constexpr int kLaneCallNext = 96;     // where the next one will be
inline constexpr int kLaneCallLimit = 104;   // what it must end at or before
inline constexpr int kLaneCallLowest = 112;  // address of the empty stack's top; all others are above it
inline constexpr int kRseqCpuId = 4;         // include/uapi/linux/rseq.h; ~0: not registered

// Per lane and probe: {u64 counted, u64 filtered}.
inline constexpr unsigned kCounterSize = 16;
inline constexpr unsigned kCounted = 0, kFiltered = 8;

// A thread's call stack: the calls of functions with return probes that it has entered by detours and not left yet, on
// the stack that it began on, the last one on top. Each lies deeper on the program's stack than the one below it, or at
// the same place when it is another probe's. What begins with a slot of ~0 is the empty stack's top.
//
//   { u64 address of the call below } slot, time, return address, tag, absence bits, what the entry has captured ...
//
// From the slot on offsets are those of a record, so that what captures into records captures into calls as well; and
// what a call keeps (from its time on) goes into its return's record by kCallShift bytes further on.
//
// A process that is forked when nobody traces its creator any more shares the stack with it. So detours follow no
// address in it that leads out of it or up, and copy no more than the largest of calls.
inline constexpr int kCallBelow = -8;
inline constexpr int kCallSlot = 0;     // address of its return address
inline constexpr int kCallTime = 8;     // time stamp counter at its entry
inline constexpr int kCallReturn = 16;  // return address
inline constexpr int kCallTag = 24;     // u32: whose it is, kCallLoops, kCallSilent
inline constexpr int kCallAbsent = 28;  // u32, and more words if the layout has them
inline constexpr std::size_t kCallFixed = 32;
inline constexpr int kCallShift = 24;
// A return probe's number: a new one each time that the calls which are going on are to be forgotten.
inline constexpr std::uint32_t kCallTags = 1u << 30;
inline constexpr std::uint32_t kCallLoops = 1u << 30;   // the first instruction may be executed again in the same call
inline constexpr std::uint32_t kCallSilent = 1u << 31;  // its return is no event

// Per probe: one byte.
enum ProbeFlags : std::uint8_t { kDisabled = 0, kCountOnly = 1, kRecord = 3 };

// A record; starts at a multiple of 8 of its ring.
inline constexpr int kRecordCommit = 0;          // u64, written last: commit_word()
inline constexpr int kRecordTime = 8;            // u64 native::record_clock()
inline constexpr int kRecordThreadPointer = 16;  // u64; 0 in the lane of one thread
inline constexpr int kRecordCpu = 24;            // u16 cpu, 0xffff: not known
inline constexpr int kRecordSize = 26;           // u16 bytes / 8 that were reserved; 0 in the lane of one thread
inline constexpr int kRecordAbsent = 28;         // bits, one for each item that can be unreadable: CaptureItem
inline constexpr int kRecordFixed = 32;          // more absence bits in whole words, then the items' slots
// Of a return: in place of the thread pointer, as only lanes of one thread have such records, the address where the
// function was left, and whether by a tail call; behind the fixed part what was kept of the call, then the slots.
inline constexpr int kRecordExit = 16;
inline constexpr std::uint64_t kRecordTailCall = 1ull << 63;
inline constexpr int kRecordEntryTime = kCallTime + kCallShift;
inline constexpr int kRecordReturnAddress = kCallReturn + kCallShift;
inline constexpr int kRecordKept = kCallTag + kCallShift;
static_assert(kRecordEntryTime == kRecordFixed);
inline constexpr std::size_t kMaxRecord = 1023 * 8;
// From a call to the next one, at most: it goes into a record, and has a word in front of it and one for a string's
// end.
inline constexpr std::size_t kMaxCall = kMaxRecord - kCallShift + 2 * 8;
inline constexpr std::uint32_t kMaxProbes = 1u << 21;

// The commit word: the position's bits 3 to 34 | size / 8 (10 bits) | probe's index (21 bits). Never 0 for a size > 0.
constexpr std::uint64_t commit_tag(std::uint64_t position) { return position << 29; }
constexpr std::uint32_t commit_low(std::uint32_t probe, std::size_t size) {
  return static_cast<std::uint32_t>(size) << 18 | probe;
}
constexpr std::uint64_t commit_word(std::uint64_t position, std::uint32_t probe, std::size_t size) {
  return commit_tag(position) | commit_low(probe, size);
}

}  // namespace channel

// Where the channel's parts are in the target.
struct ChannelPlaces {
  std::uint64_t thread_table = 0;
  unsigned bucket_bits = 1;     // 1 to 20; 2^n buckets
  std::uint32_t ring_mask = 0;  // bytes of a ring, a power of two up to 2^31, minus 1; behind it kMaxRecord more
  std::uint64_t shared_lane = 0;
  std::uint64_t shared_counters = 0;
  std::uint64_t probe_flags = 0;    // u8 each
  std::uint64_t probe_dropped = 0;  // u64 each
};

// ---- what a probe captures ----

// One step of a fetch program, see daemon/events/fetch.hpp: a load, any number of dereferences, one store for each
// item, in order.
struct CaptureOp {
  enum class Code : std::uint8_t {
    load_register,  // the register at byte `operand` of Registers
    load_stack_pointer,
    load_immediate,
    load_return_value,  // as load_register; at a tail call there is none, and the item is absent
    load_kept,    // the u64 at byte `operand` of the return's record, unless size isn't 0 and bit `count` of it is set
    load_vector,  // the low 64 bits of floating-point register `operand`
    load_thread_pointer,
    add,           // `operand`
    dereference,   // of `size` bytes
    cut,           // to `size` bytes, from bit `right` on
    require,       // the item is absent unless it is `operand`; a load follows
    keep_begin,    // keeps it for require_room; a load follows
    require_room,  // as require: unless it - what was kept, signed, is `operand` or more
    store_value,
    store_memory,
    store_memory_array,
    store_string,
    store_string_array,
  };
  Code code = Code::load_immediate;
  std::uint8_t size = 8;
  bool is_signed = false;
  std::uint8_t left = 0, right = 0;
  std::uint16_t count = 0;
  std::uint64_t operand = 0;

  bool is_store() const { return code >= Code::store_value; }
  bool is_string() const { return code >= Code::store_string; }
  bool is_array() const { return code == Code::store_memory_array || code == Code::store_string_array; }
};

// Where a record holds one item.
struct CaptureItem {
  std::uint16_t first_op = 0;
  std::uint16_t offset = 0;  // of its slot; an array has `count` of them
  std::uint16_t count = 1;
  std::uint16_t absent_bit = 0;  // counts from kRecordAbsent; arrays: of the whole, then one for each element
  bool can_be_absent = false;    // else it has no bit
  bool is_string = false;        // its slot holds {u32 length}; see CaptureLayout
  bool is_array = false;
};

// Strings stand behind the fixed part, one directly behind the other in the order of their slots; what has been copied
// of an absent one stands there, too. The record ends with the last of them, rounded up to 8.
struct CaptureLayout {
  std::vector<CaptureItem> items;
  std::uint16_t fixed_size = channel::kRecordFixed;
  std::uint16_t max_size = channel::kRecordFixed;
  bool has_strings = false;
};

inline constexpr std::size_t kMaxCapturedString = 512;  // bytes of a string that are kept

// One comparison of a filter; on_true and on_false are indices of later comparisons or the two results. A comparison
// with an absent item goes on at on_false. The item is an integer and no array.
struct CapturePredicate {
  enum class Op : std::uint8_t { eq, ne, lt, le, gt, ge, any_bit };
  Op op = Op::eq;
  bool is_signed = false;
  std::uint16_t item = 0;
  std::uint64_t value = 0;  // cut and extended as the item is
  std::uint32_t on_true = 0, on_false = 0;
};
inline constexpr std::uint32_t kCaptureAccept = 0xffff'ffff;
inline constexpr std::uint32_t kCaptureReject = 0xffff'fffe;

// All that is the same for every site of one definition.
struct CapturePlan {
  std::vector<CaptureOp> ops;
  CaptureLayout layout;
  std::vector<CapturePredicate> filter;  // empty: accept
};

// Why there is no detour; the probe stays on the breakpoint tier.
enum class DetourRefusal : std::uint8_t {
  none,
  relocation,        // an instruction of the region can't be moved: DetourResult::relocation says why
  inner_transfer,    // a call, system call or the like that is not the region's last instruction
  record_size,       // its arguments don't fit one record
  register_operand,  // an argument reads a register that is not at hand in generated code
  far_offset,        // an offset of more than ±2 GiB
  filter_size,       // the filter compares more values in memory than there is room for
  code_size,         // the code would be longer than kMaxDetourSize
  call_size,         // what a return probe keeps of its calls doesn't fit
  processor,         // the processor lacks what the code would need
  unsupported,       // not on this architecture yet
};
std::string_view describe(DetourRefusal refusal);

struct CaptureLayoutResult {
  DetourRefusal refusal = DetourRefusal::none;
  CaptureLayout layout;
};
// Gives every item its place in the record. ops: each item's end in a store. kept: bytes in front of the slots that a
// return's record has of its call; 0: it is no return's. Refusals: record_size.
CaptureLayoutResult lay_out(std::span<const CaptureOp> ops, std::size_t kept = 0);

// ---- generating ----

// A load that may fault, and where the thread goes on when it did; all registers as they were. Offsets from the
// beginning of the code.
struct DetourFixup {
  std::uint32_t fault = 0, resume = 0;
};

// What the processor and the kernel of the target allow.
struct DetourFeatures {
  // x86-64
  bool flags_in_ah = false;  // lahf and sahf in 64-bit mode; needed
  bool base_registers =
      false;                // rdfsbase (bit 1 of AT_HWCAP2); else the shared lane tells a thread by its word at %fs:0
  bool cpu_number = false;  // rdpid; else the cpu is read from struct rseq, and not known in the shared lane
  // aarch64
  bool atomics = false;      // FEAT_LSE; needed
  bool memory_tags = false;  // FEAT_MTE: checks can be, and are, switched off meanwhile
};

// Routines that all detours within reach share, generated once for each area of injected code.
struct DetourRuntime {
  std::uint64_t begin = 0, reject = 0, copy_string = 0, commit_strings = 0;  // addresses
  std::uint64_t enter = 0, leave = 0;
  // A breakpoint for what the routines of calls can't do by themselves, and where the thread goes on from there when it
  // has been done (DetourCall). Executed as a nop it is a call that nobody has seen.
  std::uint64_t call_trap = 0, call_done = 0;
  ChannelPlaces places;
  DetourFeatures features;  // what they were made for
};
struct RuntimeCode {
  DetourRefusal refusal = DetourRefusal::none;
  DetourRuntime runtime;
  std::vector<std::uint8_t> code;  // all of it is capture part
  std::vector<DetourFixup> fixups;
};

struct CapturedProbe {
  std::uint32_t index = 0;  // below channel::kMaxProbes
  const CapturePlan* plan = nullptr;
  // A return probe's place. An entry pushes a call, an exit pops it and records. An exit's plan has its layout behind
  // `kept` bytes of the call, see lay_out(); a filter's turning away is an entry's too, and then pushes a silent call.
  enum class Role : std::uint8_t { plain, entry, exit };
  Role role = Role::plain;
  std::uint32_t tag = 0;   // below channel::kCallTags
  bool loops = false;      // kCallLoops
  bool tail_call = false;  // of an exit: it is one
  // Of an exit: the low 4 bits of its jcc's opcode: the function is only left when that jumps.
  std::optional<std::uint8_t> condition{};
};

struct DetourRequest {
  std::uint64_t site = 0;
  std::span<const std::uint8_t> region;   // the bytes that the jump replaces, whole instructions
  std::span<const Insn> insns;            // decode()'s answers for them
  std::uint64_t address = 0;              // where the code will lie; within a jump's reach of site and runtime
  std::span<const CapturedProbe> probes;  // in the order in which they record
};

// What a pc in the tail means; `point.offset` is not used.
struct DetourPoint {
  std::uint32_t offset = 0;
  CopyPoint point;
};

// Where a detour has saved the program's registers, in bytes from rsp in its capture part; size: up to the program's.
struct DetourSaves {
  std::int32_t size = 0;
  std::int16_t rax = 0, flags = 0, rcx = 0, rdx = 0, rsi = -1, rdi = -1;  // -1: it hasn't; flags: as lahf; seto al
  std::int16_t x8_and_x17 = -1;                                           // on aarch64 the others have one place each
};

// What a thread at DetourRuntime::call_trap asks for.
struct DetourCall {
  bool is_exit = false;
  std::uint32_t tag = 0;   // CapturedProbe's
  std::uint64_t from = 0;  // an address in the detour
};

inline constexpr std::size_t kMaxDetourSize = 8192;

struct Detour {
  std::vector<std::uint8_t> code;
  // [tail_begin, tail_end) is the tail; the rest of the code is capture part. In the capture part the registers are not
  // the program's, but for offset 0, where nothing has happened yet: there, and only there, a fault of the stack's can
  // strike, as the first instruction writes to the lowest word that the rest will use.
  std::uint32_t tail_begin = 0, tail_end = 0;
  std::vector<DetourPoint> points;  // offset 0 and every instruction boundary of the tail, ascending
  std::vector<DetourFixup> fixups;  // ascending fault
  DetourSaves saves;

  const CopyPoint* at(std::uint64_t offset) const;
  void clear();
};

struct DetourResult {
  DetourRefusal refusal = DetourRefusal::none;
  Refusal relocation = Refusal::none;
  explicit operator bool() const { return refusal == DetourRefusal::none; }
};

}  // namespace probed::arch
