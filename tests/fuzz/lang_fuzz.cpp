// Fuzz target for the probe and filter languages and what runs behind them. Input: a definition, and behind the first
// newline a filter. Nothing may crash; besides, whatever is accepted must keep the promises of the headers.
#include <cstdint>
#include <cstring>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "daemon/events/encode.hpp"
#include "daemon/events/fetch.hpp"
#include "daemon/events/usdt_arguments.hpp"
#include "daemon/lang/definition.hpp"
#include "daemon/lang/filter.hpp"
#include "daemon/values/packed.hpp"
#include "proto/base/check.hpp"

namespace probed {
namespace {

// Three quarters of the address space are readable and hold bytes made from the address.
class PatternMemory : public events::MemoryReader {
 public:
  bool read(RemoteAddr from, std::span<std::byte> to) override {
    for (std::size_t i = 0; i < to.size(); ++i) {
      if (!readable(from.value + i)) return false;
      to[i] = static_cast<std::byte>((from.value + i) * 2654435761u >> 24);
    }
    return true;
  }
  std::ptrdiff_t read_string(RemoteAddr from, std::span<std::byte> to) override {
    for (std::size_t i = 0; i < to.size(); ++i) {
      if (!read(from + i, to.subspan(i, 1))) return -1;
      if (to[i] == std::byte{0}) return static_cast<std::ptrdiff_t>(i);
    }
    return static_cast<std::ptrdiff_t>(to.size());
  }

 private:
  static bool readable(std::uint64_t address) { return (address >> 6) % 4 != 3; }
};

void check_error(const Error& error, std::string_view text) {
  PROBED_CHECK(error.column.has_value() && *error.column <= text.size(), "an error's column lies in the text");
  PROBED_CHECK(!error.message.empty(), "an error has a message");
  PROBED_CHECK(error.message.find('\n') == std::string::npos, "a message is one line");
}

void check_definition(const lang::Definition& definition, std::string_view text) {
  PROBED_CHECK(definition.text == text, "a definition keeps its text");
  PROBED_CHECK(definition.args.size() <= lang::kMaxFetchArgs, "the number of arguments is bounded");
  PROBED_CHECK(definition.name.empty() || lang::is_identifier(definition.name), "event names are identifiers");
  if (definition.kind != lang::Kind::remove)
    PROBED_CHECK(lang::is_identifier(lang::generated_name(definition)), "generated names are identifiers");
  std::set<std::string> names;
  for (const lang::FetchArg& arg : definition.args) {
    PROBED_CHECK(names.insert(arg.name).second, "argument names are unique");
    PROBED_CHECK(arg.name == "$retval" || lang::is_identifier(arg.name), "argument names are identifiers");
    PROBED_CHECK(arg.expr && arg.column < text.size(), "arguments have an expression and a place");
    auto again = lang::parse_definition("r f x=" + arg.text + (arg.type_given ? ":" + to_string(arg.type) : ""));
    PROBED_CHECK(again.ok(), "an accepted argument is accepted alone");
    PROBED_CHECK(to_string(again->args[0].type) == to_string(arg.type), "types print as they parse");
  }
}

void run(const events::FetchProgram& program, std::string_view filter_text, std::size_t salt) {
  PatternMemory memory;
  arch::native::Registers regs;
  std::memset(&regs, static_cast<int>(salt), sizeof regs);
  const values::CommonFields common{1, 2, 3, "fuzz"};
  std::array<std::byte, events::kMaxArgumentBytes> out;
  const std::size_t room = program.args().size() + salt * 37 % (out.size() - program.args().size());
  const std::size_t used = program.run(regs, memory, common, std::span(out).first(room));
  PROBED_CHECK(used <= room, "a program stays in its room");
  const auto packed = std::span<const std::byte>(out).first(used);
  values::PackedReader reader(packed);
  for (const lang::FetchArg& arg : program.args()) reader.skip(arg.type);
  PROBED_CHECK(reader.rest().empty(), "packed arguments can be walked");

  auto filter = lang::Filter::compile(filter_text, program.args());
  if (filter)
    static_cast<void>(filter->matches(packed, common));
  else
    check_error(filter.error(), filter_text);
  std::string json;
  append_event_json(json, events::make_schema("g/e", "f+0x0", program.args()), {}, packed);
  PROBED_CHECK(json.front() == '{' && json.ends_with("}}"), "an event is an object");
}

// The same arguments at a static probe whose note says `operands`.
void test_static_probe(const lang::Definition& definition, events::CompileContext context, std::string_view operands,
                       std::size_t salt) {
  const elf::UsdtSite usdt{"provider", "name", elf::parse_usdt_arguments(operands)};
  PROBED_CHECK(usdt.arguments.size() == elf::count_usdt_arguments(operands), "arguments are counted as parsed");
  context.usdt = &usdt;
  auto args = events::with_usdt_arguments(definition.args, usdt);
  if (!args) return check_error(args.error(), definition.text);
  auto program = events::FetchProgram::compile(*args, context);
  if (!program) return check_error(program.error(), definition.text);
  run(*program, "", salt);
}

void test_input(std::string_view input) {
  const std::size_t newline = input.find('\n');
  const std::string_view text = input.substr(0, newline);
  const std::string_view filter = newline == input.npos ? std::string_view() : input.substr(newline + 1);
  auto definition = lang::parse_definition(text);
  if (!definition) return check_error(definition.error(), text);
  check_definition(*definition, text);
  events::CompileContext context;
  context.resolve_data = [](std::string_view) -> Result<RemoteAddr> { return RemoteAddr{0x10000}; };
  context.is_return = definition->kind == lang::Kind::return_probe;
  context.file_bias = 0x400000;
  auto program = events::FetchProgram::compile(definition->args, context);
  if (!program) return check_error(program.error(), text);
  run(*program, filter, input.size());
  test_static_probe(*definition, context, filter, input.size());
  const auto besides = filter.empty() ? std::nullopt : std::optional<std::string>(filter);
  const lang::Condition condition(*definition, besides);
  if (condition.empty()) return;
  auto both = condition.compile(program->args(), context.is_return, 0x10000);
  if (!both) check_error(both.error(), both.error().reason == Reason::bad_definition ? text : filter);
}

}  // namespace
}  // namespace probed

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  probed::test_input({reinterpret_cast<const char*>(data), size});
  return 0;
}
