// Register names and the AAPCS64 calling convention. Constant data; any thread.
#include "arch/aarch64/regs.hpp"

#include <charconv>

#include "proto/base/check.hpp"

namespace probed::arch::aarch64 {
namespace {

// x0 to x30, written without leading zeros.
std::optional<std::size_t> numbered_register(std::string_view name) {
  if (name.size() < 2 || name.size() > 3 || name[0] != 'x' || (name[1] == '0' && name.size() > 2)) return std::nullopt;
  std::size_t number = 0;
  const char* end = name.data() + name.size();
  const auto [parsed, error] = std::from_chars(name.data() + 1, end, number);
  if (error != std::errc{} || parsed != end || number > 30) return std::nullopt;
  return offsetof(Registers, x) + number * sizeof(std::uint64_t);
}

}  // namespace

std::optional<std::size_t> register_offset(std::string_view name) {
  if (name == "sp") return offsetof(Registers, stack_pointer);
  if (name == "pc") return offsetof(Registers, program_counter);
  if (name == "pstate") return offsetof(Registers, pstate);
  if (name == "lr") name = "x30";
  return numbered_register(name);
}

std::vector<std::string_view> register_names() {
  return {"x0",  "x1",  "x2",  "x3",  "x4",  "x5",  "x6",  "x7",  "x8",  "x9",    "x10", "x11",
          "x12", "x13", "x14", "x15", "x16", "x17", "x18", "x19", "x20", "x21",   "x22", "x23",
          "x24", "x25", "x26", "x27", "x28", "x29", "x30", "sp",  "pc",  "pstate"};
}

std::optional<std::size_t> dwarf_register(unsigned number) {
  if (number == 31) return offsetof(Registers, stack_pointer);
  if (number > 31) return std::nullopt;
  return offsetof(Registers, x) + number * sizeof(std::uint64_t);
}

std::optional<unsigned> dwarf_vector_register(unsigned number) {
  constexpr unsigned kFirst = 64, kCount = 32;
  if (number < kFirst || number >= kFirst + kCount) return std::nullopt;
  return number - kFirst;
}

ArgumentPlace argument_place(unsigned number) {
  PROBED_CHECK(number >= 1, "arguments are counted from 1");
  if (number <= kRegisterArguments) return {.memory = false, .offset = sizeof(std::uint64_t) * (number - 1)};
  // The return address is in x30, so the ninth argument is right at sp.
  return {.memory = true, .offset = std::size_t{kWordSize} * (number - kRegisterArguments - 1)};
}

}  // namespace probed::arch::aarch64
