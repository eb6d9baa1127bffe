// See sections.hpp.
#include "daemon/dwarf/sections.hpp"

#include <zlib.h>

#include <cstring>
#include <string>

namespace probed::dwarf {
namespace {

constexpr std::array<std::string_view, static_cast<std::size_t>(Section::count_)> kNames = {
    "info",     "types", "abbrev",   "str",  "line_str", "str_offsets", "addr",    "ranges",
    "rnglists", "loc",   "loclists", "line", "frame",    "cu_index",    "tu_index"};

std::optional<std::vector<std::byte>> inflate(Bytes packed, std::uint64_t size, std::uint64_t limit,
                                              MemoryCharge* charge) {
  // deflate can't do better than 1 : 1032 (zlib's documentation).
  if (size > limit || size / 1032 > packed.size() + 1) return std::nullopt;
  if (charge && !charge->grow(size)) return std::nullopt;
  std::vector<std::byte> out(size);
  uLongf length = size;
  const int state = ::uncompress(reinterpret_cast<Bytef*>(out.data()), &length,
                                 reinterpret_cast<const Bytef*>(packed.data()), packed.size());
  if (state != Z_OK || length != size) return std::nullopt;
  return out;
}

std::optional<std::vector<std::byte>> unpack(const elf::Image& image, const Elf64_Shdr& section, std::uint64_t limit,
                                             MemoryCharge* charge) {
  if (section.sh_size > limit || (charge && !charge->grow(section.sh_size))) return std::nullopt;
  auto bytes = image.read_bytes(section.sh_offset, section.sh_size, limit);
  if (!bytes || !(section.sh_flags & SHF_COMPRESSED)) return bytes;
  Elf64_Chdr header;
  if (bytes->size() < sizeof header) return std::nullopt;
  std::memcpy(&header, bytes->data(), sizeof header);
  if (header.ch_type != ELFCOMPRESS_ZLIB) return std::nullopt;
  auto unpacked = inflate(Bytes(*bytes).subspan(sizeof header), header.ch_size, limit, charge);
  if (charge) charge->shrink(section.sh_size);
  return unpacked;
}

// "ZLIB", the size as 8 bytes big-endian, the data: what came before SHF_COMPRESSED, and what Go writes still.
std::optional<std::vector<std::byte>> unpack_gnu(const elf::Image& image, const Elf64_Shdr& section,
                                                 std::uint64_t limit, MemoryCharge* charge) {
  const auto bytes = image.read_bytes(section.sh_offset, section.sh_size, limit);
  constexpr std::size_t kHeader = 12;
  if (!bytes || bytes->size() < kHeader || std::memcmp(bytes->data(), "ZLIB", 4) != 0) return std::nullopt;
  std::uint64_t size = 0;
  for (std::size_t i = 4; i < kHeader; ++i) size = size << 8 | std::to_integer<std::uint64_t>((*bytes)[i]);
  return inflate(Bytes(*bytes).subspan(kHeader), size, limit, charge);
}

}  // namespace

std::optional<std::vector<std::byte>> read_section(const elf::Image& image, std::string_view name, std::uint64_t limit,
                                                   MemoryCharge* charge) {
  if (const Elf64_Shdr* section = image.section(name)) return unpack(image, *section, limit, charge);
  if (!name.starts_with(".debug_")) return std::nullopt;
  const Elf64_Shdr* section = image.section(".z" + std::string(name.substr(1)));
  return section ? unpack_gnu(image, *section, limit, charge) : std::nullopt;
}

std::optional<Sections> Sections::read(const elf::Image& image, bool split) {
  Sections sections;
  std::uint64_t left = kMaxBytes;
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    const bool is_index = kNames[i].ends_with("_index");
    if (is_index && !split) continue;
    const std::string name = ".debug_" + std::string(kNames[i]) + (split && !is_index ? ".dwo" : "");
    auto bytes = read_section(image, name, left, &sections.charge_);
    if (!bytes) continue;
    left -= bytes->size();
    sections.bytes_[i] = *std::move(bytes);
  }
  if (sections[Section::info].empty() || sections[Section::abbrev].empty()) return std::nullopt;
  return sections;
}

std::size_t Sections::memory_bytes() const {
  std::size_t sum = 0;
  for (const auto& bytes : bytes_) sum += bytes.capacity();
  return sum;
}

}  // namespace probed::dwarf
