// See return_fetch.hpp.
#include "daemon/events/return_fetch.hpp"

#include <algorithm>
#include <cstring>

#include "daemon/events/record.hpp"
#include "daemon/values/packed.hpp"

namespace probed::events {
namespace {

constexpr std::size_t kMostWords = 2 * lang::kMaxFetchArgs;

// Null: the argument belongs to the exit.
const lang::FetchExprPtr* entry_expression(const lang::FetchArg& arg) {
  if (const auto* entry = std::get_if<lang::EntryExpr>(&arg.expr->node)) return &entry->inner;
  return std::holds_alternative<lang::ArgumentExpr>(arg.expr->node) ? &arg.expr : nullptr;
}

// One argument's bytes; the reader is left behind it.
std::span<const std::byte> take(values::PackedReader& reader, const values::Type& type) {
  const auto from = reader.rest();
  reader.skip(type);
  return from.first(from.size() - reader.rest().size());
}

}  // namespace

Result<ReturnFetch> ReturnFetch::compile(std::span<const lang::FetchArg> args, CompileContext context) {
  ReturnFetch out;
  out.args_.assign(args.begin(), args.end());
  std::vector<lang::FetchArg> at_entry, at_exit;
  for (const lang::FetchArg& arg : args) {
    const lang::FetchExprPtr* const expr = entry_expression(arg);
    out.at_entry_.push_back(expr != nullptr);
    if (expr == nullptr) {
      at_exit.push_back(arg);
      continue;
    }
    at_entry.push_back(arg);
    at_entry.back().expr = *expr;
  }
  std::vector<lang::FetchExprPtr> words;
  CompileContext exit = context;
  exit.is_return = true;
  exit.entry_words = &words;
  auto exit_program = FetchProgram::compile(at_exit, exit);
  if (!exit_program) return std::move(exit_program).error();
  if (words.size() > kMostWords)
    return Error{
        Reason::limit_exceeded, "the arguments need too many values of the function's entry", "ask for less", {}};
  out.words_ = words.size();
  for (const lang::FetchExprPtr& word : words) {
    lang::FetchArg arg;
    arg.expr = word;
    arg.column = word->column;
    at_entry.push_back(std::move(arg));
  }
  auto entry_program = FetchProgram::compile(at_entry, context);
  if (!entry_program) return std::move(entry_program).error();
  out.entry_ = std::move(*entry_program);
  out.exit_ = std::move(*exit_program);
  return out;
}

std::size_t ReturnFetch::run_exit(const arch::native::Registers& regs, MemoryReader& memory,
                                  values::CommonFields common, std::span<const std::byte> kept,
                                  std::span<std::byte> scratch, std::span<std::byte> out) const {
  std::array<values::EntryWord, kMostWords> words;
  values::PackedReader entry(kept);
  for (const lang::FetchArg& arg : entry_args()) entry.skip(arg.type);
  for (std::size_t i = 0; i < words_; ++i) {
    words[i].present = entry.present();
    if (words[i].present) words[i].value = entry.value();
  }
  common.entry_words = std::span(words).first(words_);
  const std::size_t size = exit_.run(regs, memory, common, scratch);
  return merge(kept, scratch.first(size), out);
}

std::size_t ReturnFetch::merge(std::span<const std::byte> kept, std::span<const std::byte> at_exit,
                               std::span<std::byte> out) const {
  values::PackedReader entry(kept), exit(at_exit);
  std::size_t used = 0;
  for (std::size_t i = 0; i < args_.size(); ++i) {
    const auto bytes = take(at_entry_[i] ? entry : exit, args_[i].type);
    const std::size_t left = args_.size() - i - 1;  // each gets a byte at least
    if (!bytes.empty() && bytes.size() + left <= out.size() - used) {
      std::ranges::copy(bytes, out.begin() + static_cast<std::ptrdiff_t>(used));
      used += bytes.size();
    } else {
      out[used++] = std::byte{0};
    }
  }
  return used;
}

}  // namespace probed::events
