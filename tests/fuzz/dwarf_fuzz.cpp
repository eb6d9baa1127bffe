// Fuzz target for what reads debug information in files of its own. Input: the size of a program (4 bytes, little
// endian), the program, and a file beside it, which is taken for everything that such a file may be: its split units, a
// package of them, its supplementary file, its stripped-off debug information. Whatever the bytes are, every question
// about them ends soon, in bounds, with an answer or a refusal.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "daemon/dwarf/info.hpp"
#include "daemon/dwarf/variables.hpp"
#include "proto/base/check.hpp"

namespace probed::dwarf {
namespace {

using Bytes = std::vector<std::byte>;

constexpr unsigned kMostSeconds = 20;  // for one input, of some milliseconds' work; SIGALRM ends the fuzzer

void ask_at(const std::shared_ptr<const DebugInfo>& info, std::uint64_t address) {
  const Variables variables(info, address, 0, {[](std::string_view) { return std::nullopt; }, {}});
  static_cast<void>(variables.lacking());
  static_cast<void>(variables.parameters());
  static_cast<void>(variables.parts("$retval", 64));
  for (const char* path : {"p->next->text", "*p", "values[2]", "n"}) {
    const auto value = variables.find(path);
    if (!value) PROBED_CHECK(!value.error().message.empty(), "a refusal has a message");
  }
  const auto visible = variables.visible();
  if (!visible) return;
  for (std::size_t i = 0; i < visible->size() && i < 16; ++i)
    static_cast<void>(variables.parts((*visible)[i].name, 64));
}

void ask(const std::shared_ptr<const DebugInfo>& info) {
  if (!info) return;
  const auto lines = info->lines_of("small.c", 200);
  static_cast<void>(info->find_line("small.c", 20));
  static_cast<void>(info->functions_of("*.c", "*"));
  static_cast<void>(info->inlined("helper"));
  for (std::size_t i = 0; i < lines.size(); i += 3) ask_at(info, lines[i].address);
}

void test_input(std::span<const std::byte> input) {
  std::uint32_t size = 0;
  if (input.size() < sizeof size) return;
  std::memcpy(&size, input.data(), sizeof size);
  input = input.subspan(sizeof size);
  if (size > input.size()) return;
  const auto program = elf::Image::from_bytes(Bytes(input.begin(), input.begin() + size), "program");
  if (!program) return;
  const Bytes beside(input.begin() + size, input.end());
  const auto open = [&](const std::string&, std::string& unfit) -> std::optional<elf::Image> {
    UniqueFd fd(::memfd_create("beside", MFD_CLOEXEC));
    PROBED_CHECK(::write(fd.get(), beside.data(), beside.size()) == static_cast<ssize_t>(beside.size()),
                 "memory is there");
    auto image = elf::Image::debug_from_fd(std::move(fd), "beside");
    if (image) return std::move(image).value();
    unfit = image.error().message;
    return std::nullopt;
  };
  std::string unfit;
  const auto other = open("", unfit);
  ask(DebugInfo::read(*program, nullptr, other ? &*other : nullptr, {"/tmp/program", open, "/tmp/supplement"}));
  if (other) ask(DebugInfo::read(*program, &*other, nullptr, {"/tmp/program", open, {}}));
}

}  // namespace
}  // namespace probed::dwarf

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ::alarm(probed::dwarf::kMostSeconds);
  probed::dwarf::test_input(std::as_bytes(std::span(data, size)));
  ::alarm(0);
  return 0;
}
