// From parsed arguments to a fetch program. Pure apart from the context's symbol lookup; any thread.
#include <algorithm>
#include <utility>

#include "daemon/events/fetch.hpp"
#include "daemon/events/record.hpp"
#include "daemon/values/packed.hpp"
#include "proto/base/check.hpp"

namespace probed::events {

namespace native = arch::native;
using Code = FetchOp::Code;

namespace {

std::string register_hint() {
  std::string hint = "registers:";
  for (const std::string_view name : native::register_names()) hint.append(" %").append(name);
  hint += "; $arg1 is the first argument on every machine";
  return hint;
}

Error refuse(Reason reason, std::size_t column, std::string message, std::string hint = {}) {
  return {reason, std::move(message), std::move(hint), column};
}

Error only_at_entry(std::size_t column, std::string_view what) {
  return refuse(Reason::unsupported, column, std::string(what) + " can't be fetched on return probes yet",
                "use $argN, $entry(ARG) or $retval, or probe the function's entry or a line");
}

}  // namespace

class FetchCompiler {
 public:
  explicit FetchCompiler(const CompileContext& context) : context_(context) {}

  Result<FetchProgram> compile(std::span<const lang::FetchArg> args) {
    for (const lang::FetchArg& arg : args)
      if (auto e = argument(arg)) return std::move(*e);
    program_.args_.assign(args.begin(), args.end());
    return std::move(program_);
  }

 private:
  using Failure = std::optional<Error>;

  void emit(Code code, std::uint64_t operand = 0) {
    FetchOp op;
    op.code = code;
    op.operand = operand;
    program_.ops_.push_back(op);
  }

  Failure argument(const lang::FetchArg& arg) {
    PROBED_CHECK(arg.expr != nullptr, "a parsed argument has an expression");
    const bool is_bare = std::holds_alternative<lang::ArgumentExpr>(arg.expr->node) ||
                         std::holds_alternative<lang::PlacedExpr>(arg.expr->node);
    stored_ = is_bare && !values::is_string(arg.type.base) ? values::size_of(arg.type.base) : 0;
    value_ = counted_ = false;
    if (auto e = expression(*arg.expr)) return e;
    store(arg.type);
    return {};
  }

  Failure expression(const lang::FetchExpr& expr) {
    return std::visit([&](const auto& node) { return load(node, expr.column); }, expr.node);
  }

  Failure load(const lang::RegisterExpr& node, std::size_t column) {
    const auto offset = native::register_offset(node.name);
    if (!offset)
      return refuse(Reason::bad_definition, column, "unknown register \"%" + node.name + "\"", register_hint());
    emit(Code::load_register, *offset);
    return {};
  }
  // Memory operands leave an address and one dereference, which the store may absorb.
  Failure load(const lang::AddressExpr& node, std::size_t) {
    emit(Code::load_immediate, node.address);
    emit(Code::dereference);
    return {};
  }
  Failure load(const lang::SymbolExpr& node, std::size_t column) {
    if (!context_.resolve_data)
      return refuse(Reason::unsupported, column, "@" + node.name + ": symbols can't be looked up here");
    auto address = context_.resolve_data(node.name);
    if (!address) {
      Error error = std::move(address).error();
      if (!error.column) error.column = column;
      return error;
    }
    emit(Code::load_immediate, address->value + static_cast<std::uint64_t>(node.offset));
    emit(Code::dereference);
    return {};
  }
  Failure load(const lang::FileOffsetExpr& node, std::size_t column) {
    if (!context_.file_bias)
      return refuse(Reason::unsupported, column, "@+OFFS: the probed address is in no file", "use @0xADDR");
    emit(Code::load_immediate, *context_.file_bias + node.offset);
    emit(Code::dereference);
    return {};
  }
  Failure load(const lang::StackEntryExpr& node, std::size_t) {
    emit(Code::load_stack_pointer);
    emit(Code::dereference, std::uint64_t{node.index} * native::kWordSize);
    value_ = true;
    return {};
  }
  Failure load(const lang::StackExpr&, std::size_t) { return emit(Code::load_stack_pointer), Failure{}; }
  Failure load(const lang::RetvalExpr&, std::size_t column) {
    if (!context_.is_return) return refuse(Reason::bad_definition, column, "$retval is only there on return probes");
    emit(Code::load_return_value, native::kReturnValueOffset);
    return {};
  }
  Failure load(const lang::CommExpr&, std::size_t) { return emit(Code::store_comm), Failure{}; }
  Failure load(const lang::DurationExpr&, std::size_t column) {
    if (!context_.is_return) return refuse(Reason::bad_definition, column, "$duration is only there on return probes");
    emit(Code::load_duration);
    return {};
  }
  Failure load(const lang::ArgumentExpr& node, std::size_t column) {
    if (context_.usdt) return usdt_argument(node, column);
    if (context_.entry_words) return keep_at_entry(std::make_shared<lang::FetchExpr>(lang::FetchExpr{node, column}));
    if (context_.is_return || !context_.at_function_entry)
      return refuse(Reason::bad_definition, column,
                    "$arg" + std::to_string(node.number) + " is only there at a function's entry",
                    "probe the function's first instruction, or name the register");
    const auto place = native::argument_place(node.number);
    if (!place.memory) return emit(Code::load_register, place.offset), Failure{};
    emit(Code::load_stack_pointer);
    emit(Code::dereference, place.offset);
    value_ = true;
    return {};
  }
  Failure load(const lang::AllArgumentsExpr&, std::size_t column) {
    if (context_.no_place) return emit(Code::load_immediate), Failure{};
    return only_at_entry(column, "$args");
  }
  Failure load(const lang::VariableExpr& node, std::size_t column) {
    if (context_.no_place) return emit(Code::load_immediate), Failure{};
    return only_at_entry(column, "the variable \"" + node.path + "\"");
  }
  Failure load(const lang::DerefExpr& node, std::size_t) {
    PROBED_CHECK(node.inner != nullptr, "a dereference has an operand");
    if (auto e = expression(*node.inner)) return e;
    value_ = false;
    emit(Code::dereference, static_cast<std::uint64_t>(node.offset));
    return {};
  }
  Failure load(const lang::ImmediateExpr& node, std::size_t) {
    return emit(Code::load_immediate, static_cast<std::uint64_t>(node.value)), Failure{};
  }
  Failure load(const lang::TextExpr& node, std::size_t) {
    emit(Code::store_text, program_.texts_.size());
    program_.texts_.push_back(node.text.substr(0, kMaxString));
    return {};
  }

  Failure load(const lang::EntryExpr& node, std::size_t column) {
    if (!context_.entry_words)
      return refuse(Reason::bad_definition, column, "$entry(ARG) is only there on return probes");
    return keep_at_entry(node.inner);
  }

  Failure keep_at_entry(lang::FetchExprPtr expr) {
    emit(Code::load_entry_word, context_.entry_words->size());
    context_.entry_words->push_back(std::move(expr));
    return {};
  }

  Failure load(const lang::PlacedExpr& node, std::size_t) {
    const values::Placement& place = *node.place;
    if (!place.absent.empty()) return emit(Code::unavailable), Failure{};
    of_result_ = node.of_result;
    if (of_result_) emit(Code::load_return_value, native::kReturnValueOffset);  // a null where there is none
    if (place.guard) require(*place.guard);
    if (node.length) load_length(node);
    load_place(place);
    if (node.what == lang::PlacedExpr::What::object) return emit(Code::dereference, place.offset), Failure{};
    if (place.in_memory)
      emit_sized(Code::dereference, place.offset, node.size, node.is_signed);
    else if (place.offset != 0)
      emit(Code::add, place.offset);
    if (!place.in_memory && node.size < 8 && (stored_ == 0 || stored_ > node.size))
      emit_sized(Code::cut, 0, node.size, node.is_signed);
    value_ = true;
    if (node.what != lang::PlacedExpr::What::pointee) return {};
    value_ = false;
    emit(Code::dereference);
    return {};
  }

  void require(const values::Guard& guard) {
    if (guard.place.guard) require(*guard.place.guard);
    if (guard.begin) {
      load_number(*guard.begin, 8);
      emit(Code::keep_begin);
    }
    load_number(guard.place, guard.size);
    emit(guard.begin ? Code::require_room : Code::require, guard.value);
  }

  void load_place(const values::Placement& place) {
    if (place.steps.empty()) emit(Code::load_immediate);
    std::span<const values::PlaceStep> steps(place.steps);
    const bool from_entry = !steps.empty() && steps[0].code == values::PlaceStep::Code::load_entry_register;
    if (context_.entry_words && (!of_result_ || from_entry)) steps = steps.subspan(keep_base(steps));
    for (const values::PlaceStep& step : steps) emit_step(step);
  }

  // At a return the registers that a place is counted from are those of the entry: what is read of them there is kept,
  // and of an argument on the stack the argument. Returns the steps this has done.
  std::size_t keep_base(std::span<const values::PlaceStep> steps) {
    using Step = values::PlaceStep::Code;
    const auto is_register = [](const values::PlaceStep& step) {
      return step.code == Step::load_register || step.code == Step::load_vector ||
             step.code == Step::load_thread_pointer || step.code == Step::load_entry_register ||
             step.code == Step::add_register;
    };
    std::size_t kept = 0;  // through the last one that looks at a register
    for (std::size_t i = 0; i < steps.size(); ++i)
      if (is_register(steps[i])) kept = i + 1;
    if (kept == 0) return 0;
    const bool on_stack = steps[0].code == Step::load_register && steps[0].operand == native::register_offset("sp");
    if (kept == 1 && on_stack && steps.size() > 1 && steps[1].code == Step::dereference) kept = 2;
    lang::PlacedExpr base;
    values::Placement place;
    place.steps.assign(steps.begin(), steps.begin() + static_cast<std::ptrdiff_t>(kept));
    const auto is_same = [&](const lang::FetchExprPtr& word) {
      const auto* placed = std::get_if<lang::PlacedExpr>(&word->node);
      return placed && placed->what == base.what && placed->size == base.size && !placed->length &&
             !placed->place->in_memory && placed->place->offset == 0 && !placed->place->guard &&
             placed->place->steps == place.steps;
    };
    const auto same = std::ranges::find_if(*context_.entry_words, is_same);
    if (same != context_.entry_words->end()) {  // many members are counted from one register
      emit(Code::load_entry_word, static_cast<std::uint64_t>(same - context_.entry_words->begin()));
      return kept;
    }
    base.place = std::make_shared<const values::Placement>(std::move(place));
    keep_at_entry(std::make_shared<const lang::FetchExpr>(lang::FetchExpr{std::move(base), 0}));
    return kept;
  }

  void load_number(const values::Placement& place, std::uint8_t size) {
    load_place(place);
    if (place.in_memory)
      emit_sized(Code::dereference, place.offset, size, false);
    else if (place.offset != 0)
      emit(Code::add, place.offset);
    if (!place.in_memory && size < 8) emit_sized(Code::cut, 0, size, false);
  }

  void load_length(const lang::PlacedExpr& node) {
    load_number(*node.length, node.length_size);
    emit(Code::keep_length);
    counted_ = true;
  }

  void emit_sized(Code code, std::uint64_t operand, std::uint8_t size, bool is_signed) {
    emit(code, operand);
    program_.ops_.back().size = size;
    program_.ops_.back().is_signed = is_signed;
  }

  void emit_step(const values::PlaceStep& step) {
    using Step = values::PlaceStep::Code;
    constexpr std::pair<Step, Code> kSteps[] = {{Step::load_register, Code::load_register},
                                                {Step::load_vector, Code::load_vector},
                                                {Step::load_thread_pointer, Code::load_thread_pointer},
                                                {Step::load_entry_register, Code::load_register},
                                                {Step::load_immediate, Code::load_immediate},
                                                {Step::add, Code::add},
                                                {Step::add_register, Code::add_register},
                                                {Step::dereference, Code::dereference},
                                                {Step::cut, Code::cut}};
    const auto* row = std::ranges::find(kSteps, step.code, &std::pair<Step, Code>::first);
    emit_sized(row->second, step.operand, step.size, step.is_signed);
    FetchOp& op = program_.ops_.back();
    (op.code == Code::add_register ? op.left : op.right) = step.right;
  }

  // $argN of a static probe, by its operand.
  Failure usdt_argument(const lang::ArgumentExpr& node, std::size_t column) {
    auto argument = elf::usdt_argument(*context_.usdt, node.number);
    if (!argument) {
      Error error = std::move(argument).error();
      error.column = column;
      return error;
    }
    load_operand(**argument);
    return {};
  }

  void load_operand(const elf::UsdtArgument& argument) {
    using Kind = arch::Operand::Kind;
    const arch::Operand& operand = argument.operand;
    const bool cut_by_store = stored_ != 0 && stored_ <= argument.size;
    if (operand.kind == Kind::memory) return load_memory_operand(argument, cut_by_store);
    if (operand.kind == Kind::constant)
      emit(Code::load_immediate, operand.number);
    else if (operand.kind == Kind::vector)
      emit(Code::load_vector, operand.number);
    else
      emit(Code::load_register, *operand.base);
    const unsigned width = operand.kind == Kind::value ? operand.bits / 8u : 8u;
    const auto size = static_cast<std::uint8_t>(std::min<unsigned>(argument.size, width));
    if (operand.shift == 0 && (size == 8 || (stored_ != 0 && stored_ <= size))) return;
    emit(Code::cut);
    program_.ops_.back().size = size;
    program_.ops_.back().is_signed = argument.is_signed;
    program_.ops_.back().right = operand.shift;
  }

  void load_memory_operand(const elf::UsdtArgument& argument, bool cut_by_store) {
    const arch::Operand& operand = argument.operand;
    if (operand.base)
      emit(Code::load_register, *operand.base);
    else
      emit(Code::load_immediate);
    if (operand.index) {
      emit(Code::add_register, *operand.index);
      program_.ops_.back().left = operand.scale;
    }
    emit(Code::dereference, operand.number);
    program_.ops_.back().size = argument.size;
    program_.ops_.back().is_signed = argument.is_signed;
    value_ = !cut_by_store;
  }

  // The last dereference becomes part of the store, which then reads exactly the type's bytes (the kernel's
  // FETCH_OP_ST_MEM). $stackN and $argN are values even where they lie in memory: always a whole word, then cut.
  void store(const values::Type& type) {
    FetchOp& last = program_.ops_.back();
    if (last.code == Code::store_comm || last.code == Code::store_text) return;
    const bool memory = last.code == Code::dereference && !std::exchange(value_, false);
    const bool array = type.array.has_value();
    FetchOp op;
    op.code = values::is_string(type.base) ? (array ? Code::store_string_array : Code::store_string)
              : !memory                    ? Code::store_value
                                           : (array ? Code::store_memory_array : Code::store_memory);
    if (std::exchange(counted_, false) && op.code == Code::store_string) op.code = Code::store_counted;
    op.size = values::size_of(type.base);
    op.is_signed = type.bitfield ? type.bitfield->is_signed : values::is_signed(type.base);
    op.count = op.code == Code::store_string ? type.text_limit : type.array.value_or(0);
    if (type.bitfield) {
      op.left = static_cast<std::uint8_t>(op.size * 8 - type.bitfield->width - type.bitfield->offset);
      op.right = static_cast<std::uint8_t>(op.size * 8 - type.bitfield->width);
    }
    if (memory) {
      op.operand = last.operand;
      last = op;
    } else {
      program_.ops_.push_back(op);
    }
  }

  const CompileContext& context_;
  FetchProgram program_;
  std::uint8_t stored_ = 0;  // bytes of a bare $argN that are kept; 0: the argument is something else
  bool of_result_ = false;   // of the place being loaded
  bool counted_ = false;     // the length of the text has been kept
  bool value_ = false;       // the dereference just emitted yields a value, not a place in memory
};

Result<FetchProgram> FetchProgram::compile(std::span<const lang::FetchArg> args, const CompileContext& context) {
  return FetchCompiler(context).compile(args);
}

bool FetchProgram::needs_comm() const {
  for (const FetchOp& op : ops_)
    if (op.code == Code::store_comm) return true;
  return false;
}

}  // namespace probed::events
