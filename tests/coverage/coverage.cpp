// coverage [OPTION]... FILE...: what share of the instructions of ELF files can carry a probe, and how.
//
// Decodes every function of each file, asks the relocator about every instruction and prints one row for each file,
// then the refused instructions by reason, with examples. Exit status: 0; 1: a file is over the limit; 2: wrong usage,
// or a file can't be read.
//   --max-refused PERCENT  the limit for each file's share of refused instructions (default 0.1)
//   --examples N           how many for each reason (default 3)
//   --refusals             only print the table of what is refused and why
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tests/arch/hex.hpp"
#include "tests/coverage/checks.hpp"

namespace probed::coverage {
namespace {

struct Options {
  double max_refused = 0.1;  // percent
  std::size_t examples = 3;
  bool refusals = false;
  std::vector<std::string> files;
};

struct Refused {
  std::uint64_t count = 0;
  std::vector<std::string> examples;
};

// How many can't get a jump for one reason: instructions, and functions' entries among them.
struct Unoptimised {
  std::uint64_t instructions = 0, entries = 0;
};

struct Totals {
  std::string path;
  std::uint64_t functions = 0, named = 0, instructions = 0, refused = 0;
  std::uint64_t unknown = 0, function_bytes = 0, executable_bytes = 0;
  std::vector<std::uint64_t> instruction_counts, function_counts;
  std::map<arch::Refusal, Refused> refusals;
  std::map<arch::RegionRefusal, Unoptimised> unoptimised;
  std::map<arch::ExitRefusal, Refused> without_exits;
  std::uint64_t exits = 0;
  std::chrono::nanoseconds flow_time{};

  double refused_percent() const {
    return instructions == 0 ? 0 : 100.0 * static_cast<double>(refused) / static_cast<double>(instructions);
  }
};

void count_refused(const FunctionCode& code, const Instruction& one, std::size_t examples, Totals& totals) {
  ++totals.refused;
  Refused& refused = totals.refusals[one.refusal];
  ++refused.count;
  if (refused.examples.size() >= examples) return;
  const std::uint64_t offset = static_cast<std::uint64_t>(one.bytes.data() - code.function.bytes.data());
  // An undecodable one is shown with what follows it.
  const std::size_t more =
      one.insn.length == 0 ? std::min<std::size_t>(8, code.function.bytes.size() - offset) : one.bytes.size();
  refused.examples.push_back(fmt::format("{:#x} ({}+{:#x}): {}", code.function.address + offset,
                                         code.function.name.empty() ? "?" : code.function.name, offset,
                                         test::to_hex({one.bytes.data(), more})));
}

void count_exits(const Function& function, std::size_t examples, Totals& totals) {
  totals.exits += function.exits.exits.size();
  if (function.exits) return;
  Refused& refused = totals.without_exits[function.exits.refusal];
  if (++refused.count > examples) return;
  refused.examples.push_back(fmt::format("{:#x} ({}): {:#x}", function.address,
                                         function.name.empty() ? "?" : function.name, function.exits.where));
}

Totals count(const File& file, const Options& options) {
  Totals totals;
  totals.path = file.path;
  totals.functions = file.functions.size();
  totals.named = file.named;
  totals.flow_time = file.flow_time;
  totals.function_bytes = file.function_bytes;
  totals.executable_bytes = file.executable_bytes;
  totals.instruction_counts.resize(instruction_checks().size());
  totals.function_counts.resize(function_checks().size());
  for (const Function& function : file.functions) {
    const FunctionCode code = analyse(file, function);
    totals.instructions += code.instructions.size();
    totals.unknown += code.unknown;
    count_exits(function, options.examples, totals);
    for (std::size_t i = 0; i < function_checks().size(); ++i)
      totals.function_counts[i] += function_checks()[i].holds(code) ? 1 : 0;
    for (const Instruction& one : code.instructions) {
      for (std::size_t i = 0; i < instruction_checks().size(); ++i)
        totals.instruction_counts[i] += instruction_checks()[i].holds(one) ? 1 : 0;
      if (one.refusal != arch::Refusal::none) count_refused(code, one, options.examples, totals);
      if (one.jump != arch::RegionRefusal::none) {
        ++totals.unoptimised[one.jump].instructions;
        totals.unoptimised[one.jump].entries += &one == &code.instructions.front() ? 1 : 0;
      }
    }
  }
  return totals;
}

// ---- printing -------------------------------------------------------------------------------------------------------

constexpr int kNameWidth = 22;

std::string percent(std::uint64_t part, std::uint64_t whole) {
  if (part == 0 || whole == 0) return "0 %";
  if (part == whole) return "100 %";
  return fmt::format("{:.3f} %", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

void print_header() {
  fmt::print("{:<{}} {:>9} {:>7} {:>9} {:>12}", "file", kNameWidth, "functions", "named", "of code", "instructions");
  for (const InstructionCheck& check : instruction_checks()) fmt::print(" {:>11}", check.title);
  fmt::print(" |");
  for (const FunctionCheck& check : function_checks()) fmt::print(" {:>11}", check.title);
  fmt::print(" {:>9}\n", "unknown B");
}

void print_row(const Totals& t) {
  const std::string_view name = std::string_view(t.path).substr(t.path.rfind('/') + 1);
  fmt::print("{:<{}} {:>9} {:>7} {:>9} {:>12}", name, kNameWidth, t.functions, t.named,
             percent(t.function_bytes, t.executable_bytes), t.instructions);
  for (const std::uint64_t n : t.instruction_counts) fmt::print(" {:>11}", percent(n, t.instructions));
  fmt::print(" |");
  for (const std::uint64_t n : t.function_counts) fmt::print(" {:>11}", percent(n, t.functions));
  fmt::print(" {:>9}\n", t.unknown);
}

void print_legend() {
  fmt::print(
      "\nof code: the functions' share of the executable segments' bytes; the rest is padding and nameless code.\n"
      "Instruction columns are shares of all instructions: boosted (a relocated copy runs without a stop), emulated\n"
      "(done in registers), stepped (needs a single step), refused; the four make 100 %. steppable: a post-handler is\n"
      "possible. optimised: the instruction can be replaced by a jump, when it is the only one; by a near jump, or a "
      "short one\n"
      "to an island in padding. Function columns: entry (the first instruction can carry a probe), optimised (it can "
      "be replaced by a jump), everywhere (all of them can carry a probe),\n"
      "returns (its entry and every place where it is left can: it can carry a return probe; or it never returns),\n"
      "by jumps (it returns, and each of those places could be a jump, when it is the only one).\n"
      "unknown B: bytes of functions behind something that is no instruction.\n");
}

void print_refusals(const Totals& t) {
  if (t.refusals.empty()) return;
  fmt::print("\n{}: {} refused of {} ({})\n", t.path, t.refused, t.instructions, percent(t.refused, t.instructions));
  for (const auto& [refusal, refused] : t.refusals) {
    fmt::print("  {:>6}  {}\n", refused.count, arch::describe(refusal));
    for (const std::string& example : refused.examples) fmt::print("            {}\n", example);
  }
}

void print_unoptimised(const Totals& t) {
  fmt::print("\n{}: no jump for (instructions, entries; analysed in {:.1f} ms)\n", t.path,
             std::chrono::duration<double, std::milli>(t.flow_time).count());
  for (const auto& [refusal, counts] : t.unoptimised)
    fmt::print("  {:>8} {:>9} {:>6} {:>9}  {}\n", counts.instructions, percent(counts.instructions, t.instructions),
               counts.entries, percent(counts.entries, t.functions), arch::describe(refusal).sentence);
}

void print_without_exits(const Totals& t) {
  fmt::print("\n{}: {} exits; no return probe for (functions)\n", t.path, t.exits);
  for (const auto& [refusal, refused] : t.without_exits) {
    fmt::print("  {:>8} {:>9}  {}\n", refused.count, percent(refused.count, t.functions),
               arch::describe(refusal).sentence);
    for (const std::string& example : refused.examples) fmt::print("            {}\n", example);
  }
}

void print_refused_forms() {
  fmt::print("What is refused, the reason given to clients, and why:\n");
  for (const auto& form : arch::native::refused_forms())
    fmt::print("\n  {}\n    example: {}\n    reason:  {}\n    why:     {}\n", form.what, form.example,
               arch::describe(form.refusal), form.why);
}

// ---- arguments ------------------------------------------------------------------------------------------------------

[[noreturn]] void wrong_usage() {
  fmt::print(stderr, "usage: coverage [--max-refused PERCENT] [--examples N] [--refusals] FILE...\n");
  std::exit(2);
}

template <class Number>
Number number_after(int& i, int argc, char** argv) {
  if (++i >= argc) wrong_usage();
  const std::string_view text = argv[i];
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) wrong_usage();
  return value;
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--max-refused")
      options.max_refused = number_after<double>(i, argc, argv);
    else if (argument == "--examples")
      options.examples = number_after<std::size_t>(i, argc, argv);
    else if (argument == "--refusals")
      options.refusals = true;
    else if (argument.starts_with("-"))
      wrong_usage();
    else
      options.files.emplace_back(argument);
  }
  if (options.files.empty() && !options.refusals) wrong_usage();
  return options;
}

int run(const Options& options) {
  std::vector<Totals> all;
  if (options.refusals) print_refused_forms();
  if (!options.files.empty()) print_header();
  for (const std::string& path : options.files) {
    Result<File> file = read_file_functions(path);
    if (!file) {
      fmt::print(stderr, "{}\n", file.error().message);
      return 2;
    }
    all.push_back(count(*file, options));
    print_row(all.back());
    std::fflush(stdout);
  }
  if (!options.files.empty()) print_legend();
  int status = 0;
  for (const Totals& t : all) {
    print_refusals(t);
    print_unoptimised(t);
    print_without_exits(t);
    if (t.instructions != 0 && t.refused_percent() <= options.max_refused) continue;
    fmt::print(
        "{}: {}\n", t.path,
        t.instructions == 0 ? "no code was found" : fmt::format("more than {} % are refused", options.max_refused));
    status = 1;
  }
  return status;
}

}  // namespace
}  // namespace probed::coverage

int main(int argc, char** argv) { return probed::coverage::run(probed::coverage::parse(argc, argv)); }
