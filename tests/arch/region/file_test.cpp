// What is gathered from a file, on the test's own program: landing pads, code that data points to.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <link.h>

#include <algorithm>
#include <optional>

#include "arch/x86_64/region.hpp"
#include "daemon/symbols/code_flow.hpp"
#include "daemon/symbols/eh_frame.hpp"

using namespace probed;

namespace {

elf::Image own_image() {
  return std::move(elf::Image::from_fd(UniqueFd(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC)), "self")).value();
}

std::shared_ptr<const arch::CodeFlow> own_flow() {
  const elf::Image image = own_image();
  const auto module = symbols::Module::from_headers(image, "self");
  REQUIRE(module->load({[]() -> std::optional<elf::Image> { return own_image(); },
                        [](const std::string&) { return UniqueFd(); },
                        {},
                        {}}));
  return symbols::read_code_flow(*module, image);
}

std::uint64_t own_bias() {
  std::uint64_t bias = 0;
  ::dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* out) {
        *static_cast<std::uint64_t*>(out) = info->dlpi_addr;
        return 1;  // the program comes first
      },
      &bias);
  return bias;
}

[[gnu::noinline, gnu::noipa]] void thrower(int value) {
  if (value > 0) throw value;
}
[[gnu::noinline, gnu::noipa]] int catcher(int value) {
  try {
    thrower(value);
  } catch (int caught) {
    return caught;
  }
  return 0;
}

// Two places in one function that only data point to.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpedantic"
[[gnu::noinline, gnu::noipa]] int chooser(unsigned which, const void* const** table) {
  static const void* const kPlaces[] = {&&first, &&second};
  *table = kPlaces;
  goto* kPlaces[which % 2];
first:
  return 3 + static_cast<int>(which) * 5;
second:
  return 4 - static_cast<int>(which) * 7;
}
#pragma GCC diagnostic pop

}  // namespace

TEST_CASE("K11: exceptions land on instructions that count as entered") {
  const auto flow = own_flow();
  REQUIRE(flow != nullptr);
  const symbols::LandingPads pads = symbols::read_landing_pads(own_image());
  CHECK(pads.complete);
  REQUIRE(!pads.addresses.empty());
  for (const ElfAddr pad : pads.addresses) {
    CAPTURE(pad.value);
    CHECK(flow->is_instruction(pad.value));
    CHECK(flow->may_be_entered(pad.value));
  }
  // The unwinder finds one in this small function.
  REQUIRE(catcher(1) == 1);
  const std::uint64_t begin = reinterpret_cast<std::uint64_t>(&catcher) - own_bias();
  CHECK(std::ranges::any_of(pads.addresses, [begin](ElfAddr pad) { return pad.value - begin < 64; }));
}

TEST_CASE("K11: places that relocations point to count as entered") {
  const auto flow = own_flow();
  REQUIRE(flow != nullptr);
  const void* const* places = nullptr;
  chooser(0, &places);
  for (int i = 0; i < 2; ++i) CHECK(flow->may_be_entered(reinterpret_cast<std::uint64_t>(places[i]) - own_bias()));
}

TEST_CASE("K11: nearly every entry of the program's own functions gets a jump") {
  const auto flow = own_flow();
  REQUIRE(flow != nullptr);
  unsigned planned = 0, understood = 0;
  for (const arch::FunctionFacts& function : flow->functions()) {
    arch::RegionRequest request;
    request.site = function.range.begin;
    planned += arch::x86_64::plan_region(*flow, request) ? 1 : 0;
    understood += function.understood ? 1 : 0;
  }
  CHECK(flow->functions().size() > 100);
  CHECK(planned * 100.0 / static_cast<double>(flow->functions().size()) > 95);
  CHECK(understood * 100.0 / static_cast<double>(flow->functions().size()) > 95);
}
