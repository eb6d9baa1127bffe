// Files that lie. Whatever the bytes are, parsing ends, and ends with a module or a refusal.
#include <sys/resource.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <random>

#include "arch/arch.hpp"
#include "support.hpp"

namespace probed::symbols::test {
namespace {

std::vector<std::byte> bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::vector<std::byte> bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

// Everything the daemon does with a file; returns what it found so that nothing is optimised away.
std::size_t exercise(const std::vector<std::byte>& bytes) {
  Result<elf::Image> image = elf::Image::from_bytes(bytes, "hostile");
  if (!image.ok()) return 0;
  const auto module = Module::from_headers(*image, "/tmp/hostile");
  Module::Source source;
  source.open = [&] { return std::optional(std::move(elf::Image::from_bytes(bytes, "hostile").value())); };
  source.open_path = [](const std::string&) { return UniqueFd(); };
  source.debug_roots = {"/usr/lib/debug"};
  if (!module->load(source)) return 0;
  std::size_t found = module->symbols().all().size() + module->frames().size() + module->loader_slots().size();
  for (std::uint64_t a = 0; a < bytes.size(); a += 64) found += module->function_at({a}).has_value();
  for (std::uint64_t a = 0x400000; a < 0x400000 + bytes.size(); a += 64) found += module->function_at({a}).has_value();
  found += module->symbols().named("fixture_first").size() + module->symbols().demangled("other_file").size();
  return found;
}

void put64(std::vector<std::byte>& bytes, std::size_t at, std::uint64_t value) {
  if (at + sizeof value <= bytes.size()) std::memcpy(bytes.data() + at, &value, sizeof value);
}

constexpr const char* kPrograms[] = {"fixture_pie",  "fixture_nopie", "fixture_strip",
                                     "fixture_mini", "fixture_link",  "fixture_headless"};

}  // namespace

TEST_CASE("whole files are understood, so that what follows means something") {
  for (const char* program : kPrograms) CHECK(exercise(bytes_of(fixtures() + "/" + program)) > 20);
}

TEST_CASE("truncated files do no harm") {
  std::mt19937_64 random(1);
  for (const char* program : kPrograms) {
    const auto whole = bytes_of(fixtures() + "/" + program);
    REQUIRE_FALSE(whole.empty());
    for (int i = 0; i < 100; ++i) {
      auto part = whole;
      part.resize(i < 50 ? static_cast<std::size_t>(i) * 16 : random() % whole.size());
      exercise(part);
    }
  }
}

TEST_CASE("files with flipped bits do no harm") {
  std::mt19937_64 random(2);
  for (const char* program : kPrograms) {
    const auto whole = bytes_of(fixtures() + "/" + program);
    REQUIRE_FALSE(whole.empty());
    for (int i = 0; i < 300; ++i) {
      auto bad = whole;
      const std::size_t flips = 1 + random() % 24;
      for (std::size_t f = 0; f < flips; ++f) {
        // Headers and tables are where it hurts: half of the flips go to the first kilobytes.
        const std::size_t at = random() % (f % 2 ? bad.size() : std::min<std::size_t>(bad.size(), 4096));
        if (at >= 6) bad[at] ^= static_cast<std::byte>(1u << (random() % 8));
      }
      exercise(bad);
    }
  }
}

TEST_CASE("headers with extreme numbers do no harm") {
  std::mt19937_64 random(3);
  const std::uint64_t extremes[] = {
      0,          1,           0x7fffffffffffffff, 0x8000000000000000, 0xffffffffffffffff, 0xfffffffffffff000,
      0xffffffff, 0x100000000, 1ull << 40};
  for (const char* program : kPrograms) {
    const auto whole = bytes_of(fixtures() + "/" + program);
    REQUIRE(whole.size() > sizeof(Elf64_Ehdr));
    Elf64_Ehdr header;
    std::memcpy(&header, whole.data(), sizeof header);
    for (int i = 0; i < 300; ++i) {
      auto bad = whole;
      const std::size_t words = 1 + random() % 3;
      for (std::size_t w = 0; w < words; ++w) {
        const std::size_t segments = header.e_phoff + random() % 13 * 56 + random() % 7 * 8;
        const std::size_t sections = header.e_shoff + random() % 40 * 64 + random() % 8 * 8;
        const std::size_t anywhere = random() % (whole.size() - 8);
        const std::size_t places[] = {segments, sections, anywhere};
        put64(bad, places[random() % 3], extremes[random() % std::size(extremes)]);
      }
      exercise(bad);
    }
  }
}

TEST_CASE("a sparse file that claims everything costs little memory") {
  // 1 TiB that takes no room on disk, with as many symbols and names as its size allows.
  const std::string path = fixtures() + "/fixture_sparse";
  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_type = ET_DYN;
  header.e_machine = arch::native::kElfMachine;
  header.e_shentsize = sizeof(Elf64_Shdr);
  header.e_shoff = sizeof header;
  header.e_shnum = 3;
  Elf64_Shdr sections[3]{};
  sections[1].sh_type = SHT_SYMTAB;
  sections[1].sh_size = 1ull << 39;
  sections[1].sh_link = 2;
  sections[2].sh_type = SHT_STRTAB;
  sections[2].sh_size = 1ull << 39;
  std::string text(reinterpret_cast<const char*>(&header), sizeof header);
  text.append(reinterpret_cast<const char*>(sections), sizeof sections);
  std::ofstream(path, std::ios::binary) << text;
  REQUIRE(::truncate(path.c_str(), 1ll << 40) == 0);
  const auto load_it = [&] {
    auto open = [&] { return elf::Image::from_fd(UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC)), path); };
    const auto image = open();
    REQUIRE(image.ok());
    const auto module = Module::from_headers(*image, path);
    Module::Source source;
    source.open = [&] { return std::optional(std::move(open().value())); };
    source.open_path = [](const std::string&) { return UniqueFd(); };
    CHECK(module->load(source));
    CHECK(module->symbols().all().empty());
  };
  struct rusage before {
  }, after{};
  ::getrusage(RUSAGE_SELF, &before);
  load_it();
  header.e_shnum = 0;  // then the count is in the first section header, 64 bits wide
  sections[0].sh_size = 1ull << 33;
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.write(reinterpret_cast<const char*>(&header), sizeof header);
  file.write(reinterpret_cast<const char*>(sections), sizeof sections);
  file.close();
  load_it();
  ::getrusage(RUSAGE_SELF, &after);
  CHECK(after.ru_maxrss - before.ru_maxrss < 64 * 1024);  // KiB
  ::unlink(path.c_str());
}

TEST_CASE("what isn't a regular ELF file of this machine is refused") {
  for (const char* path : {"/dev/null", "/proc/self/status", "/etc/passwd"}) {
    CAPTURE(path);
    CHECK(elf::Image::from_fd(UniqueFd(::open(path, O_RDONLY | O_CLOEXEC)), path).error().reason ==
          Reason::unsupported_target);
  }
  CHECK_FALSE(elf::Image::from_bytes({}, "empty").ok());
}

}  // namespace probed::symbols::test
