// Bounded access to the bytes of one ELF file or of one ELF image in memory (the vdso). The lowest layer of everything
// that looks into files which belong to strangers.
//
// Thread: one at a time. Invariants: nothing is mapped (a truncated mapping would be a SIGBUS in the daemon; pread only
// comes back short), nothing is allocated before its size was compared with the file's and with a limit of ours, and
// no number from the file is added to another without an overflow check. libelf isn't used here because elf_begin sizes
// its own tables by the counts in the file before a caller can look at them: a sparse file costs its author nothing.
#pragma once

#include <elf.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/base/types.hpp"
#include "proto/base/fd.hpp"
#include "proto/base/result.hpp"

namespace probed::elf {

// Where the part of a note behind one that ends at `end` begins (elf(5), "Notes": four bytes; n below 2^64 - 3).
constexpr std::uint64_t note_aligned(std::uint64_t end) { return (end + 3) & ~std::uint64_t{3}; }

class Image {
 public:
  // Takes 64-bit little-endian ELF files of this machine's architecture. `name` is for messages. Errors:
  // unsupported_target.
  static Result<Image> from_fd(UniqueFd fd, const std::string& name);
  // Debug information alone, which may be in a relocatable file: split units, what dwz(1) has gathered.
  static Result<Image> debug_from_fd(UniqueFd fd, const std::string& name);
  static Result<Image> from_bytes(std::vector<std::byte> bytes, const std::string& name);

  // All of out, or false.
  bool read(std::uint64_t offset, std::span<std::byte> out) const;
  // nullopt when it lies outside the file or is longer than limit bytes.
  std::optional<std::vector<std::byte>> read_bytes(std::uint64_t offset, std::uint64_t size, std::uint64_t limit) const;
  template <class T>
  std::optional<T> read_as(std::uint64_t offset) const {
    T value;
    if (!read(offset, std::as_writable_bytes(std::span(&value, 1)))) return std::nullopt;
    return value;
  }

  std::uint64_t size() const { return size_; }
  // Where the last of the file's bytes ends that its section headers tell of; 0: it has none.
  std::uint64_t extent() const;
  const Elf64_Ehdr& header() const { return header_; }
  std::span<const Elf64_Phdr> segments() const { return segments_; }
  // Empty when the file has none or they are damaged.
  std::span<const Elf64_Shdr> sections() const { return sections_; }
  // The first section of that name that has bytes in the file; null when there is none.
  const Elf64_Shdr* section(std::string_view name) const;

  // The file offset of an address, when at least one byte of a PT_LOAD segment backs it.
  std::optional<std::uint64_t> offset_of(ElfAddr address) const;
  // How many bytes of the file back the addresses from this one on, to the end of the segment.
  std::uint64_t bytes_at(ElfAddr address) const;

  // The descriptor of the GNU build-id note; empty when there is none.
  std::vector<std::byte> build_id() const;

 private:
  Image() = default;
  static Result<Image> from(UniqueFd fd, const std::string& name, bool relocatable);
  Result<void> parse(const std::string& name, bool relocatable);
  void parse_sections();
  const Elf64_Phdr* segment_of(ElfAddr address) const;

  UniqueFd fd_;  // or, without one:
  std::vector<std::byte> bytes_;
  std::uint64_t size_ = 0;
  Elf64_Ehdr header_{};
  std::vector<Elf64_Phdr> segments_;
  std::vector<Elf64_Shdr> sections_;
  std::string section_names_;
};

// The file's bytes as lower-case hexadecimal digits.
std::string to_hex(std::span<const std::byte> bytes);

}  // namespace probed::elf
