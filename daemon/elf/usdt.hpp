// Static probes (USDT): the notes that <sys/sdt.h> leaves in an ELF file, and what they say of their arguments. Pure.
//
// A note gives the address of a nop, PROVIDER and NAME, the arguments as assembler operands, and the address of a
// counter of 16 bits (semaphore, reference counter) that is raised while somebody traces: programs compute arguments,
// or pass the place at all, only when it isn't 0. Layout: systemtap's sys/sdt.h, "UserSpaceProbeImplementation".
//
// Thread: any. Files belong to strangers: sizes are bounded, damaged notes are skipped.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "arch/operand.hpp"
#include "daemon/base/types.hpp"
#include "daemon/elf/image.hpp"
#include "daemon/values/place.hpp"
#include "proto/base/result.hpp"

namespace probed::elf {

struct UsdtNote {
  ElfAddr place;
  ElfAddr semaphore;  // 0: none
  std::string provider, name;
  std::string arguments;  // as written: "-4@%edi 8@-16(%rbp)"
};

// In the file's order.
std::vector<UsdtNote> read_usdt_notes(const Image& image);

// One argument: SIZE@OPERAND; a size below 0 means signed, an 'f' behind it floating point.
struct UsdtArgument {
  std::uint8_t size = 8;  // 1, 2, 4 or 8 bytes
  bool is_signed = false;
  bool is_float = false;
  arch::Operand operand;
  std::string text;     // as written
  std::string why_not;  // it can't be read, and why; empty: it can
};

// Splits and parses what a note says; operands in this machine's notation. A symbol is left to be resolved.
std::vector<UsdtArgument> parse_usdt_arguments(std::string_view text);
// How many there are.
std::size_t count_usdt_arguments(std::string_view text);

// What is known of the static probe at one place of a target.
struct UsdtSite {
  std::string provider, name;
  std::vector<UsdtArgument> arguments;  // symbols are resolved: they have become part of the operand's number
};

// Its $argN. Errors: there is none of that number, or it can't be read; without a column. (Here, for the event path
// needs nothing else of this part.)
inline Result<const UsdtArgument*> usdt_argument(const UsdtSite& site, unsigned number) {
  const std::string name = site.provider + ":" + site.name, arg = "$arg" + std::to_string(number);
  if (number == 0 || number > site.arguments.size())
    return Error{Reason::bad_definition,
                 name + " has no " + arg,
                 "it has " + std::to_string(site.arguments.size()) + " arguments",
                 {}};
  const UsdtArgument& argument = site.arguments[number - 1];
  if (!argument.why_not.empty())
    return Error{Reason::unsupported,
                 arg + " of " + name + " (" + argument.text + ") can't be read: " + argument.why_not,
                 "leave it out",
                 {}};
  return &argument;
}
// Its value as a number of 8 bytes. Errors: as above, and when it is a floating-point number.
Result<values::Placement> usdt_number(const UsdtSite& site, unsigned number);

}  // namespace probed::elf
