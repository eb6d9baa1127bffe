// Debug information that lies. Whatever the bytes are, every question about it ends, in bounds, with an answer or a
// refusal.
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>

#include "daemon/dwarf/info.hpp"
#include "daemon/dwarf/variables.hpp"
#include "support.hpp"

namespace probed::symbols::test {
namespace {

using Bytes = std::vector<std::byte>;

Bytes bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  Bytes bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

struct Span {
  std::uint64_t offset = 0, size = 0;
};
std::vector<Span> debug_sections(const Bytes& bytes) {
  const auto image = elf::Image::from_bytes(bytes, "fixture");
  std::vector<Span> spans;
  if (!image) return spans;
  for (const char* name :
       {".debug_info", ".debug_abbrev", ".debug_line", ".debug_loclists", ".debug_rnglists", ".debug_str", ".eh_frame"})
    if (const Elf64_Shdr* section = image->section(name)) spans.push_back({section->sh_offset, section->sh_size});
  return spans;
}

// Asks for everything; returns what was found, so that a whole file can be told from a broken one.
std::size_t exercise(const Bytes& bytes) {
  const auto image = elf::Image::from_bytes(bytes, "hostile");
  if (!image) return 0;
  const auto info = dwarf::DebugInfo::read(*image, nullptr, nullptr);
  if (!info) return 0;
  const auto lines = info->lines_of("fixture.cpp", 2000);
  std::size_t found = lines.size() + info->find_line("fixture.cpp", 20).places.size();
  found += info->functions_of("*.cpp", "*").places.size() + info->inlined("begin").places.size();
  for (std::size_t i = 0; i < lines.size(); i += 8) {
    const dwarf::Variables variables(info, lines[i].address, 0, {[](std::string_view) { return std::nullopt; }, {}});
    const auto visible = variables.visible();
    if (!visible) continue;
    found += visible->size();
    for (std::size_t k = 0; k < visible->size() && k < 8; ++k) {
      const std::string& name = (*visible)[k].name;
      const auto parts = variables.parts(name, 64);
      found += parts ? parts->size() : 0;
      found += variables.find("*" + name).ok();
    }
    found += variables.parameters().ok();
    const auto result = variables.parts("$retval", 64);
    found += result ? result->size() : 0;
    for (const char* path : {"*(unsigned long*)%sp", "((std::string*)%sp)->_M_string_length", "(char)$arg1"})
      found += variables.find(path).ok();
  }
  return found;
}

void damage(Bytes& bytes, const Span& span, std::mt19937_64& random) {
  constexpr unsigned kInteresting[] = {0x00, 0x01, 0x7f, 0x80, 0xff};
  for (unsigned n = 1 + random() % 8; n > 0; --n) {
    const std::uint64_t at = span.offset + random() % span.size;
    bytes[at] = static_cast<std::byte>(random() % 2 ? kInteresting[random() % 5] : random() % 256);
  }
}

}  // namespace

TEST_CASE("whole debug information is understood, so that what follows means something") {
  for (const char* program : {"fixture_pie", "fixture_nopie"})
    CHECK(exercise(bytes_of(fixtures() + "/" + program)) > 30);
}

TEST_CASE("damaged debug information does no harm") {
  std::mt19937_64 random(7);
  const Bytes whole = bytes_of(fixtures() + "/fixture_nopie");
  const auto spans = debug_sections(whole);
  REQUIRE(spans.size() > 4);
  for (int i = 0; i < 400; ++i) {
    Bytes bytes = whole;
    damage(bytes, spans[random() % spans.size()], random);
    exercise(bytes);
  }
}

TEST_CASE("debug information of one byte, everywhere, does no harm") {
  const Bytes whole = bytes_of(fixtures() + "/fixture_nopie");
  for (const Span& span : debug_sections(whole))
    for (const unsigned value : {0x00u, 0x01u, 0x11u, 0x80u, 0xffu}) {
      Bytes bytes = whole;
      std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(span.offset), span.size, static_cast<std::byte>(value));
      exercise(bytes);
    }
}

}  // namespace probed::symbols::test
