// See functions.hpp.
#include "tests/coverage/functions.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <tuple>
#include <utility>

#include "daemon/symbols/code_flow.hpp"
#include "daemon/symbols/function_exits.hpp"

namespace probed::coverage {
namespace {

using elf::Image;
using symbols::Module;

struct Range {
  std::uint64_t start, size;
  std::string name;
};

UniqueFd open_file(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status {};
  if (!fd || ::fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode)) return {};
  return fd;
}

Result<elf::Image> open_image(const std::string& path) {
  UniqueFd fd = open_file(path);
  if (!fd)
    return Error{
        Reason::unsupported_target, path + " can't be opened: " + std::strerror(errno), "name an ELF file", {}};
  return elf::Image::from_fd(std::move(fd), path);
}

bool load(const Module& module, const std::string& path) {
  return module.load({.open = [&path]() -> std::optional<elf::Image> {
                        auto image = open_image(path);
                        return image ? std::optional(std::move(image).value()) : std::nullopt;
                      },
                      .open_path = open_file,
                      .debug_roots = {"/usr/lib/debug"},
                      .fetch = {}});
}

std::vector<Range> all_ranges(const Module& module) {
  std::vector<Range> ranges;
  for (const symbols::Symbol& symbol : module.symbols().all())
    if (symbol.code() && symbol.size != 0)
      ranges.push_back({symbol.address.value, symbol.size, std::string(symbol.name())});
  for (const symbols::FrameRange& frame : module.frames()) ranges.push_back({frame.start.value, frame.size, {}});
  // Of ranges that begin together the longest, and of those the one with a name, comes first.
  std::ranges::stable_sort(ranges, [](const Range& a, const Range& b) {
    return std::tuple(a.start, ~a.size, a.name.empty()) < std::tuple(b.start, ~b.size, b.name.empty());
  });
  return ranges;
}

// What an earlier range covers is left out; one that begins inside an earlier one is cut or dropped.
std::vector<Range> without_overlaps(const std::vector<Range>& all) {
  std::vector<Range> kept;
  std::uint64_t end = 0;
  for (Range range : all) {
    if (range.start < end) continue;
    end = range.start + range.size;
    kept.push_back(std::move(range));
  }
  return kept;
}

}  // namespace

Result<File> read_file_functions(const std::string& path) {
  Result<elf::Image> image = open_image(path);
  if (!image) return std::move(image).error();
  const std::shared_ptr<Module> module = Module::from_headers(*image, path);
  if (!load(*module, path))
    return Error{Reason::unsupported_target, path + " went away while it was read", "try again", {}};
  File file;
  file.path = path;
  const auto begin = std::chrono::steady_clock::now();
  file.flow = symbols::read_code_flow(*module, *image);
  file.flow_time = std::chrono::steady_clock::now() - begin;
  if (!file.flow)
    return Error{Reason::unsupported_target,
                 path + " has code or exception tables that can't be read",
                 "is the file complete?",
                 {}};
  for (const symbols::Segment& segment : module->segments())
    if (segment.executable) file.executable_bytes += segment.file_size;
  for (Range& range : without_overlaps(all_ranges(*module))) {
    const auto offset = module->file_offset_of({range.start});
    if (!offset || !module->executable_at({range.start})) continue;
    auto bytes = image->read_bytes(*offset, range.size, 64u << 20);
    if (!bytes) continue;
    const auto* first = reinterpret_cast<const std::uint8_t*>(bytes->data());
    file.named += range.name.empty() ? 0 : 1;
    file.function_bytes += bytes->size();
    file.functions.push_back({range.start,
                              std::move(range.name),
                              {first, first + bytes->size()},
                              symbols::function_exits(*module, *file.flow, {range.start})});
  }
  return file;
}

}  // namespace probed::coverage
