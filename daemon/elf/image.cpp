// See image.hpp. Format: System V ABI, elf(5).
#include "daemon/elf/image.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "arch/arch.hpp"
#include "daemon/base/time_limit.hpp"

namespace probed::elf {
namespace {

// Far above what linkers write (chromium: 13 segments, 45 sections), far below what hurts.
constexpr std::size_t kMaxSegments = 4096;
constexpr std::size_t kMaxSections = 65536;
constexpr std::uint64_t kMaxSectionNames = 4u << 20;
constexpr std::uint64_t kMaxNotes = 64u << 10;
constexpr std::size_t kMaxBuildId = 64;

bool pread_all(int fd, std::uint64_t offset, std::span<std::byte> out) {
  while (!out.empty()) {
    const ssize_t n = ::pread(fd, out.data(), out.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    out = out.subspan(static_cast<std::size_t>(n));
    offset += static_cast<std::uint64_t>(n);
  }
  return true;
}

// Why this header is none of ours; empty when it is.
std::string_view objection(const Elf64_Ehdr& h, bool relocatable) {
  if (std::memcmp(h.e_ident, ELFMAG, SELFMAG) != 0) return "not an ELF file";
  if (h.e_ident[EI_CLASS] == ELFCLASS32) return "a 32-bit ELF file";
  if (h.e_ident[EI_CLASS] != ELFCLASS64 || h.e_ident[EI_DATA] != ELFDATA2LSB) return "an ELF file of an unknown kind";
  if (h.e_machine != arch::native::kElfMachine) return "an ELF file for another machine";
  if (h.e_type != ET_EXEC && h.e_type != ET_DYN && !(relocatable && h.e_type == ET_REL))
    return "neither a program nor a shared library";
  if (h.e_phentsize != sizeof(Elf64_Phdr) && h.e_phnum != 0) return "an ELF file with damaged program headers";
  if (h.e_phnum > kMaxSegments) return "an ELF file with too many program headers";
  return {};
}

std::vector<std::byte> find_build_id(std::span<const std::byte> notes) {
  while (notes.size() >= sizeof(Elf64_Nhdr)) {
    Elf64_Nhdr note;
    std::memcpy(&note, notes.data(), sizeof note);
    const std::uint64_t name_at = sizeof note, desc_at = name_at + note_aligned(note.n_namesz);
    const std::uint64_t end = desc_at + note.n_descsz;
    if (end > notes.size()) break;
    const bool gnu = note.n_namesz == 4 && std::memcmp(notes.data() + name_at, "GNU", 4) == 0;
    if (gnu && note.n_type == NT_GNU_BUILD_ID && note.n_descsz >= 2 && note.n_descsz <= kMaxBuildId) {
      const auto id = notes.subspan(desc_at, note.n_descsz);
      return {id.begin(), id.end()};
    }
    notes = notes.subspan(std::min<std::uint64_t>(note_aligned(end), notes.size()));
  }
  return {};
}

}  // namespace

Result<Image> Image::from_fd(UniqueFd fd, const std::string& name) { return from(std::move(fd), name, false); }

Result<Image> Image::debug_from_fd(UniqueFd fd, const std::string& name) { return from(std::move(fd), name, true); }

Result<Image> Image::from(UniqueFd fd, const std::string& name, bool relocatable) {
  struct stat st {};
  if (::fstat(fd.get(), &st) != 0 || !S_ISREG(st.st_mode))
    return Error{Reason::unsupported_target, name + " is not a regular file", "", {}};
  Image image;
  image.fd_ = std::move(fd);
  image.size_ = static_cast<std::uint64_t>(st.st_size);
  if (Result<void> parsed = image.parse(name, relocatable); !parsed) return std::move(parsed).error();
  return image;
}

Result<Image> Image::from_bytes(std::vector<std::byte> bytes, const std::string& name) {
  Image image;
  image.bytes_ = std::move(bytes);
  image.size_ = image.bytes_.size();
  if (Result<void> parsed = image.parse(name, false); !parsed) return std::move(parsed).error();
  return image;
}

bool Image::read(std::uint64_t offset, std::span<std::byte> out) const {
  if (offset > size_ || out.size() > size_ - offset) return false;
  if (fd_) return !TimeLimit::passed() && pread_all(fd_.get(), offset, out);
  if (!out.empty()) std::memcpy(out.data(), bytes_.data() + offset, out.size());
  return true;
}

std::optional<std::vector<std::byte>> Image::read_bytes(std::uint64_t offset, std::uint64_t size,
                                                        std::uint64_t limit) const {
  if (size > limit || offset > size_ || size > size_ - offset) return std::nullopt;
  std::vector<std::byte> bytes(size);
  if (!read(offset, bytes)) return std::nullopt;
  return bytes;
}

Result<void> Image::parse(const std::string& name, bool relocatable) {
  const auto reject = [&](std::string_view why) {
    return Error{Reason::unsupported_target, name + " is " + std::string(why), "", {}};
  };
  const auto header = read_as<Elf64_Ehdr>(0);
  if (!header) return reject("not an ELF file");
  if (const std::string_view why = objection(*header, relocatable); !why.empty()) return reject(why);
  header_ = *header;
  segments_.resize(header_.e_phnum);
  if (!read(header_.e_phoff, std::as_writable_bytes(std::span(segments_)))) return reject("a truncated ELF file");
  parse_sections();
  return {};
}

void Image::parse_sections() {
  if (header_.e_shentsize != sizeof(Elf64_Shdr) || header_.e_shoff == 0) return;
  const auto first = read_as<Elf64_Shdr>(header_.e_shoff);
  if (!first) return;
  // A count or index that doesn't fit its field is in the first header (gabi, "sh_size", "sh_link").
  const std::uint64_t count = header_.e_shnum != 0 ? header_.e_shnum : first->sh_size;
  const std::uint64_t names = header_.e_shstrndx != SHN_XINDEX ? header_.e_shstrndx : first->sh_link;
  if (count > kMaxSections || count > size_ / sizeof(Elf64_Shdr)) return;
  std::vector<Elf64_Shdr> sections(count);
  if (!read(header_.e_shoff, std::as_writable_bytes(std::span(sections)))) return;
  sections_ = std::move(sections);
  if (names >= sections_.size() || sections_[names].sh_type == SHT_NOBITS) return;
  const auto text = read_bytes(sections_[names].sh_offset, sections_[names].sh_size, kMaxSectionNames);
  if (text) section_names_.assign(reinterpret_cast<const char*>(text->data()), text->size());
}

const Elf64_Shdr* Image::section(std::string_view name) const {
  for (const Elf64_Shdr& s : sections_) {
    if (s.sh_type == SHT_NOBITS || s.sh_name >= section_names_.size()) continue;
    const std::string_view rest = std::string_view(section_names_).substr(s.sh_name, name.size() + 1);
    if (rest.size() == name.size() + 1 && rest.starts_with(name) && rest.back() == '\0') return &s;
  }
  return nullptr;
}

// Not the segments: a separate debug file's describe bytes that it doesn't have.
std::uint64_t Image::extent() const {
  std::uint64_t end = 0;
  const auto reach = [&](std::uint64_t at, std::uint64_t bytes) {
    std::uint64_t there = 0;
    if (!__builtin_add_overflow(at, bytes, &there)) end = std::max(end, there);
  };
  if (!sections_.empty()) reach(header_.e_shoff, sections_.size() * sizeof(Elf64_Shdr));
  for (const Elf64_Shdr& s : sections_)
    if (s.sh_type != SHT_NOBITS) reach(s.sh_offset, s.sh_size);
  return end;
}

const Elf64_Phdr* Image::segment_of(ElfAddr address) const {
  for (const Elf64_Phdr& p : segments_)
    if (p.p_type == PT_LOAD && address.value >= p.p_vaddr && address.value - p.p_vaddr < p.p_filesz) return &p;
  return nullptr;
}

std::optional<std::uint64_t> Image::offset_of(ElfAddr address) const {
  const Elf64_Phdr* segment = segment_of(address);
  std::uint64_t offset = 0;
  if (!segment || __builtin_add_overflow(address.value - segment->p_vaddr, segment->p_offset, &offset))
    return std::nullopt;
  return offset;
}

std::uint64_t Image::bytes_at(ElfAddr address) const {
  const Elf64_Phdr* segment = segment_of(address);
  const auto offset = offset_of(address);
  if (!segment || !offset || *offset >= size_) return 0;
  return std::min(segment->p_filesz - (address.value - segment->p_vaddr), size_ - *offset);
}

std::vector<std::byte> Image::build_id() const {
  const auto look = [&](std::uint64_t offset, std::uint64_t size) -> std::vector<std::byte> {
    const auto notes = read_bytes(offset, size, kMaxNotes);
    return notes ? find_build_id(*notes) : std::vector<std::byte>{};
  };
  for (const Elf64_Phdr& p : segments_)
    if (p.p_type == PT_NOTE)
      if (auto id = look(p.p_offset, p.p_filesz); !id.empty()) return id;
  // A separate debug file's program headers describe bytes it doesn't have; its sections are right.
  for (const Elf64_Shdr& s : sections_)
    if (s.sh_type == SHT_NOTE)
      if (auto id = look(s.sh_offset, s.sh_size); !id.empty()) return id;
  return {};
}

std::string to_hex(std::span<const std::byte> bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const std::byte b : bytes) {
    text.push_back(kDigits[std::to_integer<unsigned>(b) >> 4]);
    text.push_back(kDigits[std::to_integer<unsigned>(b) & 15]);
  }
  return text;
}

}  // namespace probed::elf
