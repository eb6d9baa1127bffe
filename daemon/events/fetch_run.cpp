// Running a fetch program: once per hit, on the tracer thread, with the thread stopped. No allocation, no exceptions.
//
// Every argument writes at least its status byte: room for those of the arguments still to come is always kept, so that
// one large argument can make others null but never lose them.
#include <algorithm>
#include <array>
#include <cstring>

#include "daemon/events/fetch.hpp"
#include "daemon/events/record.hpp"
#include "daemon/values/packed.hpp"
#include "proto/base/check.hpp"

namespace probed::events {
namespace {

using Code = FetchOp::Code;
using Registers = arch::native::Registers;

constexpr std::byte kNull{0}, kPresent{1};
constexpr std::size_t kArrayBytes = lang::kMaxArray * 8;

// Cuts to op.size bytes and extends to 64 bits.
std::uint64_t extend(const FetchOp& op, std::uint64_t value) {
  const unsigned unused = 64u - op.size * 8u;
  if (op.is_signed) return static_cast<std::uint64_t>(static_cast<std::int64_t>(value << unused) >> unused);
  return value << unused >> unused;
}

// The same, and takes the bitfield out.
std::uint64_t finish(const FetchOp& op, std::uint64_t value) {
  const unsigned unused = 64u - op.size * 8u;
  // Shifting up to the top bit and back is the kernel's fetch_apply_bitfield() within the container.
  if (op.is_signed)
    return static_cast<std::uint64_t>(static_cast<std::int64_t>(value << (unused + op.left)) >> (unused + op.right));
  return value << (unused + op.left) >> (unused + op.right);
}

// One argument's output. A write that doesn't fit fails the argument.
class Output {
 public:
  Output(std::span<std::byte> room) : room_(room) {}

  bool status(std::byte value) { return put(&value, 1); }
  bool number(std::uint64_t value) { return status(kPresent) && put(&value, sizeof value); }
  bool count(std::uint16_t value) { return put(&value, sizeof value); }
  bool bytes(std::string_view text) {
    const auto length = static_cast<std::uint16_t>(text.size());
    return status(kPresent) && count(length) && put(text.data(), text.size());
  }

  // The string at `from` in at most `most` bytes, or a null when it can't be read. False: no room.
  bool string_at(MemoryReader& memory, RemoteAddr from, std::size_t most = kMaxString) {
    constexpr std::size_t kHead = 3;
    if (room_.size() - used_ <= kHead) return false;
    const auto to = room_.subspan(used_ + kHead, std::min(most, room_.size() - used_ - kHead));
    const std::ptrdiff_t length = memory.read_string(from, to);
    if (length < 0) return status(kNull);
    if (to.size() < most && static_cast<std::size_t>(length) >= to.size()) return false;  // cut by our room
    status(kPresent);
    count(static_cast<std::uint16_t>(length));
    used_ += static_cast<std::size_t>(length);
    return true;
  }

  // The text of `length` bytes at `from`, which may hold zeros; the same otherwise.
  bool text_at(MemoryReader& memory, RemoteAddr from, std::uint64_t length) {
    constexpr std::size_t kHead = 3;
    const auto size = static_cast<std::size_t>(std::min<std::uint64_t>(length, kMaxString));
    if (room_.size() - used_ < kHead + size) return false;
    // An empty one may point to nothing.
    if (size > 0 && !memory.read(from, room_.subspan(used_ + kHead, size))) return status(kNull);
    status(kPresent);
    count(static_cast<std::uint16_t>(size));
    used_ += size;
    return true;
  }

  std::size_t used() const { return used_; }

 private:
  bool put(const void* from, std::size_t size) {
    if (room_.size() - used_ < size) return false;
    std::memcpy(room_.data() + used_, from, size);
    used_ += size;
    return true;
  }

  std::span<std::byte> room_;
  std::size_t used_ = 0;
};

class Machine {
 public:
  Machine(const Registers& regs, MemoryReader& memory, const values::CommonFields& common,
          std::span<const std::string> texts)
      : regs_(regs), memory_(memory), common_(common), texts_(texts) {}

  // Runs the ops of one argument; returns the bytes written. op is left behind its store.
  std::size_t argument(const FetchOp*& op, std::span<std::byte> room) {
    Output out(room);
    const bool loaded = load(op);
    const bool stored = loaded && store(*op, out);
    ++op;
    if (stored) return out.used();
    room[0] = kNull;
    return 1;
  }

 private:
  static bool is_store(Code code) { return code >= Code::store_value; }

  // Everything up to the store. False: a dereference failed; op is at the store all the same.
  bool load(const FetchOp*& op) {
    bool readable = true;
    for (; !is_store(op->code); ++op) readable = readable && step(*op);
    return readable;
  }

  bool step(const FetchOp& op) {
    switch (op.code) {
      case Code::load_register: value_ = register_at(op.operand); return true;
      case Code::load_stack_pointer: value_ = regs_.sp(); return true;
      case Code::load_immediate: value_ = op.operand; return true;
      case Code::load_return_value: value_ = register_at(op.operand); return !common_.tail_call;
      case Code::load_entry_word: return entry_word(op.operand);
      case Code::load_vector: return memory_.read_vector(common_.tid, static_cast<unsigned>(op.operand), value_);
      case Code::load_thread_pointer: return thread_pointer();
      case Code::load_duration: value_ = common_.duration; return true;
      case Code::unavailable: return false;
      case Code::add: value_ += op.operand; return true;
      case Code::cut: value_ = extend(op, value_ >> op.right); return true;
      case Code::require: return value_ == op.operand;
      case Code::keep_begin: begin_ = value_; return true;
      case Code::require_room:
        return static_cast<std::int64_t>(value_ - begin_) >= static_cast<std::int64_t>(op.operand);
      case Code::keep_length: length_ = value_; return true;
      case Code::add_register: value_ += register_at(op.operand) << op.left; return true;
      default: break;
    }
    if (!read(value_ + op.operand, op.size, value_)) return false;
    value_ = extend(op, value_);
    return true;
  }

  bool thread_pointer() {
    if constexpr (arch::native::kThreadPointerSet) return memory_.read_thread_pointer(common_.tid, value_);
    value_ = regs_.thread_pointer();
    return true;
  }

  bool entry_word(std::uint64_t index) {
    if (index >= common_.entry_words.size()) return false;
    value_ = common_.entry_words[index].value;
    return common_.entry_words[index].present;
  }

  std::uint64_t register_at(std::uint64_t offset) const {
    std::uint64_t value = 0;
    std::memcpy(&value, reinterpret_cast<const std::byte*>(&regs_) + offset, sizeof value);
    return value;
  }

  bool read(std::uint64_t from, std::size_t size, std::uint64_t& value) {
    std::uint64_t fresh = 0;
    if (!memory_.read({from}, {reinterpret_cast<std::byte*>(&fresh), size})) return false;
    value = fresh;
    return true;
  }

  // False: the whole argument becomes null.
  bool store(const FetchOp& op, Output& out) {
    const std::uint64_t from = value_ + op.operand;
    switch (op.code) {
      case Code::store_value: return out.number(finish(op, value_));
      case Code::store_memory: return read(from, op.size, value_) && out.number(finish(op, value_));
      case Code::store_memory_array: return memory_array(op, from, out);
      case Code::store_string:
        return out.string_at(memory_, {from}, op.count == 0 ? kMaxString : std::min<std::size_t>(op.count, kMaxString));
      case Code::store_counted: return out.text_at(memory_, {from}, length_);
      case Code::store_string_array: return string_array(op, from, out);
      case Code::store_comm: return out.bytes(common_.comm.substr(0, kMaxString));
      case Code::store_text: return out.bytes(texts_[op.operand]);
      default: PROBED_CHECK(false, "a store ends every argument");
    }
  }

  // One read for all of them; only when that fails is it worth finding out which ones can be read.
  bool memory_array(const FetchOp& op, std::uint64_t from, Output& out) {
    std::array<std::byte, kArrayBytes> block;
    const bool whole = memory_.read({from}, std::span(block).first(std::size_t{op.count} * op.size));
    bool fits = out.status(kPresent) && out.count(op.count);
    for (std::size_t i = 0; fits && i < op.count; ++i) {
      std::uint64_t value = 0;
      const bool readable = whole || read(from + i * op.size, op.size, value);
      if (whole) std::memcpy(&value, block.data() + i * op.size, op.size);
      fits = readable ? out.number(finish(op, value)) : out.status(kNull);
    }
    return fits;
  }

  bool string_array(const FetchOp& op, std::uint64_t from, Output& out) {
    bool fits = out.status(kPresent) && out.count(op.count);
    for (std::size_t i = 0; fits && i < op.count; ++i) {
      std::uint64_t pointer = 0;
      const bool readable = read(from + i * sizeof pointer, sizeof pointer, pointer);
      fits = readable ? out.string_at(memory_, {pointer}) : out.status(kNull);
    }
    return fits;
  }

  const Registers& regs_;
  MemoryReader& memory_;
  const values::CommonFields& common_;
  std::span<const std::string> texts_;
  std::uint64_t value_ = 0, length_ = 0, begin_ = 0;
};

}  // namespace

std::size_t FetchProgram::run(const Registers& regs, MemoryReader& memory, const values::CommonFields& common,
                              std::span<std::byte> out) const {
  PROBED_CHECK(out.size() >= args_.size(), "room for every argument's status");
  out = out.first(std::min(out.size(), kMaxArgumentBytes));
  Machine machine(regs, memory, common, texts_);
  const FetchOp* op = ops_.data();
  std::size_t used = 0;
  for (std::size_t left = args_.size(); left > 0; --left)
    used += machine.argument(op, out.subspan(used, out.size() - used - (left - 1)));
  return used;
}

}  // namespace probed::events
