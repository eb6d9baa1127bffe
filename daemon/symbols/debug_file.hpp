// Symbols that a stripped file keeps elsewhere: .gnu_debugdata (compressed, inside), a separate debug file known by
// build-id or by .gnu_debuglink.
//
// Thread: any. Invariant: a separate file is only used when it proves to belong to this very build: the same build-id,
// or the checksum that the debug link carries.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "daemon/symbols/elf_image.hpp"

namespace probed::symbols {

struct DebugLink {
  std::string name;       // a base name
  std::uint32_t crc = 0;  // CRC-32 of the whole debug file
};

// Of section .gnu_debuglink; nullopt when there is none or it is damaged.
std::optional<DebugLink> read_debug_link(const ElfImage& image);

// The ELF file inside .gnu_debugdata; nullopt when there is none, it is damaged, or it would be absurdly large.
std::optional<ElfImage> read_mini_debug_info(const ElfImage& image);

// Opens a regular file by an absolute path, as the target sees paths; an empty descriptor when it can't.
using OpenPath = std::function<UniqueFd(const std::string&)>;

// The separate debug file of an image that the target knows as `module_path`; nullopt when there is no fitting one.
// `roots`: where debug files are kept (/usr/lib/debug).
std::optional<ElfImage> find_debug_file(const ElfImage& image, const std::string& module_path,
                                        const std::vector<std::string>& roots, const OpenPath& open);

}  // namespace probed::symbols
