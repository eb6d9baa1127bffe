// See debug_file.hpp. Layouts: gdb manual, "Debugging Information in Separate Files" and "MiniDebugInfo".
#include "daemon/symbols/debug_file.hpp"

#include <lzma.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

namespace probed::symbols {
namespace {

constexpr std::uint64_t kMaxPacked = 32u << 20;
constexpr std::size_t kMaxUnpacked = 128u << 20;         // chromium's would be 60 MB
constexpr std::uint64_t kMaxDecoderMemory = 128u << 20;  // xz -9 needs 65 MB
constexpr std::uint64_t kMaxChecksummed = 4ull << 30;
constexpr std::uint64_t kMaxAppended = 1u << 20;  // behind what the headers tell of: a signature

std::optional<std::vector<std::byte>> section_bytes(const elf::Image& image, std::string_view name,
                                                    std::uint64_t limit) {
  const Elf64_Shdr* section = image.section(name);
  return section ? image.read_bytes(section->sh_offset, section->sh_size, limit) : std::nullopt;
}

// Decodes until the end of the stream, or nullopt at the first error or when the limit is passed.
std::optional<std::vector<std::byte>> unpack(std::span<const std::byte> packed) {
  lzma_stream stream = LZMA_STREAM_INIT;
  if (lzma_stream_decoder(&stream, kMaxDecoderMemory, 0) != LZMA_OK) return std::nullopt;
  const std::unique_ptr<lzma_stream, void (*)(lzma_stream*)> ender(&stream, lzma_end);
  stream.next_in = reinterpret_cast<const std::uint8_t*>(packed.data());
  stream.avail_in = packed.size();
  std::vector<std::byte> out;
  lzma_ret state = LZMA_OK;
  while (state == LZMA_OK && out.size() < kMaxUnpacked) {
    const std::size_t have = out.size();
    out.resize(std::min(kMaxUnpacked, std::max<std::size_t>(have * 2, packed.size() * 4 + 4096)));
    stream.next_out = reinterpret_cast<std::uint8_t*>(out.data()) + have;
    stream.avail_out = out.size() - have;
    state = lzma_code(&stream, LZMA_FINISH);
    out.resize(out.size() - stream.avail_out);
  }
  if (state != LZMA_STREAM_END) return std::nullopt;
  return out;
}

// The debug link's CRC is the one of IEEE 802.3, which liblzma has. A file that is longer than what its headers tell of
// isn't read: one of a terabyte costs its maker nothing.
std::optional<std::uint32_t> checksum(const elf::Image& image) {
  if (image.size() > kMaxChecksummed || image.size() > image.extent() + kMaxAppended) return std::nullopt;
  std::vector<std::byte> chunk(1u << 20);
  std::uint32_t crc = 0;
  for (std::uint64_t offset = 0; offset < image.size();) {
    const auto piece = std::span(chunk).first(std::min<std::uint64_t>(chunk.size(), image.size() - offset));
    if (!image.read(offset, piece)) return std::nullopt;
    crc = lzma_crc32(reinterpret_cast<const std::uint8_t*>(piece.data()), piece.size(), crc);
    offset += piece.size();
  }
  return crc;
}

// Where both files have a build-id, that decides; nothing else need be read.
bool is_linked(const elf::Image& image, const DebugLink& link, const std::vector<std::byte>& id) {
  const auto its_id = image.build_id();
  return id.empty() || its_id.empty() ? checksum(image) == link.crc : its_id == id;
}

std::optional<elf::Image> open_image(const std::string& path, const OpenPath& open) {
  Opened file = open(path);
  if (!file) return std::nullopt;
  Result<elf::Image> image = elf::Image::debug_from_fd(std::move(file.fd), path);
  return image ? std::optional(std::move(image).value()) : std::nullopt;
}

std::optional<elf::Image> by_build_id(const std::vector<std::byte>& id, const std::vector<std::string>& roots,
                                      const OpenPath& open) {
  const std::string hex = elf::to_hex(id);
  for (const std::string& root : roots) {
    auto image = open_image(root + "/.build-id/" + hex.substr(0, 2) + "/" + hex.substr(2) + ".debug", open);
    if (image && image->build_id() == id) return image;
  }
  return std::nullopt;
}

std::optional<elf::Image> by_link(const DebugLink& link, const std::vector<std::byte>& id,
                                  const std::string& module_path, const std::vector<std::string>& roots,
                                  const OpenPath& open) {
  const std::string folder = module_path.substr(0, module_path.rfind('/') + 1);
  if (!folder.starts_with('/')) return std::nullopt;
  std::vector<std::string> paths{folder + link.name, folder + ".debug/" + link.name};
  for (const std::string& root : roots) paths.push_back(root + folder + link.name);
  for (const std::string& path : paths) {
    auto image = open_image(path, open);
    if (image && is_linked(*image, link, id)) return image;
  }
  return std::nullopt;
}

}  // namespace

std::optional<DebugLink> read_debug_link(const elf::Image& image) {
  const auto bytes = section_bytes(image, ".gnu_debuglink", 4096 + 8);
  if (!bytes || bytes->empty()) return std::nullopt;
  const char* text = reinterpret_cast<const char*>(bytes->data());
  const std::size_t length = ::strnlen(text, bytes->size());
  const std::size_t crc_at = (length + 1 + 3) & ~std::size_t{3};  // behind the name's zero, aligned to 4
  DebugLink link;
  link.name.assign(text, length);
  // The name comes from a stranger's file and is put behind a folder: no way up and out of it.
  const bool plain = length > 0 && link.name.find('/') == std::string::npos && link.name != "." && link.name != "..";
  if (!plain || crc_at + sizeof link.crc > bytes->size()) return std::nullopt;
  std::memcpy(&link.crc, bytes->data() + crc_at, sizeof link.crc);
  return link;
}

std::optional<elf::Image> read_mini_debug_info(const elf::Image& image) {
  const auto packed = section_bytes(image, ".gnu_debugdata", kMaxPacked);
  if (!packed) return std::nullopt;
  auto bytes = unpack(*packed);
  if (!bytes) return std::nullopt;
  Result<elf::Image> inner = elf::Image::from_bytes(*std::move(bytes), ".gnu_debugdata");
  return inner ? std::optional(std::move(inner).value()) : std::nullopt;
}

std::optional<elf::Image> find_debug_file(const elf::Image& image, const std::string& module_path,
                                          const std::vector<std::string>& roots, const OpenPath& open) {
  const std::vector<std::byte> id = image.build_id();
  if (!id.empty())
    if (auto found = by_build_id(id, roots, open)) return found;
  const auto link = read_debug_link(image);
  return link ? by_link(*link, id, module_path, roots, open) : std::nullopt;
}

std::optional<SupplementaryLink> read_supplementary_link(const elf::Image& debug_file) {
  const auto bytes = section_bytes(debug_file, ".gnu_debugaltlink", 4096 + 64);
  if (!bytes) return std::nullopt;
  const char* text = reinterpret_cast<const char*>(bytes->data());
  const std::size_t length = ::strnlen(text, bytes->size());
  if (length == 0 || length + 1 >= bytes->size()) return std::nullopt;  // no build-id: nothing to prove it by
  SupplementaryLink link;
  link.path.assign(text, length);
  link.build_id.assign(bytes->begin() + static_cast<std::ptrdiff_t>(length) + 1, bytes->end());
  return link;
}

std::optional<elf::Image> find_supplementary_file(const elf::Image& debug_file, const std::string& debug_path,
                                                  const std::vector<std::string>& roots, const OpenPath& open) {
  const auto link = read_supplementary_link(debug_file);
  if (!link) return std::nullopt;
  const std::string folder = debug_path.substr(0, debug_path.rfind('/') + 1);
  std::vector<std::string> paths{link->path.starts_with('/') ? link->path : folder + link->path};
  // Packages move whole trees: the part behind .dwz/ is what stays.
  if (const std::size_t at = link->path.rfind(".dwz/"); at != std::string::npos)
    for (const std::string& root : roots) paths.push_back(root + "/" + link->path.substr(at));
  for (const std::string& path : paths) {
    if (!path.starts_with('/')) continue;
    auto image = open_image(path, open);
    if (image && image->build_id() == link->build_id) return image;
  }
  return by_build_id(link->build_id, roots, open);
}

std::optional<elf::Image> fetch_debug_file(std::span<const std::byte> build_id, const FetchById& fetch) {
  if (!fetch || build_id.empty()) return std::nullopt;
  UniqueFd fd = fetch(build_id);
  if (!fd) return std::nullopt;
  Result<elf::Image> image = elf::Image::from_fd(std::move(fd), "debuginfod");
  if (!image || !std::ranges::equal(image->build_id(), build_id)) return std::nullopt;
  return std::move(image).value();
}

}  // namespace probed::symbols
