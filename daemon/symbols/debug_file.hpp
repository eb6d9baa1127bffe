// Symbols that a stripped file keeps elsewhere: .gnu_debugdata (compressed, inside), a separate debug file known by
// build-id or by .gnu_debuglink, or on a debuginfod server. What several debug files share is in a supplementary file
// (dwz(1), .gnu_debugaltlink).
//
// Thread: any. Invariant: a separate file is only used when it proves to belong to this very build: the same build-id,
// or the checksum that the debug link carries.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "daemon/base/mounts.hpp"
#include "daemon/elf/image.hpp"

namespace probed::symbols {

struct DebugLink {
  std::string name;       // a base name
  std::uint32_t crc = 0;  // CRC-32 of the whole debug file
};

// Of section .gnu_debuglink; nullopt when there is none or it is damaged.
std::optional<DebugLink> read_debug_link(const elf::Image& image);

// The ELF file inside .gnu_debugdata; nullopt when there is none, it is damaged, or it would be absurdly large.
std::optional<elf::Image> read_mini_debug_info(const elf::Image& image);

// Opens a regular file by an absolute path, as the target sees paths and with its user's permissions.
using OpenPath = std::function<Opened(const std::string&)>;

// A debug file by its build-id from elsewhere (debuginfod.hpp); an empty descriptor when it can't be had.
using FetchById = std::function<UniqueFd(std::span<const std::byte> build_id)>;

// Of section .gnu_debugaltlink of a debug file: what its DWARF refers to beside itself.
struct SupplementaryLink {
  std::string path;  // absolute, or relative to the debug file's folder
  std::vector<std::byte> build_id;
};
std::optional<SupplementaryLink> read_supplementary_link(const elf::Image& debug_file);

// The supplementary file of a debug file that lies at `debug_path`; nullopt when there is no fitting one: its build-id
// must be the link's. Looked for by the link's path, by build-id below the roots, and there as dwz(1) packages keep it.
std::optional<elf::Image> find_supplementary_file(const elf::Image& debug_file, const std::string& debug_path,
                                                  const std::vector<std::string>& roots, const OpenPath& open);

// The file of this build-id as a server has it; nullopt when it has none, or another one.
std::optional<elf::Image> fetch_debug_file(std::span<const std::byte> build_id, const FetchById& fetch);

// The separate debug file of an image that the target knows as `module_path`; nullopt when there is no fitting one.
// `roots`: where debug files are kept (/usr/lib/debug).
std::optional<elf::Image> find_debug_file(const elf::Image& image, const std::string& module_path,
                                          const std::vector<std::string>& roots, const OpenPath& open);

}  // namespace probed::symbols
