// See location.hpp.
#include "daemon/dwarf/location.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "arch/arch.hpp"

namespace probed::dwarf {
namespace {

namespace native = arch::native;
using values::PlaceStep;
using Step = PlaceStep::Code;

constexpr std::size_t kMaxStack = 64, kMaxOperations = 512, kMaxSteps = 32;
constexpr unsigned kMaxNesting = 4;
constexpr std::size_t kMaxListEntries = 1u << 16;
constexpr const char* kNoPlace = "it has been optimised out at this place";
constexpr const char* kTooHard = "its place has to be computed in a way that this version can't";

// A number that isn't known yet: steps, then an offset.
struct Symbolic {
  std::vector<PlaceStep> steps;
  std::uint64_t offset = 0;

  bool is_constant() const { return steps.empty(); }
  bool is_register() const { return steps.size() == 1 && steps[0].code == Step::load_register; }
};

class Expression {
 public:
  Expression(const Unit& unit, const Surroundings& around, unsigned nesting)
      : unit_(unit), around_(around), nesting_(nesting) {}

  Location run(Bytes bytes) {
    if (bytes.empty()) return absent(kNoPlace);
    Cursor c(bytes);
    for (std::size_t n = 0; c.good() && c.left() > 0 && why_.empty(); ++n) {
      if (n >= kMaxOperations) return absent(kTooHard);
      step(c);
    }
    if (!c.good() && why_.empty()) why_ = "its location is damaged";
    if (!why_.empty()) return absent(why_);
    if (pieces_.empty()) pieces_.push_back(finish(~0ull));
    return std::move(pieces_);
  }

 private:
  void fail(std::string_view why) {
    if (why_.empty()) why_ = why;
  }

  // ---- the stack ----

  void push(Symbolic value) {
    if (stack_.size() >= kMaxStack || value.steps.size() > kMaxSteps) return fail(kTooHard);
    stack_.push_back(std::move(value));
  }
  void push(std::uint64_t value) { push(Symbolic{{}, value}); }
  Symbolic pop() {
    if (stack_.empty()) return fail("its location is damaged"), Symbolic{};
    Symbolic top = std::move(stack_.back());
    stack_.pop_back();
    return top;
  }

  std::optional<Symbolic> register_value(std::uint64_t number) {
    const auto offset = number < 256 ? native::dwarf_register(static_cast<unsigned>(number)) : std::nullopt;
    if (!offset) return std::nullopt;
    return Symbolic{{{Step::load_register, 8, 0, *offset}}, 0};
  }
  void push_register(std::uint64_t number, std::uint64_t offset) {
    auto value = register_value(number);
    if (!value) return fail("it is found by a register that can't be read");
    value->offset = offset;
    push(*std::move(value));
  }

  // ---- operations ----

  void step(Cursor& c) {
    const auto op = c.take<std::uint8_t>();
    if (op >= OP_lit0 && op < OP_lit0 + 32) return push(op - OP_lit0 + 0ull);
    if (op >= OP_reg0 && op < OP_reg0 + 32) return in_register(op - OP_reg0 + 0ull);
    if (op >= OP_breg0 && op < OP_breg0 + 32) return push_register(op - OP_breg0 + 0ull, offset(c));
    switch (op) {
      case OP_addr: return push(c.number(unit_.address_size()) + around_.bias);
      case OP_addrx:
      case OP_GNU_addr_index: return push_indexed(c.uleb(), around_.bias);
      case OP_constx: return push_indexed(c.uleb(), 0);
      case OP_const1u: return push(c.number(1));
      case OP_const1s: return push(static_cast<std::uint64_t>(std::int64_t{c.take<std::int8_t>()}));
      case OP_const2u: return push(c.number(2));
      case OP_const2s: return push(static_cast<std::uint64_t>(std::int64_t{c.take<std::int16_t>()}));
      case OP_const4u: return push(c.number(4));
      case OP_const4s: return push(static_cast<std::uint64_t>(std::int64_t{c.take<std::int32_t>()}));
      case OP_const8u:
      case OP_const8s: return push(c.number(8));
      case OP_constu: return push(c.uleb());
      case OP_consts: return push(offset(c));
      case OP_dup:
        if (stack_.empty()) return fail(kTooHard);
        return push(Symbolic(stack_.back()));
      case OP_drop: pop(); return;
      case OP_nop: return;
      case OP_deref: return dereference(8);
      case OP_deref_size: return dereference(c.take<std::uint8_t>());
      case OP_plus_uconst: {
        Symbolic value = pop();
        value.offset += c.uleb();
        return push(std::move(value));
      }
      case OP_plus: return plus();
      case OP_minus: return minus();
      case OP_and: return mask();
      case OP_regx: return in_register(c.uleb());
      case OP_bregx: {
        const std::uint64_t number = c.uleb();
        return push_register(number, offset(c));
      }
      case OP_fbreg: return push_on_frame(offset(c));
      case OP_call_frame_cfa: return push_cfa();
      case OP_stack_value: kind_ = Kind::value; return;
      case OP_implicit_value: {
        const Bytes bytes = c.block(c.uleb());
        constant_.assign(bytes.begin(), bytes.end());
        kind_ = Kind::constant;
        return;
      }
      case OP_piece: return add_piece(c.uleb());
      case OP_entry_value:
      case OP_GNU_entry_value: return at_entry(c.block(c.uleb()));
      case OP_convert:
      case OP_reinterpret:
      case OP_GNU_convert:
      case OP_GNU_reinterpret: return convert(c.uleb());
      case OP_implicit_pointer:
      case OP_GNU_implicit_pointer: return fail("what it points to has been optimised out at this place");
      case OP_form_tls_address:
      case OP_GNU_push_tls_address: return thread_local_address();
      default: return fail(kTooHard);
    }
  }

  static std::uint64_t offset(Cursor& c) { return static_cast<std::uint64_t>(c.sleb()); }

  void push_indexed(std::uint64_t index, std::uint64_t bias) {
    const auto address = address_by_index(unit_, index);
    if (!address) return fail("its location is damaged");
    push(*address + bias);
  }

  void dereference(unsigned size) {
    Symbolic value = pop();
    if (size != 1 && size != 2 && size != 4 && size != 8) return fail(kTooHard);
    if (value.is_constant()) value.steps.push_back({Step::load_immediate, 8, 0, 0});
    value.steps.push_back({Step::dereference, static_cast<std::uint8_t>(size), 0, value.offset});
    value.offset = 0;
    push(std::move(value));
  }

  void plus() {
    Symbolic right = pop(), left = pop();
    if (left.is_constant()) std::swap(left, right);
    if (!right.is_constant()) {
      if (!right.is_register()) std::swap(left, right);
      if (!right.is_register()) return fail(kTooHard);
      left.steps.push_back({Step::add_register, 8, 0, right.steps[0].operand});
    }
    left.offset += right.offset;
    push(std::move(left));
  }

  void minus() {
    const Symbolic right = pop();
    Symbolic left = pop();
    if (!right.is_constant()) return fail(kTooHard);
    left.offset -= right.offset;
    push(std::move(left));
  }

  // With all bits of a smaller number: that is how LLVM cuts.
  void mask() {
    const Symbolic right = pop();
    const unsigned size = right.offset == 0xff ? 1 : right.offset == 0xffff ? 2 : right.offset == 0xffff'ffff ? 4 : 0;
    if (!right.is_constant() || size == 0) return fail(kTooHard);
    cut(pop(), size, false);
  }

  void cut(Symbolic value, std::uint64_t size, bool is_signed) {
    if (value.is_constant()) value.steps.push_back({Step::load_immediate, 8, 0, 0});
    if (value.offset != 0) value.steps.push_back({Step::add, 8, 0, std::exchange(value.offset, 0)});
    if (size < 8) value.steps.push_back({Step::cut, static_cast<std::uint8_t>(size), 0, 0, is_signed});
    push(std::move(value));
  }

  void push_on_frame(std::uint64_t offset) {
    const auto base = attribute(around_.function, AT_frame_base);
    if (!base || nesting_ >= kMaxNesting) return fail("nothing says where its function's frame is");
    const Location frame = Expression(*around_.function.unit, around_, nesting_ + 1).of(*base);
    const Piece& piece = frame.front();
    if (!piece.place.absent.empty() || frame.size() != 1 || !piece.constant.empty())
      return fail("nothing says where its function's frame is");
    // A register stands for what is in it, any other expression for the number it gives.
    push(Symbolic{piece.place.steps, piece.place.offset + offset});
  }

  void push_cfa() {
    auto cfa = find_cfa(around_.eh_frame, around_.pc);
    if (!cfa) cfa = find_cfa(around_.debug_frame, around_.pc);
    if (!cfa) return fail("nothing says where its function's frame is (no call frame information)");
    if (cfa->expression.empty()) return push_register(cfa->reg, cfa->offset);
    if (nesting_ >= kMaxNesting) return fail(kTooHard);
    const Location at = Expression(unit_, around_, nesting_ + 1).run(cfa->expression);
    if (at.size() != 1 || !at[0].place.absent.empty()) return fail(kTooHard);
    push(Symbolic{at[0].place.steps, at[0].place.offset});
  }

  // To a type by its entry; 0: to the machine's own.
  void convert(std::uint64_t type) {
    if (type == 0) return;
    const Die die = unit_.at(type);
    const std::uint64_t encoding = number_of(die, AT_encoding).value_or(0);
    std::uint64_t size = number_of(die, AT_byte_size).value_or(0);
    if (size == 0 && name_of(die) == "DW_ATE_unsigned_1") size = 1;  // LLVM's bool, of one bit: 0 or 1 in its byte
    const bool is_integer = encoding == ATE_signed || encoding == ATE_unsigned || encoding == ATE_boolean ||
                            encoding == ATE_signed_char || encoding == ATE_unsigned_char || encoding == ATE_address;
    if (!is_integer || (size != 1 && size != 2 && size != 4 && size != 8)) return fail(kTooHard);
    cut(pop(), size, encoding == ATE_signed || encoding == ATE_signed_char);
  }

  // From an offset in the module's thread-local storage to an address.
  void thread_local_address() {
    const Symbolic offset = pop();
    if (!offset.is_constant()) return fail(kTooHard);
    values::Placement block;
    if (around_.thread_block && *around_.thread_block) block = (*around_.thread_block)();
    if (!block.absent.empty() || block.steps.empty())
      return fail(block.absent.empty() ? "it is a thread-local variable, and where those are isn't known"
                                       : block.absent);
    push(Symbolic{std::move(block.steps), block.offset + offset.offset});
  }

  // What a register held when the function was entered.
  void at_entry(Bytes expression) {
    if (!around_.at_entry) return fail("only its value at the function's entry is known, not the one here");
    if (nesting_ >= kMaxNesting) return fail(kTooHard);
    const Location at = Expression(unit_, around_, nesting_ + 1).run(expression);
    if (at.size() != 1 || !at[0].place.absent.empty() || !at[0].constant.empty()) return fail(kTooHard);
    push(Symbolic{at[0].place.steps, at[0].place.offset});
  }

  // ---- results ----

  void in_register(std::uint64_t number) {
    if (const auto vector = number < 256 ? native::dwarf_vector_register(static_cast<unsigned>(number)) : std::nullopt)
      stack_ = {Symbolic{{{Step::load_vector, 8, 0, *vector}}, 0}};
    else if (auto value = register_value(number))
      stack_ = {*std::move(value)};
    else
      return fail("it is in a register that can't be read");
    kind_ = Kind::value;
  }

  Piece finish(std::uint64_t size) {
    Piece piece;
    piece.size = size;
    if (kind_ == Kind::constant) {
      piece.constant = std::move(constant_);
      if (piece.constant.empty()) piece.place.absent = kNoPlace;
    } else if (stack_.empty()) {
      piece.place.absent = kNoPlace;
    } else {
      Symbolic top = pop();
      piece.place = {std::move(top.steps), top.offset, kind_ == Kind::memory, {}};
    }
    stack_.clear();
    constant_.clear();
    kind_ = Kind::memory;
    return piece;
  }

  void add_piece(std::uint64_t size) {
    if (pieces_.size() >= kMaxStack) return fail(kTooHard);
    pieces_.push_back(finish(size));
  }

 public:
  // ---- of an attribute ----

  Location of(const Attribute& value) {
    if (value.is_block()) return run(value.block);
    const auto expression = unit_.version() >= 5 ? in_new_list(value)
                            : unit_.is_split()   ? in_split_list(value.number)
                                                 : in_old_list(value.number);
    return expression ? run(*expression) : absent(kNoPlace);
  }

 private:
  std::uint64_t base_address() const { return dwarf::base_address(unit_); }

  // GNU's of DWARF 4 (gcc.gnu.org/wiki/DebugFission).
  std::optional<Bytes> in_split_list(std::uint64_t at) const {
    Cursor c(unit_.file().sections()[Section::loc], at + unit_.contribution().loc);
    std::uint64_t base = base_address();
    const auto indexed = [&] { return address_by_index(unit_, c.uleb()).value_or(0); };
    for (std::size_t n = 0; c.good() && n < kMaxListEntries; ++n) {
      std::uint64_t begin = 0, end = 0;
      switch (c.take<std::uint8_t>()) {
        case 1: base = indexed(); continue;                           // base address
        case 2: begin = indexed(), end = indexed(); break;            // start and end
        case 3: begin = indexed(), end = begin + c.number(4); break;  // start and length
        case 4: begin = base + c.number(4), end = base + c.number(4); break;
        default: return std::nullopt;
      }
      const Bytes expression = c.block(c.number(2));
      if (c.good() && around_.pc >= begin && around_.pc < end) return expression;
    }
    return std::nullopt;
  }

  std::optional<Bytes> in_old_list(std::uint64_t at) const {
    Cursor c(unit_.file().sections()[Section::loc], at);
    std::uint64_t base = base_address();
    for (std::size_t n = 0; c.good() && n < kMaxListEntries; ++n) {
      const std::uint64_t begin = c.number(unit_.address_size()), end = c.number(unit_.address_size());
      if (!c.good() || (begin == 0 && end == 0)) break;
      if (begin == ~0ull) {
        base = end;
        continue;
      }
      const Bytes expression = c.block(c.number(2));
      if (c.good() && around_.pc >= base + begin && around_.pc < base + end) return expression;
    }
    return std::nullopt;
  }

  std::optional<Bytes> in_new_list(const Attribute& value) const {
    const Bytes section = unit_.file().sections()[Section::loclists];
    std::uint64_t at = value.number;
    if (value.form == FORM_loclistx) {
      const std::uint64_t table = unit_base(unit_, AT_loclists_base, 0, 12 + unit_.contribution().loc);
      Cursor index(section, table + (value.number & 0xffffffff) * 4);
      at = table + index.number(4);
      if (!index.good()) return std::nullopt;
    }
    Cursor c(section, at);
    std::uint64_t base = base_address();
    const auto indexed = [&] { return address_by_index(unit_, c.uleb()).value_or(0); };
    std::optional<Bytes> otherwise;
    for (std::size_t n = 0; c.good() && n < kMaxListEntries; ++n) {
      std::uint64_t begin = 0, end = 0;
      switch (c.take<std::uint8_t>()) {
        case 0: return otherwise;                                       // LLE_end_of_list
        case 1: base = indexed(); continue;                             // LLE_base_addressx
        case 2: begin = indexed(), end = indexed(); break;              // LLE_startx_endx
        case 3: begin = indexed(), end = begin + c.uleb(); break;       // LLE_startx_length
        case 4: begin = base + c.uleb(), end = base + c.uleb(); break;  // LLE_offset_pair
        case 5: otherwise = c.block(c.uleb()); continue;                // LLE_default_location
        case 6: base = c.number(unit_.address_size()); continue;        // LLE_base_address
        case 7: begin = c.number(unit_.address_size()), end = c.number(unit_.address_size()); break;  // LLE_start_end
        case 8: begin = c.number(unit_.address_size()), end = begin + c.uleb(); break;  // LLE_start_length
        case 9: c.uleb(), c.uleb(); continue;                                           // LLE_GNU_view_pair
        default: return std::nullopt;
      }
      const Bytes expression = c.block(c.uleb());
      if (c.good() && around_.pc >= begin && around_.pc < end) return expression;
    }
    return otherwise;
  }

  enum class Kind : std::uint8_t { memory, value, constant };

  const Unit& unit_;
  const Surroundings& around_;
  const unsigned nesting_;
  std::vector<Symbolic> stack_;
  std::vector<std::byte> constant_;
  Kind kind_ = Kind::memory;
  Location pieces_;
  std::string why_;
};

std::uint64_t number_in(const std::vector<std::byte>& bytes) {
  std::uint64_t value = 0;
  std::memcpy(&value, bytes.data(), std::min(bytes.size(), sizeof value));
  return value;
}

}  // namespace

Location absent(std::string why) {
  Piece piece;
  piece.place.absent = std::move(why);
  return {std::move(piece)};
}

Location constant(std::uint64_t value) {
  Piece piece;
  piece.place.steps.push_back({Step::load_immediate, 8, 0, value});
  return {std::move(piece)};
}

namespace {

// `size` bytes of a piece from byte `into` on, which it has.
Piece part_of_piece(const Piece& piece, std::uint64_t into, std::uint64_t size) {
  Piece part = piece;
  part.size = piece.size - into;
  if (!part.place.absent.empty()) return part;
  if (!part.constant.empty()) {
    if (into + size > part.constant.size()) return absent(kNoPlace).front();
    part.constant.erase(part.constant.begin(), part.constant.begin() + static_cast<std::ptrdiff_t>(into));
  } else if (part.place.in_memory) {
    part.place.offset += into;
  } else if (into > 0) {
    if (into + size > 8 || part.place.offset != 0)
      return absent("it is in a part of a register that can't be read").front();
    const auto bytes = static_cast<std::uint8_t>(size > 4 ? 8 : size > 2 ? 4 : size > 1 ? 2 : 1);
    part.place.steps.push_back({Step::cut, bytes, static_cast<std::uint8_t>(into * 8), 0});
  }
  return part;
}

// A number that begins in the upper bytes of one register and ends in the lower ones of another.
std::optional<values::Placement> across(const Location& parts, std::uint64_t size) {
  if (parts.size() != 2 || size > 8) return std::nullopt;
  const Piece &first = parts[0], &second = parts[1];
  const auto is_register = [](const Piece& p, std::size_t steps) {
    return p.constant.empty() && p.place.absent.empty() && !p.place.in_memory && p.place.offset == 0 &&
           !p.place.guard && p.place.steps.size() == steps && p.place.steps[0].code == Step::load_register;
  };
  if (!is_register(first, 2) || !is_register(second, 1)) return std::nullopt;
  const values::PlaceStep& cut = first.place.steps[1];
  const auto bits = static_cast<std::uint8_t>(8 * first.size);
  if (cut.code != Step::cut || cut.is_signed || cut.right + bits != 64) return std::nullopt;
  values::Placement place = first.place;
  place.steps.push_back({Step::add_register, 8, bits, second.place.steps[0].operand});
  return place;
}

}  // namespace

Location part_of(const Location& whole, std::uint64_t offset, std::uint64_t size) {
  Location out;
  std::uint64_t start = 0;
  for (const Piece& piece : whole) {
    const std::uint64_t into = offset - start;
    if (offset >= start && into < piece.size) {
      const std::uint64_t here = std::min(size, piece.size - into);
      out.push_back(part_of_piece(piece, into, here));
      if (here == size) return out;
      out.back().size = here;
      offset += here;
      size -= here;
    }
    start += piece.size;
  }
  return absent(kNoPlace);
}

Location guarded(Location location, const Location& by, std::uint8_t size, std::uint64_t value) {
  values::Placement place = place_of(by, size);
  if (!place.absent.empty()) return absent("whether it has a value isn't known here: " + place.absent);
  const auto guard = std::make_shared<const values::Guard>(values::Guard{std::move(place), size, value});
  for (Piece& piece : location) piece.place.guard = guard;
  return location;
}

Location guarded_by_room(Location location, const Location& begin, const Location& end, std::uint64_t bytes) {
  values::Placement from = place_of(begin, 8), to = place_of(end, 8);
  if (!from.absent.empty()) return absent(from.absent);
  if (!to.absent.empty()) return absent("how many elements there are isn't known here: " + to.absent);
  auto shared = std::make_shared<const values::Placement>(std::move(from));
  const auto guard = std::make_shared<const values::Guard>(values::Guard{std::move(to), 8, bytes, std::move(shared)});
  for (Piece& piece : location) piece.place.guard = guard;
  return location;
}

values::Placement place_of(const Location& location, std::uint64_t size) {
  const Location one = part_of(location, 0, size);
  const Piece& piece = one.front();
  if (one.size() > 1) return across(one, size).value_or(absent("its parts are in several places").front().place);
  if (piece.constant.empty()) return piece.place;
  return {{{Step::load_immediate, 8, 0, number_in(piece.constant)}}, 0, false, {}, piece.place.guard};
}

Location locate(const Unit& unit, const Attribute& value, const Surroundings& around) {
  return Expression(unit, around, 0).of(value);
}

bool is_fixed(const Attribute& location) { return location.is_block(); }

}  // namespace probed::dwarf
