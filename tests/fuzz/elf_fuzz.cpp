// Fuzz target for what reads ELF files. Input: a file that a target claims to have mapped. Whatever its bytes are,
// reading ends, in bounds and with bounded memory, and what was found keeps the promises of the headers.
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "daemon/symbols/elf.hpp"
#include "proto/base/check.hpp"

namespace probed::symbols {
namespace {

// Where code may be entered takes a look at every byte of it: for small files only.
constexpr std::size_t kMaxFlow = 16 << 10;

void check_symbols(const Module& module) {
  for (const Symbol& symbol : module.symbols().all()) {
    const auto around = module.function_at(symbol.address);
    if (around) PROBED_CHECK(around->start.value <= symbol.address.value, "a function begins at or before its address");
  }
  for (const elf::UsdtNote& note : module.usdt_notes())
    PROBED_CHECK(elf::count_usdt_arguments(note.arguments) == elf::parse_usdt_arguments(note.arguments).size(),
                 "arguments are counted as parsed");
}

void test_input(const std::vector<std::byte>& bytes) {
  Result<elf::Image> image = elf::Image::from_bytes(bytes, "hostile");
  if (!image) {
    PROBED_CHECK(!image.error().message.empty(), "a refusal has a message");
    return;
  }
  const auto module = Module::from_headers(*image, "/tmp/hostile");
  Module::Source source;
  source.open = [&] { return std::optional(std::move(elf::Image::from_bytes(bytes, "hostile").value())); };
  source.open_path = [](const std::string&) { return UniqueFd(); };
  source.debug_roots = {"/nonexistent"};
  if (!module->load(source)) return;
  check_symbols(*module);
  for (std::uint64_t at = 0; at < bytes.size(); at += 64) {
    const auto address = module->address_of(at, false);
    if (address) PROBED_CHECK(module->loads(at, *address), "an address leads back to its byte");
    static_cast<void>(module->function_at({at}));
  }
  if (bytes.size() <= kMaxFlow) static_cast<void>(module->code_flow(source));
}

}  // namespace
}  // namespace probed::symbols

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::vector<std::byte> bytes(size);
  if (size > 0) std::memcpy(bytes.data(), data, size);
  probed::symbols::test_input(bytes);
  return 0;
}
