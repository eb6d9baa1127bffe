// See loader.hpp.
#include "daemon/symbols/loader.hpp"

#include <link.h>

#include <cstddef>
#include <vector>

#include "daemon/symbols/dynamic.hpp"
#include "daemon/symbols/elf.hpp"
#include "daemon/symbols/target_files.hpp"

namespace probed::symbols {

std::optional<LoaderHook> find_loader_hook(pid_t pid, const Mapping& mapping) {
  if (mapping.file_offset != 0) return std::nullopt;
  auto fd = open_mapped(pid, mapping, [](int) { return false; });
  if (!fd) return std::nullopt;
  const auto image = elf::Image::from_fd(std::move(fd).value(), mapping.path);
  if (!image) return std::nullopt;
  const auto module = Module::from_headers(*image, mapping.path);
  const DynamicInfo dynamic = read_dynamic(*image);
  const auto start = module->address_of(0, false);
  if (!dynamic.symbols || !start) return std::nullopt;
  std::vector<AddressRange> code, data;
  for (const Segment& s : module->segments())
    (s.executable ? code : data).push_back({s.address.value, s.address.value + s.memory_size});
  SymbolTable table;
  table.add(*image, *dynamic.symbols, nullptr, code, data);
  table.seal();
  const auto function = table.named("_dl_debug_state"), state = table.named("_r_debug");
  if (function.size() != 1 || state.size() != 1) return std::nullopt;
  const std::uint64_t bias = mapping.start.value - start->value;
  return LoaderHook{{function[0]->address.value + bias}, {state[0]->address.value + bias + offsetof(r_debug, r_state)}};
}

}  // namespace probed::symbols
